/* SPDX-License-Identifier: Apache-2.0
 *
 * reader: reads a checkpoint from end to end, and checks each thing against the hash above it:
 * manifest, pages, parts, objects. The one way in which scrub, repair, salvage, gc and the command
 * line look at what is stored. It is straight-line code that waits for each read. A `reader_source`
 * decides where the bytes come from, how fast they come, and how often a failing read is tried.
 * Damage is reported only after a second reading, because the first transfer may fail although the
 * medium is good.
 *
 * Any thread that may wait; one reader belongs to one thread.
 */
#ifndef CAIRN_READER_READER_H
#define CAIRN_READER_READER_H

#include "pipeline/object_scan.h"
#include "reader/part_table.h"
#include "run/docs.h"

enum { READER_DEPTH_MAX = 8 };
#define READER_SCRATCH_MAX ((size_t)8 << 30)

/* What an attempt to read a thing says about it. */
enum reader_finding {
    READER_WHOLE,
    READER_MISSING,    /* the store has nothing under its name */
    READER_DAMAGED,    /* it has other bytes than were sealed */
    READER_UNREADABLE, /* the medium gave an error; it may pass */
    READER_NOT_GIVEN   /* the store failed, which says nothing about the thing */
};
enum reader_finding reader_finding_of(int status);
/* True if the medium does not give a thing whole: all findings between WHOLE and NOT_GIVEN. */
bool reader_is_damage(int status);

/* --- where the bytes come from ---------------------------------------------------------------- */

struct reader_bytes {
    uint8_t *data; /* malloc'ed */
    size_t count;
};

struct reader_span { /* of a document */
    uint64_t offset, bytes;
};

struct reader_range { /* of an object */
    const struct object_id *object;
    uint64_t from, bytes;
    bool to_end;     /* the object must end with it */
    uint8_t *memory; /* for `bytes`, aligned to LIMIT_ALIGN_BYTES */
    unsigned slot;   /* less than depth; no two ranges under way have the same */
};

struct reader_room {
    uint8_t *memory;
    size_t bytes;
};

/* The caller sets the functions; `rooms` begins as zeros. Each function that reads waits. */
struct reader_source {
    /* Gives the stored bytes of a document, unchecked. The caller frees them. */
    int (*fetch)(struct reader_source *source, const struct doc_key *document,
                 struct reader_bytes *ret, struct diag *diag);
    /* Gives the bytes of a document that the span names, or as many of them as the document has,
     * unchecked. The caller frees them. Only reader_table() calls it. */
    int (*fetch_range)(struct reader_source *source, const struct store_name *document,
                       const struct reader_span *span, struct reader_bytes *ret, struct diag *diag);
    /* Called for each document that is missing, damaged or unreadable, with the reason in `why`.
     * Returns 0 if it gives good bytes instead, which are not checked again, or the status. May be
     * NULL. */
    int (*lost)(struct reader_source *source, const struct doc_key *document, int status,
                struct reader_bytes *ret, struct diag *why);
    int (*read)(struct reader_source *source, const struct reader_range *range, struct diag *diag);
    /* Begins a read that a later read() of the same range ends, so that ranges of `depth` objects
     * are under way at a time. Each range that was begun is read. If it is NULL, ranges are read
     * one at a time. */
    void (*begin)(struct reader_source *source, const struct reader_range *range);
    unsigned depth; /* with begin: 1 to READER_DEPTH_MAX */
    /* The index is for reader_agrees() alone: its entries have runs for ranks, pairs of the first
     * rank and their number, as the pages have them. A rank for each part may be gigabytes. */
    bool short_index;
    struct reader_room rooms[READER_DEPTH_MAX];
};

/* Frees the rooms. */
void reader_source_fini(struct reader_source *source);

/* --- documents -------------------------------------------------------------------------------- */

struct reader_root { /* what the commit entry says */
    struct run_name run;
    struct ckpt_id id;
    uint64_t open_id;
    uint64_t manifest_bytes; /* 0 means not known */
    struct sha256 manifest_sha256;
};

struct reader {
    struct reader_source *source; /* outlives it */
    struct reader_root root;
    struct scratch scratch; /* owns what follows */
    struct manifest manifest;
    size_t part_count, index_count;
    struct part_ref *parts;    /* by rank */
    struct index_entry *index; /* sorted; only with_index */
    bool *held;                /* for each entry: a part has it; NULL unless the index is whole */
};

/* Reads manifest and pages. A page that is lost says nothing about the others, so they are read all
 * the same; the status is then that of the first lost one, and `parts` has what the others tell.
 * Other errors (the source's own, NO_MEMORY) end it at once. reader_fini() also after a failure. */
int MUST_USE reader_open(struct reader *reader, struct reader_source *source,
                         const struct reader_root *root, bool with_index, struct diag *diag);
void reader_fini(struct reader *reader);
/* Reads the part that parts[number] names. All that it points to is from the scratch. */
int MUST_USE reader_part(struct reader *reader, size_t number, struct scratch *scratch,
                         struct part *ret, struct diag *diag);

/* Compares a part with what the pages say of it: its size, and each tensor and blob that it has, or
 * should have. DAMAGED names the first difference, and the page. Returns 0 without an index, or if
 * a page of it is lost. Does not end the reading. */
int MUST_USE reader_agrees(struct reader *reader, size_t number, const struct part *part,
                           struct diag *diag);
/* Called after reader_agrees() with every part: DAMAGED names an entry of the index that no part
 * has. */
int MUST_USE reader_agrees_all(const struct reader *reader, struct diag *diag);

/* Reads the table of the objects that a part refers to, without the rest of the part, and checks it
 * against the checksums that the part has for it. Nothing above the part is read, so the caller
 * compares run, checkpoint and rank in *ret with what it expects. The caller frees *ret_ids;
 * without ret_ids the header alone is read. */
int MUST_USE reader_table(struct reader_source *source, const struct store_name *part,
                          struct part_table *ret, struct object_id **ret_ids, struct diag *diag);

/* --- objects ---------------------------------------------------------------------------------- */

struct reader_object {
    const struct object_id *at; /* the name to read; borrowed until done() */
    size_t count;
    const struct scan_piece *pieces; /* all of one object, sorted; borrowed until done() */
    bool chunks_only;                /* only these are known; else the object is read whole */
};

struct reader_visitor {
    /* Gives the next object. Returns false if there is none. With several reads under way it is
     * asked before the last objects are done. */
    bool (*next)(struct reader_visitor *visitor, struct reader_object *ret);
    /* Is told what is wrong, once it was read twice. */
    struct scan_sink sink;
    /* A range could not be read. Returns 0 if the rest of the object is to be left, or an error
     * that ends all. NULL: of a range that is missing, damaged or unreadable each chunk is told,
     * the ranges behind it are read, and any other status ends all. */
    int (*unread)(struct reader_visitor *visitor, const struct object_scan *scan, int status,
                  const struct diag *why);
    /* Called when an object was read and scan->chunks were checked. An error that it returns ends
     * the whole reading. May be NULL. */
    int (*done)(struct reader_visitor *visitor, const struct object_scan *scan);
};

/* Reads objects, range by range, until there is none left. Damage is the sink's, and no error. */
int MUST_USE reader_objects(struct reader_source *source, struct reader_visitor *visitor,
                            struct diag *diag);

/* The chunks of a part, sorted by object. Returns NULL if there is no memory; the caller frees. */
struct scan_piece *reader_pieces(const struct part *part);
/* The pieces of the first object of `count` sorted ones, at least one. */
size_t reader_object_pieces(size_t count, const struct scan_piece *pieces);

#endif
