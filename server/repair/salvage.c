/* SPDX-License-Identifier: Apache-2.0
 *
 * See salvage.h. Order: the record itself (its files, its lost end), then all manifests that it
 * does not explain, by term and step, each verified and entered in one update. What is damaged
 * below its manifest is entered as damaged, so that it can be named, repaired or forgotten like any
 * other. A manifest that is lost or damaged is made again from the parts, where every byte below it
 * is good; else there is nothing to enter. On the repair's thread.
 */
#include "repair/salvage.h"

#include "repair_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A manifest that the record does not explain, or the parts of one opening without a manifest. */
struct lost_manifest {
    struct ckpt_id id;
    uint64_t open_id;
    bool has_manifest; /* under its name lies something */
    bool explained, readable, foreign, entered;
    uint32_t part_count; /* names of parts of the same opening */
    uint32_t world_size; /* of one that cannot be read: what its parts say; 0: no idea */
    struct token token;
    struct ckpt_id parent;
    struct sha256 sha256;
    uint64_t bytes;
    int64_t created_wall_ns;
    char why[400]; /* it cannot be read */
};

struct salvaging {
    struct repair *repair;
    const struct salvage_options *how;
    bool record_missing;
    size_t count;
    struct lost_manifest *lost;
    size_t ckpt_count;
    struct ckpt_id *ckpts;
};

