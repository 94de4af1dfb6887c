/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists and status from the decoded record. Invariant: they say only what the record holds. The
 * size of a save that is still open is not known and is given as 0. Pure.
 */
#include "run_info.h"

#include "base/array.h"
#include "base/check.h"

#include <string.h>

enum {
    MISSING_TEXT_BYTES = 256,
    MARK_TEXT_BYTES = 2 * (ENTRY_ACTOR_BYTES + ENTRY_REASON_BYTES + 16) + 64,
    LIST_NOTES_BYTES_MAX = LIMIT_MESSAGE_BYTES / 4,
    LOG_ROWS_MAX = 500,
    LOG_IDS_MAX = 2 * CHAIN_IDS_MAX
};

static int no_memory(void) { return CAIRN_E_NO_MEMORY; }

static struct ckpt_id parent_of(const struct run_state *state, uint64_t term)
{
    bool known = term >= 1 && term <= state->term_count;
    return known ? state->terms[term - 1].entry.parent : (struct ckpt_id){0, 0};
}

/* Returns the sequence of the commit of `id` among the first `count`, or 0 if there is none. A base
 * is close to the end of them, most often the last one. */
static uint64_t seq_of(const struct run_state *state, size_t count, struct ckpt_id id)
{
    for (size_t i = id.term != 0 ? count : 0; i > 0; i--) {
        if (ckpt_id_equal(state->commits[i - 1].entry.id, id)) {
            return state->commits[i - 1].entry.seq;
        }
    }
    return 0;
}

/* Returns what clients are told of a committed checkpoint. */
static struct ckpt_info commit_info(const struct run_state *state,
                                    const struct state_commit *commit,
                                    const struct state_commit *latest)
{
    CHECK(commit != latest || !commit->forgotten);
    const struct entry_chain *entry = &commit->entry;
    const struct entry_note *note = commit->note;
    struct ckpt_info info = {
        .id = entry->id,
        .parent = parent_of(state, entry->id.term),
        .base = entry->base,
        .base_seq = seq_of(state, (size_t)(commit - state->commits), entry->base),
        .seq = entry->seq,
        .plain_bytes = entry->plain_bytes,
        .stored_bytes = entry->stored_bytes,
        .manifest_bytes = entry->manifest_bytes,
        .manifest_sha256 = entry->manifest_sha256,
        .wall_ns = entry->wall_ns,
        .world_size = entry->world_size,
        .state = commit->forgotten ? CKPT_FORGOTTEN : CKPT_COMMITTED,
        .health = commit->health,
        .sealed_count = entry->world_size,
        .on_lineage = commit->on_lineage,
        .is_latest = commit == latest,
        .pinned = commit->pinned,
        .planned = state_term_is_planned(state, entry->id.term),
        .forgotten_wall_ns = commit->forgotten && commit->mark ? commit->mark->wall_ns : 0,
        .text = ""};
    if (note) { /* borrowed from the state while the reply is made */
        info.note_version = note->version;
        info.tag_count = note->tag_count;
        info.tags = note->tags;
        info.metric_count = note->metric_count;
        info.metrics = note->metrics;
    }
    return info;
}

/* Describes a save that is still open, with the ranks that have not sealed yet. Returns 0 or
 * CAIRN_E_NO_MEMORY. */
static int open_info(const struct run_state *state, const struct state_open *open,
                     struct scratch *scratch, struct ckpt_info *ret)
{
    CHECK(open->sealed_count <= open->world_size);
    char missing[MISSING_TEXT_BYTES] = "";

    if (open->sealed_count < open->world_size) {
        state_missing_ranks(state, open->id, sizeof missing, missing);
    }
    *ret = (struct ckpt_info){.id = open->id,
                              .parent = parent_of(state, open->id.term),
                              .base = open->entry.base,
                              .base_seq = seq_of(state, state->commit_count, open->entry.base),
                              .world_size = open->world_size,
                              .state = CKPT_OPEN,
                              .sealed_count = open->sealed_count,
                              .text = scratch_string(scratch, strlen(missing), missing)};
    return ret->text ? 0 : no_memory();
}

/* Returns an estimate, never too low, of what the note of a checkpoint adds to a message. */
static size_t info_bytes(const struct state_commit *commit)
{
    const struct entry_note *note = commit->note;
    size_t bytes = 0;
    for (uint32_t i = 0; note && i < note->tag_count; i++) {
        bytes += strlen(note->tags[i]) + 8;
    }
    for (uint32_t i = 0; note && i < note->metric_count; i++) {
        bytes += strlen(note->metrics[i].name) + 24;
    }
    return bytes;
}

