/* SPDX-License-Identifier: Apache-2.0
 *
 * See options.h.
 */
#include "options.h"

#include "base/check.h"
#include "base/digits.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t of;
};

static const struct unit durations[] = {{"ms", 1},      {"s", 1000},     {"m", 60000},
                                        {"h", 3600000}, {"d", 86400000}, {"w", 604800000}};
static const struct unit sizes[] = {{"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30},
                                    {"TiB", 1ull << 40}, {"K", 1ull << 10},   {"M", 1ull << 20},
                                    {"G", 1ull << 30},   {"T", 1ull << 40},   {"B", 1}};

const struct option *option_find(const struct option *table, size_t length, const char *name)
{
    for (const struct option *option = table; option && option->name; option++) {
        if (strlen(option->name) == length && memcmp(option->name, name, length) == 0) {
            return option;
        }
    }
    return NULL;
}

const struct option *option_find_letter(const struct option *table, char letter)
{
    for (const struct option *option = table; option && option->name; option++) {
        if (option->letter == letter && letter != '\0') {
            return option;
        }
    }
    return NULL;
}

void option_twin(const struct option *option, char ret[OPTION_TWIN_BYTES])
{
    snprintf(ret, OPTION_TWIN_BYTES, "CAIRN_%s", option->name);
    for (char *p = ret; *p; p++) {
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
}

/* --- values; `said` is how the option was called: "--limit" or "CAIRN_LIMIT" --- */

struct said {
    const char *name, *text;
};

static int refuse(struct said said, const char *wanted, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_INVALID, "%s '%s': %s", said.name, said.text, wanted);
}

static int check_range(const struct option *option, struct said said, uint64_t value,
                       struct diag *diag)
{
    if (value < option->min) {
        return diag_set(diag, CAIRN_E_INVALID, "%s %s is too small; see --help", said.name,
                        said.text);
    }
    if (option->max != 0 && value > option->max) {
        return diag_set(diag, CAIRN_E_INVALID, "%s %s is too large; see --help", said.name,
                        said.text);
    }
    return 0;
}

/* "90", or numbers with units one after another: "1h30m". bare: the unit of a number without. */
static bool read_units(const char *text, size_t count, const struct unit *units, uint64_t bare,
                       uint64_t *ret)
{
    uint64_t sum = 0, number = 0, product = 0;
    if (digits_parse_decimal(text, UINT64_MAX, &number)) {
        return mul_u64(number, bare, ret);
    }
    const char *at = text;
    while (*at != '\0') {
        bool found = false;
        if (!digits_read_decimal(&at, UINT64_MAX, &number)) {
            return false;
        }
        for (size_t i = 0; !found && i < count; i++) {
            size_t length = strlen(units[i].name);
            found = strncmp(at, units[i].name, length) == 0 && !isalpha((unsigned char)at[length]);
            if (found) {
                at += length;
                found = mul_u64(number, units[i].of, &product) && add_u64(sum, product, &sum);
                break;
            }
        }
        if (!found) {
            return false;
        }
    }
    *ret = sum;
    return at != text;
}

bool option_read_size(const char *text, uint64_t *ret)
{
    return read_units(text, ARRAY_LEN(sizes), sizes, 1, ret);
}

static int take_whole(const struct option *option, struct said said, uint64_t *to,
                      struct diag *diag)
{
    uint64_t value = 0;
    if (option->kind == OPTION_COUNT) {
        if (!digits_parse_decimal(said.text, UINT64_MAX, &value)) {
            return refuse(said, "it must be a number", diag);
        }
    } else if (option->kind == OPTION_SIZE) {
        if (!option_read_size(said.text, &value)) {
            return refuse(said, "it must be a size, for instance 64MiB", diag);
        }
    } else if (!read_units(said.text, ARRAY_LEN(durations), durations, 1000, &value)) {
        return refuse(said, "it must be a duration, for instance 90s, 15m or 1h30m", diag);
    }
    int status = check_range(option, said, value, diag);
    *to = status == 0 ? value : *to;
    return status;
}

static int take_number(struct said said, double *to, struct diag *diag)
{
    char *end = NULL;
    double value = strtod(said.text, &end);
    if (end == said.text || *end != '\0' || !isfinite(value)) {
        return refuse(said, "it must be a number, for instance 20, 0.5 or 7e9", diag);
    }
    *to = value;
    return 0;
}

static int take_flag(struct said said, bool *to, struct diag *diag)
{
    static const char *const words[][2] = {
        {"0", "1"}, {"no", "yes"}, {"false", "true"}, {"off", "on"}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        for (size_t value = 0; value < 2; value++) {
            if (strcmp(said.text, words[i][value]) == 0) {
                *to = value == 1;
                return 0;
            }
        }
    }
    return refuse(said, "it must be yes or no", diag);
}

static int take_text(const struct option *option, struct said said, const char **to,
                     struct diag *diag)
{
    size_t length = strlen(said.text);
    bool fits = !option->choices;
    for (const char *at = option->choices; !fits && at && *at;) {
        size_t word = strcspn(at, " ");
        fits = word == length && memcmp(at, said.text, word) == 0;
        at += word + strspn(at + word, " ");
    }
    if (!fits) {
        return diag_set(diag, CAIRN_E_INVALID, "%s '%s' is not possible; it must be one of: %s",
                        said.name, said.text, option->choices);
    }
    *to = said.text;
    return 0;
}

static int take_texts(const struct option *option, struct said said, struct option_texts *to,
                      struct diag *diag)
{
    uint64_t max =
        option->max != 0 && option->max < OPTION_TEXTS_MAX ? option->max : OPTION_TEXTS_MAX;
    if (to->count == max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "%s '%s' is one too many; %" PRIu64 " are allowed",
                        said.name, said.text, max);
    }
    to->items[to->count++] = said.text;
    return 0;
}