static void add_item(struct repair *repair, struct ckpt_id id, enum salvage_outcome outcome,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static void add_item(struct repair *repair, struct ckpt_id id, enum salvage_outcome outcome,
                     const char *fmt, ...)
{
    struct salvage_item item = {.id = id, .outcome = outcome};
    va_list args;
    va_start(args, fmt);
    vsnprintf(item.text, sizeof(item.text), fmt, args);
    va_end(args);
    struct salvage_item *grown =
        realloc(repair->items, (repair->item_count + 1) * sizeof(*repair->items));
    if (!grown) {
        repair->items_untold = true;
        return;
    }
    repair->items = grown;
    repair->items[repair->item_count++] = item;
}

static const struct ckpt_id record_itself = {0, 0};

/* --- the record ------------------------------------------------------------------------------- */

/* Its end is lost in both places. True: it goes on from what is left. */
static int cut_record(struct salvaging *s, uint64_t lost_from, const char *why, bool *ret_goes_on,
                      struct diag *diag)
{
    struct store_req req = {
        .op = STORE_RECORD_CUT, .run = s->repair->name, .file.version = lost_from};
    *ret_goes_on = s->how->accept_loss;
    if (!s->how->accept_loss) {
        add_item(s->repair, record_itself, SALVAGE_LEFT,
                 "%.480s. Put the file back, or say --accept-loss: the record then ends before it, "
                 "and checkpoints that it no longer tells of are entered again",
                 why);
        if (!s->repair->items_untold) {
            s->repair->items[s->repair->item_count - 1].needs_accept_loss = true;
        }
        return 0;
    }
    int status = s->how->yes ? ask_store(s->repair, s->repair->store, &req) : 0;
    if (status != 0) {
        return repair_fail(diag, status, &req.diag);
    }
    add_item(s->repair, record_itself, SALVAGE_WHOLE,
             "the end of the record, from update %" PRIu64
             " on, is given up (kept in quarantine/ of the store)",
             lost_from);
    return 0;
}

/* It is gone, and nothing of it is left to give up: that takes no word but --yes. */
static int begin_record(struct salvaging *s, uint64_t lost_from, struct diag *diag)
{
    struct store_req req = {
        .op = STORE_RECORD_CUT, .run = s->repair->name, .file.version = lost_from};
    int status = s->how->yes ? ask_store(s->repair, s->repair->store, &req) : 0;
    return status == 0 ? 0 : repair_fail(diag, status, &req.diag);
}

static int mend_record(struct salvaging *s, const char *why, struct diag *diag)
{
    struct store_req req = {.op = STORE_RECORD_MEND, .run = s->repair->name};
    int status = s->how->yes ? ask_store(s->repair, s->repair->store, &req) : 0;
    if (status == CAIRN_E_NOT_FOUND || status == CAIRN_E_IO) { /* it can be read all the same */
        add_item(s->repair, record_itself, SALVAGE_LEFT,
                 "%.260s; the record can be read all the same, but the file is not made good: "
                 "%.260s; look at the disk, then salvage again",
                 why, diag_text(&req.diag, status));
        return 0;
    }
    if (status != 0) {
        return repair_fail(diag, status, &req.diag);
    }
    add_item(s->repair, record_itself, SALVAGE_WHOLE, "%.480s: made good from its second copy",
             why);
    return 0;
}

/* ret_goes_on: the checkpoints may be looked at. */
static int look_at_record(struct salvaging *s, bool *ret_goes_on, struct diag *diag)
{
    struct store_req req = {
        .op = STORE_RECORD_GET, .run = s->repair->name, .take_prefix = true, .from_medium = true};
    int status = ask_store(s->repair, s->repair->store, &req);
    char why[REPAIR_TEXT_MAX];
    snprintf(why, sizeof(why), "%.480s", diag_text(&req.diag, CAIRN_E_DAMAGED));
    *ret_goes_on = true;
    s->record_missing = status == 0 && record_version(req.ret_record) == 0;
    record_free(req.ret_record);
    if (status != 0 && !repair_is_damage(status)) {
        return repair_fail(diag, status, &req.diag);
    }
    if (status != 0) {
        add_item(s->repair, record_itself, SALVAGE_LEFT, "%.480s", why);
        *ret_goes_on = false;
        return 0;
    }
    if (req.ret_lost_from != 0 && s->record_missing && req.ret_file_count == 0) {
        return begin_record(s, req.ret_lost_from, diag);
    }
    if (req.ret_lost_from != 0) {
        return cut_record(s, req.ret_lost_from, why, ret_goes_on, diag);
    }
    return req.ret_file_count > 0 && !s->record_missing ? mend_record(s, why, diag) : 0;
}

/* --- what the record does not explain --------------------------------------------------------- */

/* The entry of the opening, behind `first`; there is room for a new one. */
static struct lost_manifest *find_opening(struct salvaging *s, size_t first, struct ckpt_id id,
                                          uint64_t open_id)
{
    for (size_t i = first; i < s->count; i++) {
        if (s->lost[i].open_id == open_id) {
            return &s->lost[i];
        }
    }
    s->lost[s->count] = (struct lost_manifest){.id = id, .open_id = open_id};
    return &s->lost[s->count++];
}

static int add_manifests(struct salvaging *s, struct ckpt_id id, struct diag *diag)
{
    struct store_req req = {.op = STORE_LIST_SMALL, .run = s->repair->name, .id = id};
    int status = ask_store(s->repair, s->repair->store, &req);
    struct lost_manifest *grown =
        status == 0 ? realloc(s->lost, (s->count + req.ret_count + 1) * sizeof(*grown)) : NULL;
    if (grown) {
        s->lost = grown;
    }
    size_t first = s->count;
    for (size_t i = 0; grown && i < req.ret_count; i++) {
        const struct store_name *name = &req.ret_smalls[i];
        struct lost_manifest *lost = find_opening(s, first, id, name->tag);
        lost->has_manifest = lost->has_manifest || name->kind == STORE_MANIFEST;
        lost->part_count += name->kind == STORE_PART;
    }
    free(req.ret_smalls);
    return status != 0 ? repair_fail(diag, status, &req.diag)
           : grown     ? 0
                       : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a list of manifests");
}

/* The manifest as it lies there; that it is this store's and this run's, of that name. */
static int read_manifest(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    struct repair *repair = s->repair;
    struct store_req req = {
        .op = STORE_FETCH,
        .name = {.run = repair->name, .id = lost->id, .kind = STORE_MANIFEST, .tag = lost->open_id},
        .from_medium = true};
    struct scratch scratch;
    struct manifest manifest;
    struct diag why = DIAG_INIT;
    int status = repair_check(repair, diag);
    if (status != 0) {
        return status;
    }
    status = ask_store(repair, repair->store, &req);
    if (status != 0 && !repair_is_damage(status)) {
        return repair_fail(diag, status, &req.diag);
    }
    scratch_init(&scratch, REPAIR_SCRATCH_MAX);
    why = status != 0 ? req.diag : why;
    status = status != 0 ? status
                         : manifest_decode(req.ret_bytes, req.ret_data, &scratch, &manifest, &why);
    if (status == 0 && (!ckpt_id_equal(manifest.id, lost->id) ||
                        strcmp(manifest.run.project, repair->name.project) != 0 ||
                        strcmp(manifest.run.run, repair->name.run) != 0)) {
        status = diag_set(&why, CAIRN_E_CONFLICT, "it is of %s/%s, step %" PRIu64,
                          manifest.run.project, manifest.run.run, manifest.id.step);
    }
    lost->readable = status == 0;
    lost->has_manifest = status != CAIRN_E_NOT_FOUND; /* a name may have been listed ahead */
    lost->foreign = status == CAIRN_E_CONFLICT;
    if (status == 0) {
        lost->token = manifest.token;
        lost->parent = manifest.parent;
        lost->sha256 = sha256(req.ret_bytes, req.ret_data);
        lost->bytes = req.ret_bytes;
        lost->created_wall_ns = manifest.created_wall_ns;
    } else {
        snprintf(lost->why, sizeof(lost->why), "%.390s", diag_text(&why, status));
    }
    scratch_fini(&scratch);
    free(req.ret_data);
    return status == CAIRN_E_NO_MEMORY ? diag_set(diag, status, "no memory for a manifest") : 0;
}

/* Of two openings of a step the later one is what was acknowledged, if any was. */
static int compare_lost(const void *a, const void *b)
{
    const struct lost_manifest *left = a, *right = b;
    int order = ckpt_id_compare(left->id, right->id);
    if (order != 0) {
        return order;
    }
    if (left->readable != right->readable) {
        return left->readable ? -1 : 1;
    }
    return (right->created_wall_ns > left->created_wall_ns) -
           (right->created_wall_ns < left->created_wall_ns);
}

static int find_explained(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    struct origin origin;
    if (lost->has_manifest) {
        return ask_explained(s->repair, lost->id, lost->open_id, &lost->explained, diag);
    }
    int status = ask_origin(s->repair, lost->id, lost->open_id, &origin, diag);
    lost->explained = origin.is_explained || lost->part_count == 0;
    return status;
}

static bool is_complete(const struct lost_manifest *lost)
{
    return lost->world_size != 0 && lost->world_size == lost->part_count && !lost->foreign;
}

/* Parts without a manifest that are not of all ranks are what each crash leaves. */
static int drop_fragments(struct salvaging *s, struct diag *diag)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct lost_manifest *lost = &s->lost[i];
        struct remade remade = {.id = lost->id, .open_id = lost->open_id};
        int status = remake_world(s->repair, &remade, lost->readable ? 0 : lost->part_count, diag);
        if (status != 0) {
            return status;
        }
        lost->world_size = remade.world_size;
        if (lost->has_manifest || is_complete(lost)) {
            s->lost[kept++] = *lost;
        }
    }
    s->count = kept;
    return 0;
}

