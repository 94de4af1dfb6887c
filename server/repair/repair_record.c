/* SPDX-License-Identifier: Apache-2.0
 *
 * Mends a run's record that the medium does not hold whole any more. What its second copy has, or
 * what the daemon still holds in memory, is written anew. Otherwise single files are taken from the
 * mirror, and only those that the chain proves to be the ones that were here; never a whole record,
 * because its newest terms and commits may be others. Only the last update has nothing behind it
 * that proves it. It is taken only if the mirror's record ends with it too, and explains every term
 * and every manifest that is stored here.
 */
#include "repair_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The record as the medium holds it. */
struct record_state {
    bool whole, missing;
    uint64_t newest;
    struct record_file files[STORE_RECORD_FILES_MAX]; /* any one of them would do */
    struct diag why;
};

/* Examines the record as the medium holds it. Returns an error only if it cannot be examined. */
static int read_state(struct repair *repair, struct record_state *ret, struct diag *diag)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = repair->name, .from_medium = true};
    int status = repair_check(repair, diag);
    if (status != 0) {
        return status;
    }
    status = ask_store(&repair->ask, repair->store, &req, NULL);
    bool missing = status == 0 && record_version(req.ret_record) == 0 && req.ret_lost_from == 0;
    record_free(req.ret_record);
    if (status != 0 && (!reader_is_damage(status) || status == CAIRN_E_NOT_FOUND)) {
        return repair_fail(diag, status, &req.diag);
    }
    *ret = (struct record_state){.whole = !store_record_is_damaged(&req),
                                 .missing = missing,
                                 .newest = req.ret_version,
                                 .why = req.diag};
    memcpy(ret->files, req.ret_files, sizeof(ret->files));
    return 0;
}

static void file_text(const struct record_file *file, size_t bytes, char *ret)
{
    snprintf(ret, bytes, "%s %" PRIu64, file->is_snapshot ? "snapshot" : "update", file->version);
}

/* --- the last update -------------------------------------------------------------------------- */

/* Returns the commit of that checkpoint, even if it is forgotten or reclaimed, or NULL. */
static const struct state_commit *find_commit(const struct run_state *state, struct ckpt_id id)
{
    for (size_t i = 0; i < state->commit_count; i++) {
        if (ckpt_id_equal(state->commits[i].entry.id, id)) {
            return &state->commits[i];
        }
    }
    return NULL;
}

/* Returns true if the manifest belongs to an opening that is aborted or still open. */
static bool is_uncommitted(const struct run_state *state, const struct store_name *manifest)
{
    const struct state_open *open = state_open_find(state, manifest->id);
    for (size_t i = 0; i < state->dead_count; i++) {
        if (ckpt_id_equal(state->deads[i].id, manifest->id) &&
            state->deads[i].entry.open_id == manifest->tag) {
            return true;
        }
    }
    return open && open->entry.open_id == manifest->tag;
}

/* Returns true if the record accounts for the openings that left these manifests of a checkpoint.
 * If the committed one exists, the others are leftovers of aborted openings and repairs. */
static bool explains(const struct run_state *state, struct ckpt_id id, size_t count,
                     const struct store_name *smalls)
{
    const struct state_commit *commit = find_commit(state, id);
    bool unknown = false;
    for (size_t i = 0; i < count; i++) {
        bool is_manifest = smalls[i].kind == STORE_MANIFEST;
        if (is_manifest && commit && smalls[i].tag == commit->entry.open_id) {
            return true;
        }
        unknown = unknown || (is_manifest && !is_uncommitted(state, &smalls[i]));
    }
    return !unknown;
}

/* Checks that the mirror's record explains everything that is stored of one checkpoint. */
static int check_ckpt(struct repair *repair, const struct run_state *state, struct ckpt_id id,
                      struct diag *diag)
{
    if (id.term > state->newest_term) {
        return diag_set(diag, CAIRN_E_CONFLICT,
                        "there is something of term %" PRIu64
                        " here, and the newest term in the mirror's record is %" PRIu64,
                        id.term, state->newest_term);
    }
    struct store_req req = {.op = STORE_LIST_SMALL, .run = repair->name, .id = id};
    int status = ask_store(&repair->ask, repair->store, &req, diag);
    if (status == 0 && !explains(state, id, req.ret_count, req.ret_smalls)) {
        status = diag_set(diag, CAIRN_E_CONFLICT,
                          "a manifest of checkpoint %s is here, of which the mirror's record knows "
                          "nothing: the damaged "
                          "update may have committed it",
                          ckpt_id_text(id).at);
    }
    free(req.ret_smalls);
    return status;
}

