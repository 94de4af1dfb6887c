/* SPDX-License-Identifier: Apache-2.0
 *
 * salvage: see salvage.h. It mends the record first (its files, its lost end), and then takes all
 * manifests that the record does not explain, by term and step; each is verified and entered in one
 * update. A checkpoint with damage below its manifest is entered as damaged, so that it can be
 * named, repaired or forgotten like any other. A manifest that is lost or damaged is made again
 * from the parts if every byte below it is good; otherwise there is nothing to enter. On the
 * repair's thread.
 */
#include "repair/salvage.h"

#include "salvage_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const struct ckpt_id record_itself = {0, 0};

/* --- the record ------------------------------------------------------------------------------- */

/* Handles a record whose end is lost in both places. *ret_goes_on is true if the record goes on
 * from what is left. */
static int cut_record(struct salvaging *s, const struct store_req *read, const char *why,
                      bool *ret_goes_on, struct diag *diag)
{
    struct store_req req = {
        .op = STORE_RECORD_CUT, .run = s->repair->name, .file.version = read->ret_lost_from};
    *ret_goes_on = s->how->accept_loss;
    if (!s->how->accept_loss && read->ret_is_unreadable) {
        /* The folder itself cannot be read: nothing could be put into it either. */
        salvage_add_item(s->repair, record_itself, SALVAGE_LEFT, "%.480s", why);
        return 0;
    }
    if (!s->how->accept_loss) {
        salvage_add_item(
            s->repair, record_itself, SALVAGE_LEFT,
            "%.480s. Put the file back, or say --accept-loss: the record then ends before it, "
            "and checkpoints that it no longer tells of are entered again",
            why);
        if (!s->repair->items_untold) {
            s->repair->items[s->repair->item_count - 1].needs_accept_loss = true;
        }
        return 0;
    }
    int status = s->how->yes ? ask_store(&s->repair->ask, s->repair->store, &req, diag) : 0;
    if (status != 0) {
        return status;
    }
    salvage_add_item(s->repair, record_itself, SALVAGE_WHOLE,
                     "the end of the record, from update %" PRIu64
                     " on, is given up (kept in quarantine/ of the store)",
                     read->ret_lost_from);
    return 0;
}

/* Begins a new record where the old one is gone as a whole. There is nothing left to give up, so
 * only --yes is needed. */
static int begin_record(struct salvaging *s, uint64_t lost_from, struct diag *diag)
{
    struct store_req req = {
        .op = STORE_RECORD_CUT, .run = s->repair->name, .file.version = lost_from};
    return s->how->yes ? ask_store(&s->repair->ask, s->repair->store, &req, diag) : 0;
}

/* Mends damaged files of a record that can still be read as a whole. */
static int mend_record(struct salvaging *s, const char *why, struct diag *diag)
{
    struct store_req req = {.op = STORE_RECORD_MEND, .run = s->repair->name};
    int status = s->how->yes ? ask_store(&s->repair->ask, s->repair->store, &req, NULL) : 0;
    if (status == CAIRN_E_NOT_FOUND || status == CAIRN_E_IO) { /* it can be read all the same */
        salvage_add_item(
            s->repair, record_itself, SALVAGE_LEFT,
            "%.260s; the record can be read all the same, but the file is not made good: "
            "%.260s; look at the disk, then salvage again",
            why, diag_text(&req.diag, status));
        return 0;
    }
    if (status != 0) {
        return repair_fail(diag, status, &req.diag);
    }
    salvage_add_item(s->repair, record_itself, SALVAGE_WHOLE,
                     "%.480s: made good from its second copy", why);
    return 0;
}

/* Examines the record and mends it. *ret_goes_on is true if the checkpoints may be examined. */
static int read_record(struct salvaging *s, bool *ret_goes_on, struct diag *diag)
{
    struct store_req req = {
        .op = STORE_RECORD_GET, .run = s->repair->name, .take_prefix = true, .from_medium = true};
    int status = ask_store(&s->repair->ask, s->repair->store, &req, NULL);
    char why[REPAIR_TEXT_MAX];
    snprintf(why, sizeof(why), "%.480s", diag_text(&req.diag, CAIRN_E_DAMAGED));
    *ret_goes_on = true;
    s->record_missing = status == 0 && record_version(req.ret_record) == 0;
    record_free(req.ret_record);
    if (status != 0 && !reader_is_damage(status)) {
        return repair_fail(diag, status, &req.diag);
    }
    if (status != 0) {
        salvage_add_item(s->repair, record_itself, SALVAGE_LEFT, "%.480s", why);
        *ret_goes_on = false;
        return 0;
    }
    if (req.ret_lost_from != 0 && s->record_missing && req.ret_file_count == 0) {
        return begin_record(s, req.ret_lost_from, diag);
    }
    if (req.ret_lost_from != 0) {
        return cut_record(s, &req, why, ret_goes_on, diag);
    }
    return req.ret_file_count > 0 && !s->record_missing ? mend_record(s, why, diag) : 0;
}