static int find_lost(struct salvaging *s, struct diag *diag)
{
    struct store_req req = {.op = STORE_LIST_CKPTS, .run = s->repair->name};
    int status = ask_store(s->repair, s->repair->store, &req);
    s->ckpts = req.ret_ckpts;
    s->ckpt_count = status == 0 ? req.ret_count : 0;
    if (status != 0) {
        return repair_fail(diag, status, &req.diag);
    }
    for (size_t i = 0; status == 0 && i < s->ckpt_count; i++) {
        status = add_manifests(s, s->ckpts[i], diag);
    }
    for (size_t i = 0; status == 0 && i < s->count; i++) {
        status = find_explained(s, &s->lost[i], diag);
    }
    size_t kept = 0;
    for (size_t i = 0; status == 0 && i < s->count; i++) {
        if (!s->lost[i].explained) {
            s->lost[kept++] = s->lost[i];
        }
    }
    s->count = status == 0 ? kept : s->count;
    for (size_t i = 0; status == 0 && i < s->count; i++) {
        status = s->lost[i].has_manifest ? read_manifest(s, &s->lost[i], diag) : 0;
    }
    status = status != 0 ? status : drop_fragments(s, diag);
    if (status == 0 && s->count > 0) {
        qsort(s->lost, s->count, sizeof(*s->lost), compare_lost);
    }
    return status;
}

