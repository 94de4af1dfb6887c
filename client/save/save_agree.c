/* SPDX-License-Identifier: Apache-2.0
 *
 * Agrees with the other ranks on who writes what, before the copy; save_agree_private.h draws the
 * states. A rank whose lists are those agreed last copies at once and only tells the server so. A
 * rank whose list is new, or that has restored since, waits for the verdict, for a bounded time. If
 * none comes, it keeps the places of an agreement that is proven and trusted, and divides the rest
 * as if all lists were equal. PROTOCOL.md 5 explains the words and the verdicts. Loop's thread.
 *
 *   OPENED -> AGREE -> AGREED -> LISTS of some groups -> HOLDERS of each group
 *
 * A server compares only the lists that it receives, so with several servers a waiting rank goes to
 * the first one. A rank that has copied and was spread to another server does not know of this: it
 * comes when it has sealed a save and the outcome is long in coming.
 */
#include "save/save_agree_private.h"

#include "base/check.h"
#include "wire/negotiate.h"

#include <stdlib.h>
#include <string.h>

#define AGREE_SCRATCH_MAX ((size_t)1 << 30)
enum {
    AGREE_WAIT_MS = 5000,
    AGREE_WAIT_MS_MAX = 60000, /* after failures, and when others must come from elsewhere */
    AGREE_MEET_MS = 5000,      /* a rank that has sealed goes to look for the others no sooner */
    AGREE_MEET_SHIFT_MAX = 6,  /* doublings of that time when no rank had waited for it */
    AGREE_POLL_MS = 500,       /* between tries to leave the connection */
    SPREAD_AFTER = 8,
    AGREE_LISTS_MAX = 128, /* LISTS that are sent at once; a server allows 256 requests */
    AGREE_KEYS = 4096      /* in a frame */
};

struct agree_lists { /* the LISTS of one group */
    struct save_agree *agree;
    struct request request;
    uint32_t group;
};

static const struct request_ops agree_ops, lists_ops;

bool save_agree_is_decided(const struct save_agree *agree)
{
    return sm_is(&agree->sm, AG_DECIDED) || sm_is(&agree->sm, AG_SEALED);
}

bool save_agree_compares(const struct save_agree *agree)
{
    return agree->common->user->check_replicas != CHECK_NONE && agree->held.group_count > 0;
}

/* Returns whether the ranks agree through the server: it knows how, and there is more than one
 * rank. */
static bool is_spoken(const struct save_agree *agree)
{
    const struct engine *engine = agree->common->engine;
    return (engine->link.welcome.features & WIRE_FEATURE_AGREE) != 0 &&
           engine->options.world_size > 1;
}

/* --- the decision ---------------------------------------------------------------- */

/* Returns what this save follows of what was agreed on the group, or NULL. */
static const struct agreed_group *find_agreed(const struct save_agree *agree, uint32_t g)
{
    const struct agreed_group *agreed =
        agreement_find(&agree->common->engine->agreement, &agree->held.groups[g].key, agree->since);
    return agreed && (agreed->trusted || agree->copies[g]) ? agreed : NULL;
}

/* Returns whether this verdict divides the whole group anew. */
static bool is_anew(uint32_t verdict) { return verdict == AGREE_ALIKE || verdict == AGREE_ANEW; }

/* Makes this rank's share from the verdicts and lists. Groups by which the rank has copied already
 * keep their places, whatever the verdict says. */
static int make_share(struct save_agree *agree, struct diag *diag)
{
    for (uint32_t g = 0; g < agree->held.group_count; g++) {
        bool stays = agree->copies[g] || !is_anew(agree->verdicts[g]);
        struct agree_rule *rule = &agree->rules[g];
        rule->keep = stays ? find_agreed(agree, g) : NULL;
        rule->anew = agree->common->open_id;
        if (agree->copies[g]) {
            rule->row_count = 0; /* it has copied by what is proven */
            continue;
        }
        int rc = agreement_check_losses(rule->keep, &agree->held.groups[g], &agree->held,
                                        agree->common->engine->options.rank, diag);
        if (rc != 0) {
            return rc;
        }
    }
    struct agree_terms terms = {.set = agree->common->set,
                                .held = &agree->held,
                                .agreement = &agree->common->engine->agreement,
                                .rules = agree->rules};
    return share_init_agreed(&agree->share, &terms, diag);
}

