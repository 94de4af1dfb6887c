/* SPDX-License-Identifier: Apache-2.0
 *
 * rebuild: makes a new object beside the old one: chunk after chunk, the good ones from the old
 * object, the others from their sources, each checked; zeros between them; then the footer. It is
 * sealed under the name of a writer that does not exist, so nothing refers to it and garbage
 * collection would remove it. Then it is read back as a whole, the chain records what happens, and
 * the two trade names. If it is killed anywhere, either the old object has its name and bytes, or
 * the new one has the name, whole.
 */
#include "repair_private.h"

#include "base/buf.h"
#include "base/failpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_BYTES = 16 << 20 };

struct building {
    struct repair *repair;
    const struct broken *broken;
    struct object_id fresh; /* the name of the new object */
    uint8_t *window;        /* aligned; holds [base, base + WINDOW_BYTES) */
    uint64_t base;
    uint8_t *chunk; /* room for LIMIT_CHUNK_BYTES * 2 */
};

/* --- writing ---------------------------------------------------------------------------------- */

/* Writes [base, upto), which is a multiple of the alignment. The rest moves to the front of the
 * window. */
static int flush(struct building *b, uint64_t upto, struct diag *diag)
{
    uint64_t bytes = upto - b->base;
    if (bytes == 0) {
        return 0;
    }
    struct store_req req = {.op = STORE_WRITE,
                            .run = b->repair->name,
                            .object = b->fresh,
                            .offset = b->base,
                            .bytes = bytes,
                            .data = b->window};
    int status = repair_check(b->repair, diag);
    if (status != 0) {
        return status;
    }
    status = FAILPOINT("repair.write");
    if (status != 0) {
        return diag_set(diag, status, "fail point repair.write");
    }
    if (ask_store(&b->repair->ask, b->repair->store, &req, diag) != 0) {
        return req.status;
    }
    memmove(b->window, b->window + bytes, WINDOW_BYTES - bytes);
    memset(b->window + (WINDOW_BYTES - bytes), 0, bytes);
    b->base = upto;
    return 0;
}

/* Adds bytes at an offset. Offsets only grow. */
static int put(struct building *b, uint64_t offset, size_t bytes, const uint8_t *data,
               struct diag *diag)
{
    int status = 0;
    while (status == 0 && bytes > 0) {
        if (offset >= b->base + WINDOW_BYTES) {
            uint64_t upto =
                min_u64(offset / LIMIT_ALIGN_BYTES * LIMIT_ALIGN_BYTES, b->base + WINDOW_BYTES);
            status = flush(b, upto, diag);
            continue;
        }
        size_t now = (size_t)min_u64(bytes, b->base + WINDOW_BYTES - offset);
        memcpy(b->window + (offset - b->base), data, now);
        offset += now;
        data += now;
        bytes -= now;
    }
    return status;
}

/* --- what is written -------------------------------------------------------------------------- */

/* Gets the stored bytes of one piece into b->chunk: from the old object if they are good there, and
 * otherwise from their source. */
static int get_chunk(struct building *b, size_t at, struct diag *diag)
{
    const struct broken *broken = b->broken;
    const struct envelope *wanted = &broken->pieces[at].envelope;
    struct source own = {b->repair->store, broken->id, *wanted};
    if (!broken->damage.bad[at]) {
        return copies_get(b->repair, &own, wanted, b->chunk, diag);
    }
    /* A range that could not be read counts as bad as a whole, but some of its chunks may be
     * good. */
    if (copies_get(b->repair, &own, wanted, b->chunk, NULL) == 0) {
        return 0;
    }
    return copies_get(b->repair, &broken->sources[at], wanted, b->chunk, diag);
}