/* --- one checkpoint --------------------------------------------------------------------------- */

/* The newest older checkpoint in whose objects its chunks lie: all that it refers to is referred to
 * by that one as well, or its own. */
static void take_base(const struct part *part, struct ckpt_id *io_base)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        struct ckpt_id of = {part->objects[i].id.term, part->objects[i].id.step};
        if (!ckpt_id_equal(of, part->id) && ckpt_id_compare(of, *io_base) > 0) {
            *io_base = of;
        }
    }
}

struct judgement {
    struct papers papers;
    struct ckpt_id base;
    enum health health;
    char why[400];
};

static void judge_damaged(struct judgement *ret, enum health health, const char *why)
{
    if (ret->health == HEALTH_VERIFIED) {
        snprintf(ret->why, sizeof(ret->why), "%.390s", why);
    }
    ret->health = max_u64(ret->health, health) == HEALTH_DAMAGED ? HEALTH_DAMAGED : HEALTH_SUSPECT;
}

static int judge_parts(struct salvaging *s, struct judgement *ret, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < ret->papers.part_count; i++) {
        struct paper_part part;
        struct diag why = DIAG_INIT;
        status = papers_part(s->repair, &ret->papers, i, &part, &why);
        if (status == 0) {
            take_base(&part.part, &ret->base);
        } else if (repair_is_damage(status)) {
            judge_damaged(ret, HEALTH_DAMAGED, diag_text(&why, status));
            status = 0;
        } else {
            status = repair_fail(diag, status, &why);
        }
        paper_part_fini(&part);
    }
    return status;
}

/* ret->papers are to be ended in any case. */
static int judge(struct salvaging *s, const struct commit_fact *fact, struct judgement *ret,
                 struct diag *diag)
{
    struct diag why = DIAG_INIT;
    struct survey survey;
    int status = papers_open(s->repair, fact, false, &ret->papers, &why);
    if (status != 0 && repair_is_damage(status)) {
        judge_damaged(ret, HEALTH_DAMAGED, diag_text(&why, status));
    } else if (status != 0) {
        return repair_fail(diag, status, &why);
    }
    status = judge_parts(s, ret, diag);
    bool is_quick = s->how->quick && !s->repair->remade; /* no hash is above parts alone */
    if (status != 0 || is_quick || ret->health == HEALTH_DAMAGED) {
        return status;
    }
    survey_init(&survey);
    status = survey_ckpt(s->repair, fact, false, &survey, diag);
    if (status == 0 && survey.found > 0) {
        judge_damaged(ret, survey_health(&survey),
                      survey.broken ? survey.broken->first : "a document cannot be read");
    }
    survey_fini(&survey);
    return status;
}

static void fill_event(const struct salvaging *s, const struct lost_manifest *lost,
                       const struct judgement *judgement, struct event *ret)
{
    const struct manifest *manifest = &judgement->papers.manifest;
    *ret = (struct event){.kind = EVENT_ADOPT,
                          .id = lost->id,
                          .open_id = lost->open_id,
                          .token = manifest->token,
                          .parent = manifest->parent,
                          .world_size = manifest->world_size,
                          .wall_ns = manifest->created_wall_ns,
                          .info = {.run_uuid = manifest->run_uuid,
                                   .chunk_bytes = manifest->chunk_bytes,
                                   .created_wall_ns = manifest->created_wall_ns},
                          .commit = {.manifest_sha256 = lost->sha256,
                                     .manifest_bytes = lost->bytes,
                                     .plain_bytes = manifest->plain_bytes,
                                     .stored_bytes = manifest->stored_bytes,
                                     .base = judgement->base},
                          .note = {.tag_count = manifest->tag_count,
                                   .tags = manifest->tags,
                                   .metric_count = manifest->metric_count,
                                   .metrics = manifest->metrics,
                                   .of_save = true},
                          .health = judgement->health,
                          .reason = judgement->why,
                          .actor = s->repair->actor};
}