static void add_who(struct buf *buf, const char *what, const struct entry_chain *mark)
{
    if (mark && mark->actor && mark->actor[0] != '\0') {
        bool has_reason = mark->reason && mark->reason[0] != '\0';
        buf_printf(buf, "%s%sby %s%s%s", buf->bytes > 0 ? "; " : "", what, mark->actor,
                   has_reason ? ": " : "", has_reason ? mark->reason : "");
    }
}

/* Makes the text that says who forgot, reclaimed or pinned the checkpoint, and why. *ret stays as
 * it is if nobody did. */
static int mark_text(const struct state_commit *commit, struct scratch *scratch, const char **ret)
{
    struct buf buf;
    buf_init(&buf, MARK_TEXT_BYTES);
    if (commit->forgotten) {
        add_who(&buf, "", commit->mark);
        add_who(&buf, "reclaimed ", commit->reclaim_mark);
        if (commit->reclaimed) {
            buf_printf(&buf, "%sits space was reclaimed, so it cannot be brought back",
                       buf.bytes > 0 ? "; " : "");
        }
    } else if (commit->pinned) {
        add_who(&buf, "pinned ", commit->pin_mark);
    }
    bool is_nobody = buf_status(&buf) == 0 && buf.bytes == 0;
    const char *text =
        buf_status(&buf) == 0 ? scratch_string(scratch, buf.bytes, (const char *)buf.data) : NULL;
    buf_fini(&buf);
    *ret = text && !is_nobody ? text : *ret;
    return text ? 0 : no_memory();
}

/* Adds the open saves to the page, newest first. */
static int list_opens(const struct run_state *state, size_t most, struct scratch *scratch,
                      struct msg_list_reply *io)
{
    for (size_t i = state->open_count; i > 0; i--) {
        if (io->count == most) {
            io->more = true;
            break;
        }
        int status = open_info(state, &state->opens[i - 1], scratch, &io->entries[io->count]);
        if (status) {
            return status;
        }
        io->count++;
    }
    return 0;
}

static bool is_wanted(const struct msg_list *ask, const struct state_commit *commit)
{
    bool wanted = ask->forgotten ? commit->forgotten && !commit->reclaimed : !commit->forgotten;
    return wanted && (ask->before_seq == 0 || commit->entry.seq < ask->before_seq);
}

int run_info_list(const struct run_state *state, const struct msg_list *ask,
                  struct scratch *scratch, struct msg_list_reply *ret)
{
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    bool opens = ask->before_seq == 0 && !ask->forgotten;
    size_t most = (opens ? state->open_count : 0) + state->commit_count;
    struct msg_list_reply reply = {0};
    size_t bytes = 0;

    most = ask->limit && ask->limit < most ? ask->limit : most;
    reply.entries = scratch_array(scratch, most ? most : 1, sizeof *reply.entries);
    int status = !reply.entries ? no_memory()
                 : opens        ? list_opens(state, most, scratch, &reply)
                                : 0;
    for (size_t left = state->commit_count; status == 0 && left > 0; left--) {
        const struct state_commit *commit = &state->commits[left - 1];
        if (!is_wanted(ask, commit)) {
            continue;
        }
        bytes += info_bytes(commit);
        if (reply.count == most || (bytes > LIST_NOTES_BYTES_MAX && reply.count > 0)) {
            reply.more = true;
            break;
        }
        struct ckpt_info *info = &reply.entries[reply.count++];
        *info = commit_info(state, commit, latest);
        status = ask->forgotten ? mark_text(commit, scratch, &info->text) : 0;
    }
    CHECK(status != 0 || reply.count <= most);
    *ret = reply;
    return status;
}

int run_info_find(const struct run_state *state, struct ckpt_id id, struct scratch *scratch,
                  struct ckpt_info *ret)
{
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    const struct state_open *open = state_open_find(state, id);
    struct diag why = DIAG_INIT;
    enum save_state save = state_status(state, id, &why);
    struct ckpt_info info = {.id = id, .parent = parent_of(state, id.term)};

    for (size_t i = 0; i < state->commit_count; i++) {
        if (ckpt_id_equal(state->commits[i].entry.id, id)) {
            *ret = commit_info(state, &state->commits[i], latest);
            return mark_text(&state->commits[i], scratch, &ret->text);
        }
    }
    if (open && save == SAVE_OPEN) {
        return open_info(state, open, scratch, ret);
    }
    info.state = save == SAVE_ABORTED ? CKPT_ABORTED : save == SAVE_OPEN ? CKPT_OPEN : CKPT_NONE;
    info.text = scratch_string(scratch, strlen(why.text), why.text);
    if (!info.text) {
        return no_memory();
    }
    *ret = info;
    return 0;
}

/* ---- the log ---- */

