/* SPDX-License-Identifier: Apache-2.0
 *
 * The chunks of tests/golden/v1/chunk_*.bin: what they hold, and how they were made. Rows are only
 * ever added.
 */
#ifndef CAIRN_TESTS_CHUNK_FIXTURES_H
#define CAIRN_TESTS_CHUNK_FIXTURES_H

#include "base/buf.h"
#include "format/envelope.h"
#include "pipeline/planes_split.h"
#include "pipeline/zstd_frame.h"
#include "plain_data.h"

struct chunk_fixture {
    const char *name;
    enum encoding encoding;
    enum digest_alg digest_alg;
    uint8_t element_bytes;
    struct planes_shape shape; /* of encoding 2 */
    size_t bytes;
    enum plain_kind kind;
    const uint8_t *plain; /* instead of kind, or NULL */
    bool has_frame;       /* depends on libzstd: tested one way */
};

enum { CHUNK_FIXTURE_BYTES_MAX = 1 << 20 };
extern const struct chunk_fixture chunk_fixtures[];
extern const size_t chunk_fixture_count;

/* The plain bytes: fixture->bytes of them. */
void chunk_fixture_plain(const struct chunk_fixture *fixture, uint8_t *ret);
/* Writes one zstd frame with a checksum, whatever its ratio. Returns TOO_LARGE if it does not fit.
 */
int chunk_fixture_zstd(int level, size_t bytes, const void *plain, struct zstd_room *io);
/* Envelope and stored bytes as this version writes them; the caller's to buf_fini(). */
struct buf chunk_fixture_bytes(const struct chunk_fixture *fixture);

#endif