/* Makes the share with what is known now, and lets the save go on. */
static void decide(struct save_agree *agree)
{
    struct diag diag = DIAG_INIT;
    if (save_agree_is_decided(agree) || save_is_over(agree->common)) {
        return;
    }
    timer_stop(&agree->timer);
    int rc = make_share(agree, &diag);
    if (rc != 0) {
        save_fail(agree->common, rc, &diag);
        return;
    }
    sm_move(&agree->sm, AG_DECIDED);
    save_wake(agree->common);
}

/* Decides without the server, if this rank still waits for it. Verdicts that came without their
 * lists are worth nothing, so they are dropped. */
static void decide_alone(struct save_agree *agree)
{
    if (!sm_is(&agree->sm, AG_WAIT)) {
        return;
    }
    agree->ground = GROUND_ALONE;
    memset(agree->verdicts, 0, agree->held.group_count * sizeof(uint32_t));
    for (uint32_t g = 0; g < agree->held.group_count; g++) {
        agree->rules[g].row_count = 0;
    }
    decide(agree);
}

void save_agree_adopt(struct save_agree *agree, const struct layout *layout)
{
    bool *wrote = calloc(agree->common->set->tensor_count + 1, sizeof *wrote);
    CHECK(save_agree_is_decided(agree));
    for (uint32_t i = 0; wrote && i < layout->piece_count; i++) {
        if (!(layout->pieces[i].tensor & LAYOUT_BLOB)) {
            wrote[layout->pieces[i].tensor] = true;
        }
    }
    for (uint32_t g = 0; wrote && g < agree->held.group_count; g++) {
        struct agree_news news = {.set = agree->common->set,
                                  .held = &agree->held,
                                  .share = &agree->share,
                                  .wrote = wrote,
                                  .save = agree->common->number};
        /* What this save copied by is proven already, but a save that began before it may prove
         * something else first. On ranks that did not copy by it the newer of the two counts. */
        if (!agree->copies[g] ||
            agreement_may_change(&agree->common->engine->agreement, &agree->held.groups[g].key)) {
            /* Without memory nothing is agreed, and the next save asks. */
            err_ignore(agreement_set(&agree->common->engine->agreement, g, &news));
        }
    }
    free(wrote);
}

/* --- lists ----------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct xxh128)); /* the key comes first */
}

/* Decides when the reply to AGREE and the HOLDERS of all groups have come. */
static void finish_if_all(struct save_agree *agree)
{
    bool is_open = agree->talk != TALK_ANSWERED;
    for (uint32_t g = 0; g < agree->held.group_count; g++) {
        is_open = is_open || agree->lists[g].request.stream != 0;
    }
    for (uint32_t g = 0; !is_open && g < agree->held.group_count; g++) {
        struct agree_rule *rule = &agree->rules[g];
        if (rule->row_count > 1) {
            qsort(rule->rows, rule->row_count, sizeof *rule->rows, compare_rows);
        }
    }
    if (!is_open) {
        decide(agree);
    }
}

/* Adds the rows of a HOLDERS frame to the rule of its group. */
static int add_rows(struct agree_lists *lists, const struct msg_sets *sets)
{
    struct save_agree *agree = lists->agree;
    struct agree_rule *rule = &agree->rules[lists->group];
    if (sets->count > 0) { /* frames are large, so that there are few of them */
        void *rows = realloc(rule->rows, (rule->row_count + sets->count) * sizeof *rule->rows);
        if (!rows) {
            return CAIRN_E_NO_MEMORY;
        }
        rule->rows = rows;
    }
    for (uint32_t i = 0; i < sets->count; i++) {
        const struct msg_set *set = &sets->rows[i];
        uint8_t *bits = scratch_alloc(&agree->scratch, set->bytes + 1);
        if (!bits) {
            return CAIRN_E_NO_MEMORY;
        }
        memcpy(bits, set->bits, set->bytes);
        rule->rows[rule->row_count++] = (struct agree_row){
            .key = set->key, .division = set->division, .bytes = set->bytes, .bits = bits};
    }
    return 0;
}

/* Fails the save of a rank that waits and cannot use the answer to its LISTS. */
static void fail_lists(struct agree_lists *lists, int code, const char *text)
{
    struct save_agree *agree = lists->agree;
    struct diag diag = DIAG_INIT;
    if (!agree->copies[lists->group] && !save_agree_is_decided(agree)) {
        diag_set(&diag, code, "who writes what: %s", text && text[0] ? text : err_text(code));
        save_fail(agree->common, code, &diag);
    }
}

