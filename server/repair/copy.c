/* SPDX-License-Identifier: Apache-2.0
 *
 * copy: see copy.h. Of one checkpoint: ask the record whether it may be entered -> for each part
 * its objects, then the part -> pages -> read everything back -> manifest -> enter it. The order is
 * that of a save. Invariant: nothing is entered that was not read from this store's medium. On the
 * repair's thread.
 */
#include "repair/copy.h"

#include "copy_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <stdlib.h>
#include <string.h>

enum { SERVED_MS = 60000 };

/* --- what is there ---------------------------------------------------------------------------- */

static int read_other(struct copying *c, struct diag *diag)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = c->repair->name};
    int status = ask_store(&c->repair->ask, c->from, &req, diag);
    if (status == 0) {
        status = run_state_load(req.ret_record, &c->scratch, &c->state, diag);
    }
    record_free(req.ret_record);
    if (status == 0 && !c->state.exists) {
        status = diag_set(diag, CAIRN_E_NOT_FOUND, "%s has no run %s/%s", c->repair->options.mirror,
                          c->repair->name.project, c->repair->name.run);
    }
    return status;
}

static void take_here(void *user, const struct run_state *state)
{
    struct copying *c = user;
    c->here = calloc(state->commit_count + 1, sizeof(*c->here));
    for (size_t i = 0; c->here && i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        c->here[c->here_count++] = (struct here){.id = commit->entry.id,
                                                 .manifest_sha256 = commit->entry.manifest_sha256,
                                                 .forgotten = commit->forgotten,
                                                 .reclaimed = commit->reclaimed,
                                                 .pinned = commit->pinned};
        for (uint32_t tag = 0; commit->note && tag < commit->note->tag_count; tag++) {
            const char *text = commit->note->tags[tag];
            const char *copied = scratch_copy(&c->scratch, strlen(text) + 1, text);
            c->no_memory = c->no_memory || !copied;
            c->here[i].tags[c->here[i].tag_count++] = copied;
        }
    }
}

static const struct here *here_of(const struct copying *c, struct ckpt_id id)
{
    for (size_t i = 0; i < c->here_count; i++) {
        if (ckpt_id_equal(c->here[i].id, id)) {
            return &c->here[i];
        }
    }
    return NULL;
}

/* Returns STORE_LOCKED if a daemon serves this store, or anybody has opened it to write since this
 * copy did. A store that is not shared is ours by its lock; in the record of a shared one each
 * daemon notes a sign of life (FORMAT.md 9.2), and whoever opens it to write raises the epoch. */
static int check_served(struct copying *c, struct diag *diag)
{
    static const char prefix[] = "duty/at-";
    struct store_req req = {.op = STORE_RECORD_GET};
    struct record_value value;
    const char *key;
    if (!c->to->caps.shared) {
        return 0;
    }
    int status = ask_store(&c->repair->ask, c->to, &req, diag);
    int64_t wall_ms = loop_wall_ns(c->repair->options.loop) / 1000000;
    for (size_t i = status == 0 ? record_lower_bound(req.ret_record, prefix) : 0;
         status == 0 && (key = record_at(req.ret_record, i, &value)) &&
         strncmp(key, prefix, sizeof(prefix) - 1) == 0;
         i++) {
        int64_t ago_ms = value.bytes > 16 ? wall_ms - (int64_t)load_u64(value.data + 8) : SERVED_MS;
        if (ago_ms < SERVED_MS) {
            status = diag_set(diag, CAIRN_E_STORE_LOCKED,
                              "daemon %.*s serves the store that is copied to, and could collect "
                              "what is not entered yet; stop the daemon, and try again a minute "
                              "later",
                              (int)(value.bytes - 16), (const char *)value.data + 16);
        }
    }
    uint64_t ours = c->to->caps.epoch;
    if (status == 0 && record_get(req.ret_record, "epoch", &value) && value.bytes == 8 &&
        load_u64(value.data) != ours) {
        status = diag_set(diag, CAIRN_E_STORE_LOCKED,
                          "somebody has opened the store that is copied to since this copy began "
                          "(its epoch is %llu, not %llu), and could collect what is not entered "
                          "yet; stop the daemon or command that has it, and copy again",
                          (unsigned long long)load_u64(value.data), (unsigned long long)ours);
    }
    record_free(req.ret_record);
    return status;
}

/* --- one checkpoint --------------------------------------------------------------------------- */

