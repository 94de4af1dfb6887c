/* SPDX-License-Identifier: Apache-2.0
 *
 * health: see health.h.
 */
#include "session/health.h"

#include "base/check.h"
#include "base/digits.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SPACE_LOW_PERCENT = 5 };

/* Returns the remedy for a store that refuses with this error. */
static const char *remedy_of(int code)
{
    switch (code) {
    case CAIRN_E_NO_SPACE: /* room_remedy() has more to say */
    case CAIRN_E_QUOTA:
        return "make room in the store";
    case CAIRN_E_AUTH:
    case CAIRN_E_DENIED:
        return "give the daemon's user its permissions again; restart the daemon if the cluster "
               "had blocklisted it";
    case CAIRN_E_READ_ONLY:
        return "check the kernel's log and the disk; restart the daemon when they are in order";
    case CAIRN_E_NO_STORE:
        return "put the store back in its place, then restart the daemon";
    case CAIRN_E_TIMED_OUT:
    case CAIRN_E_OUTCOME_UNKNOWN:
    case CAIRN_E_UNREACHABLE:
        return "check the network, the disk and `ceph health detail`; the daemon recovers by "
               "itself when they work again";
    default:
        return "look at the daemon's log, and run `cairn doctor --store URL` on its host";
    }
}

/* Returns whether not even a record update has room, so that nothing can be forgotten. */
static bool is_starved(const struct store_usage *usage)
{
    return usage && usage->total_bytes > 0 && usage->records_free_bytes < STORE_RECORDS_NEED_BYTES;
}

/* Writes the command that frees room: for forgotten checkpoints, else for those that could be
 * forgotten, else what remains to be done. */
static void room_remedy(const struct health_facts *facts, size_t size, char *ret)
{
    const struct catalog_totals *totals = facts->totals;
    const char *first = is_starved(facts->usage) ? STORE_STARVED_REMEDY : "";
    if (totals && totals->forgotten.count > 0) {
        snprintf(ret, size,
                 "%s`cairn gc --now` frees at most %" PRIu64 " MiB of %" PRIu64
                 " forgotten checkpoint%s at once, for good; or add room to the disk",
                 first, totals->forgotten.bytes >> 20, totals->forgotten.count,
                 plural(totals->forgotten.count));
    } else if (totals && totals->largest) {
        snprintf(ret, size,
                 "%s`cairn forget %s --keep-last 2 --now` removes all but two checkpoints of the "
                 "largest run at once, for good; or add room to the disk",
                 first, run_name_text(totals->largest).at);
    } else {
        snprintf(ret, size,
                 "no checkpoint is waiting to be reclaimed, and no run has more than the two good "
                 "checkpoints that always stay: add room to the disk, remove other files from it, "
                 "or lower [store] reserve; `cairn forget RUN --keep-last 1 --keep-least 1 --now` "
                 "keeps only one");
    }
}

static void PRINTF(4, 5) say(struct health_word *health, enum server_health word,
                             const char *remedy, const char *fmt, ...)
{
    CHECK(word != SERVER_GREEN);
    va_list args;
    health->word = word;
    snprintf(health->remedy, sizeof(health->remedy), "%s", remedy);
    va_start(args, fmt);
    vsnprintf(health->text, sizeof(health->text), fmt, args);
    va_end(args);
}

/* Reports a store that refuses now (red), or that refused a moment ago (yellow). */
static void say_store(struct health_word *health, const struct health_facts *facts)
{
    const struct store_state *state = facts->store;
    CHECK(state->word != STORE_WELL);
    int code = state->refusal.code;
    const char *text = diag_text(&state->refusal, code);
    if (state->word == STORE_REFUSING) {
        say(health, SERVER_RED, remedy_of(code), "%s: %s", err_name(code), text);
        if (code == CAIRN_E_NO_SPACE || code == CAIRN_E_QUOTA) {
            room_remedy(facts, sizeof(health->remedy), health->remedy);
        }
        health->code = code;
        health->since_ms = state->since_ms;
    } else {
        say(health, SERVER_YELLOW, "none is needed unless this happens again",
            "the store works again; it had refused writes with %s: %s", err_name(code), text);
        health->since_ms = state->last_ms;
    }
}