/* Writes all chunks of the new object, each once. */
static int put_chunks(struct building *b, struct diag *diag)
{
    const struct broken *broken = b->broken;
    int status = 0;
    for (size_t i = 0; status == 0 && i < broken->count; i++) {
        const struct envelope *envelope = &broken->pieces[i].envelope;
        if (i > 0 && envelope->offset == broken->pieces[i - 1].envelope.offset) {
            continue; /* the chunk is referred to twice */
        }
        status = get_chunk(b, i, diag);
        if (status == 0) {
            status = put(b, envelope->offset, envelope->stored_bytes, b->chunk, diag);
        }
    }
    return status;
}

/* Writes the footer of the new object behind its data. */
static int put_footer(struct building *b, uint64_t data_end, struct diag *diag)
{
    const struct broken *broken = b->broken;
    struct object_footer footer = {.id = broken->id, .data_bytes = data_end};
    struct buf buf;
    footer.envelopes = calloc(broken->count, sizeof(*footer.envelopes));
    if (!footer.envelopes) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a footer");
    }
    for (size_t i = 0; i < broken->count; i++) {
        const struct envelope *envelope = &broken->pieces[i].envelope;
        if (i == 0 || envelope->offset != broken->pieces[i - 1].envelope.offset) {
            footer.envelopes[footer.envelope_count++] = *envelope;
        }
    }
    buf_init(&buf, object_footer_bytes(footer.envelope_count));
    object_footer_encode(&footer, &buf);
    int status = buf_status(&buf);
    if (status != 0) {
        diag_set(diag, status, "no footer can be made for the object");
    } else {
        status = put(b, data_end, buf.bytes, buf.data, diag);
    }
    if (status == 0) {
        status = flush(b, data_end + buf.bytes, diag);
    }
    buf_fini(&buf);
    free(footer.envelopes);
    return status;
}

static int do_op(struct building *b, enum store_op op, uint64_t bytes, struct diag *diag)
{
    struct store_req req = {.op = op, .run = b->repair->name, .object = b->fresh, .bytes = bytes};
    return ask_store(&b->repair->ask, b->repair->store, &req, diag);
}

/* Writes and seals the new object. After an error it does not exist. */
static int write_fresh(struct building *b, struct diag *diag)
{
    struct object_scan scan;
    (void)object_scan_begin(&scan, b->broken->count, b->broken->pieces, false);
    int status = do_op(b, STORE_CREATE, scan.data_end + scan.footer_bytes, diag);
    if (status != 0) {
        return status;
    }
    status = put_chunks(b, diag);
    status = status != 0 ? status : put_footer(b, scan.data_end, diag);
    if (status != 0) {
        err_ignore(do_op(b, STORE_ABORT, 0, NULL)); /* otherwise the next start removes it */
        return status;
    }
    return do_op(b, STORE_SEAL, 0, diag);
}

/* --- taking the place of the old object ----------------------------------------------------- */

/* Reads the sealed new object back and checks all of it. */
static int check_fresh(struct building *b, struct diag *diag)
{
    const struct broken *broken = b->broken;
    struct damage damage = {.bad = calloc(broken->count, sizeof(bool))};
    if (!damage.bad) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to check an object");
    }
    struct reader_object object = {&b->fresh, broken->count, broken->pieces, false};
    int status = survey_object(b->repair, &object, &damage, diag);
    if (status == 0 && (damage.bad_count > 0 || damage.around)) {
        status = diag_set(diag, CAIRN_E_DAMAGED, "what was written does not read back: %.150s",
                          damage.first);
    }
    free(damage.bad);
    return status;
}

/* Returns from where the broken chunks were taken, for the report. */
static const char *origin_of(const struct broken *broken, const struct repair *repair)
{
    for (size_t i = 0; i < broken->count; i++) {
        if (broken->damage.bad[i]) {
            return broken->sources[i].store == repair->mirror ? repair->options.mirror
                                                              : "other objects of the run";
        }
    }
    return "the tables";
}

void rebuild_object_name(const struct object_id *id, char ret[OBJECT_NAME_BYTES])
{
    snprintf(ret, OBJECT_NAME_BYTES, "%llu@%llu/%u-%016llx-%u", (unsigned long long)id->step,
             (unsigned long long)id->term, id->rank, (unsigned long long)id->writer, id->sequence);
}

