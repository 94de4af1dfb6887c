/* SPDX-License-Identifier: Apache-2.0
 *
 * See zone.h. A file has its data twice; the second time with 64 bits, and followed by the rule for
 * later times, in the form that the variable TZ has. Every length is compared with what is there.
 */
#include "base/zone.h"

#include "base/check.h"
#include "base/digits.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 64 << 10, HEADER_BYTES = 44, TYPE_BYTES = 6, TIMES_MAX = 4096, DAY_S = 86400 };

/* ---- the rule ---- */

static bool read_number(const char **at, uint64_t most, int64_t *ret)
{
    uint64_t number = 0;
    bool fits = digits_read_decimal(at, most, &number);
    *ret = (int64_t)number;
    return fits;
}

/* Reads a time such as "-1", "3" or "5:30" as seconds. */
static bool read_time(const char **at, int64_t *ret)
{
    bool minus = **at == '-';
    int64_t hours = 0, minutes = 0, seconds = 0;
    *at += minus || **at == '+';
    bool good = read_number(at, 167, &hours);
    if (good && digits_skip(at, ":")) {
        good = read_number(at, 59, &minutes);
    }
    if (good && digits_skip(at, ":")) {
        good = read_number(at, 59, &seconds);
    }
    *ret = (hours * 3600 + minutes * 60 + seconds) * (minus ? -1 : 1);
    return good;
}

static bool skip_name(const char **at)
{
    const char *from = *at;
    if (digits_skip(at, "<")) {
        *at += strcspn(*at, ">");
        return digits_skip(at, ">");
    }
    while (isalpha((unsigned char)**at)) {
        ++*at;
    }
    return *at > from;
}

/* Reads ",M3.5.0/2": the last Sunday of March, at 2 o'clock. Other forms are not in use. */
static bool read_change(const char **at, struct zone_change *ret)
{
    ret->seconds = INT64_C(2) * 3600;
    return digits_skip(at, ",M") && read_number(at, 12, &ret->month) && digits_skip(at, ".") &&
           read_number(at, 5, &ret->week) && digits_skip(at, ".") &&
           read_number(at, 6, &ret->weekday) && ret->month > 0 && ret->week > 0 &&
           (!digits_skip(at, "/") || read_time(at, &ret->seconds));
}