/* Called with a piece of the answer to LISTS, which comes in any number of HOLDERS. The last one
 * ends the request. */
static int on_lists_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                          void **ret_payload, struct diag *diag)
{
    struct agree_lists *lists = container_of(request, struct agree_lists, request);
    struct save_agree *agree = lists->agree;
    (void)frame, (void)ret_payload, (void)diag;
    if (msg->type == MSG_ERROR) {
        decide_alone(agree); /* most likely the save has ended, and the next request is told */
        return 0;
    }
    const struct msg_sets *sets = &msg->u.holders;
    int rc = add_rows(lists, sets);
    if (rc != 0) {
        fail_lists(lists, rc, NULL);
    } else if (sets->code != 0) {
        fail_lists(lists, CAIRN_E_LIST_MISMATCH, sets->text);
    }
    if (sets->last) {
        link_forget(&agree->common->engine->link, request);
        finish_if_all(agree);
    }
    return 0;
}

static void on_agree_lost(struct request *request)
{
    (void)request; /* save_agree_down handles all requests at once */
}

static const struct request_ops lists_ops = {.on_reply = on_lists_reply, .on_lost = on_agree_lost};

/* Sends the keys of the group's list in order, in frames of AGREE_KEYS, each with the division of
 * its tensor. */
static void send_lists(struct save_agree *agree, uint32_t g)
{
    struct agree_lists *lists = &agree->lists[g];
    const struct held_group *group = &agree->held.groups[g];
    const struct agreed_group *agreed = find_agreed(agree, g);
    struct xxh128 keys[AGREE_KEYS];
    uint64_t divisions[AGREE_KEYS];
    link_add(&agree->common->engine->link, &lists->request);
    agree->rules[g].row_count = 0;
    for (uint32_t at = 0; at < group->tensor_count;) {
        struct msg msg = {.type = MSG_LISTS,
                          .u.lists = {.id = agree->common->user->id,
                                      .open_id = agree->common->open_id,
                                      .group = group->key,
                                      .total = group->tensor_count,
                                      .first = at,
                                      .keys = keys,
                                      .divisions = divisions}};
        uint32_t count = 0;
        for (; count < AGREE_KEYS && at < group->tensor_count; count++, at++) {
            keys[count] = agree->held.keys[group->tensors[at]];
            const struct agreed_tensor *tensor = agreed_find(agreed, &keys[count]);
            divisions[count] = tensor ? tensor->division : 0;
        }
        msg.u.lists.count = count;
        link_send(&agree->common->engine->link, &lists->request, &msg);
    }
}

/* --- AGREE ----------------------------------------------------------------------- */

/* Notes the verdict on each group, and sends the lists that the server asks for. No more than
 * AGREE_LISTS_MAX are sent: the groups beyond are decided as if the server could not tell. */
static void take_verdicts(struct save_agree *agree, const struct msg_agreed *agreed)
{
    uint32_t sent = 0;
    CHECK(agreed->count == agree->held.group_count);
    agree->talk = TALK_ANSWERED;
    for (uint32_t g = 0; g < agree->held.group_count; g++) {
        uint32_t verdict = agreed->verdicts[g];
        bool asks = verdict == AGREE_ANEW || verdict == AGREE_MIXED;
        if (asks && sent == AGREE_LISTS_MAX) {
            verdict = AGREE_UNKNOWN;
            asks = false;
        }
        if (!save_agree_is_decided(agree)) {
            agree->verdicts[g] = verdict;
        }
        agree->differs = agree->differs || asks;
        if (asks) {
            send_lists(agree, g);
            sent++;
        }
    }
}

/* Called with the answer to AGREE: one verdict for each group of the set. */
static int on_agree_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                          void **ret_payload, struct diag *diag)
{
    struct save_agree *agree = container_of(request, struct save_agree, request);
    (void)frame, (void)ret_payload;
    if (msg->type == MSG_ERROR) {
        agree->talk = TALK_ANSWERED;
        decide_alone(agree); /* the next request is told why */
        return 0;
    }
    if (msg->u.agreed.count != agree->held.group_count) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%u verdicts in answer to AGREE about %u groups",
                        msg->u.agreed.count, agree->held.group_count);
    }
    link_forget(&agree->common->engine->link, request);
    take_verdicts(agree, &msg->u.agreed);
    finish_if_all(agree);
    return 0;
}

