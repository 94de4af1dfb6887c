/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds checkpoints that are stored but are not in the run's record. It lists the checkpoints
 * before the run is used for the first time, again some time after a listing that failed, and after
 * run_refresh(); and it lists the small things of those that the record does not account for. If
 * there are unknown manifests, the record is then read once more: another daemon may have committed
 * them between the first reading and the listing, and a manifest that the later record does not
 * know either was not committed in that time. While this runs it is the run's one operation at the
 * store (busy). The file also keeps the restores of a record that takes no update, which are in
 * memory alone. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static void list_smalls(struct run *run);
static void check_next(struct run *run);

bool unrecorded_is_needed(const struct run *run)
{
    const struct run_unrecorded *unrecorded = &run->unrecorded;
    bool again =
        unrecorded->diag.code != 0 && loop_now_ms(run->catalog->loop) >= unrecorded->again_ms;
    return !unrecorded->listed || again;
}

void unrecorded_fini(struct run *run)
{
    free(run->unrecorded.ckpts);
    free(run->unrecorded.found);
    free(run->unrecorded.unknown);
    record_free(run->kept);
}

/* Updates state->unrecorded: the found manifests that the present record does not know. Called
 * after each load, commit and adoption. */
void unrecorded_sync(struct run *run)
{
    struct run_unrecorded *unrecorded = &run->unrecorded;
    struct state_unrecorded *state = &run->state.unrecorded;
    size_t count = 0;

    for (size_t i = 0; i < unrecorded->found_count; i++) {
        const struct state_unknown *found = &unrecorded->found[i];
        if (!state_explains(&run->state, found->id, found->open_id)) {
            CHECK(count < unrecorded->found_cap);
            CHECK(count == 0 || ckpt_id_compare(unrecorded->unknown[count - 1].id, found->id) <= 0);
            unrecorded->unknown[count++] = *found;
        }
    }
    *state =
        (struct state_unrecorded){.code = unrecorded->diag.code,
                                  .code_text = diag_text(&unrecorded->diag, unrecorded->diag.code),
                                  .run = unrecorded->run_text,
                                  .store = store_caps_url(&run->catalog->store->caps),
                                  .ckpt_count = unrecorded->ckpt_count,
                                  .highest = unrecorded->highest,
                                  .unknown_count = count,
                                  .unknown = unrecorded->unknown,
                                  .lost_from = run->lost_from,
                                  .lost_text = run->lost.code != 0 ? run->lost.text : NULL};
}

/* Ends the listing, with the results, or with `status` if it failed. */
static void end(struct run *run, int status, const struct diag *diag)
{
    struct run_unrecorded *unrecorded = &run->unrecorded;
    struct catalog *catalog = run->catalog;

    CHECK(sm_is(&run->at_store, RUN_LISTING));
    sm_move(&run->at_store, RUN_IDLE);
    unrecorded->listed = true;
    diag_clear(&unrecorded->diag);
    free(unrecorded->ckpts);
    unrecorded->ckpts = NULL;
    if (status != 0) {
        unrecorded->found_count = unrecorded->checked; /* the others may be names of nothing */
        /* Answers that depend on the listing carry the text. */
        err_ignore(diag_copy(&unrecorded->diag, diag));
        /* The first text is kept. */
        err_ignore(diag_set(&unrecorded->diag, status, "%s", err_text(status)));
        unrecorded->again_ms = loop_now_ms(catalog->loop) + RUN_RETRY_MS;
    }
    unrecorded_sync(run);
    if (run->state.unrecorded.unknown_count > 0) {
        run_copy_ages(run);
    }
    run->wake = run->tell = true;
    run_kick(run);
    catalog_drop(catalog);
}

static void no_memory(struct run *run)
{
    struct diag diag = DIAG_INIT;
    end(run, diag_no_memory(&diag, "the list of the run's stored checkpoints"), &diag);
}

/* Notes a manifest that the record does not know, and keeps room for it in the list of unknown
 * ones. Returns false if there is no memory. */
static bool add_found(struct run *run, struct ckpt_id id, uint64_t open_id)
{
    struct run_unrecorded *unrecorded = &run->unrecorded;
    if (unrecorded->found_count == unrecorded->found_cap) {
        size_t cap = unrecorded->found_cap ? unrecorded->found_cap * 2 : 16;
        struct state_unknown *found = realloc(unrecorded->found, cap * sizeof *found);
        struct state_unknown *unknown = NULL;
        unrecorded->found = found ? found : unrecorded->found;
        unknown = found ? realloc(unrecorded->unknown, cap * sizeof *unknown) : NULL;
        unrecorded->unknown = unknown ? unknown : unrecorded->unknown;
        if (!unknown) {
            return false;
        }
        unrecorded->found_cap = cap;
    }
    unrecorded->found[unrecorded->found_count++] =
        (struct state_unknown){.id = id, .open_id = open_id};
    return true;
}

