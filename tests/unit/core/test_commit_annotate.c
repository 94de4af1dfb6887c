/* SPDX-License-Identifier: Apache-2.0
 *
 * Tags and metrics of a committed checkpoint are merged and counted, each version beside its
 * manifest; a note that is stale or about nothing is refused.
 */
#include <math.h>
#include <stdio.h>

#include "core_fixture.h"
#include "support/unit_test.h"

static const struct actor alone = {.token = 1, .world_size = 1};

static void setup(struct core_fixture *f)
{
    core_fixture_init(f);
    core_save(f, &alone, 10);
    core_save(f, &alone, 20);
}

static struct event note_event(struct selector selector)
{
    return (struct event){.kind = EVENT_ANNOTATE, .wall_ns = 8, .u.annotate.selector = selector};
}

static int set_metric(struct core_fixture *f, struct selector selector, const char *name,
                      double value)
{
    struct metric metric = {.name = name, .value = value};
    struct event event = note_event(selector);
    event.u.annotate.note.metrics = &metric;
    event.u.annotate.note.metric_count = 1;
    return core_run(f, &event);
}

static int set_tag(struct core_fixture *f, struct selector selector, const char *tag, bool remove)
{
    struct event event = note_event(selector);
    event.u.annotate.note.tags = event.u.annotate.note.removed = &tag;
    event.u.annotate.note.tag_count = remove ? 0 : 1;
    event.u.annotate.note.removed_count = remove ? 1 : 0;
    return core_run(f, &event);
}

static const struct entry_note *note_of(const struct core_fixture *f, uint64_t step)
{
    return state_commit_find(&f->state, ID(1, step))->note;
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup, core_fixture_fini, struct core_fixture, f)

/* Goal: metrics are set and replaced by name, tags added and removed; each change is a version, the
 * same again is none. */
CORE_TEST(a_note_is_merged_and_counted)
{
    assert_null(note_of(f, 10));
    assert_int_equal(set_metric(f, EXACT(1, 10), "loss", 2.5), 0);
    assert_ckpt(f->verdict.id, 1, 10);
    assert_int_equal(verdict_save(&f->verdict)->note_version, 1);
    assert_int_equal(set_metric(f, STEP(10), "acc", 0.5), 0);
    assert_int_equal(set_metric(f, EXACT(1, 10), "loss", 1.25), 0);
    assert_int_equal(set_tag(f, EXACT(1, 10), "best", false), 0);
    assert_int_equal(set_tag(f, EXACT(1, 10), "a", false), 0);
    assert_int_equal(set_tag(f, EXACT(1, 10), "best", true), 0);
    uint64_t version = record_version(f->record);
    assert_int_equal(set_tag(f, EXACT(1, 10), "a", false), 0);
    assert_int_equal(set_tag(f, EXACT(1, 10), "never there", true), 0);
    assert_int_equal(set_metric(f, EXACT(1, 10), "loss", 1.25), 0);
    assert_int_equal(verdict_save(&f->verdict)->note_version, 6);
    assert_int_equal(record_version(f->record), version);
    const struct entry_note *note = note_of(f, 10);
    assert_int_equal(note->version, 6);
    assert_int_equal(note->wall_ns, 8);
    assert_int_equal(note->tag_count, 1);
    assert_string_equal(note->tags[0], "a");
    assert_int_equal(note->metric_count, 2);
    assert_string_equal(note->metrics[0].name, "acc");
    assert_true(note->metrics[1].value == 1.25);
    assert_null(note_of(f, 20));
    assert_int_equal(set_tag(f, LATEST, "newest", false), 0);
    assert_string_equal(note_of(f, 20)->tags[0], "newest");
}

/* Goal: what the save was given is the note's first version, written with the commit. */
CORE_TEST(a_commit_writes_the_first_note)
{
    const char *tags[] = {"z", "a", "z"}, *names[] = {"lr", "loss", "lr"};
    double values[] = {1, NAN, 3};
    struct event open = open_event(&alone, 30, 5);
    open.u.open.entry.tags = tags;
    open.u.open.entry.tag_count = 3;
    open.u.open.entry.metric_names = names;
    open.u.open.entry.metric_values = values;
    open.u.open.entry.metric_count = 3;
    assert_int_equal(core_run(f, &open), 0);
    assert_int_equal(core_seal(f, ID(1, 30), 5, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 30), 5), 0);
    const struct entry_note *note = note_of(f, 30);
    assert_int_equal(note->version, 1);
    assert_int_equal(note->tag_count, 2);
    assert_string_equal(note->tags[0], "a");
    assert_int_equal(note->metric_count, 2);
    assert_true(isnan(note->metrics[0].value)); /* as the manifest has it */
    assert_true(note->metrics[1].value == 3);
    assert_int_equal(set_tag(f, EXACT(1, 30), "z", true), 0);
    assert_int_equal(note_of(f, 30)->tag_count, 1);
    assert_int_equal(note_of(f, 30)->metric_count, 2);
}

