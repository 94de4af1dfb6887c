/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: see doctor.h.
 */
#include "doctor.h"

#include "base/check.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { CLOCK_WARNING_MS = 1000, CLOCK_UNSAFE_MS = 300 * 1000, SPACE_WARNING_PERCENT = 10 };

void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check, const char *fmt,
                ...)
{
    if (doctor->count == DOCTOR_FINDINGS_MAX) {
        doctor->left_out++;
        /* So that the missing findings are not overlooked. */
        doctor->findings[DOCTOR_FINDINGS_MAX - 1].level = DOCTOR_UNSAFE;
        return;
    }
    struct doctor_finding *finding = &doctor->findings[doctor->count++];
    va_list words;
    *finding = (struct doctor_finding){.level = level};
    snprintf(finding->check, sizeof(finding->check), "%s", check);
    va_start(words, fmt);
    vsnprintf(finding->text, sizeof(finding->text), fmt, words);
    va_end(words);
}

void doctor_remedy(struct doctor *doctor, const char *fmt, ...)
{
    CHECK(doctor->count > 0);
    struct doctor_finding *finding = &doctor->findings[doctor->count - 1];
    va_list words;
    va_start(words, fmt);
    vsnprintf(finding->remedy, sizeof(finding->remedy), fmt, words);
    va_end(words);
}

size_t doctor_count(const struct doctor *doctor, enum doctor_level level)
{
    size_t count = 0;
    for (size_t i = 0; i < doctor->count; i++) {
        count += doctor->findings[i].level == level;
    }
    return count;
}

const char *doctor_level_name(enum doctor_level level)
{
    static const char *const names[] = {
        [DOCTOR_GOOD] = "good", [DOCTOR_WARNING] = "warning", [DOCTOR_UNSAFE] = "unsafe"};
    CHECK((size_t)level < ARRAY_LEN(names));
    return names[level];
}

void doctor_remedy_of(struct doctor *doctor, int code, const char *url)
{
    url = url != NULL && url[0] != '\0' ? url : "URL";
    if (code == CAIRN_E_DAMAGED || code == CAIRN_E_FORMAT) {
        doctor_remedy(
            doctor,
            "with the daemon stopped: `cairn verify --repair --store %s` repairs what has a second "
            "copy, and with --from MIRROR also from a mirror; `cairn salvage --store %s` says "
            "which checkpoints that no record lists can be entered again, and enters them with "
            "--yes; check the disk or the pool as well",
            url, url);
    } else if (code == CAIRN_E_STORE_FEATURES) {
        doctor_remedy(doctor, "use a newer Cairn");
    } else {
        doctor_remedy(doctor, "follow the advice in the message");
    }
}

/* Tells what helps a store without room for a save. An older server does not tell what is
 * left for records. */
static void tell_full(struct doctor *doctor, const struct doctor_room *room)
{
    bool is_known = room->records_free_bytes > 0;
    bool is_starved = is_known && room->records_free_bytes < STORE_RECORDS_NEED_BYTES;
    doctor_remedy(doctor,
                  "no save is accepted until there is room: %s" FREES_ROOM ", or add space%s",
                  is_starved ? STORE_STARVED_REMEDY : "",
                  is_known ? ""
                           : "; if these fail with NO_SPACE, remove other files from the store's "
                             "file system first");
}

void doctor_space(struct doctor *doctor, const char *check, const struct doctor_room *room)
{
    bool is_large = room->free_bytes >= UINT64_C(10) << 30;
    const double unit = is_large ? 1u << 30 : 1u << 20;
    uint64_t reserve = room->reserve_bytes, taken = room->beyond ? 0 : reserve;
    bool is_short = room->free_bytes <= taken;
    bool is_low = room->free_bytes / SPACE_WARNING_PERCENT < room->total_bytes / 100;
    char kept[80] = "";
    if (reserve > 0) {
        snprintf(kept, sizeof(kept),
                 "; %" PRIu64 " MiB %s are kept in reserve for records and deletion", reserve >> 20,
                 room->beyond ? "beyond them" : "of them");
    }
    doctor_add(doctor,
               is_short ? DOCTOR_UNSAFE
               : is_low ? DOCTOR_WARNING
                        : DOCTOR_GOOD,
               check,
               is_large ? "%.1f GiB of %.1f GiB are free%s" : "%.1f MiB of %.1f MiB are free%s",
               (double)room->free_bytes / unit, (double)room->total_bytes / unit, kept);
    if (is_short) {
        tell_full(doctor, room);
    } else if (is_low) {
        doctor_remedy(doctor, "less than %d %% is free: " FREES_ROOM ", or add space",
                      SPACE_WARNING_PERCENT);
    }
}

void doctor_clock(struct doctor *doctor, const struct doctor_clock *clock)
{
    /* Their clock was read in between, so the skew is the part that this interval does not
     * explain. */
    int64_t skew_ns = clock->theirs_ns < clock->before_ns  ? clock->before_ns - clock->theirs_ns
                      : clock->theirs_ns > clock->after_ns ? clock->theirs_ns - clock->after_ns
                                                           : 0;
    int64_t skew_ms = skew_ns / 1000000;
    enum doctor_level level = skew_ms > CLOCK_UNSAFE_MS    ? DOCTOR_UNSAFE
                              : skew_ms > CLOCK_WARNING_MS ? DOCTOR_WARNING
                                                           : DOCTOR_GOOD;
    doctor_add(doctor, level, "clock",
               "this host's clock and %s differ by %" PRId64 ".%03" PRId64 " s", clock->whose,
               skew_ms / 1000, skew_ms % 1000);
    if (level != DOCTOR_GOOD) {
        doctor_remedy(
            doctor,
            "set up time synchronisation (chrony, systemd-timesyncd) on both; with wrong clocks "
            "keys and certificates are refused, and times in lists and rules are wrong");
    }
}