/* Of the parts here, whose run's; else a new one. */
static void find_info(struct salvaging *s, struct entry_info *ret)
{
    struct repair *repair = s->repair;
    bool found = false;
    for (size_t i = 0; !found && i < s->ckpt_count; i++) {
        struct store_req list = {.op = STORE_LIST_SMALL, .run = repair->name, .id = s->ckpts[i]};
        int status = ask_store(repair, repair->store, &list);
        for (size_t k = 0; status == 0 && !found && k < list.ret_count; k++) {
            struct store_req req = {
                .op = STORE_FETCH, .name = list.ret_smalls[k], .from_medium = true};
            struct scratch scratch;
            struct part part;
            scratch_init(&scratch, REPAIR_SCRATCH_MAX);
            found = list.ret_smalls[k].kind == STORE_PART &&
                    ask_store(repair, repair->store, &req) == 0 &&
                    part_decode(req.ret_bytes, req.ret_data, &scratch, &part, NULL) == 0;
            if (found) {
                *ret =
                    (struct entry_info){.run_uuid = part.run_uuid, .chunk_bytes = part.chunk_bytes};
            }
            free(req.ret_data);
            scratch_fini(&scratch);
        }
        free(list.ret_smalls);
    }
    if (!found) {
        uint64_t random[2];
        repair_random(repair, &random[0]);
        repair_random(repair, &random[1]);
        *ret = (struct entry_info){.chunk_bytes = LIMIT_CHUNK_BYTES};
        memcpy(&ret->run_uuid, random, sizeof(ret->run_uuid));
    }
}

/* What cannot be entered stays as it is, or is given up. */
static int leave(struct salvaging *s, const struct lost_manifest *lost, const char *why,
                 struct diag *diag)
{
    struct event event = {.kind = EVENT_ADOPT,
                          .id = lost->id,
                          .open_id = lost->open_id,
                          .code = CAIRN_E_DAMAGED,
                          .reason = "given up: its manifest could not be entered again"};
    if (!s->how->discard) {
        add_item(s->repair, lost->id, SALVAGE_LEFT, "%.390s", why);
        return 0;
    }
    int status = ask_info(s->repair, &event.info, diag);
    if (status == CAIRN_E_NOT_FOUND) {
        diag_clear(diag);
        find_info(s, &event.info);
        status = 0;
    }
    status = status != 0 ? status : ask_try_event(s->repair, &event, !s->how->yes, diag);
    if (status == 0) {
        add_item(s->repair, lost->id, SALVAGE_GIVEN_UP, "%.390s", why);
    }
    return status;
}

static bool is_refusal(int status)
{
    return status == CAIRN_E_EXISTS || status == CAIRN_E_CONFLICT || status == CAIRN_E_INVALID ||
           status == CAIRN_E_DAMAGED;
}

/* The new documents become durable, and are read back from the medium. */
static int publish(struct salvaging *s, const struct remade *remade, const struct commit_fact *fact,
                   struct diag *diag)
{
    struct papers papers;
    int status = remake_publish(s->repair, remade, diag);
    s->repair->remade = NULL;
    if (status != 0) {
        return status;
    }
    status = papers_open(s->repair, fact, false, &papers, diag);
    papers_fini(&papers);
    return status;
}