/* Goal: what cannot be is refused by name and changes nothing. */
CORE_TEST(bad_notes_are_refused)
{
    char label[200];
    uint64_t version = record_version(f->record);
    assert_int_equal(set_metric(f, EXACT(1, 10), "loss", NAN), CAIRN_E_INVALID);
    assert_non_null(strstr(f->verdict.diag.text, "\"loss\""));
    assert_int_equal(set_metric(f, EXACT(1, 10), "", 1), CAIRN_E_INVALID);
    assert_int_equal(set_tag(f, EXACT(1, 10), "bad \xff", false), CAIRN_E_INVALID);
    memset(label, 'x', sizeof(label));
    label[LABEL_BYTES_MAX + 1] = '\0';
    assert_int_equal(set_tag(f, EXACT(1, 10), label, false), CAIRN_E_INVALID);
    const char *both = "both";
    struct event event = note_event(EXACT(1, 10));
    event.u.annotate.note.tags = event.u.annotate.note.removed = &both;
    event.u.annotate.note.tag_count = event.u.annotate.note.removed_count = 1;
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    assert_non_null(strstr(f->verdict.diag.text, "both"));
    assert_int_equal(set_tag(f, EXACT(1, 15), "x", false), CAIRN_E_NOT_FOUND);
    assert_int_equal(set_tag(f, STEP(15), "x", false), CAIRN_E_NOT_FOUND);
    assert_int_equal(core_open(f, &alone, 30, 5), 0);
    version++;
    assert_int_equal(set_tag(f, EXACT(1, 30), "x", false), CAIRN_E_NOT_FOUND); /* not committed */
    assert_int_equal(record_version(f->record), version);
    for (unsigned i = 0; i < LIMIT_TAGS; i++) {
        snprintf(label, sizeof(label), "tag%u", i);
        assert_int_equal(set_tag(f, EXACT(1, 10), label, false), 0);
    }
    assert_int_equal(set_tag(f, EXACT(1, 10), "one more", false), CAIRN_E_TOO_LARGE);
    assert_int_equal(set_tag(f, EXACT(1, 10), "tag7", false), 0);
    for (unsigned i = 0; i < LIMIT_METRICS; i++) {
        snprintf(label, sizeof(label), "metric%u", i);
        assert_int_equal(set_metric(f, EXACT(1, 10), label, i), 0);
    }
    assert_int_equal(set_metric(f, EXACT(1, 10), "one more", 1), CAIRN_E_TOO_LARGE);
    assert_int_equal(set_metric(f, EXACT(1, 10), "metric7", 70), 0);
}

/* Goal: two drivers that annotate at once lose nothing: the second one's copy is behind and
 * conflicts; so does one that has not seen the newest commit. */
CORE_TEST(stale_notes_conflict)
{
    const char *tag = "mine";
    struct event event = note_event(EXACT(1, 10));
    event.u.annotate.note.tags = &tag;
    event.u.annotate.note.tag_count = 1;
    struct stale stale;
    stale_init(&stale, f, &event);
    assert_int_equal(set_tag(f, EXACT(1, 10), "theirs", false), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(note_of(f, 10)->tag_count, 1);
    stale_init(&stale, f, &event);
    core_save(f, &alone, 30);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(note_of(f, 10)->tag_count, 2);
}

/* Goal: a note without its commit is damage, not ignored. */
CORE_TEST(a_note_about_nothing_is_damage)
{
    assert_int_equal(set_tag(f, EXACT(1, 10), "x", false), 0);
    struct key_text from = key_note(state_commit_find(&f->state, ID(1, 10))->entry.seq);
    struct key_text to = key_note(77);
    struct record_value value;
    assert_true(record_get(f->record, from.at, &value));
    struct record_change change = {.key = to.at, .value = value};
    struct record_update update = {.change_count = 1, .changes = &change};
    assert_int_equal(record_apply(f->record, &update, NULL), 0);
    struct scratch scratch;
    struct run_state state;
    struct diag diag = DIAG_INIT;
    scratch_init(&scratch, MIB(4));
    assert_int_equal(run_state_load(f->record, &scratch, &state, &diag), CAIRN_E_DAMAGED);
    assert_non_null(strstr(diag.text, "note"));
    scratch_fini(&scratch);
}