/* Reads a rule such as "CET-1CEST,M3.5.0,M10.5.0/3". Times count west of Greenwich there. */
static bool read_rule(const char *text, struct zone *io)
{
    const char *at = text;
    if (!skip_name(&at) || !read_time(&at, &io->standard)) {
        return false;
    }
    io->summer = io->standard - 3600;
    io->has_summer = skip_name(&at);
    if (io->has_summer && *at != ',' && !read_time(&at, &io->summer)) {
        return false;
    }
    if (io->has_summer && (!read_change(&at, &io->begin) || !read_change(&at, &io->end))) {
        return false;
    }
    io->standard = -io->standard;
    io->summer = -io->summer;
    io->has_rule = true;
    return *at == '\0';
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

/* Returns the days from 1970-01-01 to the first of a month, which counts from 1 to 13. */
static int64_t days_to(int64_t year, int64_t month)
{
    year += month == 13;
    month = month == 13 ? 1 : month;
    int64_t shifted = month < 3 ? year - 1 : year; /* of a year that begins with March */
    int64_t of_year = (153 * (month < 3 ? month + 9 : month - 3) + 2) / 5;
    return shifted * 365 + floor_div(shifted, 4) - floor_div(shifted, 100) +
           floor_div(shifted, 400) + of_year - 719468;
}

/* Returns when a change comes in that year, in seconds of the local time before it. */
static int64_t change_at(const struct zone_change *change, int64_t year)
{
    int64_t first = days_to(year, change->month), next = days_to(year, change->month + 1);
    int64_t weekday = (first + 4) - floor_div(first + 4, 7) * 7; /* 1970-01-01 was a Thursday */
    CHECK(next > first);
    CHECK(weekday >= 0);
    int64_t day = first + (change->weekday - weekday + 7) % 7 + (change->week - 1) * 7;
    return (day < next ? day : day - 7) * DAY_S + change->seconds;
}

static int64_t rule_offset(const struct zone *zone, int64_t unix_s)
{
    int64_t year = 1970 + floor_div(unix_s, 31556952);
    for (int64_t y = year - 1; zone->has_summer && y <= year + 1; y++) {
        int64_t from = change_at(&zone->begin, y) - zone->standard;
        int64_t to = change_at(&zone->end, y) - zone->summer;
        if (to < from) { /* in the south the summer ends in the next year */
            to = change_at(&zone->end, y + 1) - zone->summer;
        }
        if (unix_s >= from && unix_s < to) {
            return zone->summer;
        }
    }
    return zone->standard;
}

int64_t zone_offset(const struct zone *zone, int64_t unix_s)
{
    size_t low = 0, high = zone->count; /* how many changes have come */
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (zone->at[mid] <= unix_s) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    CHECK(low <= zone->count);
    if (low == zone->count && zone->has_rule) {
        return rule_offset(zone, unix_s);
    }
    return low > 0 ? zone->offsets[low - 1] : zone->first;
}

/* ---- the file ---- */

static uint64_t big_endian(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;
    CHECK(bytes <= sizeof(value));
    for (size_t i = 0; i < bytes; i++) {
        value = value << 8 | data[i];
    }
    return value;
}

struct counts {
    uint64_t utc, standard, leaps, times, types, chars;
};

/* Reads a header. Returns the bytes of its data, or 0 if there is none that makes sense. */
static uint64_t read_header(size_t bytes, const uint8_t *data, size_t time_bytes,
                            struct counts *ret)
{
    if (bytes < HEADER_BYTES || memcmp(data, "TZif", 4) != 0 || data[4] < '2') {
        return 0;
    }
    uint64_t numbers[6];
    for (size_t i = 0; i < 6; i++) {
        numbers[i] = big_endian(data + 20 + 4 * i, 4);
    }
    *ret = (struct counts){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    uint64_t need = ret->times * (time_bytes + 1) + ret->types * TYPE_BYTES + ret->chars +
                    ret->leaps * (time_bytes + 4) + ret->standard + ret->utc;
    bool good = ret->types > 0 && ret->types <= 256 && ret->times <= TIMES_MAX;
    return good && need <= bytes - HEADER_BYTES ? need : 0;
}

static int32_t offset_of(const uint8_t *types, uint64_t type)
{
    CHECK(type < 256);
    return (int32_t)(uint32_t)big_endian(types + type * TYPE_BYTES, 4);
}

/* Reads the changes. Returns false if they contradict themselves. */
static bool read_changes(const struct counts *counts, const uint8_t *data, struct zone *io)
{
    const uint8_t *numbers = data + counts->times * 8, *types = numbers + counts->times;
    io->count = counts->times;
    io->first = offset_of(types, 0);
    bool good = true;
    for (size_t i = 0; good && i < io->count; i++) {
        io->at[i] = (int64_t)big_endian(data + i * 8, 8);
        good = numbers[i] < counts->types && (i == 0 || io->at[i - 1] < io->at[i]);
        io->offsets[i] = good ? offset_of(types, numbers[i]) : 0;
    }
    return good;
}

/* Reads the rule between two line feeds at the end of the file; an empty one is none. */
static bool read_footer(size_t bytes, const uint8_t *data, struct zone *io)
{
    char rule[128];
    if (bytes < 2 || bytes - 2 >= sizeof(rule) || data[0] != '\n' || data[bytes - 1] != '\n') {
        return false;
    }
    memcpy(rule, data + 1, bytes - 2);
    rule[bytes - 2] = '\0';
    return rule[0] == '\0' || read_rule(rule, io);
}

int zone_parse(size_t bytes, const uint8_t *data, struct scratch *scratch, struct zone *ret,
               struct diag *diag)
{
    struct counts counts;
    struct zone zone = {.count = 0};
    size_t skip = HEADER_BYTES + (size_t)read_header(bytes, data, 4, &counts);
    size_t left = skip > HEADER_BYTES ? bytes - skip : 0;
    const uint8_t *second = data + skip;
    size_t need = (size_t)read_header(left, left > 0 ? second : data, 8, &counts);
    if (left == 0 || need == 0) {
        return diag_set(diag, CAIRN_E_INVALID, "it is no zoneinfo file of version 2 or later");
    }
    zone.at = scratch_array(scratch, counts.times + 1, sizeof(*zone.at));
    zone.offsets = scratch_array(scratch, counts.times + 1, sizeof(*zone.offsets));
    if (zone.at == NULL || zone.offsets == NULL) {
        return diag_no_memory(diag, "a time zone");
    }
    if (!read_changes(&counts, second + HEADER_BYTES, &zone) ||
        !read_footer(left - HEADER_BYTES - need, second + HEADER_BYTES + need, &zone)) {
        return diag_set(diag, CAIRN_E_INVALID, "its changes or its rule cannot be read");
    }
    *ret = zone;
    return 0;
}

static bool is_name(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 0 && bytes <= 64 && isalpha((unsigned char)name[0]) &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/") ==
               bytes;
}

int zone_load(const char *name, struct scratch *scratch, struct zone *ret, struct diag *diag)
{
    char path[128];
    if (!is_name(name)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%.64s\" is no name of a time zone, such as Europe/Berlin", name);
    }
    snprintf(path, sizeof(path), "/usr/share/zoneinfo/%s", name);
    uint8_t *data = malloc(FILE_MAX);
    FILE *file = data != NULL ? fopen(path, "re") : NULL;
    size_t bytes = file != NULL ? fread(data, 1, FILE_MAX, file) : 0;
    int status = data == NULL ? diag_no_memory(diag, "a time zone")
                 : bytes == 0 ? diag_set(diag, CAIRN_E_INVALID, "there is no such file")
                              : zone_parse(bytes, data, scratch, ret, diag);
    if (file != NULL) {
        (void)fclose(file); /* it was only read */
    }
    free(data);
    if (status == CAIRN_E_INVALID) {
        diag_add(diag, "the time zone \"%s\" is not known here: %s", name, path);
    }
    return status;
}