/* Returns true for a temporary error, which says nothing about what is stored. An unreadable folder
 * is not one. A cluster that is full, or at its quota, refuses to list. */
static bool is_for_now(int status)
{
    return status == CAIRN_E_NO_SPACE || status == CAIRN_E_QUOTA ||
           (status != 0 && err_retry(status) == ERR_RETRY_RETRY);
}

/* Called when the small objects of one checkpoint were listed. */
static void on_smalls(struct store_req *req)
{
    struct run *run = container_of(req, struct run, req);
    struct ckpt_id id = req->id;
    bool is_noted = true;

    CHECK(sm_is(&run->at_store, RUN_LISTING));
    if (is_for_now(req->status)) {
        end(run, req->status, &req->diag);
        return;
    }
    if (req->status != 0 && req->status != CAIRN_E_NOT_FOUND) {
        is_noted = add_found(run, id, 0); /* nobody can tell what is stored */
    }
    for (size_t i = 0; req->status == 0 && is_noted && i < req->ret_count; i++) {
        const struct store_name *small = &req->ret_smalls[i];
        is_noted = small->kind != STORE_MANIFEST || state_explains(&run->state, id, small->tag) ||
                   add_found(run, id, small->tag);
    }
    free(req->ret_smalls);
    req->ret_smalls = NULL;
    if (!is_noted) {
        no_memory(run);
        return;
    }
    check_next(run);
}

/* Called when a noted manifest was listed for again. It is dropped if it is gone. */
static void on_checked(struct store_req *req)
{
    struct run *run = container_of(req, struct run, req);
    struct run_unrecorded *unrecorded = &run->unrecorded;

    CHECK(unrecorded->checked < unrecorded->found_count);
    free(req->ret_data);
    req->ret_data = NULL;
    if (is_for_now(req->status)) {
        end(run, req->status, &req->diag);
        return;
    }
    if (req->status == CAIRN_E_NOT_FOUND) {
        unrecorded->found_count--;
        unrecorded->found[unrecorded->checked] = unrecorded->found[unrecorded->found_count];
    } else {
        unrecorded->checked++;
    }
    check_next(run);
}

/* Checks whether the next found manifest exists: a store may list a name that a daemon meant to
 * write and never wrote (STORE_ENTER). */
static void check_next(struct run *run)
{
    struct run_unrecorded *unrecorded = &run->unrecorded;

    if (unrecorded->checked < unrecorded->found_count &&
        unrecorded->found[unrecorded->checked].open_id == 0) {
        unrecorded->checked++;
    }
    if (unrecorded->checked == unrecorded->found_count || run->catalog->closing) {
        unrecorded->checked = unrecorded->found_count;
        list_smalls(run);
        return;
    }
    const struct state_unknown *found = &unrecorded->found[unrecorded->checked];
    run->req = (struct store_req){
        .op = STORE_FETCH,
        .run = run->name,
        .name = {.run = run->name, .id = found->id, .kind = STORE_MANIFEST, .tag = found->open_id},
        .bytes = 1,
        .deadline_ms = RUN_STORE_DEADLINE_MS,
        .done = on_checked};
    store_submit(run->catalog->store, &run->req);
}

/* Lists the small things of the next checkpoint that the record does not fully account for. */
static void list_smalls(struct run *run)
{
    struct run_unrecorded *unrecorded = &run->unrecorded;

    while (unrecorded->at < unrecorded->ckpt_count &&
           state_explains_all(&run->state, unrecorded->ckpts[unrecorded->at])) {
        unrecorded->at++;
    }
    if (unrecorded->at == unrecorded->ckpt_count || run->catalog->closing) {
        end(run, 0, NULL);
        return;
    }
    run->req = (struct store_req){.op = STORE_LIST_SMALL,
                                  .run = run->name,
                                  .id = unrecorded->ckpts[unrecorded->at++],
                                  .deadline_ms = RUN_STORE_DEADLINE_MS,
                                  .done = on_smalls};
    store_submit(run->catalog->store, &run->req);
}

/* Called when the stored checkpoints of the run were listed. */
static void on_ckpts(struct store_req *req)
{
    struct run *run = container_of(req, struct run, req);
    struct run_unrecorded *unrecorded = &run->unrecorded;

    CHECK(unrecorded->ckpts == NULL);
    if (req->status != 0) {
        free(req->ret_ckpts);
        end(run, req->status, &req->diag);
        return;
    }
    unrecorded->ckpts = req->ret_ckpts;
    req->ret_ckpts = NULL;
    unrecorded->ckpt_count = req->ret_count;
    unrecorded->highest = (struct ckpt_id){0, 0};
    if (req->ret_count > 0) {
        unrecorded->highest = unrecorded->ckpts[req->ret_count - 1]; /* they are sorted */
    }
    unrecorded->at = unrecorded->found_count = unrecorded->checked = 0;
    list_smalls(run);
}