/* Returns CONFLICT if the store holds a term or a manifest that the mirror's record does not know.
 */
static int check_ckpts(struct repair *repair, const struct run_state *state, struct diag *diag)
{
    struct store_req req = {.op = STORE_LIST_CKPTS, .run = repair->name};
    int status = ask_store(&repair->ask, repair->store, &req, diag);
    for (size_t i = 0; status == 0 && i < req.ret_count; i++) {
        status = check_ckpt(repair, state, req.ret_ckpts[i], diag);
    }
    free(req.ret_ckpts);
    return status;
}

static bool has_manifest(const struct store_req *listed, uint64_t tag)
{
    for (size_t i = 0; i < listed->ret_count; i++) {
        const struct store_name *name = &listed->ret_smalls[i];
        if (name->kind == STORE_MANIFEST && name->tag == tag) {
            return true;
        }
    }
    return false;
}

/* Checks that every commit in the mirror's record has its manifest here: checkpoints that the
 * mirror committed by itself do not exist here, and must not be listed. */
static int check_commits(struct repair *repair, const struct run_state *state, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < state->commit_count; i++) {
        const struct entry_chain *commit = &state->commits[i].entry;
        struct store_req req = {.op = STORE_LIST_SMALL, .run = repair->name, .id = commit->id};
        if (state->commits[i].reclaimed) {
            continue;
        }
        status = ask_store(&repair->ask, repair->store, &req, diag);
        if (status == 0 && !has_manifest(&req, commit->open_id)) {
            status = diag_set(diag, CAIRN_E_CONFLICT,
                              "the mirror's record has checkpoint %s, of which there is no "
                              "manifest here: the mirror may have made it",
                              ckpt_id_text(commit->id).at);
        }
        free(req.ret_smalls);
    }
    return status;
}

/* Checks that the mirror's record ends with the same update as this one, that it knows everything
 * that was committed here and nothing else, and that no term could be granted twice. */
static int check_last(struct repair *repair, uint64_t newest, struct diag *diag)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = repair->name, .from_medium = true};
    struct scratch scratch;
    struct run_state state;
    int status = ask_store(&repair->ask, repair->mirror, &req, diag);
    if (status != 0) {
        return status;
    }
    uint64_t version = record_version(req.ret_record);
    if (version != newest) {
        status = diag_set(diag, CAIRN_E_CONFLICT,
                          "the mirror's record ends with update %" PRIu64 ", this one with %" PRIu64
                          ", which is damaged",
                          version, newest);
    } else {
        scratch_init(&scratch, (size_t)LIMIT_RECORD_BYTES * 4);
        status = run_state_load(req.ret_record, &scratch, &state, diag);
        if (status == 0) {
            status = check_ckpts(repair, &state, diag);
        }
        if (status == 0) {
            status = check_commits(repair, &state, diag);
        }
        scratch_fini(&scratch);
    }
    record_free(req.ret_record);
    return status;
}

/* --- one file from the mirror ----------------------------------------------------------------- */

/* Replaces one file of the record by the mirror's. The store checks that it is the file that was
 * here. */
