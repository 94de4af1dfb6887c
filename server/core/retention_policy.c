/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies as text: options by name and value, as the command line, the configuration and the
 * wire give them, and reasons for people. A text that could be understood in two ways is refused.
 * Pure.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/digits.h"
#include "core/retention.h"
#include "core_private.h"

enum { COUNT_MAX = 1000000, SPAN_MAX = 1000000 };

static const char *const unit_names[UNIT_COUNT] = {"hourly", "daily", "weekly", "monthly",
                                                   "yearly"};

/* ---- reading ---- */

static int bad(struct diag *diag, const char *name, const char *value, const char *expected)
{
    return diag_set(diag, CAIRN_E_INVALID, "%s \"%.60s\": %s is expected", name, value, expected);
}

static int set_count(int64_t *count, const char *name, const char *value, struct diag *diag)
{
    uint64_t number = 0;
    bool all = strcmp(value, "unlimited") == 0 || strcmp(value, "-1") == 0;
    if (!all && !digits_parse_decimal(value, COUNT_MAX, &number)) {
        return bad(diag, name, value, "a count, or \"unlimited\"");
    }
    *count = all ? -1 : (int64_t)number;
    return 0;
}

static int set_number(uint64_t *ret, const char *name, const char *value, struct diag *diag)
{
    uint64_t number = 0;
    if (!digits_parse_decimal(value, UINT64_MAX, &number) || number == 0) {
        return bad(diag, name, value, "a number above 0");
    }
    *ret = number;
    return 0;
}

struct span_unit {
    const char *name; /* a name comes before a shorter one that it begins with */
    uint64_t seconds; /* 0 for a calendar unit */
};

static const struct span_unit span_units[] = {{"min", 60}, {"y", 0},    {"m", 0}, {"w", 604800},
                                              {"d", 0},    {"h", 3600}, {"s", 1}};

static bool span_add(struct retention_span *span, const struct span_unit *unit, uint64_t number)
{
    if (unit->seconds > 0) {
        span->seconds += number * unit->seconds;
        return true;
    }
    uint32_t *field = unit->name[0] == 'y'   ? &span->years
                      : unit->name[0] == 'm' ? &span->months
                                             : &span->days;
    *field += (uint32_t)number;
    return true;
}

/* Parses a span of time such as "1y6m" or "36h". Returns false if the text is not one. */
static bool span_parse(const char *text, struct retention_span *ret)
{
    struct retention_span span = {0};
    const char *at = text;
    for (unsigned parts = 0; *at != '\0' || parts == 0; parts++) {
        uint64_t number = 0;
        bool known = false;
        if (parts == ARRAY_LEN(span_units) || !digits_read_decimal(&at, SPAN_MAX, &number)) {
            return false;
        }
        for (size_t i = 0; i < ARRAY_LEN(span_units) && !known; i++) {
            known = digits_skip(&at, span_units[i].name) && span_add(&span, &span_units[i], number);
        }
        if (!known) {
            return false;
        }
    }
    *ret = span;
    return true;
}

static int set_span(struct retention_span *span, const char *name, const char *value,
                    struct diag *diag)
{
    return span_parse(value, span)
               ? 0
               : bad(diag, name, value, "a span such as 2y5m7d3h (m: months) or 30min");
}

/* Sets a duration in seconds. Months and years are refused, because they have no fixed length. */
static int set_seconds(uint64_t *ret, bool zero, const char *name, const char *value,
                       struct diag *diag)
{
    struct retention_span span;
    if (!span_parse(value, &span) || span.years > 0 || span.months > 0) {
        return bad(diag, name, value, "a duration such as 12h, 7d or 30min");
    }
    uint64_t seconds = span.seconds + (uint64_t)span.days * 86400;
    if (seconds == 0 && !zero) {
        return bad(diag, name, value, "a duration above 0");
    }
    *ret = seconds;
    return 0;
}

/* Reads a tag up to the next comma that has no backslash in front. Returns its bytes, of which at
 * most LABEL_BYTES_MAX are in ret. */
static size_t read_tag(const char **at, char ret[LABEL_BYTES_MAX])
{
    size_t bytes = 0;
    for (; **at != '\0' && **at != ','; ++*at) {
        *at += **at == '\\' && ((*at)[1] == ',' || (*at)[1] == '\\');
        if (bytes < LABEL_BYTES_MAX) {
            ret[bytes] = **at;
        }
        bytes++;
    }
    return bytes;
}

