/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers with units. A number without a unit means bytes, but never a duration: "10" could mean
 * anything.
 */
#include "daemon/config_value.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {{"GiB", UINT64_C(1) << 30},
                                         {"MiB", UINT64_C(1) << 20},
                                         {"KiB", UINT64_C(1) << 10},
                                         {"TiB", UINT64_C(1) << 40},
                                         {"", 1}};
static const struct unit time_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

/* Parses digits that are followed by one of the units. Returns false for anything else, and on
 * overflow. */
static bool parse(const char *text, const struct unit *units, size_t count, uint64_t *ret)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (errno != 0) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) == 0) {
            return mul_u64(number, units[i].factor, ret);
        }
    }
    return false;
}

int value_bytes(const char *text, uint64_t *ret, struct diag *diag)
{
    return parse(text, byte_units, ARRAY_LEN(byte_units), ret)
               ? 0
               : diag_set(diag, CAIRN_E_CONFIG,
                          "'%s' is not a size; write, for instance, 4096, 64KiB, 128MiB or 1GiB",
                          text);
}

int value_duration_ms(const char *text, uint64_t *ret, struct diag *diag)
{
    return parse(text, time_units, ARRAY_LEN(time_units), ret)
               ? 0
               : diag_set(diag, CAIRN_E_CONFIG,
                          "'%s' is not a duration; write, for instance, 250ms, 10s, 5m or 1h",
                          text);
}

int value_count(const char *text, uint64_t least, uint64_t *ret, struct diag *diag)
{
    static const struct unit one[] = {{"", 1}};
    if (!parse(text, one, 1, ret) || *ret < least || *ret > 1000000) {
        return diag_set(diag, CAIRN_E_CONFIG, "'%s' is not a count from %" PRIu64 " to 1000000",
                        text, least);
    }
    return 0;
}

int value_bool(const char *text, bool *ret, struct diag *diag)
{
    if (strcmp(text, "yes") == 0 || strcmp(text, "true") == 0) {
        *ret = true;
    } else if (strcmp(text, "no") == 0 || strcmp(text, "false") == 0) {
        *ret = false;
    } else {
        return diag_set(diag, CAIRN_E_CONFIG, "'%s' is neither yes nor no", text);
    }
    return 0;
}

int value_text(const char *text, size_t bytes, char *ret, struct diag *diag)
{
    size_t length = strlen(text);
    if (length >= bytes) {
        return diag_set(diag, CAIRN_E_CONFIG, "the value has %zu bytes; at most %zu are allowed",
                        length, bytes - 1);
    }
    memcpy(ret, text, length + 1);
    return 0;
}

/* Writes a value in the largest unit that divides it. */
static void format(uint64_t value, const struct unit *units, size_t count, char *ret, size_t bytes)
{
    struct unit best = {"", 0};
    for (size_t i = 0; i < count; i++) {
        bool fits = units[i].factor == 1 || (value > 0 && value % units[i].factor == 0);
        if (fits && units[i].factor > best.factor) {
            best = units[i];
        }
    }
    CHECK(best.factor > 0); /* the factor 1 is in each table */
    snprintf(ret, bytes, "%" PRIu64 "%s", value / best.factor, best.name);
}

void value_format_bytes(uint64_t value, size_t bytes, char *ret)
{
    format(value, byte_units, ARRAY_LEN(byte_units), ret, bytes);
}

void value_format_duration(uint64_t value_ms, size_t bytes, char *ret)
{
    format(value_ms, time_units, ARRAY_LEN(time_units), ret, bytes);
}

/* Takes one limit of a comma-separated list: bytes, or "N checkpoints". */
static int take_limit(const char *text, struct quota *io, struct diag *diag)
{
    char number[40];
    size_t bytes = strcspn(text, " ");
    const char *unit = text + bytes + strspn(text + bytes, " ");
    if (bytes == 0 || bytes >= sizeof(number)) {
        return diag_set(diag, CAIRN_E_CONFIG, "'%s' is not a limit", text);
    }
    memcpy(number, text, bytes);
    number[bytes] = '\0';
    bool counts = strcmp(unit, "checkpoints") == 0;
    uint64_t *limit = counts ? &io->checkpoints : &io->bytes;
    if (*limit != 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "there are two limits of %s",
                        counts ? "checkpoints" : "bytes");
    }
    if (counts) {
        return value_count(number, 1, limit, diag);
    }
    int status = value_bytes(text, limit, diag);
    if (status == 0 && *limit == 0) {
        status = diag_set(diag, CAIRN_E_CONFIG, "the limit is 0 bytes");
    }
    return status;
}

int value_quota(const char *project, const char *text, struct quota *ret, struct diag *diag)
{
    struct quota quota = {.bytes = 0};
    struct run_name name;
    char copy[128], *rest = copy;
    if (strcmp(project, "*") != 0 && run_name_set(project, "any", &name, diag) != 0) {
        diag_add(diag, "the row must begin with a project, or with *");
        return CAIRN_E_CONFIG;
    }
    size_t bytes = strlen(text) + 1;
    int status = bytes <= sizeof(copy) ? 0 : CAIRN_E_CONFIG;
    if (status == 0) {
        memcpy(copy, text, bytes);
    }
    while (status == 0 && rest) {
        char *item = strsep(&rest, ",");
        item += strspn(item, " ");
        for (size_t n = strlen(item); n > 0 && item[n - 1] == ' '; n--) {
            item[n - 1] = '\0';
        }
        status = take_limit(item, &quota, diag);
    }
    if (status != 0) {
        diag_add(diag,
                 "[quota] %s: write 2TiB, or 1000 checkpoints, or both with a comma between them",
                 project);
        return CAIRN_E_CONFIG;
    }
    snprintf(quota.project, sizeof(quota.project), "%s", project);
    *ret = quota;
    return 0;
}

void value_format_quota(const struct quota *quota, size_t bytes, char *ret)
{
    char limit[40] = "", count[40] = "";
    if (quota->bytes != 0) {
        value_format_bytes(quota->bytes, sizeof(limit), limit);
    }
    if (quota->checkpoints != 0) {
        snprintf(count, sizeof(count), "%" PRIu64 " checkpoints", quota->checkpoints);
    }
    snprintf(ret, bytes, "%s%s%s", limit, limit[0] && count[0] ? ", " : "", count);
}