void unrecorded_list(struct run *run)
{
    run_name_format(&run->name, run->unrecorded.run_text);
    catalog_hold(run->catalog);
    sm_move(&run->at_store, RUN_LISTING);
    run->req = (struct store_req){.op = STORE_LIST_CKPTS,
                                  .run = run->name,
                                  .deadline_ms = RUN_STORE_DEADLINE_MS,
                                  .done = on_ckpts};
    store_submit(run->catalog->store, &run->req);
}

void run_refresh(struct run *run)
{
    run->unrecorded.listed = false;
    run_kick(run);
}

/* --- restores of a record that takes no update ---------------------------------------------- */

/* The entries that a restore would put into the record go into run->kept: its session and reports,
 * and the health that it lowered. An empty value stands for a removed key. The state is decoded
 * from both; a session that has begun in memory ends there. All ranks of an attempt agree, because
 * one daemon keeps the session. Ranks at another daemon, or at a restarted one, begin another
 * session, which ends with an error that names the missing ranks: they never go on at different
 * steps. */

static bool is_restore(enum event_kind kind)
{
    return kind == EVENT_RESTORE_BEGIN || kind == EVENT_RESTORE_REPORT;
}

bool keep_is_due(const struct run *run, const struct event *event)
{
    struct record_value value;

    if (!is_restore(event->kind) || !run->state.exists) {
        return false; /* a run that does not exist is not made in memory */
    }
    const struct attempt_rank *from =
        event->kind == EVENT_RESTORE_BEGIN ? &event->u.begin.from : &event->u.report.from;
    return run->catalog->store->caps.read_only || run->lost_from != 0 ||
           (run->kept &&
            record_get(run->kept, key_restore(&from->token, from->ordinal).at, &value));
}

bool keep_is_due_after(const struct run *run, int refusal)
{
    return is_restore(run->applying.kind) && run->state.exists &&
           (refusal == CAIRN_E_READ_ONLY || refusal == CAIRN_E_NO_SPACE ||
            refusal == CAIRN_E_DENIED || refusal == CAIRN_E_DAMAGED);
}

static bool is_kept(const char *key)
{
    return strncmp(key, "restore/", 8) == 0 || strncmp(key, "health/", 7) == 0;
}

int keep_update(struct run *run, struct diag *diag)
{
    static const uint8_t nothing;
    const struct record_update *update = &run->verdict.update;
    struct record_change *changes =
        scratch_array(&run->step_scratch, update->change_count, sizeof *changes);
    struct record_update mine = {.changes = changes};
    CHECK(run->state.exists);
    struct record *kept = NULL;
    int status = !changes    ? CAIRN_E_NO_MEMORY
                 : run->kept ? record_clone(run->kept, &kept)
                             : record_new(&kept);

    for (size_t i = 0; status == 0 && i < update->change_count; i++) {
        const struct record_change *change = &update->changes[i];
        if (is_kept(change->key)) {
            changes[mine.change_count++] = (struct record_change){
                .key = change->key,
                .value = change->remove ? (struct record_value){.data = &nothing} : change->value};
        }
    }
    status = status ? status : record_apply(kept, &mine, diag);
    if (status != 0) {
        record_free(kept);
        return diag_set(
            diag, status,
            "there is not enough memory for a restore of a record that takes no update");
    }
    record_free(run->kept);
    run->kept = kept;
    return 0;
}

int keep_merge(const struct run *run, struct record **ret, struct diag *diag)
{
    struct record_value value;
    const char *key = NULL;
    int status = 0;

    *ret = NULL;
    if (!run->kept) {
        return 0;
    }
    CHECK(run->record != NULL);
    status = record_clone(run->record, ret);
    for (size_t i = 0; status == 0 && (key = record_at(run->kept, i, &value)); i++) {
        struct record_change change = {.key = key, .remove = value.bytes == 0, .value = value};
        struct record_update update = {.change_count = 1, .changes = &change};
        status = record_apply(*ret, &update, diag);
    }
    if (status == 0) {
        record_set_version(*ret, record_version(run->record));
    }
    return status;
}

void keep_conflict(struct run *run)
{
    const struct record_update *update = &run->verdict.update;
    struct record_value value;

    for (size_t i = 0; run->kept && i < update->guard_count; i++) {
        if (record_get(run->kept, update->guards[i].key, &value)) {
            record_free(run->kept);
            run->kept = NULL;
            run->copy = COPY_NONE; /* read it anew, whatever its version */
        }
    }
}