static int mend_file(struct repair *repair, const struct record_file *file, struct diag *diag)
{
    struct store_req copy = {.op = STORE_RECORD_FILE, .run = repair->name, .file = *file};
    char text[48];
    file_text(file, sizeof(text), text);
    int status = repair_check(repair, diag);
    if (status != 0) {
        return status;
    }
    status = ask_store(&repair->ask, repair->mirror, &copy, NULL);
    if (status == CAIRN_E_NOT_FOUND) {
        return diag_set(diag, CAIRN_E_CONFLICT, "the mirror has no %s of it", text);
    }
    if (status != 0) {
        return repair_fail(diag, status, &copy.diag);
    }
    struct store_req mend = {.op = STORE_RECORD_MEND,
                             .run = repair->name,
                             .file = *file,
                             .bytes = copy.ret_bytes,
                             .data = copy.ret_data};
    status = ask_store(&repair->ask, repair->store, &mend, NULL);
    free(copy.ret_data);
    if (status == 0) {
        repair->tail_from =
            file->is_last && repair->tail_from == 0 ? file->version : repair->tail_from;
        repair_add_line(repair, true,
                        "the run's record: %s taken from %.110s; a damaged one is in quarantine "
                        "now%s",
                        text, repair->options.mirror,
                        file->is_last
                            ? "; nothing behind it proves that it is the one that was here: a pin, "
                              "a tag, a metric or a forgetting that the mirror did not get is "
                              "lost, so look at them (cairn ls --all)"
                            : "");
    }
    return status == 0 ? 0 : repair_fail(diag, status, &mend.diag);
}

/* Mends the last updates, behind which nothing is whole: the first has to follow the record here,
 * and each one the one before it. */
static int mend_tail(struct repair *repair, uint64_t version, uint64_t newest, struct diag *diag)
{
    int status = check_last(repair, newest, diag);
    for (uint64_t at = version; status == 0 && at <= newest; at++) {
        struct record_file file = {.version = at, .is_last = true};
        status = mend_file(repair, &file, diag);
    }
    return status;
}

/* Mends an update. The next update proves it. If that one is damaged too, it has to be mended
 * first: so this goes up to the first update that is proven, and then back. */
static int mend_update(struct repair *repair, uint64_t version, uint64_t newest, struct diag *diag)
{
    int status = CAIRN_E_NOT_FOUND;
    uint64_t end = version; /* behind the last one that was tried */
    while (status == CAIRN_E_NOT_FOUND && end <= newest) {
        struct record_file file = {.version = end++};
        diag_clear(diag);
        status = mend_file(repair, &file, diag);
    }
    if (status == CAIRN_E_NOT_FOUND) {
        diag_clear(diag);
        return mend_tail(repair, version, newest, diag);
    }
    for (uint64_t at = end - 1; status == 0 && at-- > version;) {
        struct record_file file = {.version = at};
        status = mend_file(repair, &file, diag);
    }
    return status;
}

/* Mends any one of the files that would let the record be read on. If none can be mended, the error
 * is that of the first. */
static int mend_any(struct repair *repair, const struct record_state *state, struct diag *diag)
{
    int status = CAIRN_E_NOT_FOUND;
    diag_clear(diag);
    for (size_t i = 0; i < STORE_RECORD_FILES_MAX && state->files[i].version > 0; i++) {
        const struct record_file *file = &state->files[i];
        struct diag why = DIAG_INIT;
        status = file->is_snapshot ? mend_file(repair, file, &why)
                                   : mend_update(repair, file->version, state->newest, &why);
        if (status == 0 || status == CAIRN_E_CANCELLED) {
            return status == 0 ? 0 : diag_set(diag, status, "%s", diag_text(&why, status));
        }
        if (diag->code == 0) {
            err_ignore(diag_set(diag, status, "%s", diag_text(&why, status)));
        }
    }
    return diag->code != 0
               ? diag->code
               : diag_set(diag, CAIRN_E_DAMAGED,
                          "no file of it is known to be damaged, so none can be taken from the "
                          "mirror; `cairn salvage` enters again what lies in the store");
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Checks that there is a mirror, and that it is one of this store. */
static int check_mirror(struct repair *repair, struct diag *diag)
{
    if (!repair->options.open_mirror) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "both places of it are damaged, and only a mirror of this store has "
                        "another copy (--from with --store; [scrub] repair-from); without one "
                        "`cairn salvage` enters again what lies in the store");
    }
    int status = mirror_open(repair, diag);
    if (status != 0) {
        return status;
    }
    if (!repair->mirror->caps.record_files ||
        memcmp(&repair->mirror->caps.uuid, &repair->store->caps.uuid, sizeof(struct uuid)) != 0) {
        return diag_set(diag, CAIRN_E_CONFLICT, "%.160s is no mirror of this store: another uuid",
                        repair->options.mirror);
    }
    return 0;
}

