/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists have the order of commits and end where a page does, status tells the truth about open,
 * aborted and unknown saves, and 10,000 checkpoints are listed within a second.
 */
#include "run_rig.h"

#include "base/check.h"
#include "run/run_counts.h"
#include "support/unit_test.h"

#include <stdio.h>
#include <time.h>

struct listing {
    struct msg_list ask;
    struct ckpt_id id; /* term 0: list */
    struct scratch scratch;
    struct msg_list_reply reply;
    struct ckpt_info info;
};

static void take_state(void *user, const struct run_state *state)
{
    struct listing *listing = user;

    if (listing->id.term) {
        assert_int_equal(run_info_find(state, listing->id, &listing->scratch, &listing->info), 0);
    } else {
        assert_int_equal(run_info_list(state, &listing->ask, &listing->scratch, &listing->reply),
                         0);
    }
}

static void look(struct rig *rig, struct listing *listing)
{
    scratch_init(&listing->scratch, MIB(64));
    rig_state(rig, take_state, listing);
}

#define INFO_TEST(name) FIXTURE_TEST(name, rig_init, rig_fini, struct rig, rig)

/* Open ones lead, then the newest; a page ends where it is told to and the next goes on behind it.
 */
INFO_TEST(test_order_and_pages)
{
    struct listing listing = {.ask.limit = 2};
    struct ckpt_id open;

    rig_start(rig);
    for (uint64_t step = 10; step <= 40; step += 10) {
        rig_save(rig, step, 2, rig->lists);
    }
    assert_int_equal(rig_open(rig, 50, 2, 42, &open), 0);
    struct rig_seal seal = {open, 42, 0, 2};
    assert_int_equal(rig_seal(rig, rig->run, &seal, &rig->lists[0]), 0);
    look(rig, &listing);
    assert_int_equal(listing.reply.count, 2);
    assert_true(listing.reply.more);
    assert_int_equal(listing.reply.entries[0].state, CKPT_OPEN);
    assert_int_equal(listing.reply.entries[0].sealed_count, 1);
    assert_non_null(strstr(listing.reply.entries[0].text, "rank 1"));
    assert_int_equal(listing.reply.entries[1].id.step, 40);
    assert_true(listing.reply.entries[1].is_latest);
    assert_true(listing.reply.entries[1].on_lineage);
    assert_true(listing.reply.entries[1].plain_bytes > 0);
    scratch_fini(&listing.scratch);
    listing.ask.before_seq = 4;
    listing.ask.limit = 10;
    look(rig, &listing);
    assert_int_equal(listing.reply.count, 3);
    assert_false(listing.reply.more);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(listing.reply.entries[i].id.step, 30 - 10 * i);
        assert_false(listing.reply.entries[i].is_latest);
    }
    scratch_fini(&listing.scratch);
}

/* A clock that was set moves nothing: neither the order nor what is latest. */
INFO_TEST(test_order_is_not_the_clocks)
{
    const int64_t year_ns = INT64_C(365) * 86400 * 1000000000;
    static const int years[] = {0, 5, -3, 1}; /* against the true time, at each commit */
    struct listing listing = {.ask.limit = 10};

    rig_start(rig);
    for (uint64_t i = 0; i < 4; i++) {
        sim_host_set_wall(rig->host, years[i] * year_ns);
        rig_save(rig, 10 * (i + 1), 2, rig->lists);
    }
    sim_host_set_wall(rig->host, 0);
    look(rig, &listing);
    assert_int_equal(listing.reply.count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const struct ckpt_info *info = &listing.reply.entries[i];
        assert_int_equal(info->id.step, 40 - 10 * i);
        assert_int_equal(info->seq, 4 - i);
        assert_int_equal(info->is_latest, i == 0);
    }
    assert_true(listing.reply.entries[2].wall_ns > listing.reply.entries[0].wall_ns);
    scratch_fini(&listing.scratch);
}

/* Status tells committed, open, aborted with its reason, and unknown apart. */
INFO_TEST(test_status_is_the_truth)
{
    struct listing listing = {.id = {1, 10}};
    struct ckpt_id id;

    rig_start(rig);
    rig_save(rig, 10, 2, rig->lists);
    look(rig, &listing);
    assert_int_equal(listing.info.state, CKPT_COMMITTED);
    assert_int_equal(listing.info.seq, 1);
    scratch_fini(&listing.scratch);
    assert_int_equal(rig_open(rig, 20, 2, 42, &id), 0);
    listing.id = id;
    look(rig, &listing);
    assert_int_equal(listing.info.state, CKPT_OPEN);
    scratch_fini(&listing.scratch);
    assert_int_equal(rig_outcome(rig, id, 42).state, SAVE_ABORTED);
    look(rig, &listing);
    assert_int_equal(listing.info.state, CKPT_ABORTED);
    assert_non_null(strstr(listing.info.text, "deadline"));
    scratch_fini(&listing.scratch);
    listing.id.step = 99;
    look(rig, &listing);
    assert_int_equal(listing.info.state, CKPT_NONE);
    scratch_fini(&listing.scratch);
}

