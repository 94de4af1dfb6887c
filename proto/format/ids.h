/* SPDX-License-Identifier: Apache-2.0
 *
 * Identities and the texts that people type for them: run names, checkpoint selectors, URLs, object
 * ids, and the table of element types. Pure.
 */
#ifndef CAIRN_FORMAT_IDS_H
#define CAIRN_FORMAT_IDS_H

#include "base/diag.h"
#include "base/limits.h"
#include "base/scratch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef CAIRN_H
enum cairn_dtype {
    CAIRN_DTYPE_NONE = 0,
#define CAIRN_DTYPE(name, value, bits, text, st) CAIRN_##name = (value),
#include "dtype.def"
#undef CAIRN_DTYPE
};
#endif

/* Look up an element type. Values may come from a peer or a file, so any number is allowed. */
bool dtype_is_known(uint32_t dtype);
uint32_t dtype_bits(uint32_t dtype);           /* 0 for an unknown one */
const char *dtype_name(uint32_t dtype);        /* "bfloat16", or "unknown" */
const char *dtype_safetensors(uint32_t dtype); /* "BF16", or NULL if safetensors has none */
uint32_t dtype_parse(const char *name);        /* 0 for an unknown one */

struct token {
    uint8_t bytes[16];
}; /* identifies an attempt */
struct uuid {
    uint8_t bytes[16];
}; /* identifies a store or a run */

/* The name of a run, valid as run_name_set() checks it. */
struct run_name {
    char project[LIMIT_RUN_NAME_BYTES + 1];
    char run[LIMIT_RUN_NAME_BYTES + 1];
};

/* A checkpoint of a run. Terms start at 1; term 0 means "none". */
struct ckpt_id {
    uint64_t term, step;
};

/* Identifies an object, and is never used again: writer is 64 random bits for each client process,
 * and its sequence never restarts. */
struct object_id {
    uint64_t term, step, writer;
    uint32_t rank, sequence;
};

static inline bool ckpt_id_equal(struct ckpt_id a, struct ckpt_id b)
{
    return a.term == b.term && a.step == b.step;
}
static inline int ckpt_id_compare(struct ckpt_id a, struct ckpt_id b)
{
    return a.term != b.term   ? (a.term < b.term ? -1 : 1)
           : a.step != b.step ? (a.step < b.step ? -1 : 1)
                              : 0;
}
/* Returns the index of the first of `count` things, sorted by checkpoint, whose id, at `id_at` of
 * its `size` bytes, is not below `id`. */
size_t ckpt_id_bound(const void *sorted, size_t count, size_t size, size_t id_at,
                     struct ckpt_id id);
bool object_id_equal(const struct object_id *a, const struct object_id *b);
/* Orders by term, step, rank, writer, sequence. */
int object_id_compare(const struct object_id *a, const struct object_id *b);
/* Order arrays of ids, or of structs that begin with one, for qsort() and array_find(). */
static inline int ckpt_id_order(const void *a, const void *b)
{
    return ckpt_id_compare(*(const struct ckpt_id *)a, *(const struct ckpt_id *)b);
}
static inline int object_id_order(const void *a, const void *b) { return object_id_compare(a, b); }
bool token_equal(const struct token *a, const struct token *b);

/* Sets a name. Both halves are [A-Za-z0-9._-]{1,64} and begin with a letter or digit. INVALID names
 * the offending character. */
int MUST_USE run_name_set(const char *project, const char *run, struct run_name *ret,
                          struct diag *diag);
bool run_name_equal(const struct run_name *a, const struct run_name *b);
/* By project, then by run. */
int run_name_compare(const struct run_name *a, const struct run_name *b);
static inline int run_name_order(const void *a, const void *b) { return run_name_compare(a, b); }
bool run_name_has_capitals(const struct run_name *name);
/* Returns whether a store must not hold both: the runs, or their projects, differ in capitals only.
 */
bool run_name_collides(const struct run_name *a, const struct run_name *b);
/* Parses "project/run". */
int MUST_USE run_name_parse(const char *text, struct run_name *ret, struct diag *diag);
enum { RUN_NAME_TEXT_MAX = 2 * LIMIT_RUN_NAME_BYTES + 2 };
void run_name_format(const struct run_name *name, char ret[RUN_NAME_TEXT_MAX]);
/* The same, which lives in the expression that asks for it: printf("%s", run_name_text(name).at).
 */
struct run_name_text {
    char at[RUN_NAME_TEXT_MAX];
};
struct run_name_text run_name_text(const struct run_name *name);
/* "STEP@TERM", which lives in its expression as well. */
struct ckpt_id_text {
    char at[48];
};
struct ckpt_id_text ckpt_id_text(struct ckpt_id id);
/* Returns whether a name of a tensor or blob, or a coordinate, is valid: 1..max bytes of UTF-8
 * without NUL. */
bool text_is_valid(size_t bytes, const char *text, size_t max_bytes);

/* What a person writes for a checkpoint: "latest", "STEP" or "STEP@TERM". */
enum select_kind { SELECT_LATEST, SELECT_STEP, SELECT_EXACT };
struct selector {
    enum select_kind kind;
    struct ckpt_id id; /* in SELECT_STEP the term is 0: the newest on the lineage with that step */
};
int MUST_USE selector_parse(const char *text, struct selector *ret, struct diag *diag);

/* A parsed URL: cairn://h1:port,h2:port/project/run or cairn+unix:///path?run=project/run. An empty
 * host list means default_server, which is CAIRN_SERVER ("host:port[,host:port]" or "unix:/path"),
 * or NULL if that is not set. The run may be left out if allow_no_run. Hosts are split and not
 * resolved; each server is "host:port" or "unix:/path", as net_addr_parse takes it. */
enum { URL_SERVERS_MAX = 16, CAIRN_DEFAULT_PORT = 7421 };
struct url {
    size_t server_count;
    char servers[URL_SERVERS_MAX][272];
    bool has_run;
    struct run_name run;
};
int MUST_USE url_parse(const char *text, const char *default_server, bool allow_no_run,
                       struct url *ret, struct diag *diag);

#endif
