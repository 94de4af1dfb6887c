/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages that tell the state of checkpoints and list them. Part of msg.h, which has the
 * rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_LIST_H
#define CAIRN_WIRE_MSG_LIST_H

#include "format/entries.h"
#include "format/manifest.h"

/* Asks for the state of one checkpoint. -> STATUS_REPLY */
struct msg_status {
    struct ckpt_id id;
};
/* The state of a checkpoint, as the record has it. */
enum ckpt_state {
    CKPT_NONE = 0,
    CKPT_OPEN = 1,
    CKPT_COMMITTED = 2,
    CKPT_ABORTED = 3,
    CKPT_FORGOTTEN = 4
};
/* What the server tells about a checkpoint. */
struct ckpt_info {
    struct ckpt_id id, parent;
    /* The checkpoint whose chunks it may refer to. Term 0 means none, or that the server does not
     * tell. */
    struct ckpt_id base;
    uint64_t base_seq; /* its sequence; 0 means none */
    uint64_t seq, plain_bytes, stored_bytes, manifest_bytes;
    struct sha256 manifest_sha256;
    int64_t wall_ns;
    uint32_t world_size, state /* enum ckpt_state */, health /* enum health */, sealed_count;
    bool on_lineage, is_latest, pinned;
    const char *text;
    uint64_t note_version; /* 0 means never annotated */
    uint32_t tag_count, metric_count;
    const char **tags;
    struct metric *metrics;
};
struct msg_status_reply {
    struct ckpt_info info;
};
/* Lists checkpoints, newest first: the committed ones with a sequence below before_seq (0 means
 * from the newest). Open ones lead the first page. */
struct msg_list {
    uint64_t before_seq;
    uint32_t limit;
};
/* The answer to LIST. `more` says that older checkpoints follow on another page. */
struct msg_list_reply {
    uint32_t count;
    struct ckpt_info *entries;
    bool more;
    const char *mark; /* what the record has lost, and the remedy; "" if no loss is known */
};
/* Asks for the names of runs. -> RUNS_REPLY */
struct msg_runs {
    const char *project; /* "" means all */
};
struct msg_runs_reply {
    uint32_t count;
    struct run_name *names;
};
/* Changes the tags and metrics of a committed checkpoint. The same message again changes
 * nothing. */
struct msg_annotate {
    struct selector selector;
    uint32_t metric_count, tag_count, removed_count;
    struct metric *metrics;
    const char **tags, **removed;
};
/* The answer to ANNOTATE. */
struct msg_annotated {
    struct ckpt_info info; /* as it is now */
};

#endif