static void add_entered(struct salvaging *s, const struct lost_manifest *lost,
                        const struct judgement *judgement, bool is_quick, const char *more)
{
    const char *good =
        is_quick ? "manifest, pages and parts are whole" : "every byte of it is good";
    if (judgement->health != HEALTH_VERIFIED) {
        add_item(s->repair, lost->id, SALVAGE_DAMAGED, "%s", judgement->why);
    } else if (!manifest_is_remade(&judgement->papers.manifest)) {
        add_item(s->repair, lost->id, SALVAGE_WHOLE, "%s", good);
    } else {
        add_item(s->repair, lost->id, SALVAGE_WHOLE,
                 "its manifest %s made again from %zu parts, without metadata, tags and metrics of "
                 "the save, which are lost; %s%s",
                 s->how->yes || lost->readable ? "was" : "would be", judgement->papers.part_count,
                 good, more);
    }
}

/* A checkpoint whose manifest is there, or (remade) has been made again in memory. more: what else
 * is to be said of it. */
static int enter(struct salvaging *s, struct lost_manifest *lost, const struct remade *remade,
                 const char *more, struct diag *diag)
{
    struct judgement judgement = {.health = HEALTH_VERIFIED};
    struct commit_fact fact = {.id = lost->id,
                               .open_id = lost->open_id,
                               .manifest_bytes = lost->bytes,
                               .manifest_sha256 = lost->sha256};
    struct event event;
    struct diag why = DIAG_INIT;
    int status = judge(s, &fact, &judgement, diag);
    if (status == 0 && remade && judgement.health != HEALTH_VERIFIED) {
        status = diag_set(&why, CAIRN_E_DAMAGED,
                          "its manifest is lost, and is not made again: %.300s", judgement.why);
    } else if (status == 0) {
        fill_event(s, lost, &judgement, &event);
        status = ask_try_event(s->repair, &event, !s->how->yes || remade, &why);
        if (status == 0 && remade && s->how->yes) {
            status = publish(s, remade, &fact, &why);
            status = status != 0 ? status : ask_event(s->repair, &event, &why);
        }
    }
    if (is_refusal(status)) {
        status = leave(s, lost, diag_text(&why, status), diag);
    } else if (status != 0) {
        status = repair_fail(diag, status, &why);
    } else {
        lost->entered = true;
        add_entered(s, lost, &judgement, s->how->quick && !remade, more);
    }
    papers_fini(&judgement.papers);
    return status;
}

/* Token and parent of its term: of the record, else of another checkpoint of the term. A part does
 * not say them. Where nothing does, the term continues no checkpoint, if there is none of an older
 * term; else the newest of them is guessed. */
static int find_origin(struct salvaging *s, const struct lost_manifest *lost, struct origin *ret,
                       bool *ret_is_guess, struct diag *diag)
{
    struct commit_fact *facts = NULL;
    size_t count = 0;
    uint64_t random[2];
    *ret_is_guess = false;
    int status = ask_origin(s->repair, lost->id, lost->open_id, ret, diag);
    if (status != 0 || ret->is_known) {
        return status;
    }
    ret->parent = (struct ckpt_id){0, 0};
    for (size_t i = 0; i < s->count; i++) {
        const struct lost_manifest *other = &s->lost[i];
        if (other->readable && other->id.term == lost->id.term) {
            ret->token = other->token;
            ret->parent = other->parent;
            return 0;
        }
        bool is_older = other->id.term < lost->id.term && (other->readable || other->entered);
        ret->parent =
            is_older && ckpt_id_compare(other->id, ret->parent) > 0 ? other->id : ret->parent;
    }
    status = ask_commits(s->repair, &facts, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        bool is_older = facts[i].id.term < lost->id.term;
        ret->parent =
            is_older && ckpt_id_compare(facts[i].id, ret->parent) > 0 ? facts[i].id : ret->parent;
    }
    free(facts);
    repair_random(s->repair, &random[0]);
    repair_random(s->repair, &random[1]);
    memcpy(&ret->token, random, sizeof(ret->token));
    *ret_is_guess = ret->parent.term != 0;
    return status;
}

static bool is_other_opening(const struct salvaging *s, const struct lost_manifest *lost)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct lost_manifest *other = &s->lost[i];
        if (other != lost && ckpt_id_equal(other->id, lost->id) && is_complete(other)) {
            return true;
        }
    }
    return false;
}