/* Has the repair's own source read from a store: this one, or the other. */
static void read_from(struct copying *c, struct store *store)
{
    reading_end(c->repair);
    c->repair->store = store;
    reading_begin(c->repair);
}

static int copy_part(struct copying *c, struct reader *reader, size_t number,
                     const struct store_name *manifest, struct diag *diag)
{
    struct scratch scratch;
    struct part part;
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = reader_part(reader, number, &scratch, &part, diag);
    for (uint32_t i = 0; status == 0 && i < part.object_count; i++) {
        status = copying_object(c, &part.objects[i].id, diag);
    }
    if (status == 0) {
        struct store_name name = *manifest;
        name.kind = STORE_PART;
        name.number = part.rank;
        status = copying_document(c, &name, diag);
    }
    scratch_fini(&scratch);
    return status;
}

static struct store_name manifest_name(const struct commit_fact *fact)
{
    return (struct store_name){.run = fact->root.run,
                               .id = fact->root.id,
                               .kind = STORE_MANIFEST,
                               .tag = fact->root.open_id};
}

/* Copies everything of a checkpoint but its manifest and its entry. */
static int copy_bytes(struct copying *c, const struct commit_fact *fact, struct diag *diag)
{
    struct reader reader;
    struct store_name name = manifest_name(fact);
    read_from(c, c->from);
    int status = reader_open(&reader, &c->repair->plain.store.reader, &fact->root, false, diag);
    for (size_t i = 0; status == 0 && i < reader.part_count; i++) {
        status = copy_part(c, &reader, i, &name, diag);
    }
    uint32_t pages = status == 0 ? reader.manifest.page_count : 0;
    for (uint32_t i = 0; status == 0 && i < pages; i++) {
        struct store_name page = name;
        page.kind = STORE_PAGE;
        page.number = i;
        status = copying_document(c, &page, diag);
    }
    reader_fini(&reader);
    read_from(c, c->to);
    return status;
}

/* The entry as the other record has it: hash, time, sizes, base, and the notes of today. */
static struct event adoption(const struct copying *c, const struct state_commit *commit)
{
    const struct entry_chain *entry = &commit->entry;
    const struct entry_term *term = &c->state.terms[entry->id.term - 1].entry;
    struct event event = {.kind = EVENT_ADOPT, .id = entry->id, .wall_ns = entry->wall_ns};
    event.u.adopt = (struct event_adopt){.open_id = entry->open_id,
                                         .token = term->token,
                                         .parent = term->parent,
                                         .world_size = entry->world_size,
                                         .info = c->state.info,
                                         .entry = {.manifest_sha256 = entry->manifest_sha256,
                                                   .manifest_bytes = entry->manifest_bytes,
                                                   .plain_bytes = entry->plain_bytes,
                                                   .stored_bytes = entry->stored_bytes,
                                                   .base = entry->base},
                                         .note = {.of_save = true},
                                         .health = HEALTH_VERIFIED,
                                         .actor = c->repair->actor};
    if (commit->note) {
        event.u.adopt.note = (struct note_change){.tag_count = commit->note->tag_count,
                                                  .tags = commit->note->tags,
                                                  .metric_count = commit->note->metric_count,
                                                  .metrics = commit->note->metrics,
                                                  .of_save = true};
    }
    return event;
}

static bool has_tag(const struct entry_note *note, const char *tag)
{
    for (uint32_t i = 0; note && i < note->tag_count; i++) {
        if (strcmp(note->tags[i], tag) == 0) {
            return true;
        }
    }
    return false;
}

/* Pins a checkpoint here, or takes the pin away. */
static int bring_pin(struct copying *c, const struct state_commit *commit, struct diag *diag)
{
    const char *reason = commit->pinned ? "pinned in the other store" : "not pinned in the other";
    struct event pin = {
        .kind = commit->pinned ? EVENT_PIN : EVENT_UNPIN,
        .u.mark = {
            .id_count = 1, .ids = &commit->entry.id, .actor = c->repair->actor, .reason = reason}};
    if (commit->pinned && commit->pin_mark && commit->pin_mark->reason) {
        pin.u.mark.reason = commit->pin_mark->reason;
    }
    return ask_event(&c->repair->ask, c->repair->run, &pin, false, diag);
}

/* Brings tags, metrics and the pin of a checkpoint that is in this record up to the other's. What
 * the other does not have stays here, unless the marks are to be the same: whether it was taken
 * away there, or given here, nothing tells. `here`: as it was before; NULL if it is new. */