static const struct request_ops agree_ops = {.on_reply = on_agree_reply, .on_lost = on_agree_lost};

void save_agree_opened(struct save_agree *agree)
{
    struct scratch scratch;
    if (sm_is(&agree->sm, AG_IDLE) || agree->talk != TALK_NOTHING || !is_spoken(agree)) {
        return;
    }
    scratch_init(&scratch, AGREE_SCRATCH_MAX);
    struct msg_agree_group *groups =
        scratch_array(&scratch, agree->held.group_count + 1, sizeof *groups);
    for (uint32_t g = 0; groups && g < agree->held.group_count; g++) {
        const struct held_group *group = &agree->held.groups[g];
        groups[g] = (struct msg_agree_group){.group = group->key,
                                             .list_hash = group->list_hash,
                                             .members = group->members,
                                             .member = group->member,
                                             .copied = agree->copies[g]};
    }
    struct msg msg = {.type = MSG_AGREE,
                      .u.agree = {.id = agree->common->user->id,
                                  .open_id = agree->common->open_id,
                                  .check = agree->common->user->check_replicas,
                                  .count = agree->held.group_count,
                                  .groups = groups}};
    if (groups) { /* without memory the timer decides */
        agree->talk = TALK_ASKED;
        link_ask(&agree->common->engine->link, &agree->request, &msg);
    }
    scratch_fini(&scratch);
}

static void forget_talk(struct save_agree *agree)
{
    struct link *link = &agree->common->engine->link;
    agree->talk = TALK_NOTHING;
    link_forget(link, &agree->request);
    for (uint32_t g = 0; agree->lists && g < agree->held.group_count; g++) {
        link_forget(link, &agree->lists[g].request);
    }
}

void save_agree_down(struct save_agree *agree)
{
    forget_talk(agree);
    if (!agree->common->engine->link.moving) {
        agree->met = false; /* the next server need not be the one where the ranks meet */
        if (sm_is(&agree->sm, AG_WAIT)) {
            timer_start(&agree->timer, AGREE_POLL_MS);
        }
    }
    if (sm_is(&agree->sm, AG_SEALED)) {
        sm_move(&agree->sm, AG_DECIDED);
    }
}

/* --- waiting, and meeting the others ---------------------------------------------- */

static bool has_many_servers(const struct engine *engine)
{
    return engine->options.url.server_count > 1;
}

/* Returns whether the ranks are at home, each at its own server. */
static bool is_spread(const struct engine *engine)
{
    uint32_t least = engine->options.spread_after ? engine->options.spread_after : SPREAD_AFTER;
    return has_many_servers(engine) && engine->calm_saves >= least;
}

/* Goes to the server where lists are compared, once a save and again when that connection was lost,
 * as soon as the present one can be left. */
static void meet(struct save_agree *agree)
{
    struct engine *engine = agree->common->engine;
    if (!agree->met && !save_is_over(agree->common) && engine_may_move(engine)) {
        agree->met = link_is_up(&engine->link);
        link_gather(&engine->link);
    }
}

/* Returns whether other ranks may be waiting elsewhere for this one, which has copied without
 * waiting. It stays where it is while it sends, and goes only when it is done. */
static bool may_be_missed(const struct save_agree *agree)
{
    bool met_at_home = agree->talk == TALK_ANSWERED && agree->held.group_count > 0;
    return save_agree_is_decided(agree) && agree->ground == GROUND_PRIOR && !agree->met &&
           !met_at_home && agree->common->status == 0;
}

/* Called while a rank waits for the verdict, at the end of the wait or for another try to gather.
 */
static void on_wait_timer(struct save_agree *agree)
{
    uint64_t left_ms = engine_ms_left(agree->common->engine, agree->end_ms);
    if (left_ms == 0) {
        decide_alone(agree);
        return;
    }
    if (link_is_up(&agree->common->engine->link)) {
        meet(agree); /* this drops the connection, and the save is told */
    }
    if (sm_is(&agree->sm, AG_WAIT) && !save_is_over(agree->common)) {
        timer_start(&agree->timer, agree->met ? left_ms : min_u64(left_ms, AGREE_POLL_MS));
    }
}