/* Mends the record from its second copy, or from what a running server has confirmed and holds in
 * memory. Returns true if it is whole now. */
static bool mend_by_itself(struct repair *repair, struct record_state *io)
{
    struct store_req req = {.op = STORE_RECORD_MEND, .run = repair->name};
    struct diag ignored = DIAG_INIT, was = io->why;
    if (ask_store(&repair->ask, repair->store, &req, NULL) != 0 ||
        read_state(repair, io, &ignored) != 0 || !io->whole) {
        return false;
    }
    repair_add_line(repair, true,
                    "the run's record: made good from its second copy, or from what the server "
                    "knows; it was: %s",
                    diag_text(&was, CAIRN_E_DAMAGED));
    return true;
}

/* --- a record that neither place has -------------------------------------------------------- */

/* Copies the mirror's record as one snapshot: its own file, or one that is made from what it
 * reads. */
static int copy_whole(struct repair *repair, struct buf *ret, struct record_file *ret_file,
                      struct diag *diag)
{
    struct store_req get = {.op = STORE_RECORD_GET, .run = repair->name, .from_medium = true};
    int status = ask_store(&repair->ask, repair->mirror, &get, diag);
    if (status != 0) {
        return status;
    }
    uint64_t version = record_version(get.ret_record);
    struct store_req last = {
        .op = STORE_RECORD_FILE, .run = repair->name, .file = {.version = version}};
    *ret_file = (struct record_file){.version = version, .is_snapshot = true, .is_last = true};
    if (version == 0) {
        status = diag_set(diag, CAIRN_E_CONFLICT, "the mirror has no record of the run either");
    } else if (ask_store(&repair->ask, repair->mirror, &last, NULL) == 0) {
        struct sha256 hash = sha256(last.ret_bytes, last.ret_data);
        record_snapshot_encode(get.ret_record, hash.bytes, ret);
    } else {
        last = (struct store_req){
            .op = STORE_RECORD_FILE, .run = repair->name, .file = {version, .is_snapshot = true}};
        status = ask_store(&repair->ask, repair->mirror, &last, diag);
        if (status == 0) {
            buf_put(ret, last.ret_bytes, last.ret_data);
        }
    }
    free(last.ret_data);
    record_free(get.ret_record);
    return status != 0            ? status
           : buf_status(ret) == 0 ? 0
                                  : diag_set(diag, buf_status(ret), "no memory for a record");
}

/* Checks that each checkpoint that the copy lists is stored here, with the same manifest. If the
 * mirror is behind, more is stored here than the copy knows; the run is marked then, like any run
 * whose record is an older copy. */
static int check_whole(struct repair *repair, const struct buf *copy, struct diag *diag)
{
    struct record *record = NULL;
    struct scratch scratch;
    struct run_state state;
    struct sha256 last;
    int status = record_snapshot_decode(copy->bytes, copy->data, &record, last.bytes, diag);
    if (status != 0) {
        return status;
    }
    scratch_init(&scratch, (size_t)LIMIT_RECORD_BYTES * 4);
    status = run_state_load(record, &scratch, &state, diag);
    status = status != 0 ? status : check_commits(repair, &state, diag);
    scratch_fini(&scratch);
    record_free(record);
    return status;
}

/* The record was replaced: the loop lists what is stored of the run again. */
static void refresh_run(void *user) { run_refresh(((struct repair *)user)->run); }

/* Takes the mirror's whole record, if neither place here has anything of it. */
static int take_whole(struct repair *repair, struct diag *diag)
{
    struct store_req mend = {.op = STORE_RECORD_MEND, .run = repair->name};
    struct buf copy;
    buf_init(&copy, LIMIT_RECORD_BYTES);
    int status = check_mirror(repair, diag);
    if (status == 0) {
        status = copy_whole(repair, &copy, &mend.file, diag);
    }
    if (status == 0) {
        status = check_whole(repair, &copy, diag);
    }
    if (status == 0) {
        mend.bytes = copy.bytes;
        mend.data = copy.data;
        status = ask_store(&repair->ask, repair->store, &mend, diag);
    }
    buf_fini(&copy);
    if (status == 0) {
        ask_call(&repair->ask, refresh_run, repair);
        repair_add_line(repair, true,
                        "the run's record, which both places had lost: taken from %.160s as it is "
                        "there, up to update %" PRIu64
                        "; a pin, a tag, a metric or a forgetting that the mirror did not get is "
                        "lost, so look at them (cairn ls --all)",
                        repair->options.mirror, mend.file.version);
    }
    return status;
}

