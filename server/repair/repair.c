/* SPDX-License-Identifier: Apache-2.0
 *
 * The beginning and the end of a repair, and its outline: examine, find copies, rebuild, examine
 * again. Only if every byte is good then does the record say so.
 */
#include "repair_private.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void work_run(struct work *work);
static void work_done(struct work *work);
static void on_post(struct post *post);
static void end(struct repair *repair);

int repair_new(const struct repair_options *options, struct repair **ret, struct diag *diag)
{
    struct repair *repair = calloc(1, sizeof(*repair));
    if (!repair) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for repairs");
    }
    repair->options = *options;
    repair->post.cb = on_post;
    CHECK(pthread_mutex_init(&repair->lock, NULL) == 0); /* needs no resource but memory on Linux */
    CHECK(ask_init(repair) == 0);
    int status = work_threads_new(options->loop, 1, "cairn-repair", &repair->thread, diag);
    if (status == 0 && options->open_mirror) {
        status = work_threads_new(options->loop, options->mirror_threads, "cairn-mirror",
                                  &repair->mirror_pool, diag);
    }
    if (status != 0) {
        end(repair);
        return status;
    }
    *ret = repair;
    return 0;
}

static void end(struct repair *repair)
{
    work_threads_free(repair->thread);
    work_threads_free(repair->mirror_pool);
    ask_fini(repair);
    pthread_mutex_destroy(&repair->lock);
    free(repair->items);
    free(repair);
}

/* --- on the loop ------------------------------------------------------------------------------ */

bool repair_is_running(struct repair *repair)
{
    pthread_mutex_lock(&repair->lock);
    bool running = repair->status.running;
    pthread_mutex_unlock(&repair->lock);
    return running;
}

void repair_status(struct repair *repair, struct repair_status *ret)
{
    pthread_mutex_lock(&repair->lock);
    *ret = repair->status;
    pthread_mutex_unlock(&repair->lock);
}

int repair_begin(struct repair *repair, const struct run_name *run, struct ckpt_id id,
                 const char *actor, struct diag *diag)
{
    CHECK(!repair->closed);
    if (repair_is_running(repair) && repair->id.term == 0) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "a repair is at work on the record of %s/%s; ask again when it has ended",
                        repair->name.project, repair->name.run);
    }
    if (repair_is_running(repair)) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "a repair is at work on checkpoint %llu@%llu of %s/%s; ask again when it "
                        "has ended",
                        (unsigned long long)repair->id.step, (unsigned long long)repair->id.term,
                        repair->name.project, repair->name.run);
    }
    repair->store = catalog_store(repair->options.catalog);
    if (repair->store->caps.read_only && !(repair->salvages && !repair->salvage.yes)) {
        return diag_set(diag, CAIRN_E_READ_ONLY, "the store is read-only: nothing can be repaired");
    }
    repair->mirror = NULL;
    if (repair->options.open_mirror) {
        int status = repair->options.open_mirror(repair->options.user, repair->options.loop,
                                                 repair->mirror_pool, &repair->mirror, diag);
        if (status != 0) {
            return status;
        }
    }
    repair->name = *run;
    repair->id = id;
    snprintf(repair->actor, sizeof(repair->actor), "%s", actor ? actor : "");
    repair->run = catalog_run(repair->options.catalog, run);
    pthread_mutex_lock(&repair->lock);
    repair->status = (struct repair_status){.running = true, .run = *run, .id = id};
    pthread_mutex_unlock(&repair->lock);
    repair->work = (struct work){.run = work_run, .done = work_done};
    work_submit(repair->thread, &repair->work);
    return 0;
}

/* Called when the mirror is closed, which is the end of a repair: tells its result, or ends the
 * closing. */
static void on_mirror_closed(void *user)
{
    struct repair *repair = user;
    struct repair_status status;
    catalog_release(repair->run);
    repair->salvages = false;
    pthread_mutex_lock(&repair->lock);
    repair->status.running = false;
    status = repair->status;
    pthread_mutex_unlock(&repair->lock);
    if (repair->closed) {
        loop_post(repair->options.loop, &repair->post);
    } else if (repair->options.ended) {
        repair->options.ended(repair->options.user, &status);
    }
}

/* Called on the loop's thread when the repair has ended. The mirror is closed before the end is
 * told. */
static void work_done(struct work *work)
{
    struct repair *repair = container_of(work, struct repair, work);
    free(repair->facts);
    free(repair->memory);
    repair->facts = NULL;
    repair->memory = NULL;
    repair->memory_bytes = 0;
    if (repair->mirror) {
        store_close(repair->mirror, on_mirror_closed, repair);
    } else {
        on_mirror_closed(repair);
    }
}

