/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share: the call that is being answered, and pieces of documents.
 */
#ifndef CAIRN_REST_REST_PRIVATE_H
#define CAIRN_REST_REST_PRIVATE_H

#include "rest/rest.h"
#include "rest/rest_request.h"
#include "run/run_counts.h"
#include "wire/info_json.h"

/* An answer that has grown this long ends, and the next page has the rest. It bounds how long the
 * loop is kept as well. */
enum { REST_PAGE_BYTES = 256 << 10, REST_LIMIT_MAX = 1000 };
/* How long an answer may be given to others who ask the same: as often as a page asks anew. */
enum { REST_FRESH_MS = 1000 };
#define DAY_NS INT64_C(86400000000000)

struct rest_call {
    const struct rest_source *source;
    const struct rest_request *request;
    struct catalog *catalog; /* of the source; never NULL in a handler */
    struct json *json;       /* the document, open behind its first fields */
};

int MUST_USE rest_status(struct rest_call *call, struct diag *diag);
int MUST_USE rest_live(struct rest_call *call, struct diag *diag);
int MUST_USE rest_runs(struct rest_call *call, struct diag *diag);
int MUST_USE rest_run(struct rest_call *call, struct diag *diag);
int MUST_USE rest_checkpoints(struct rest_call *call, struct diag *diag);
int MUST_USE rest_log(struct rest_call *call, struct diag *diag);
int MUST_USE rest_projects(struct rest_call *call, struct diag *diag);

/* rest_pieces.c */
/* Gives the argument `limit`, from 1 to REST_LIMIT_MAX; `preset` where there is none. */
int MUST_USE rest_limit(const struct rest_call *call, uint64_t preset, uint64_t *ret,
                        struct diag *diag);
/* Gives the run that the path names, words[1]/words[2], with its state. Returns INVALID, NOT_FOUND,
 * AGAIN (its record was not read yet) or DAMAGED (it cannot be read). */
int MUST_USE rest_find_run(const struct rest_call *call, struct run_overview *ret,
                           struct diag *diag);
/* The fields of a run, with its newest `points` checkpoints. */
void rest_json_run(struct json *json, const struct run_overview *run, uint64_t points);
void rest_json_run_name(struct json *json, const struct run_name *name); /* run, project, name */
void rest_json_health(struct json *json, const struct health_word *health);
/* Adds what was written and reclaimed within the last RUN_DAYS days, today among them. */
struct rest_flow {
    uint64_t saves, written_bytes, reclaimed_bytes;
    int64_t first_wall_ns; /* of the first commit that is counted; 0 if there is none */
};
void rest_flow_add(const struct run_overview *run, int64_t now_ns, struct rest_flow *io);

#endif