/* Returns who was granted the term, or "" if the record does not say. */
static const char *owner_of(const struct run_state *state, uint64_t term, struct scratch *scratch)
{
    const struct state_owner *found =
        array_find(&term, state->owners, state->owner_count, sizeof(*state->owners), order_u64);
    struct entry_owner owner;
    bool known = found && entry_owner_decode(found->raw, scratch, &owner, NULL) == 0;
    const char *name = known ? scratch_string(scratch, strlen(owner.actor), owner.actor) : NULL;
    return name ? name : "";
}

static struct msg_log_row commit_row(const struct state_commit *commit)
{
    const struct entry_chain *entry = &commit->entry;
    return (struct msg_log_row){.kind = entry->kind,
                                .seq = entry->seq,
                                .wall_ns = entry->wall_ns,
                                .id_count = 1,
                                .ids = (struct ckpt_id *)(uintptr_t)&entry->id,
                                .reason = "",
                                .plain_bytes = entry->plain_bytes,
                                .stored_bytes = entry->stored_bytes,
                                .world_size = entry->world_size};
}

static struct msg_log_row mark_row(const struct entry_chain *mark)
{
    return (struct msg_log_row){
        .kind = mark->kind,
        .seq = mark->seq,
        .wall_ns = mark->wall_ns,
        .id_count = mark->kind == CHAIN_REMOVE ? 0
                    : mark->id_count > 0       ? mark->id_count
                                               : 1,
        .ids = (struct ckpt_id *)(uintptr_t)(mark->id_count > 0 ? mark->ids : &mark->id),
        .actor = mark->actor ? mark->actor : "",
        .reason = mark->reason ? mark->reason : ""};
}

/* Adds the restores that have ended, newest first. */
static int log_restores(const struct run_state *state, struct scratch *scratch,
                        struct msg_log_reply *io, struct diag *diag)
{
    struct entry_ended *entries = scratch_array(scratch, state->ended_count + 1, sizeof *entries);
    int status = entries ? 0 : no_memory();
    for (size_t i = state->ended_count; status == 0 && i > 0; i--) {
        struct entry_ended *entry = &entries[i - 1];
        status = entry_ended_decode(state->ended[i - 1].raw, scratch, entry, diag);
        if (status == 0) {
            io->rows[io->count++] = (struct msg_log_row){.kind = LOG_RESTORE,
                                                         .wall_ns = entry->wall_ns,
                                                         .id_count = 1,
                                                         .ids = &entry->id,
                                                         .actor = entry->actor,
                                                         .reason = entry->reason,
                                                         .world_size = entry->world_size,
                                                         .code = entry->code,
                                                         .asked = entry->first};
        }
    }
    return status;
}

/* Adds the entries of the chain below ask->before_seq, newest first, as many as fit. */
static void log_chain(const struct run_state *state, const struct msg_log *ask, size_t most,
                      struct scratch *scratch, struct msg_log_reply *io)
{
    size_t commit = state->commit_count, mark = state->mark_count, ids = 0;
    uint64_t owner_term = 0;
    const char *owner = "";
    while (commit + mark > 0) {
        bool is_mark = mark > 0 && (commit == 0 || state->marks[mark - 1].seq >
                                                       state->commits[commit - 1].entry.seq);
        struct msg_log_row row =
            is_mark ? mark_row(&state->marks[--mark]) : commit_row(&state->commits[--commit]);
        if (ask->before_seq && row.seq >= ask->before_seq) {
            continue;
        }
        ids += row.id_count;
        if (most-- == 0 || (ids > LOG_IDS_MAX && ids > row.id_count)) {
            io->more = true;
            return;
        }
        if (!is_mark && row.ids->term != owner_term) {
            owner_term = row.ids->term;
            owner = owner_of(state, owner_term, scratch);
        }
        row.actor = is_mark ? row.actor : owner;
        io->rows[io->count++] = row;
    }
}

int run_info_log(const struct run_state *state, const struct msg_log *ask, struct scratch *scratch,
                 struct msg_log_reply *ret, struct diag *diag)
{
    size_t most = ask->limit && ask->limit < LOG_ROWS_MAX ? ask->limit : LOG_ROWS_MAX;
    struct msg_log_reply reply = {0};
    reply.rows = scratch_array(scratch, most + state->ended_count, sizeof *reply.rows);
    if (!reply.rows) {
        return diag_no_memory(diag, "the log of a run");
    }
    int status = ask->before_seq == 0 ? log_restores(state, scratch, &reply, diag) : 0;
    if (status == 0) {
        log_chain(state, ask, most, scratch, &reply);
        CHECK(reply.count <= most + state->ended_count);
        *ret = reply;
    }
    return status;
}