static void on_timer(struct timer *timer)
{
    struct save_agree *agree = container_of(timer, struct save_agree, timer);
    if (sm_is(&agree->sm, AG_WAIT)) {
        on_wait_timer(agree);
        return;
    }
    if (sm_is(&agree->sm, AG_SEALED) && may_be_missed(agree) &&
        link_is_up(&agree->common->engine->link)) {
        meet(agree);
    }
    if (sm_is(&agree->sm, AG_SEALED) && may_be_missed(agree)) {
        timer_start(timer, AGREE_POLL_MS);
    }
}

/* Waits as long again as this rank took, because some ranks are only slow, and doubles that with
 * each journey that was in vain. It stays below the time that a waiting rank waits (wait_ms). */
void save_agree_await(struct save_agree *agree)
{
    const struct engine *engine = agree->common->engine;
    uint64_t took_ms = loop_now_ms(engine->options.loop) - agree->common->begun_ms;
    uint64_t ms =
        min_u64(max_u64(took_ms, AGREE_MEET_MS), engine_ms_left(engine, agree->common->end_ms) / 4);
    if (!may_be_missed(agree) || !has_many_servers(engine) || !is_spoken(agree)) {
        return;
    }
    if (sm_is(&agree->sm, AG_DECIDED)) {
        sm_move(&agree->sm, AG_SEALED);
    }
    if (!timer_is_active(&agree->timer)) {
        timer_start(&agree->timer, ms << engine->failed_meetings);
    }
}

/* Returns how long to wait for the verdict. Longer after saves that failed for want of agreement,
 * because ranks that are far apart must meet some time, and longer where ranks are spread, because
 * those come only when they have sealed. */
static uint64_t wait_ms(const struct save_agree *agree)
{
    const struct engine *engine = agree->common->engine;
    uint64_t usual_ms = is_spread(engine) ? AGREE_WAIT_MS_MAX : AGREE_WAIT_MS;
    uint64_t ms = engine->options.agree_wait_ms > 0 ? engine->options.agree_wait_ms : usual_ms;
    uint32_t failures = engine->agreement.failures < 8 ? engine->agreement.failures : 8;
    ms = min_u64(ms << failures, max_u64(ms, AGREE_WAIT_MS_MAX));
    return min_u64(ms, engine_ms_left(engine, agree->common->end_ms) / 2);
}

static bool allocate(struct save_agree *agree)
{
    uint32_t count = agree->held.group_count + 1;
    scratch_init(&agree->scratch, AGREE_SCRATCH_MAX);
    agree->rules = scratch_array(&agree->scratch, count, sizeof *agree->rules);
    agree->lists = scratch_array(&agree->scratch, count, sizeof *agree->lists);
    agree->copies = scratch_array(&agree->scratch, count, sizeof *agree->copies);
    agree->verdicts = scratch_array(&agree->scratch, count, sizeof *agree->verdicts);
    return agree->rules && agree->lists && agree->copies && agree->verdicts;
}

/* Called on entering WAIT: waits for the verdict, and tries until then to be where it is given. */
static void enter_wait(struct sm *sm)
{
    struct save_agree *agree = container_of(sm, struct save_agree, sm);
    uint64_t ms = wait_ms(agree);
    agree->end_ms = loop_now_ms(agree->common->engine->options.loop) + ms;
    timer_start(&agree->timer, min_u64(ms, AGREE_POLL_MS));
}

/* --- begin and end --------------------------------------------------------------- */

/* Called on entering END: asks for nothing any more. */
static void enter_end(struct sm *sm)
{
    struct save_agree *agree = container_of(sm, struct save_agree, sm);
    timer_stop(&agree->timer);
    forget_talk(agree);
}

static const struct sm_state agree_table[] = {
    [AG_IDLE] = {"idle", NULL, SM_TO(AG_WAIT) | SM_TO(AG_DECIDED) | SM_TO(AG_END), 0},
    [AG_WAIT] = {"wait", NULL, SM_TO(AG_DECIDED) | SM_TO(AG_END), 0, enter_wait},
    [AG_DECIDED] = {"decided", NULL, SM_TO(AG_SEALED) | SM_TO(AG_END), 0},
    [AG_SEALED] = {"sealed", NULL, SM_TO(AG_DECIDED) | SM_TO(AG_END), 0},
    [AG_END] = {"end", NULL, 0, SM_FINAL, enter_end},
};