static int take_value(const struct option *option, struct said said, void *values,
                      struct diag *diag)
{
    void *to = (char *)values + option->at;
    struct diag why = DIAG_INIT;
    int status = 0;
    switch (option->kind) {
    case OPTION_FLAG:
        return take_flag(said, to, diag);
    case OPTION_TEXT:
        return take_text(option, said, to, diag);
    case OPTION_COUNT:
    case OPTION_SIZE:
    case OPTION_DURATION:
        return take_whole(option, said, to, diag);
    case OPTION_NUMBER:
        return take_number(said, to, diag);
    case OPTION_TEXTS:
        return take_texts(option, said, to, diag);
    case OPTION_OTHER:
        CHECK(option->take);
        status = option->take(to, said.text, &why);
        break;
    }
    return status == 0 ? 0
                       : diag_set(diag, status, "%s '%s': %s", said.name, said.text,
                                  diag_text(&why, status));
}

/* --- sets --- */

int options_init(struct option_set *set, struct diag *diag)
{
    int status = 0;
    for (const struct option *option = set->table; status == 0 && option && option->name;
         option++) {
        CHECK(option - set->table < OPTIONS_MAX);
        CHECK((option->kind == OPTION_FLAG) == (option->value == NULL));
        if (option->preset) {
            status =
                take_value(option, (struct said){option->name, option->preset}, set->values, diag);
        }
    }
    return status;
}

/* A destructive option may be given only once: if two values differ, nobody knows which was meant.
 */
static int check_once(const struct option_set *set, const struct option *option, struct said said,
                      struct diag *diag)
{
    bool given = (set->given >> (option - set->table) & 1) != 0;
    const char *const *before = (const void *)((const char *)set->values + option->at);
    if (!option->alone || option->kind != OPTION_TEXT || !given ||
        strcmp(*before, said.text) == 0) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_INVALID, "%s '%s' was already given as '%s'", said.name,
                    said.text, *before);
}

int options_take(struct option_set *set, const struct option *option, const char *text,
                 struct diag *diag)
{
    char name[OPTION_TWIN_BYTES];
    snprintf(name, sizeof(name), "--%s", option->name);
    int status = check_once(set, option, (struct said){name, text}, diag);
    if (status != 0) {
        return status;
    }
    set->given |= 1ull << (option - set->table);
    if (option->kind == OPTION_FLAG) {
        text = "yes";
    }
    return take_value(option, (struct said){name, text}, set->values, diag);
}

int options_take_twins(struct option_set *set, struct diag *diag)
{
    int status = 0;
    for (const struct option *option = set->table; status == 0 && option && option->name;
         option++) {
        char name[OPTION_TWIN_BYTES];
        option_twin(option, name);
        const char *text = option->alone ? NULL : getenv(name);
        bool given = (set->given >> (option - set->table) & 1) != 0;
        if (!given && text && text[0] != '\0') {
            status = take_value(option, (struct said){name, text}, set->values, diag);
        }
    }
    return status;
}

bool options_given(const struct option_set *set, const char *name)
{
    const struct option *option = option_find(set->table, strlen(name), name);
    return option && (set->given >> (option - set->table) & 1) != 0;
}