static int bring_marks(struct copying *c, const struct state_commit *commit,
                       const struct here *here, struct diag *diag)
{
    const char *gone[LIMIT_TAGS];
    uint32_t gone_count = 0;
    struct event note = {.kind = EVENT_ANNOTATE, .id = commit->entry.id};
    bool is_same = c->repair->salvage.same_marks, was_pinned = here && here->pinned;
    int status = 0;
    for (uint32_t i = 0; is_same && here && i < here->tag_count; i++) {
        if (!has_tag(commit->note, here->tags[i])) {
            gone[gone_count++] = here->tags[i];
        }
    }
    note.u.annotate.selector = (struct selector){SELECT_EXACT, commit->entry.id};
    note.u.annotate.note = adoption(c, commit).u.adopt.note;
    note.u.annotate.note.removed = gone;
    note.u.annotate.note.removed_count = gone_count;
    if (commit->note || gone_count > 0) {
        status = ask_event(&c->repair->ask, c->repair->run, &note, false, diag);
    }
    if (status == 0 && commit->pinned != was_pinned && (commit->pinned || is_same)) {
        status = bring_pin(c, commit, diag);
    }
    return status;
}

/* Reads all of it back from this store, as the manifest, which is still in memory, tells. */
static int check_copy(struct copying *c, const struct commit_fact *fact, struct diag *diag)
{
    struct survey survey;
    struct diag ignored = DIAG_INIT;
    int status = survey_ckpt(c->repair, fact, SURVEY_ALL, &survey, diag);
    if (status == 0 && survey.found > 0) {
        status = diag_set(diag, CAIRN_E_DAMAGED,
                          "its copy does not verify, so it is not entered: %.300s; `cairn verify` "
                          "tells whether the store that it comes from is damaged",
                          survey.first);
        /* What stays is found by the next copy, which then refuses it in the same way. */
        err_ignore(copying_drop(c, fact->root.id, &ignored));
    }
    survey_fini(&survey);
    return status;
}

/* Looks once more whether the store is ours alone, now that the manifest is there, and enters the
 * checkpoint. A process that opened the store before that look is seen by it. One that opens the
 * store later finds the manifest, and removes nothing of a run that has a manifest which its record
 * does not know. */
static int enter_last(struct copying *c, const struct store_name *manifest,
                      const struct event *event, struct diag *diag)
{
    struct store_req drop = {.op = STORE_DELETE_SMALL, .name = *manifest};
    int status = FAILPOINT("copy.enter");
    if (status != 0) {
        return status; /* as after a kill: the manifest stays */
    }
    status = check_served(c, diag);
    if (status == 0) {
        return ask_event(&c->repair->ask, c->repair->run, event, false, diag);
    }
    /* Otherwise the next copy finds it, and salvage. */
    err_ignore(ask_store(&c->repair->ask, c->to, &drop, NULL));
    return status;
}

/* Checks the copy, stores its manifest, and enters it: nothing but the manifest's own update comes
 * between, because a manifest that the record does not know marks the run as one that has lost
 * something. */
static int enter(struct copying *c, const struct state_commit *commit,
                 const struct commit_fact *fact, struct diag *diag)
{
    struct event event = adoption(c, commit);
    struct store_name name = manifest_name(fact);
    struct record_value manifest = {0};
    int status = repair_fetch_from(c->repair, c->from, &name, &manifest, diag);
    if (status != 0) {
        return status;
    }
    c->repair->held_name = &name;
    c->repair->held = manifest;
    status = check_copy(c, fact, diag);
    c->repair->held = (struct record_value){0};
    if (status == 0) {
        status = check_served(c, diag);
    }
    if (status == 0) {
        status = copying_put(c, &name, &manifest, diag);
    }
    free((void *)(uintptr_t)manifest.data);
    return status != 0 ? status : enter_last(c, &name, &event, diag);
}

static int copy_fresh(struct copying *c, const struct state_commit *commit, struct diag *diag)
{
    struct commit_fact fact = {.root = {.run = c->repair->name,
                                        .id = commit->entry.id,
                                        .open_id = commit->entry.open_id,
                                        .manifest_bytes = commit->entry.manifest_bytes,
                                        .manifest_sha256 = commit->entry.manifest_sha256}};
    struct event event = adoption(c, commit);
    if (commit->health == HEALTH_DAMAGED) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the store that it comes from knows it as damaged: %.300s",
                        commit->health_reason);
    }
    int status = ask_event(&c->repair->ask, c->repair->run, &event, true, diag);
    if (status == 0) {
        status = copy_bytes(c, &fact, diag);
    }
    if (status == 0) {
        status = enter(c, commit, &fact, diag);
    }
    return status != 0 ? status : bring_marks(c, commit, NULL, diag);
}

