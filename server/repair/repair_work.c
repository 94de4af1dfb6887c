/* SPDX-License-Identifier: Apache-2.0
 *
 * What all work on the repair's thread shares: the lines that it tells, its entry in the chain, its
 * end before its time.
 */
#include "repair_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int repair_fail(struct diag *diag, int status, const struct diag *why)
{
    return diag_set(diag, status, "%s", diag_text(why, status));
}

int repair_check(struct repair *repair, struct diag *diag)
{
    return atomic_load(&repair->closing) ? diag_set(diag, CAIRN_E_CANCELLED,
                                                    "the repair was ended in the middle; what was "
                                                    "half built is dropped")
                                         : 0;
}

void repair_add_line(struct repair *repair, bool mended, const char *fmt, ...)
{
    struct repair_line line = {.mended = mended};
    va_list args;
    va_start(args, fmt);
    vsnprintf(line.text, sizeof(line.text), fmt, args);
    va_end(args);
    pthread_mutex_lock(&repair->lock);
    struct repair_status *status = &repair->status;
    status->mended += mended ? 1 : 0;
    status->left += mended ? 0 : 1;
    if (status->line_count < REPAIR_LINES_MAX) {
        status->lines[status->line_count++] = line;
    }
    pthread_mutex_unlock(&repair->lock);
}

void repair_count_read(struct repair *repair, uint64_t bytes)
{
    pthread_mutex_lock(&repair->lock);
    repair->status.bytes_read += bytes;
    pthread_mutex_unlock(&repair->lock);
}

int repair_fetch_from(struct repair *repair, struct store *store, const struct store_name *name,
                      struct record_value *ret, struct diag *diag)
{
    struct store_req req = {.op = STORE_FETCH, .name = *name, .from_medium = true};
    int status = repair_check(repair, diag);
    if (status == 0) {
        status = ask_store(&repair->ask, store, &req, diag);
    }
    if (status == 0) {
        repair_count_read(repair, req.ret_bytes);
        *ret = (struct record_value){.bytes = req.ret_bytes, .data = req.ret_data};
    }
    return status;
}

int repair_fetch(struct repair *repair, const struct store_name *name, struct scratch *scratch,
                 struct record_value *ret, struct diag *diag)
{
    struct record_value read;
    int status = repair_fetch_from(repair, repair->store, name, &read, diag);
    if (status != 0) {
        return status;
    }
    uint8_t *data = scratch_copy(scratch, read.bytes, read.data);
    free((void *)(uintptr_t)read.data);
    *ret = (struct record_value){.bytes = read.bytes, .data = data};
    return data ? 0
                : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a document of %zu bytes",
                           read.bytes);
}

void repair_random(struct repair *repair, uint64_t *ret)
{
    loop_random(repair->options.loop, sizeof(*ret), ret);
}

const struct commit_fact *repair_fact(const struct repair *repair, struct ckpt_id id)
{
    for (size_t i = 0; i < repair->fact_count; i++) {
        if (ckpt_id_equal(repair->facts[i].root.id, id)) {
            return &repair->facts[i];
        }
    }
    return NULL;
}

int repair_audit(struct repair *repair, struct ckpt_id id, struct diag *diag, const char *fmt, ...)
{
    char reason[ENTRY_REASON_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    /* The chain takes no more entries about an older checkpoint of which only objects are left. The
     * entry is made about the checkpoint that still needs them. */
    struct ckpt_id about = repair_fact(repair, id) ? id : repair->id;
    struct event event = {
        .kind = EVENT_REPAIR,
        .u.mark = {.id_count = 1, .ids = &about, .actor = repair->actor, .reason = reason}};
    return ask_event(&repair->ask, repair->run, &event, false, diag);
}
