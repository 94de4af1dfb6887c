/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixed structs of every stored thing, and for each a row that encodes the fixture and that decodes
 * bytes and encodes them again. The golden files are these fixtures' bytes: a fixture is never
 * changed, a new one gets a new name. Also the tests' random numbers and their reading of files.
 */
#ifndef CAIRN_TESTS_UNIT_FORMAT_FIXTURES_H
#define CAIRN_TESTS_UNIT_FORMAT_FIXTURES_H

#include "base/buf.h"
#include "base/scratch.h"
#include "format/entries.h"
#include "format/manifest.h"
#include "format/note.h"
#include "format/part.h"
#include "format/record.h"
#include "format/tree.h"

struct fixture {
    const char *name;  /* of the golden file, without ".bin" */
    bool has_checksum; /* every flipped bit is found; otherwise the thing lies inside another one */
    void (*encode)(struct buf *buf);
    int (*recode)(size_t bytes, const uint8_t *data, struct scratch *scratch, struct buf *buf,
                  struct diag *diag);
};

extern const struct fixture fixtures[];
extern const size_t fixture_count;

enum { FIXTURE_WORLD = 2, FIXTURE_CHUNK_BYTES = 4096 };

struct token fixture_token(void);
struct uuid fixture_uuid(uint8_t first);
/* A part of rank 0 or 1 of a complete checkpoint of two ranks: a replicated tensor of three cells,
 * a sharded one, an empty one, a local one, a replicated blob and a local one. Static memory. */
const struct part *fixture_part(uint32_t rank);
struct object_footer fixture_footer(void);
struct manifest fixture_manifest(void);
struct page fixture_page_parts(void);
struct page fixture_page_index(void);

/* Encodes into fresh memory; fails the test if that fails. buf_fini() it. */
struct buf fixture_bytes(const struct fixture *fixture);

/* CODEC_TEST(name) { ... } is a test with an empty buffer `buf` and an empty `scratch`, which have
 * room for everything that has a format. */
struct codec {
    struct buf buf;
    struct scratch scratch;
};
void codec_init(struct codec *codec);
void codec_fini(struct codec *codec);
#define CODEC_TEST(name)                                                               \
    static void name(struct buf *buf, struct scratch *scratch);                        \
    static void name##_run(void **state)                                               \
    {                                                                                  \
        struct codec *codec = *state;                                                  \
        name(&codec->buf, &codec->scratch);                                            \
    }                                                                                  \
    UNIT_TEST_ENDS(name, codec_init(*state = unit_test_fixture(sizeof(struct codec))), \
                   (codec_fini(*state), free(*state)))                                 \
    static void name(struct buf *buf, struct scratch *scratch)

/* xorshift64*: the same numbers from the same seed everywhere. */
struct prng {
    uint64_t state;
};
uint64_t prng_next(struct prng *prng);
uint64_t prng_below(struct prng *prng, uint64_t bound);
/* CAIRN_TEST_SEED or the fallback, printed. */
struct prng prng_init(const char *test, uint64_t fallback);

#endif