/* Notes the replacement in the chain; then the new object and the damaged one trade names. */
static int take_place(struct building *b, struct diag *diag)
{
    const struct broken *broken = b->broken;
    char name[OBJECT_NAME_BYTES], fresh[OBJECT_NAME_BYTES];
    rebuild_object_name(&broken->id, name);
    rebuild_object_name(&b->fresh, fresh);
    struct ckpt_id id = {broken->id.term, broken->id.step};
    int status =
        broken->missing
            ? repair_audit(b->repair, id, diag, "object %s: was missing; %zu chunks from %.60s",
                           name, broken->damage.bad_count, origin_of(broken, b->repair))
            : repair_audit(b->repair, id, diag,
                           "object %s: %zu chunks%s from %.60s; the damaged bytes become %s", name,
                           broken->damage.bad_count,
                           broken->damage.around ? " and what is around them" : "",
                           origin_of(broken, b->repair), fresh);
    if (status != 0) {
        return status;
    }
    struct store_req req = {.op = STORE_EXCHANGE,
                            .run = b->repair->name,
                            .object = broken->id,
                            .with_object = b->fresh};
    if (ask_store(&b->repair->ask, b->repair->store, &req, diag) != 0) {
        return req.status;
    }
    if (broken->missing) {
        repair_add_line(b->repair, true, "object %s: was missing; rebuilt, %zu chunks from %.160s",
                        name, broken->damage.bad_count, origin_of(broken, b->repair));
        return 0;
    }
    repair_add_line(b->repair, true,
                    "object %s: rebuilt, %zu chunks from %.160s; the damaged bytes are %s until "
                    "garbage collection",
                    name, broken->damage.bad_count, origin_of(broken, b->repair), fresh);
    return 0;
}

/* Returns true for an error that ends the whole repair, not only the work on this object. */
static bool is_the_end(int status)
{
    return status == CAIRN_E_CANCELLED || status == CAIRN_E_NO_MEMORY;
}

/* Writes the new object, reads it back, and exchanges it for the broken one. After an error the new
 * object is deleted, but not if the outcome is unknown: it may already have taken the place. */
static int rebuild(struct building *b, struct diag *diag)
{
    int status = write_fresh(b, diag);
    if (status != 0) {
        return status;
    }
    status = check_fresh(b, diag);
    status = status != 0 ? status : take_place(b, diag);
    if (status != 0 && status != CAIRN_E_OUTCOME_UNKNOWN) {
        /* Otherwise garbage collection removes it. */
        err_ignore(do_op(b, STORE_DELETE_OBJECT, 0, NULL));
    }
    return status;
}

int rebuild_object(struct repair *repair, struct broken *broken, struct diag *diag)
{
    struct building b = {.repair = repair, .broken = broken, .fresh = broken->id};
    struct diag why = DIAG_INIT;
    char name[OBJECT_NAME_BYTES];
    b.fresh.sequence = 1;
    repair_random(repair, &b.fresh.writer);
    b.window = aligned_alloc(LIMIT_ALIGN_BYTES, WINDOW_BYTES);
    b.chunk = malloc((size_t)LIMIT_CHUNK_BYTES * 2);
    int status = b.window && b.chunk ? 0 : CAIRN_E_NO_MEMORY;
    if (status == 0) {
        memset(b.window, 0, WINDOW_BYTES);
        status = rebuild(&b, &why);
    }
    broken->mended = status == 0;
    free(b.window);
    free(b.chunk);
    if (status != 0 && is_the_end(status)) {
        return diag_set(diag, status, "%s", diag_text(&why, status));
    }
    if (status != 0) {
        rebuild_object_name(&broken->id, name);
        repair_add_line(repair, false,
                        "object %s: there are copies, but it cannot be rebuilt: %.250s", name,
                        diag_text(&why, status));
    }
    return 0;
}