/* --- all of them ------------------------------------------------------------------------------ */

/* True for an error that is this checkpoint's, so that the others are copied all the same. */
static bool is_its_own(int status)
{
    return reader_is_damage(status) || status == CAIRN_E_EXISTS || status == CAIRN_E_CONFLICT ||
           status == CAIRN_E_INVALID;
}

static int copy_one(struct copying *c, const struct state_commit *commit, struct diag *diag)
{
    const struct here *here = here_of(c, commit->entry.id);
    struct ckpt_id id = commit->entry.id;
    struct diag why = DIAG_INIT;
    bool same = here && memcmp(&here->manifest_sha256, &commit->entry.manifest_sha256,
                               sizeof(here->manifest_sha256)) == 0;
    if (same && (here->forgotten || here->reclaimed)) {
        salvage_add_item(c->repair, id, SALVAGE_THERE, "it was forgotten in this store");
        return 0;
    }
    if (here && !same && here->reclaimed) {
        salvage_add_item(c->repair, id, SALVAGE_LEFT,
                         "EXISTS: it was missing when later checkpoints that build on it were "
                         "copied, and cannot be entered behind them; a new store takes it");
        return 0;
    }
    int status = same ? bring_marks(c, commit, here, &why) : copy_fresh(c, commit, &why);
    if (status == 0) {
        salvage_add_item(c->repair, id, same ? SALVAGE_THERE : SALVAGE_WHOLE, "%s",
                         same ? "it was here already" : "every byte of it was read back");
    } else if (is_its_own(status)) {
        salvage_add_item(c->repair, id, SALVAGE_LEFT, "%s: %.480s", err_name(status),
                         diag_text(&why, status));
        status = 0;
    }
    return status == 0 ? 0 : repair_fail(diag, status, &why);
}

static int copy_all(struct copying *c, struct diag *diag)
{
    struct event info = {.kind = EVENT_ADOPT, .u.adopt = {.info = c->state.info}};
    int status = ask_event(&c->repair->ask, c->repair->run, &info, false, diag);
    if (status == CAIRN_E_CONFLICT) {
        diag_clear(diag);
        return diag_set(diag, status,
                        "the store that is copied to has another run of the name %s/%s; nothing of "
                        "this one was copied",
                        c->repair->name.project, c->repair->name.run);
    }
    status = status != 0 ? status : ask_state(&c->repair->ask, c->repair->run, take_here, c, diag);
    if (status == 0 && (!c->here || c->no_memory)) {
        status = diag_no_memory(diag, "the run's record");
    }
    for (size_t i = 0; status == 0 && i < c->state.commit_count; i++) {
        if (!c->state.commits[i].forgotten) {
            status = copy_one(c, &c->state.commits[i], diag);
        }
    }
    return status;
}

static int copy_run(struct repair *repair, struct diag *diag)
{
    struct copying c = {.repair = repair, .from = repair->mirror, .to = repair->store};
    if (memcmp(&c.from->caps.uuid, &c.to->caps.uuid, sizeof(c.to->caps.uuid)) == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--from and --to are one store (they have the same UUID); name another "
                        "one, which `cairn store create` makes");
    }
    scratch_init(&c.scratch, READER_SCRATCH_MAX);
    c.window = aligned_alloc(LIMIT_ALIGN_BYTES, COPY_WINDOW_BYTES);
    int status = c.window ? check_served(&c, diag) : diag_no_memory(diag, "a copy");
    if (status == 0) {
        status = read_other(&c, diag);
    }
    if (status == 0) {
        status = copy_all(&c, diag);
    }
    if (status == 0 && repair->items_untold) {
        status = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to tell what was copied");
    }
    free(c.window);
    free(c.here);
    scratch_fini(&c.scratch);
    return status;
}

int copy_begin(struct repair *repair, const struct run_name *run, const struct salvage_options *how,
               const char *actor, struct diag *diag)
{
    CHECK(repair->options.mirror_first);
    CHECK(!repair->items);
    struct repair_task task = {.run = *run, .actor = actor, .work = copy_run};
    if (!repair_is_running(repair)) {
        repair->salvage = *how;
    }
    return repair_start(repair, &task, diag);
}
