/* SPDX-License-Identifier: Apache-2.0
 *
 * object_scan: which ranges of an object to read, and what each must hold, from what the parts say
 * of it: its chunks (crc and plain digest), zeros around them, and behind the last one the footer,
 * which must agree with the parts. `server/reader` reads them. Of an object
 * of an older checkpoint only the chunks that this checkpoint refers to are known, so only those
 * are read. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_OBJECT_SCAN_H
#define CAIRN_PIPELINE_OBJECT_SCAN_H

#include "format/envelope.h"
#include "format/part.h"

struct scan_piece {             /* a chunk that a checkpoint refers to */
    const struct object_id *id; /* borrowed from the part */
    const char *name;           /* of its tensor or blob; borrowed from the part */
    uint32_t rank;
    struct envelope envelope; /* its offset is the one in the object */
};

/* Writes part->chunk_count pieces. scan_sort() sorts pieces by (object, offset). */
void scan_pieces_of(const struct part *part, struct scan_piece *pieces);
void scan_sort(size_t count, struct scan_piece *pieces);

/* The state of the scan of one object. */
struct object_scan {
    const struct scan_piece *pieces; /* of one object, sorted by offset; borrowed */
    size_t count, at;
    bool chunks_only;
    bool in_footer; /* the present range is the footer */
    uint64_t from;  /* the present range */
    uint64_t bytes;
    uint64_t data_end, footer_bytes, chunks; /* chunks counts those that were checked */
};

/* Takes what is found wrong: the damage of a chunk, or of bytes around the chunks, which no restore
 * reads. */
enum scan_where { SCAN_CHUNK, SCAN_AROUND };
struct scan_sink {
    void (*found)(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                  const char *why);
};

/* Begins with the first object of the pieces, of which there is at least one. Returns how many
 * pieces are in that object. */
size_t object_scan_begin(struct object_scan *scan, size_t count, const struct scan_piece *pieces,
                         bool chunks_only);
/* Moves to the next range, `from` and `bytes`: at most LIMIT_CHUNK_BYTES rounded up to
 * LIMIT_ALIGN_BYTES, or a footer, however long. Returns false if the object is done, or if its
 * layout is impossible, which it reports. */
bool object_scan_next(struct object_scan *scan, struct scan_sink *sink);
/* Checks the range, whose bytes are in memory. */
void object_scan_check(struct object_scan *scan, const uint8_t *memory, struct scan_sink *sink);
/* Reports the chunks of a range that cannot be read, and goes on behind it. */
void object_scan_unreadable(struct object_scan *scan, const char *why, struct scan_sink *sink);
/* Returns the piece at which a range that could not be read begins. */
const struct scan_piece *object_scan_piece(const struct object_scan *scan);
/* Describes a piece: "layer.0.weight (rank 1, object 100@1/1-0011223344556677-2 at 4096)". */
void scan_piece_text(const struct scan_piece *piece, size_t bytes, char *ret);

#endif