/* Puts one key into the run's record, straight into the store. */
struct filler {
    struct rig *rig;
    struct scratch scratch;
    struct record_change changes[1024];
    size_t count;
};

static void filler_flush(struct filler *filler)
{
    struct record_update update = {.change_count = filler->count, .changes = filler->changes};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .run = filler->rig->name, .update = &update};

    rig_store(filler->rig, &req);
    assert_int_equal(req.status, 0);
    filler->count = 0;
    scratch_fini(&filler->scratch);
    scratch_init(&filler->scratch, MIB(16));
}

static void filler_put(struct filler *filler, const char *key, struct buf *buf)
{
    struct record_change *change = &filler->changes[filler->count++];

    change->remove = false;
    change->key = scratch_string(&filler->scratch, strlen(key), key);
    change->value =
        (struct record_value){buf->bytes, scratch_copy(&filler->scratch, buf->bytes, buf->data)};
    buf_fini(buf);
    buf_init(buf, LIMIT_RECORD_VALUE_BYTES);
    if (filler->count == ARRAY_LEN(filler->changes)) {
        filler_flush(filler);
    }
}

static void fill(struct rig *rig, uint64_t commits)
{
    struct filler *filler = calloc(1, sizeof *filler);
    struct entry_info info = {.run_uuid = {{1}}, .chunk_bytes = RIG_CHUNK, .created_wall_ns = 1};
    struct entry_term term = {.token = rig->token, .world_size = 2};
    struct entry_head head = {.seq = 0};
    struct buf buf;

    filler->rig = rig;
    scratch_init(&filler->scratch, MIB(16));
    buf_init(&buf, LIMIT_RECORD_VALUE_BYTES);
    entry_info_encode(&info, &buf);
    filler_put(filler, key_info().at, &buf);
    entry_term_encode(&term, &buf);
    filler_put(filler, key_term(1).at, &buf);
    for (uint64_t seq = 1; seq <= commits; seq++) {
        struct entry_chain chain = {.kind = CHAIN_COMMIT,
                                    .seq = seq,
                                    .previous = head.sha256,
                                    .id = {1, seq},
                                    .wall_ns = 1,
                                    .manifest_bytes = 100,
                                    .plain_bytes = 1,
                                    .stored_bytes = 1,
                                    .world_size = 2,
                                    .open_id = seq};
        entry_chain_encode(&chain, &buf);
        head = (struct entry_head){seq, sha256(buf.bytes, buf.data)};
        filler_put(filler, key_chain(seq).at, &buf);
    }
    entry_head_encode(&head, &buf);
    filler_put(filler, key_head().at, &buf);
    filler_flush(filler);
    scratch_fini(&filler->scratch);
    buf_fini(&buf);
    free(filler);
}

struct noted {
    struct run_req req;
    bool done;
};

static void on_noted(struct run_req *req) { container_of(req, struct noted, req)->done = true; }

static void note(struct rig *rig, uint64_t step, struct note_change change)
{
    struct noted noted = {.req = {.done = on_noted}};
    noted.req.event = (struct event){
        .kind = EVENT_ANNOTATE,
        .u.annotate = {.selector = {.kind = SELECT_STEP, .id = {0, step}}, .note = change}};
    run_submit(rig->run, &noted.req);
    rig_until(rig, &noted.done);
    assert_int_equal(noted.req.status, 0);
}

static void annotate(struct rig *rig, uint64_t step, uint32_t count, const char *const *tags)
{
    note(rig, step, (struct note_change){.tag_count = count, .tags = tags});
}

static void unannotate(struct rig *rig, uint64_t step, const char *const *tag)
{
    note(rig, step, (struct note_change){.removed_count = 1, .removed = tag});
}