/* --- all of it -------------------------------------------------------------------------------- */

/* Handles one manifest or opening: enters it, makes its manifest again, or leaves it with the
 * reason. */
static int salvage_one(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    char text[480];
    if (lost->readable) {
        return salvage_enter(s, lost, NULL, "", diag);
    }
    if (salvage_is_complete(lost)) {
        return salvage_parts(s, lost, diag);
    }
    if (lost->foreign || lost->world_size == 0) {
        snprintf(text, sizeof(text), "its manifest cannot be read: %.350s%s", lost->why,
                 lost->foreign ? "" : "; and no part of it can");
    } else {
        snprintf(text, sizeof(text),
                 "its manifest cannot be read: %.300s; and it cannot be made again: parts of %u of "
                 "%u ranks are here",
                 lost->why, lost->part_count, lost->world_size);
    }
    return salvage_leave(s, lost, text, diag);
}

/* Returns true if another opening of the same checkpoint has taken its place, or would. */
static bool is_settled(const struct salvaging *s, size_t at)
{
    for (size_t i = at; i-- > 0 && ckpt_id_equal(s->lost[i].id, s->lost[at].id);) {
        if (s->lost[i].readable || s->lost[i].entered) {
            return true;
        }
    }
    return false;
}

static int make_record(struct salvaging *s, struct diag *diag)
{
    struct event event = {.kind = EVENT_ADOPT};
    salvage_add_item(s->repair, record_itself, SALVAGE_WHOLE,
                     "the record is missing: it is made anew");
    for (size_t i = 0; i < s->count; i++) {
        if (s->lost[i].readable) {
            return 0; /* the first of them gives the run's info */
        }
    }
    salvage_find_info(s, &event.u.adopt.info);
    return ask_event(&s->repair->ask, s->repair->run, &event, !s->how->yes, diag);
}

static int salvage_run(struct repair *repair, struct diag *diag)
{
    struct salvaging s = {.repair = repair, .how = &repair->salvage};
    bool goes_on = true;
    int status = read_record(&s, &goes_on, diag);
    if (status == 0 && goes_on) {
        status = salvage_find_lost(&s, diag);
    }
    if (status == 0 && goes_on && s.record_missing && s.ckpt_count > 0) {
        status = make_record(&s, diag);
    }
    for (size_t i = 0; status == 0 && goes_on && i < s.count; i++) {
        struct origin origin;
        status = facts_origin(repair, s.lost[i].id, s.lost[i].open_id, &origin, diag);
        /* An entry that was just made may explain it. */
        if (status == 0 && !origin.is_explained && !is_settled(&s, i)) {
            status = salvage_one(&s, &s.lost[i], diag);
        }
    }
    if (status == 0 && repair->items_untold) {
        status = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to tell what was salvaged");
    }
    free(s.lost);
    free(s.ckpts);
    return status;
}

/* --- on the loop ------------------------------------------------------------------------------ */

int salvage_begin(struct repair *repair, const struct run_name *run,
                  const struct salvage_options *how, const char *actor, struct diag *diag)
{
    if (repair_is_running(repair)) {
        return diag_set(diag, CAIRN_E_BUSY, "a repair is at work; ask again when it has ended");
    }
    CHECK(!repair->items);
    repair->salvage = *how;
    struct repair_task task = {
        .run = *run, .actor = actor, .work = salvage_run, .only_reads = !how->yes};
    return repair_start(repair, &task, diag);
}

void salvage_take(struct repair *repair, struct salvage_item **ret, size_t *ret_count)
{
    CHECK(!repair_is_running(repair));
    *ret = repair->items;
    *ret_count = repair->item_count;
    repair->items = NULL;
    repair->item_count = 0;
    repair->items_untold = false;
}
