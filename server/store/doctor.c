/* SPDX-License-Identifier: Apache-2.0
 *
 * See doctor.h.
 */
#include "doctor.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { CLOCK_WARNING_MS = 1000, CLOCK_UNSAFE_MS = 300 * 1000, SPACE_WARNING_PERCENT = 10 };

void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check, const char *fmt,
                ...)
{
    if (doctor->count == DOCTOR_FINDINGS_MAX) {
        doctor->left_out++;
        doctor->findings[DOCTOR_FINDINGS_MAX - 1].level = DOCTOR_UNSAFE; /* never quietly */
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

void doctor_space(struct doctor *doctor, const char *check, uint64_t free_bytes,
                  uint64_t total_bytes, uint64_t need_bytes)
{
    const uint64_t gib = UINT64_C(1) << 30;
    double free_gib = (double)free_bytes / (double)gib,
           total_gib = (double)total_bytes / (double)gib;
    bool is_short = free_bytes <= need_bytes;
    bool is_low = free_bytes / SPACE_WARNING_PERCENT < total_bytes / 100;
    doctor_add(doctor,
               is_short ? DOCTOR_UNSAFE
               : is_low ? DOCTOR_WARNING
                        : DOCTOR_GOOD,
               check,
               "%.1f GiB of %.1f GiB are free; %" PRIu64 " MiB are kept for records and deletion",
               free_gib, total_gib, need_bytes >> 20);
    if (is_short) {
        doctor_remedy(doctor, "no save is accepted: forget checkpoints, or add space");
    } else if (is_low) {
        doctor_remedy(doctor, "less than %d %%: forget checkpoints, or add space",
                      SPACE_WARNING_PERCENT);
    }
}

void doctor_clock(struct doctor *doctor, const struct doctor_clock *clock)
{
    /* Theirs was read somewhere in between: what cannot be explained by that is the skew. */
    int64_t skew_ns = clock->theirs_ns < clock->before_ns  ? clock->before_ns - clock->theirs_ns
                      : clock->theirs_ns > clock->after_ns ? clock->theirs_ns - clock->after_ns
                                                           : 0;
    int64_t skew_ms = skew_ns / 1000000;
    enum doctor_level level = skew_ms > CLOCK_UNSAFE_MS    ? DOCTOR_UNSAFE
                              : skew_ms > CLOCK_WARNING_MS ? DOCTOR_WARNING
                                                           : DOCTOR_GOOD;
    doctor_add(doctor, level, "clock",
               "this host's clock and %s are %" PRId64 ".%03" PRId64 " s apart", clock->whose,
               skew_ms / 1000, skew_ms % 1000);
    if (level != DOCTOR_GOOD) {
        doctor_remedy(doctor,
                      "set up time synchronisation (chrony, systemd-timesyncd) on both: keys and "
                      "certificates are refused, and times in lists and rules are wrong");
    }
}