/* The tag of `cairn run --watch` counts for its node, once for each that is new; others do not. */
INFO_TEST(test_notices_are_counted_by_node)
{
    const char
        *one[] = {"kept", "notice on node07, edac: mc0/ue_count was 0, now 1"},
        *other[] = {"notice on node08, command: soon"},
        *none[] =
            {"notice on node07", "notice on , edac: why", "a notice on node07, x: y",
             "notice on a-name-of-65-bytes-is-too-long-for-a-host-and-thus-it-is-not-told, x: y"},
        *pods[] = {
            "notice on a-pod-whose-name-has-64-bytes-and-differs-only-in-the-last-one-0, x: y",
            "notice on a-pod-whose-name-has-64-bytes-and-differs-only-in-the-last-one-1, x: y"};
    fill(rig, 2);
    rig_start(rig);
    const struct node_notices *notices = &catalog_counts(rig->catalog)->notices;
    annotate(rig, 1, 1, none);
    annotate(rig, 1, ARRAY_LEN(none), none);
    assert_int_equal(notices->count, 0);
    annotate(rig, 1, 2, one);
    annotate(rig, 1, 2, one); /* it has the tag */
    annotate(rig, 1, 1, other);
    annotate(rig, 2, 2, one);
    assert_int_equal(notices->count, 2);
    assert_string_equal(notices->nodes[0].node, "node07");
    assert_int_equal(notices->nodes[0].notices, 2);
    assert_string_equal(notices->nodes[1].node, "node08");
    assert_int_equal(notices->nodes[1].notices, 1);
    annotate(rig, 1, 1, &pods[0]);
    annotate(rig, 1, 1, &pods[1]);
    assert_int_equal(notices->count, 4);
    for (int i = 0; i < NOTICE_NODES_MAX + 5; i++) {
        char tag[40];
        const char *tags[] = {tag}, *gone[] = {tag};
        snprintf(tag, sizeof tag, "notice on n%d, edac: why", i);
        annotate(rig, 1, 1, tags);
        unannotate(rig, 1, gone);
    }
    assert_int_equal(notices->count, NOTICE_NODES_MAX);
    assert_int_equal(notices->unnamed, 4 + 5);
}

/* Notes are listed with their checkpoint; a page ends early when they would fill a message. */
INFO_TEST(test_notes_are_listed)
{
    enum { CHECKPOINTS = 100 };
    struct listing listing = {.id = {1, 7}};
    char tags[LIMIT_TAGS][LABEL_BYTES_MAX + 1];
    const char *names[LIMIT_TAGS];

    for (int i = 0; i < LIMIT_TAGS; i++) {
        memset(tags[i], '0', LABEL_BYTES_MAX);
        tags[i][LABEL_BYTES_MAX] = 0;
        tags[i][0] = (char)('a' + i / 26); /* they come back sorted */
        tags[i][1] = (char)('a' + i % 26);
        names[i] = tags[i];
    }
    fill(rig, CHECKPOINTS);
    rig_start(rig);
    for (uint64_t step = 1; step <= CHECKPOINTS; step++) {
        annotate(rig, step, LIMIT_TAGS, names);
    }
    look(rig, &listing);
    assert_int_equal(listing.info.note_version, 1);
    assert_int_equal(listing.info.tag_count, LIMIT_TAGS);
    assert_string_equal(listing.info.tags[LIMIT_TAGS - 1], tags[LIMIT_TAGS - 1]);
    scratch_fini(&listing.scratch);
    listing = (struct listing){.ask.limit = 0};
    size_t seen = 0, pages = 0;
    do {
        look(rig, &listing);
        struct msg msg = {.type = MSG_LIST_REPLY, .u.list_reply = listing.reply};
        struct buf buf;
        buf_init(&buf, LIMIT_MESSAGE_BYTES);
        msg_encode(&msg, &buf);
        assert_int_equal(buf_status(&buf), 0);
        buf_fini(&buf);
        assert_true(listing.reply.count > 0);
        seen += listing.reply.count;
        pages++;
        listing.ask.before_seq = listing.reply.entries[listing.reply.count - 1].seq;
        scratch_fini(&listing.scratch);
    } while (listing.reply.more);
    assert_int_equal(seen, CHECKPOINTS);
    assert_true(pages > 1 && pages < 10);
}

/* The machine may be any, and do other things beside; a sanitizer takes several times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double seconds_max = 10;
#else
static const double seconds_max = 1;
#endif

/* From a cold start: 10,000 checkpoints are loaded, checked and listed in less than a second. */
INFO_TEST(test_ten_thousand_in_a_second)
{
    struct listing listing = {.ask.limit = 0};
    struct timespec from, to;

    fill(rig, 10000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    rig_start(rig);
    look(rig, &listing);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    assert_int_equal(listing.reply.count, 10000);
    assert_int_equal(listing.reply.entries[0].id.step, 10000);
    assert_true(listing.reply.entries[0].is_latest);
    scratch_fini(&listing.scratch);
    double seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
    print_message("10,000 checkpoints: %.3f s\n", seconds);
    assert_true(seconds < seconds_max);
}
