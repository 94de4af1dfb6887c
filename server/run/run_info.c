/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists and status from the decoded record. Invariant: they say only what the record holds. The
 * size of a save that is still open is not known and is given as 0. Pure.
 */
#include "run_info.h"

#include "base/check.h"

#include <string.h>

enum {
    MISSING_TEXT_BYTES = 256,
    MARK_TEXT_BYTES = 2 * (ENTRY_ACTOR_BYTES + ENTRY_REASON_BYTES + 16) + 64,
    LIST_NOTES_BYTES_MAX = LIMIT_MESSAGE_BYTES / 4
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
    struct ckpt_info info = {.id = entry->id,
                             .parent = parent_of(state, entry->id.term),
                             .base = entry->base,
                             .base_seq =
                                 seq_of(state, (size_t)(commit - state->commits), entry->base),
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

int run_info_list(const struct run_state *state, uint64_t before_seq, uint32_t limit,
                  struct scratch *scratch, struct msg_list_reply *ret)
{
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    size_t most = (before_seq ? 0 : state->open_count) + state->commit_count;
    struct msg_list_reply reply = {0};
    size_t left = state->commit_count, bytes = 0;

    most = limit && limit < most ? limit : most;
    reply.entries = scratch_array(scratch, most ? most : 1, sizeof *reply.entries);
    if (!reply.entries) {
        return no_memory();
    }
    for (size_t i = before_seq ? 0 : state->open_count; i > 0; i--) {
        int status;
        if (reply.count == most) {
            reply.more = true;
            break;
        }
        status = open_info(state, &state->opens[i - 1], scratch, &reply.entries[reply.count]);
        if (status) {
            return status;
        }
        reply.count++;
    }
    for (; left > 0; left--) {
        const struct state_commit *commit = &state->commits[left - 1];
        if (commit->forgotten || (before_seq && commit->entry.seq >= before_seq)) {
            continue;
        }
        bytes += info_bytes(commit);
        if (reply.count == most || (bytes > LIST_NOTES_BYTES_MAX && reply.count > 0)) {
            reply.more = true;
            break;
        }
        reply.entries[reply.count++] = commit_info(state, commit, latest);
    }
    CHECK(reply.count <= most);
    *ret = reply;
    return 0;
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