/* Appends a list of tags, separated by commas, to the policy. */
static int set_tags(struct retention_policy *policy, const char *name, const char *value,
                    struct scratch *scratch, struct diag *diag)
{
    struct retention_tags list = {.tags = scratch_array(scratch, LIMIT_TAGS, sizeof(*list.tags))};
    bool room = list.tags != NULL;
    if (policy->tag_list_count == RETENTION_TAG_LISTS_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "%s is given too often: at most %d lists are allowed", name,
                        RETENTION_TAG_LISTS_MAX);
    }
    for (const char *at = value; room && *value != '\0'; at++) {
        char tag[LABEL_BYTES_MAX];
        size_t bytes = read_tag(&at, tag);
        if (bytes == 0 || bytes > LABEL_BYTES_MAX || list.count == LIMIT_TAGS ||
            !text_is_valid(bytes, tag, LABEL_BYTES_MAX)) {
            return bad(diag, name, value, "tags with commas between them (\"\\,\" within a tag)");
        }
        list.tags[list.count] = scratch_string(scratch, bytes, tag);
        room = list.tags[list.count++] != NULL;
        if (*at == '\0') {
            break;
        }
    }
    if (!room) {
        return diag_no_memory(diag, "the tags of %s", name);
    }
    policy->tag_lists[policy->tag_list_count++] = list;
    return 0;
}

static int set_zone(struct retention_policy *policy, const char *value, struct scratch *scratch,
                    struct diag *diag)
{
    struct zone *zone = scratch_array(scratch, 1, sizeof(*zone));
    const char *name = scratch_string(scratch, strlen(value), value);
    if (zone == NULL || name == NULL) {
        return diag_no_memory(diag, "a time zone");
    }
    int status = zone_load(name, scratch, zone, diag);
    policy->zone_name = status == 0 ? name : NULL;
    policy->zone = status == 0 ? zone : NULL;
    return status;
}

static int set_metric(struct retention_policy *policy, const char *name, const char *value,
                      struct scratch *scratch, struct diag *diag)
{
    if (!text_is_valid(strlen(value), value, LABEL_BYTES_MAX)) {
        return bad(diag, name, value, "the name of a metric");
    }
    policy->metric = scratch_string(scratch, strlen(value), value);
    return policy->metric != NULL ? 0 : diag_no_memory(diag, "%s", name);
}

static int set_mode(struct retention_policy *policy, const char *name, const char *value,
                    struct diag *diag)
{
    policy->mode = strcmp(value, "min") == 0   ? MODE_MIN
                   : strcmp(value, "max") == 0 ? MODE_MAX
                                               : MODE_UNSET;
    return policy->mode != MODE_UNSET ? 0 : bad(diag, name, value, "min or max");
}

/* Returns the unit of an option such as keep-hourly or keep-within-hourly, or UNIT_COUNT if it has
 * none. */
static enum retention_unit unit_of(const char *name, const char *prefix)
{
    size_t bytes = strlen(prefix);
    for (unsigned unit = 0; unit < UNIT_COUNT && strncmp(name, prefix, bytes) == 0; unit++) {
        if (strcmp(name + bytes, unit_names[unit]) == 0) {
            return (enum retention_unit)unit;
        }
    }
    return UNIT_COUNT;
}

int retention_policy_set(struct retention_policy *policy, const char *name, const char *value,
                         struct scratch *scratch, struct diag *diag)
{
    enum retention_unit within = unit_of(name, "keep-within-"), per = unit_of(name, "keep-");
    uint64_t least = 0;
    if (within != UNIT_COUNT) {
        return set_span(&policy->within_per[within], name, value, diag);
    }
    if (per != UNIT_COUNT) {
        return set_count(&policy->per[per], name, value, diag);
    }
    if (strcmp(name, "keep-last") == 0) {
        return set_count(&policy->last, name, value, diag);
    }
    if (strcmp(name, "keep-within") == 0) {
        return set_span(&policy->within, name, value, diag);
    }
    if (strcmp(name, "keep-every-steps") == 0) {
        return set_number(&policy->every_steps, name, value, diag);
    }
    if (strcmp(name, "keep-every") == 0) {
        return set_seconds(&policy->every_seconds, false, name, value, diag);
    }
    if (strcmp(name, "keep-best") == 0) {
        return set_count(&policy->best, name, value, diag);
    }
    if (strcmp(name, "metric") == 0) {
        return set_metric(policy, name, value, scratch, diag);
    }
    if (strcmp(name, "mode") == 0) {
        return set_mode(policy, name, value, diag);
    }
    if (strcmp(name, "keep-tag") == 0) {
        return set_tags(policy, name, value, scratch, diag);
    }
    if (strcmp(name, "keep-superseded") == 0) {
        policy->has_superseded = true;
        return set_seconds(&policy->superseded_seconds, true, name, value, diag);
    }
    if (strcmp(name, "time-zone") == 0) {
        return set_zone(policy, value, scratch, diag);
    }
    if (strcmp(name, "remove-idle") == 0) {
        return set_seconds(&policy->remove_idle_seconds, false, name, value, diag);
    }
    if (strcmp(name, "keep-least") == 0) {
        int status = set_number(&least, name, value, diag);
        policy->least = (uint32_t)(least < COUNT_MAX ? least : COUNT_MAX);
        return status;
    }
    return diag_set(diag, CAIRN_E_INVALID, "\"%.60s\" is no option of a retention policy", name);
}