/* Reports a store that has no room left for a save, before it has refused one. */
static bool say_full(struct health_word *health, const struct health_facts *facts)
{
    const struct store_usage *usage = facts->usage;
    if (!usage || usage->total_bytes == 0 || (usage->free_bytes > 0 && !is_starved(usage))) {
        return false;
    }
    say(health, SERVER_RED, "",
        "%s: the store is full: %" PRIu64 " bytes are free, of which saves may use %" PRIu64,
        err_name(CAIRN_E_NO_SPACE), usage->records_free_bytes, usage->free_bytes);
    room_remedy(facts, sizeof(health->remedy), health->remedy);
    health->code = CAIRN_E_NO_SPACE;
    return true;
}

/* Adds a warning to what is reported already, and returns where its remedy is to be written, which
 * `about` begins if it is not the first. */
static char *add(struct health_word *health, const char *about, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static char *add(struct health_word *health, const char *about, const char *fmt, ...)
{
    bool is_more = health->word != SERVER_GREEN;
    size_t text = strlen(health->text), remedy = strlen(health->remedy);
    va_list args;
    health->word = SERVER_YELLOW;
    snprintf(health->text + text, sizeof(health->text) - text, "%s", is_more ? "; and " : "");
    text = strlen(health->text);
    va_start(args, fmt);
    vsnprintf(health->text + text, sizeof(health->text) - text, fmt, args);
    va_end(args);
    snprintf(health->remedy + remedy, sizeof(health->remedy) - remedy, "%s", is_more ? about : "");
    return health->remedy + strlen(health->remedy);
}

/* Adds that the store is almost full to what is reported already. Returns whether it is. */
static bool say_low(struct health_word *health, const struct health_facts *facts)
{
    const struct store_usage *usage = facts->usage;
    if (!usage || usage->total_bytes == 0 ||
        usage->free_bytes / SPACE_LOW_PERCENT >= usage->total_bytes / 100) {
        return false;
    }
    char *remedy =
        add(health, "; for room: ", "less than %d %% of the store is free", SPACE_LOW_PERCENT);
    room_remedy(facts, (size_t)(health->remedy + sizeof(health->remedy) - remedy), remedy);
    return true;
}

/* Reports runs of which more is stored than their record knows. Nothing is lost as long as somebody
 * acts. */
static bool say_marked(struct health_word *health, const struct health_facts *facts)
{
    char name[RUN_NAME_TEXT_MAX], remedy[HEALTH_REMEDY_BYTES];
    if (!facts->totals || facts->totals->runs_marked == 0) {
        return false;
    }
    run_name_format(facts->totals->marked, name);
    snprintf(remedy, sizeof(remedy),
             "`cairn salvage %s --store %s` says which checkpoints can be entered again; stop the "
             "daemon and add --yes to enter them",
             name, facts->url ? facts->url : "URL");
    if (facts->totals->runs_marked == 1) {
        say(health, SERVER_YELLOW, remedy,
            "the record of run %s does not list all of its stored checkpoints, or has lost its "
            "end; nothing of the run is removed",
            name);
    } else {
        say(health, SERVER_YELLOW, remedy,
            "the records of %" PRIu64
            " runs do not list all of their stored checkpoints, or have lost their end; the first "
            "run is %s; nothing of these runs is removed",
            facts->totals->runs_marked, name);
    }
    return true;
}

/* Reports damage. It does not only count the findings of the present pass, which begins with none:
 * what is damaged stays damaged until a later pass finds it whole. */
static bool say_damage(struct health_word *health, const struct health_facts *facts)
{
    static const char *const remedy =
        "`cairn verify` names them (`cairn scrub --wait` names damaged files of records), and "
        "`cairn verify --repair` repairs what has a copy; restores use older checkpoints; check "
        "the disk that holds the store";
    uint64_t found = facts->scrub ? facts->scrub->findings : 0;
    uint64_t records = facts->scrub ? facts->scrub->damaged_records : 0;
    uint64_t damaged = facts->totals ? facts->totals->checkpoints[HEALTH_DAMAGED] : 0;
    uint64_t suspect = facts->totals ? facts->totals->checkpoints[HEALTH_SUSPECT] : 0;
    if (found > 0) {
        say(health, SERVER_YELLOW, remedy, "scrub has found %" PRIu64 " damaged item%s", found,
            plural(found));
    } else if (records + damaged + suspect > 0) {
        say(health, SERVER_YELLOW, remedy,
            "damaged: %" PRIu64 " checkpoint%s, %" PRIu64 " run%s; suspect: %" PRIu64
            " checkpoint%s",
            damaged, plural(damaged), records, records == 1 ? "'s record" : "s' records", suspect,
            plural(suspect));
    }
    if (health->word != SERVER_GREEN && facts->mirror) {
        char *more =
            add(health, "; for the mirror: ", "repairs have no mirror ([scrub] repair-from): %s",
                facts->mirror);
        snprintf(more, (size_t)(health->remedy + sizeof(health->remedy) - more),
                 "let the daemon's user on this host read it, and repair again");
    }
    return found + records + damaged + suspect > 0;
}

/* Reports what should be mended although saves go on: the first of these, and a store that is
 * almost full in any case. */
static void say_yellow(struct health_word *ret, const struct health_facts *facts)
{
    bool is_said = say_marked(ret, facts) || say_damage(ret, facts);
    if (!is_said && facts->store && facts->store->word == STORE_RECOVERED) {
        say_store(ret, facts);
        is_said = true;
    }
    if (say_low(ret, facts) || is_said) {
        return;
    }
    if (facts->gc && facts->gc->errors > 0) {
        say(ret, SERVER_YELLOW, "`cairn gc --status` shows more; the daemon tries again by itself",
            "garbage collection had %" PRIu64 " error%s: %s", facts->gc->errors,
            plural(facts->gc->errors), facts->gc->text);
    } else if (facts->usage && facts->usage->detail[0]) {
        say(ret, SERVER_YELLOW, "run `cairn doctor --store URL` on the server's host", "%s",
            facts->usage->detail);
    }
}

/* Adds what the last SIGHUP could not take: whoever sent it has seen no error. */
static void say_config(struct health_word *health, const struct health_facts *facts)
{
    if (facts->config) {
        char *remedy = add(health, "; for SIGHUP: ", "%s", facts->config);
        snprintf(remedy, (size_t)(health->remedy + sizeof(health->remedy) - remedy),
                 "correct it (`cairnd --config FILE --check-config` names mistakes), and send "
                 "SIGHUP again");
    }
}

void health_of(const struct health_facts *facts, struct health_word *ret)
{
    *ret = (struct health_word){.word = SERVER_GREEN};
    if (facts->store && facts->store->word == STORE_REFUSING) {
        say_store(ret, facts);
    } else if (facts->usage && facts->usage->read_only && facts->gc) {
        /* A server without garbage collection is the one that the CLI starts over a bare store;
         * that store is opened read-only on purpose. */
        say(ret, SERVER_RED, remedy_of(CAIRN_E_READ_ONLY), "%s: %s", err_name(CAIRN_E_READ_ONLY),
            facts->usage->detail[0] ? facts->usage->detail : "the store is read-only");
        ret->code = CAIRN_E_READ_ONLY;
    } else if (!say_full(ret, facts)) {
        say_yellow(ret, facts);
        say_config(ret, facts);
    }
}
