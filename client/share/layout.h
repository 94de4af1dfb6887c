/* SPDX-License-Identifier: Apache-2.0
 *
 * layout: where the cells that this rank writes (share.h) lie in the arena, in payloads and in
 * objects. The arena has the bytes exactly as the objects will have them: payloads start at
 * multiples of LIMIT_ALIGN_BYTES, and pieces below LIMIT_PACK_PIECE_BYTES share payloads. So a
 * payload is sent from where it was copied to. Pure.
 */
#ifndef CAIRN_SHARE_LAYOUT_H
#define CAIRN_SHARE_LAYOUT_H

#include "share/registered.h"
#include "share/share.h"

/* The limits that the server and the arena set. The same options and the same set always give the
 * same layout. */
struct layout_options {
    uint64_t chunk_bytes;      /* the run's */
    uint32_t payload_bytes;    /* the most of one payload; at least chunk_bytes */
    uint64_t object_bytes;     /* an object is cut before it gets longer; 0 means 64 MiB */
    const struct share *share; /* the cells of this rank; NULL means share_init_alike's */
};

struct layout_piece { /* one chunk */
    uint32_t tensor;  /* index in the set, or LAYOUT_BLOB | index of a blob */
    uint32_t box;     /* index in the tensor */
    uint32_t cell;    /* in the box's grid; for a blob the number of the chunk */
    uint32_t bytes;
    uint32_t payload;
    uint32_t at;     /* offset in its payload */
    uint64_t source; /* offset in the box's row-major bytes, or in the blob */
};
#define LAYOUT_BLOB (UINT32_C(1) << 31)

/* A run of pieces that is sent in one frame. */
struct layout_payload {
    uint64_t at;    /* offset in the extent; a multiple of LIMIT_ALIGN_BYTES */
    uint32_t bytes; /* up to the end of its last piece */
    uint32_t piece_first, piece_count;
    uint32_t object;
};

/* A run of payloads that is stored together. Its payloads follow each other in the extent. */
struct layout_object {
    /* Offset of its first payload in the extent. Offsets of payloads in the object count from
     * here. */
    uint64_t at;
    uint64_t data_bytes; /* a multiple of LIMIT_ALIGN_BYTES */
    uint32_t payload_first, payload_count, piece_count;
};

/* The layout of one save. Pieces, payloads and objects are in the order of their places in the
 * extent. */
struct layout {
    struct scratch scratch; /* owns everything below */
    uint32_t piece_count, payload_count, object_count;
    uint32_t eager_payload_count; /* the first payloads, which hold the tensors that are eager */
    struct layout_piece *pieces;  /* in the order of payloads */
    struct layout_payload *payloads;
    struct layout_object *objects;
    uint32_t *by_part; /* pieces in the order of a part: by (tensor, box, cell), then blobs */
    uint64_t extent_bytes, plain_bytes;
};

enum {
    LAYOUT_OBJECT_PIECES_MAX = 16384, /* of an object, before its last payload */
    LAYOUT_PACK_PIECES_MAX = 1024     /* of a payload; keeps the message of a DATA frame small */
};
/* Returns how many bytes the data of an object may have, from the server's preference (0 means that
 * it has none). */
uint64_t layout_object_bytes(uint64_t preferred);

/* Lays out what this rank writes. Fails with INVALID, TOO_LARGE or NO_MEMORY. */
int MUST_USE layout_init(struct layout *layout, const struct registered *set,
                         const struct layout_options *options, struct diag *diag);
void layout_fini(struct layout *layout);

#endif