static void on_post(struct post *post)
{
    struct repair *repair = container_of(post, struct repair, post);
    void (*closed)(void *user) = repair->closed;
    void *user = repair->closed_user;
    end(repair);
    closed(user);
}

void repair_close(struct repair *repair, void (*done)(void *user), void *user)
{
    CHECK(!repair->closed);
    repair->closed = done;
    repair->closed_user = user;
    atomic_store(&repair->closing, true);
    if (!repair_is_running(repair)) {
        loop_post(repair->options.loop, &repair->post);
    }
}

/* --- on the thread: common functions -------------------------------------------------------- */

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

bool repair_is_damage(int status)
{
    return status == CAIRN_E_DAMAGED || status == CAIRN_E_FORMAT || status == CAIRN_E_NOT_FOUND ||
           status == CAIRN_E_DIGEST_MISMATCH || status == CAIRN_E_IO;
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

uint8_t *repair_memory(struct repair *repair, size_t bytes)
{
    if (repair->memory_bytes < bytes) {
        free(repair->memory);
        repair->memory_bytes = round_up_u64(bytes, LIMIT_ALIGN_BYTES);
        repair->memory = aligned_alloc(LIMIT_ALIGN_BYTES, repair->memory_bytes);
        repair->memory_bytes = repair->memory ? repair->memory_bytes : 0;
    }
    return repair->memory;
}

void repair_random(struct repair *repair, uint64_t *ret)
{
    loop_random(repair->options.loop, sizeof(*ret), ret);
}

const struct commit_fact *repair_fact(const struct repair *repair, struct ckpt_id id)
{
    for (size_t i = 0; i < repair->fact_count; i++) {
        if (ckpt_id_equal(repair->facts[i].id, id)) {
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
    struct event event = {.kind = EVENT_REPAIR,
                          .id_count = 1,
                          .ids = &about,
                          .actor = repair->actor,
                          .reason = reason};
    return ask_event(repair, &event, diag);
}

/* --- the outline ------------------------------------------------------------------------------ */

static bool has_all_sources(const struct broken *broken)
{
    for (size_t i = 0; i < broken->count; i++) {
        if (broken->bad[i] && !broken->sources[i].store) {
            return false;
        }
    }
    return true;
}

static bool is_missing(struct repair *repair, const struct object_id *id)
{
    struct store_req req = {.op = STORE_STAT, .run = repair->name, .object = *id};
    return ask_store(repair, repair->store, &req) == CAIRN_E_NOT_FOUND;
}

/* Adds a line about an object that is missing and cannot be rebuilt. */
static void tell_missing(struct repair *repair, const struct broken *broken)
{
    char name[OBJECT_NAME_BYTES];
    size_t lost = 0;
    for (size_t i = 0; i < broken->count; i++) {
        lost += broken->bad[i] && !broken->sources[i].store;
    }
    rebuild_object_name(&broken->id, name);
    repair_add_line(repair, false,
                    "object %s is missing, and %zu of its %zu chunks have no copy in another "
                    "object of the run%s%s",
                    name, lost, broken->count, repair->mirror ? " or in " : "",
                    repair->mirror ? repair->options.mirror : "");
}

/* Reports each bad chunk of an object for which no copy was found. */
static void tell_lost(struct repair *repair, const struct broken *broken)
{
    char place[240];
    if (broken->missing) {
        tell_missing(repair, broken);
        return;
    }
    for (size_t i = 0; i < broken->count; i++) {
        if (broken->bad[i] && !broken->sources[i].store) {
            scan_piece_text(&broken->pieces[i], sizeof(place), place);
            repair_add_line(repair, false, "%s: there is no copy in another object of the run%s%s",
                            place, repair->mirror ? " or in " : "",
                            repair->mirror ? repair->options.mirror : "");
        }
    }
}

/* Rebuilds every broken object whose bad chunks all have sources, and reports the others. */
static int mend_objects(struct repair *repair, struct survey *survey, struct diag *diag)
{
    bool exchanges = repair->store->caps.exchanges;
    int status = survey->broken && exchanges ? copies_find(repair, survey, diag) : 0;
    for (struct broken *broken = survey->broken; status == 0 && broken; broken = broken->next) {
        status = repair_check(repair, diag);
        if (status != 0) {
            break;
        }
        broken->missing = is_missing(repair, &broken->id);
        if (!exchanges) {
            repair_add_line(repair, false,
                            "%s; a Ceph cluster repairs its own copies: `ceph health detail` names "
                            "the placement group, `ceph pg repair PG` mends it",
                            broken->first);
        } else if (has_all_sources(broken)) {
            status = rebuild_object(repair, broken, diag);
        } else {
            tell_lost(repair, broken);
        }
    }
    return status;
}

/* Returns true if damage is left, and gives the first line about it. */
static bool is_left(struct repair *repair, char ret[REPAIR_TEXT_MAX])
{
    pthread_mutex_lock(&repair->lock);
    const struct repair_status *status = &repair->status;
    bool left = status->left > 0;
    snprintf(ret, REPAIR_TEXT_MAX, "damaged, and no copy was found");
    for (uint32_t i = 0; i < status->line_count; i++) {
        if (!status->lines[i].mended) {
            snprintf(ret, REPAIR_TEXT_MAX, "%s", status->lines[i].text);
            break;
        }
    }
    pthread_mutex_unlock(&repair->lock);
    return left;
}

/* Puts the health of the checkpoint into the record. */
static int set_health(struct repair *repair, enum health health, const char *reason,
                      struct diag *diag)
{
    struct event event = {.kind = EVENT_HEALTH,
                          .id = repair->id,
                          .health = health,
                          .code = health == HEALTH_VERIFIED ? 0 : CAIRN_E_DAMAGED,
                          .reason = reason};
    int status = ask_event(repair, &event, diag);
    if (status == 0 && health == HEALTH_VERIFIED) {
        pthread_mutex_lock(&repair->lock);
        repair->status.healed = true;
        pthread_mutex_unlock(&repair->lock);
    }
    return status;
}

/* Reads everything once more from the medium: what was repaired, and what was good before. */
static int look_again(struct repair *repair, const struct commit_fact *fact, struct diag *diag)
{
    struct survey survey;
    survey_init(&survey);
    int status = survey_ckpt(repair, fact, false, &survey, diag);
    if (status == 0 && survey.found > 0) {
        repair_add_line(repair, false, "%s",
                        survey.broken ? survey.broken->first
                                      : "a document cannot be read after the repair");
    }
    survey_fini(&survey);
    return status;
}

/* Repairs one checkpoint: examine, mend, examine again, and put the result into the record. */
static int repair_ckpt(struct repair *repair, struct diag *diag)
{
    struct survey survey;
    char reason[REPAIR_TEXT_MAX];
    int status = ask_commits(repair, &repair->facts, &repair->fact_count, diag);
    const struct commit_fact *fact = status == 0 ? repair_fact(repair, repair->id) : NULL;
    if (status != 0 || !fact) {
        return status != 0
                   ? status
                   : diag_set(diag, CAIRN_E_NOT_FOUND, "checkpoint %llu@%llu is not in the run",
                              (unsigned long long)repair->id.step,
                              (unsigned long long)repair->id.term);
    }
    survey_init(&survey);
    status = survey_ckpt(repair, fact, true, &survey, diag);
    status = status != 0 ? status : mend_objects(repair, &survey, diag);
    enum health left = survey_health(&survey);
    survey_fini(&survey);
    pthread_mutex_lock(&repair->lock);
    bool mended = repair->status.mended > 0;
    pthread_mutex_unlock(&repair->lock);
    if (status == 0 && mended && !is_left(repair, reason)) {
        status = look_again(repair, fact, diag);
        left = HEALTH_DAMAGED;
    }
    if (status == 0 && is_left(repair, reason)) {
        reason[ENTRY_REASON_BYTES - 1] = '\0';
        status = set_health(repair, left, reason, diag);
    } else if (status == 0 && fact->health != HEALTH_VERIFIED) {
        status = set_health(repair, HEALTH_VERIFIED, "", diag);
    }
    return status;
}

/* Runs a repair or a salvage on the repair's thread. */
static void work_run(struct work *work)
{
    struct repair *repair = container_of(work, struct repair, work);
    struct diag diag = DIAG_INIT;
    int status = repair->salvages       ? salvage_run(repair, &diag)
                 : repair->id.term == 0 ? repair_record(repair, &diag)
                                        : repair_ckpt(repair, &diag);
    pthread_mutex_lock(&repair->lock);
    repair->status.code = status;
    if (status != 0) {
        snprintf(repair->status.text, sizeof(repair->status.text), "%.630s",
                 diag_text(&diag, status));
    }
    pthread_mutex_unlock(&repair->lock);
}