static bool span_is_set(const struct retention_span *span)
{
    return span->years > 0 || span->months > 0 || span->days > 0 || span->seconds > 0;
}

bool retention_policy_has_rule(const struct retention_policy *policy)
{
    bool any = policy->last != 0 || span_is_set(&policy->within) || policy->every_steps > 0 ||
               policy->every_seconds > 0 || policy->best != 0 || policy->tag_list_count > 0;
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        any = any || policy->per[unit] != 0 || span_is_set(&policy->within_per[unit]);
    }
    return any;
}

int retention_policy_check(const struct retention_policy *policy, struct diag *diag)
{
    bool any = retention_policy_has_rule(policy) || policy->remove_idle_seconds > 0;
    if (policy->best != 0 && (policy->metric == NULL || policy->mode == MODE_UNSET)) {
        return diag_set(diag, CAIRN_E_INVALID, "keep-best needs a metric, and a mode: min or max");
    }
    if (policy->best == 0 && (policy->metric != NULL || policy->mode != MODE_UNSET)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "a metric or a mode has no effect without keep-best; add keep-best = N or "
                        "leave it out");
    }
    return any ? 0
               : diag_set(
                     diag, CAIRN_E_INVALID,
                     "no policy is given, so nothing is forgotten. Give at least one keep rule");
}

/* ---- writing ---- */

struct text {
    size_t bytes, used;
    char *text;
    bool cut;
};

/* Appends a text whole or not at all, so that there is always room for "...". */
static void put(struct text *text, const char *part)
{
    size_t bytes = strlen(part);
    /* Only whole parts, with room for "..." */
    if (text->cut || text->used + bytes + 5 > text->bytes) {
        text->cut = true;
        return;
    }
    CHECK(text->used < text->bytes);
    memcpy(text->text + text->used, part, bytes + 1);
    text->used += bytes;
}

static void put_rule(struct text *text, const char *name, const char *unit, const char *value)
{
    char part[256];
    snprintf(part, sizeof(part), "%s%s%s %s", text->used > 0 ? ", " : "", name, unit, value);
    put(text, part);
}

static void put_count(struct text *text, const char *name, const char *unit, int64_t count)
{
    char value[32];
    snprintf(value, sizeof(value), "%" PRId64, count);
    if (count != 0) {
        put_rule(text, name, unit, count < 0 ? "unlimited" : value);
    }
}

/* Appends a span of time to the text of a policy; appends nothing if the span is not set. */
static void put_span(struct text *text, const char *name, const char *unit,
                     const struct retention_span *span)
{
    const uint64_t parts[] = {span->years, span->months, span->days, span->seconds};
    char value[96] = "";
    size_t used = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (parts[i] > 0) {
            bool hours = i == 3 && parts[i] % 3600 == 0;
            used += (size_t)snprintf(value + used, sizeof(value) - used, "%" PRIu64 "%c",
                                     hours ? parts[i] / 3600 : parts[i], hours ? 'h' : "ymds"[i]);
        }
    }
    CHECK(used < sizeof(value));
    if (used > 0) {
        put_rule(text, name, unit, value);
    }
}

/* Appends tags as set_tags() reads them. */
static void put_tags(struct text *text, const struct retention_tags *list)
{
    char value[160] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        if (used + 2 * strlen(list->tags[i]) + 2 >= sizeof(value)) {
            break;
        }
        value[used] = ',';
        used += i > 0;
        for (const char *at = list->tags[i]; *at != '\0'; at++) {
            value[used] = '\\';
            used += *at == ',' || (*at == '\\' && (at[1] == ',' || at[1] == '\\'));
            value[used++] = *at;
        }
        value[used] = '\0';
    }
    CHECK(used < sizeof(value));
    put_rule(text, "keep-tag", "", list->count > 0 ? value : "''");
}