/* Adds an entry to the chain, which could not take one before the record was whole. */
static int tell_chain(struct repair *repair, struct diag *diag)
{
    int status = facts_commits(repair, &repair->facts, &repair->fact_count, diag);
    if (status != 0 || repair->fact_count == 0) {
        return status;
    }
    struct ckpt_id newest = repair->facts[repair->fact_count - 1].root.id;
    if (repair->tail_from == 0) {
        return repair_audit(repair, newest, diag, "the run's record was damaged and repaired");
    }
    return repair_audit(repair, newest, diag,
                        "the run's record was damaged and repaired; unproven from update %" PRIu64
                        " on, which is the mirror's: a pin, note or forgetting of here may be lost",
                        repair->tail_from);
}

/* Adds a line that says which file of the record stays damaged, and why. Returns 0. */
static int refuse(struct repair *repair, const struct record_state *state, const struct diag *why)
{
    char text[48];
    snprintf(text, sizeof(text), "%s",
             state->missing ? "which is missing" : "which cannot be read");
    if (state->files[0].version > 0) {
        file_text(&state->files[0], sizeof(text), text);
    }
    repair_add_line(repair, false, "the run's record, %s: %s", text,
                    diag_text(why, CAIRN_E_DAMAGED));
    return 0;
}

/* Mends the record from its second copy, or file by file from the mirror, and then from the first
 * place, which is whole again. *ret_whole is set if no damage is left; otherwise the damage was
 * reported. */
static int mend_damaged(struct repair *repair, struct record_state *state, bool *ret_whole,
                        struct diag *diag)
{
    struct diag why = DIAG_INIT;
    *ret_whole = false;
    while (!state->whole && !mend_by_itself(repair, state)) {
        if (check_mirror(repair, &why) != 0) {
            return refuse(repair, state, &why);
        }
        int status = mend_any(repair, state, &why);
        if (status == CAIRN_E_CANCELLED) {
            return repair_fail(diag, status, &why);
        }
        if (status != 0) {
            return refuse(repair, state, &why);
        }
        status = read_state(repair, state, diag);
        if (status != 0) {
            return status;
        }
    }
    *ret_whole = true;
    return 0;
}

int repair_record(struct repair *repair, struct diag *diag)
{
    struct record_state state = {.whole = false};
    struct diag why = DIAG_INIT;
    bool whole = false;
    repair->tail_from = 0;
    int status = read_state(repair, &state, diag);
    if (status != 0 || (state.whole && (!state.missing || !repair->options.open_mirror))) {
        return status;
    }
    if (!repair->store->caps.record_files) {
        err_ignore(diag_set(&why, CAIRN_E_UNSUPPORTED,
                            "%.300s; a Ceph cluster repairs its own copies (ceph health detail), "
                            "and what it has given up a mirror does not bring back",
                            diag_text(&state.why, CAIRN_E_DAMAGED)));
        return refuse(repair, &state, &why);
    }
    if (state.missing && !state.whole && mend_by_itself(repair, &state)) {
        whole = true; /* this server knows it */
    } else if (state.missing) {
        status = take_whole(repair, &why);
        if (status == CAIRN_E_CANCELLED) {
            return repair_fail(diag, status, &why);
        }
        whole = status == 0;
        status = whole ? 0 : refuse(repair, &state, &why);
    } else {
        status = mend_damaged(repair, &state, &whole, diag);
    }
    if (status != 0 || !whole) {
        return status;
    }
    pthread_mutex_lock(&repair->lock);
    repair->status.healed = true;
    pthread_mutex_unlock(&repair->lock);
    return tell_chain(repair, diag);
}