/* What a store says of itself, and not of the parts. */
static bool ends_salvage(int status)
{
    return err_retry(status) == ERR_RETRY_RETRY || status == CAIRN_E_NO_MEMORY ||
           status == CAIRN_E_CANCELLED || status == CAIRN_E_DENIED;
}

static int salvage_parts(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    struct remade remade = {
        .id = lost->id, .open_id = lost->open_id, .world_size = lost->world_size};
    struct origin origin;
    struct diag why = DIAG_INIT;
    char text[480], more[160] = "";
    bool is_guess;
    if (is_other_opening(s, lost)) {
        return leave(s, lost,
                     "its manifest is lost, and it was opened twice: parts of all ranks are "
                     "here of both openings, and nothing says which one counts",
                     diag);
    }
    int status = find_origin(s, lost, &origin, &is_guess, diag);
    if (status == 0 && is_guess && !s->how->accept_loss) {
        snprintf(text, sizeof(text),
                 "its manifest is lost, and nothing that is left says which checkpoint its term "
                 "continues; with --accept-loss %" PRIu64 "@%" PRIu64 " is taken for it",
                 origin.parent.step, origin.parent.term);
        return leave(s, lost, text, diag);
    }
    if (status != 0) {
        return status;
    }
    if (is_guess) {
        snprintf(more, sizeof(more),
                 "; which checkpoint its term continues is lost: taken to be %" PRIu64 "@%" PRIu64,
                 origin.parent.step, origin.parent.term);
    }
    status = remake_build(s->repair, &origin, &remade, &why);
    if (status == 0) {
        lost->sha256 = sha256(remade.build.bytes.bytes, remade.build.bytes.data);
        lost->bytes = remade.build.bytes.bytes;
        s->repair->remade = &remade;
        status = enter(s, lost, &remade, more, diag);
        s->repair->remade = NULL;
    } else if (ends_salvage(status)) {
        status = repair_fail(diag, status, &why);
    } else if (lost->has_manifest || status != CAIRN_E_NOT_FOUND) {
        snprintf(text, sizeof(text), "its manifest is lost, and cannot be made again: %.350s",
                 diag_text(&why, status));
        status = leave(s, lost, text, diag);
    } else {
        status = 0; /* names of parts that were listed ahead: a fragment */
    }
    remake_fini(&remade);
    return status;
}

static int salvage_one(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    char text[480];
    if (lost->readable) {
        return enter(s, lost, NULL, "", diag);
    }
    if (is_complete(lost)) {
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
    return leave(s, lost, text, diag);
}

/* Another opening of the same checkpoint is in its place, or would be. */
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
    add_item(s->repair, record_itself, SALVAGE_WHOLE, "the record is missing: it is made anew");
    for (size_t i = 0; i < s->count; i++) {
        if (s->lost[i].readable) {
            return 0; /* with the first of them */
        }
    }
    find_info(s, &event.info);
    return ask_try_event(s->repair, &event, !s->how->yes, diag);
}

int salvage_run(struct repair *repair, struct diag *diag)
{
    struct salvaging s = {.repair = repair, .how = &repair->salvage};
    bool goes_on = true;
    int status = look_at_record(&s, &goes_on, diag);
    if (status == 0 && goes_on) {
        status = find_lost(&s, diag);
    }
    if (status == 0 && goes_on && s.record_missing && s.ckpt_count > 0) {
        status = make_record(&s, diag);
    }
    for (size_t i = 0; status == 0 && goes_on && i < s.count; i++) {
        bool explained = false;
        status = ask_explained(repair, s.lost[i].id, s.lost[i].open_id, &explained, diag);
        if (status == 0 && !explained && !is_settled(&s, i)) { /* by what was entered just now */
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
    repair->salvages = true;
    repair->salvage = *how;
    int status = repair_begin(repair, run, (struct ckpt_id){0, 0}, actor, diag);
    repair->salvages = status == 0;
    return status;
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