/* CHECKs what is true of agreement in the state that it has just moved to. */
static void check_agree(const struct sm *sm)
{
    const struct save_agree *agree = container_of(sm, struct save_agree, sm);
    bool has_begun = sm->state != AG_IDLE && sm->state != AG_END;
    CHECK(!has_begun || agree->rules != NULL);
    CHECK(sm->state != AG_WAIT || agree->ground == GROUND_VERDICT);
    CHECK(sm->state != AG_SEALED || agree->ground == GROUND_PRIOR);
}

void save_agree_init(struct save_agree *agree, struct save_common *common)
{
    agree->common = common;
    agree->since = common->engine->agreement.restored;
    timer_init(&agree->timer, common->engine->options.loop, on_timer);
    agree->request.ops = &agree_ops;
    sm_init(&agree->sm, agree_table, AG_IDLE, "agreement", common->number);
    agree->sm.invariant = check_agree;
}

int save_agree_begin(struct save_agree *agree, struct diag *diag)
{
    bool waits = false;
    CHECK(sm_is(&agree->sm, AG_IDLE));
    int rc = held_init(&agree->held, agree->common->set, diag);
    if (rc == 0 && !allocate(agree)) {
        rc = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to agree on who writes what");
    }
    if (rc != 0) {
        return rc;
    }
    for (uint32_t g = 0; g < agree->held.group_count; g++) {
        agree->lists[g] =
            (struct agree_lists){.agree = agree, .group = g, .request.ops = &lists_ops};
        agree->copies[g] =
            is_spoken(agree) && agreement_covers(&agree->common->engine->agreement,
                                                 &agree->held.groups[g], agree->since);
        waits = waits || !agree->copies[g];
    }
    if (waits && is_spoken(agree)) {
        agree->ground = GROUND_VERDICT;
        sm_move(&agree->sm, AG_WAIT);
    } else {
        decide(agree);
    }
    if ((waits || save_agree_compares(agree)) && is_spoken(agree)) {
        meet(agree); /* this drops the connection, and the save is told */
    }
    return 0;
}

/* Ranks at several servers hear of each other's lists only when they gather, and they gather only
 * when they need a verdict. A rank that needs one alone would wait in vain. So a save that failed
 * for all ranks ends the trust of all, and the next save finds them together. */
static bool distrusts(const struct save_agree *agree)
{
    const struct save_common *common = agree->common;
    return common->status != 0 && common->reach == REACH_DECIDED && is_spoken(agree) &&
           has_many_servers(common->engine);
}

/* Lists grow in the first saves of a job, where state is made when it is first needed, and then no
 * more. Until then the ranks stay where they can be compared. */
static void spread_when_calm(struct save_agree *agree)
{
    struct engine *engine = agree->common->engine;
    bool waited = agree->ground != GROUND_PRIOR, compares = save_agree_compares(agree);
    bool calm = agree->common->status == 0 && !waited && !agree->differs && !compares;
    engine->calm_saves = calm ? engine->calm_saves + 1 : 0;
    if (is_spread(engine) && engine_has_one_op(engine)) {
        link_spread(&engine->link);
    }
    if (agree->met && !waited && !compares) {
        uint32_t failed =
            engine->failed_meetings + (engine->failed_meetings < AGREE_MEET_SHIFT_MAX);
        engine->failed_meetings = agree->differs ? 0 : failed;
    }
}

void save_agree_end(struct save_agree *agree)
{
    const struct save_common *common = agree->common;
    /* Not this save was committed, but an earlier one of the step, by a division of its own. */
    bool is_old = common->status == 0 && common->sealed_ms == 0;
    sm_move(&agree->sm, AG_END);
    struct agree_end end = {.save = common->number,
                            .open_id = common->open_id,
                            .held = common->chunk_bytes != 0 ? &agree->held : NULL,
                            .status = distrusts(agree) ? CAIRN_E_LIST_MISMATCH
                                      : is_old         ? CAIRN_E_ABORTED
                                                       : common->status,
                            .is_known = common->status != CAIRN_E_OUTCOME_UNKNOWN};
    agreement_learn(&common->engine->agreement, &end);
    spread_when_calm(agree);
}

void save_agree_fini(struct save_agree *agree)
{
    for (uint32_t g = 0; agree->rules && g < agree->held.group_count; g++) {
        free(agree->rules[g].rows);
    }
    share_fini(&agree->share);
    scratch_fini(&agree->scratch);
    held_fini(&agree->held);
}
