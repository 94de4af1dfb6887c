/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a copy, and its parts: copy.c decides, copy_bytes.c moves bytes. On the repair's
 * thread.
 */
#ifndef CAIRN_REPAIR_COPY_PRIVATE_H
#define CAIRN_REPAIR_COPY_PRIVATE_H

#include "salvage_private.h"

enum { COPY_WINDOW_BYTES = 16 << 20 };

struct here { /* what this store's record has of a checkpoint */
    struct ckpt_id id;
    struct sha256 manifest_sha256;
    bool forgotten, reclaimed, pinned;
    uint32_t tag_count;
    const char *tags[LIMIT_TAGS]; /* the scratch's */
};

struct copying {
    struct repair *repair;
    struct store *from, *to;
    struct scratch scratch; /* of `state`, and of `here` */
    struct run_state state; /* of the run in the other store */
    struct here *here;
    size_t here_count;
    bool no_memory;
    uint8_t *window; /* aligned */
};

/* Copies an object, unless one of its name is sealed here. */
int MUST_USE copying_object(struct copying *c, const struct object_id *id, struct diag *diag);

/* Stores a document, unless it is there. One of its name with other bytes belongs to nothing that
 * this record knows, and is replaced. */
int MUST_USE copying_put(struct copying *c, const struct store_name *name,
                         const struct record_value *value, struct diag *diag);
int MUST_USE copying_document(struct copying *c, const struct store_name *name, struct diag *diag);
/* Removes what was copied of a checkpoint that is not good, and that nothing here refers to, so
 * that a later copy does not take it for good. */
int MUST_USE copying_drop(struct copying *c, struct ckpt_id id, struct diag *diag);

#endif