void retention_policy_text(const struct retention_policy *policy, size_t bytes, char *ret)
{
    CHECK(bytes > 0);
    struct text text = {.bytes = bytes, .text = ret};
    char value[192];
    ret[0] = '\0';
    put_count(&text, "keep-last", "", policy->last);
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        put_count(&text, "keep-", unit_names[unit], policy->per[unit]);
    }
    put_span(&text, "keep-within", "", &policy->within);
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        put_span(&text, "keep-within-", unit_names[unit], &policy->within_per[unit]);
    }
    if (policy->every_steps > 0) {
        put_count(&text, "keep-every-steps", "", (int64_t)policy->every_steps);
    }
    put_span(&text, "keep-every", "", &(struct retention_span){.seconds = policy->every_seconds});
    if (policy->best != 0) {
        put_count(&text, "keep-best", "", policy->best);
        snprintf(value, sizeof(value), " by %s %s", policy->metric,
                 policy->mode == MODE_MAX ? "max" : "min");
        put(&text, value);
    }
    for (uint32_t i = 0; i < policy->tag_list_count; i++) {
        put_tags(&text, &policy->tag_lists[i]);
    }
    if (policy->has_superseded) {
        snprintf(value, sizeof(value), "%" PRIu64 "s", policy->superseded_seconds);
        put_rule(&text, "keep-superseded", "", value);
    }
    if (policy->zone_name != NULL) {
        put_rule(&text, "time-zone", "", policy->zone_name);
    }
    put_count(&text, "keep-least", "", policy->least);
    put_span(&text, "remove-idle", "",
             &(struct retention_span){.seconds = policy->remove_idle_seconds});
    if (text.cut) {
        CHECK(text.used < bytes);
        snprintf(ret + text.used, bytes - text.used, " ...");
    }
}

/* Puts the name of a reason to keep a checkpoint into `ret`, which has `bytes` bytes. */
static void reason_text(unsigned reason, size_t bytes, char *ret)
{
    CHECK(reason < REASON_COUNT);
    static const char *const others[] = {
        [0] = "every so many steps",
        [REASON_EVERY - REASON_STEPS] = "every so often",
        [REASON_BEST - REASON_STEPS] = "best",
        [REASON_TAG - REASON_STEPS] = "tag",
        [REASON_TIP - REASON_STEPS] = "end of a branch that was superseded recently",
        [REASON_UNREPLACED - REASON_STEPS] = "not good, but too few older ones are good"};
    if (reason == REASON_LAST || reason == REASON_WITHIN) {
        snprintf(ret, bytes, "%s", reason == REASON_LAST ? "last" : "within");
    } else if (reason < REASON_OLDEST) {
        snprintf(ret, bytes, "%s", unit_names[reason - REASON_PER]);
    } else if (reason < REASON_WITHIN) {
        snprintf(ret, bytes, "oldest %s", unit_names[reason - REASON_OLDEST]);
    } else if (reason < REASON_WITHIN_OLDEST) {
        snprintf(ret, bytes, "%s within", unit_names[reason - REASON_WITHIN_PER]);
    } else if (reason < REASON_STEPS) {
        snprintf(ret, bytes, "oldest %s within", unit_names[reason - REASON_WITHIN_OLDEST]);
    } else {
        snprintf(ret, bytes, "%s", others[reason - REASON_STEPS]);
    }
}

void retention_reasons_text(enum mark_outcome outcome, uint64_t reasons, size_t bytes, char *ret)
{
    CHECK(bytes > 0);
    struct text text = {.bytes = bytes, .text = ret};
    ret[0] = '\0';
    for (unsigned reason = 0; reason < REASON_COUNT; reason++) {
        char part[80];
        if ((reasons >> reason & 1) != 0) {
            put(&text, text.used > 0 ? ", " : "");
            reason_text(reason, sizeof(part), part);
            put(&text, part);
        }
    }
    if (outcome == MARK_DONE) {
        put(&text, "no rule keeps it");
    } else if (outcome != MARK_KEPT) {
        put(&text, text.used > 0 ? ", " : "");
        put(&text, mark_outcome_text(outcome));
    }
}
