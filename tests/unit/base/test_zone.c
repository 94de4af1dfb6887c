/* SPDX-License-Identifier: Apache-2.0
 *
 * Local time is that of the zone's place, to the second at which summer time begins and ends, also
 * in years that no table lists; a file that is cut anywhere is refused. Method: known moments of
 * the system's zoneinfo, and a zone that is made of a rule alone.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/zone.h"
#include "support/unit_test.h"

static void assert_offset(const char *name, int64_t unix_s, int64_t want)
{
    struct scratch scratch;
    struct zone zone;
    struct diag diag = DIAG_INIT;
    scratch_init(&scratch, MIB(1));
    if (zone_load(name, &scratch, &zone, &diag) != 0 || zone_offset(&zone, unix_s) != want) {
        fail_msg("%s at %lld is not %lld (%s)", name, (long long)unix_s, (long long)want,
                 diag.text);
    }
    scratch_fini(&scratch);
}

TEST(test_known_moments)
{
    assert_offset("UTC", 1750000000, 0);
    assert_offset("Europe/Berlin", 1743296399, 3600); /* 2025-03-30 00:59:59 UTC */
    assert_offset("Europe/Berlin", 1743296400, 7200);
    assert_offset("Europe/Berlin", 1761440399, 7200); /* 2025-10-26 00:59:59 UTC */
    assert_offset("Europe/Berlin", 1761440400, 3600);
    assert_offset("America/New_York", 1741503599, -18000); /* 2025-03-09 06:59:59 UTC */
    assert_offset("America/New_York", 1741503600, -14400);
    assert_offset("Asia/Kolkata", 1750000000, 19800);
    assert_offset("Europe/Berlin", 2540246400, 7200); /* July 2050: by the rule */
    assert_offset("Europe/Berlin", 2524608000, 3600); /* January 2050 */
    assert_offset("Australia/Sydney", 2524608000, 39600);
    assert_offset("Australia/Sydney", 2540246400, 36000);
}

TEST(test_what_is_no_zone_is_refused)
{
    static const char *const names[] = {"", "Europe/Nowhere", "../etc/passwd", "/etc/passwd",
                                        "Europe"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct scratch scratch;
        struct zone zone;
        struct diag diag = DIAG_INIT;
        scratch_init(&scratch, MIB(1));
        assert_int_equal(zone_load(names[i], &scratch, &zone, &diag), CAIRN_E_INVALID);
        assert_true(diag.text[0] != '\0');
        scratch_fini(&scratch);
    }
}

/* A file without changes, with the rule of central Europe: as small as zoneinfo files may be. */
static size_t slim(uint8_t *ret)
{
    static const char rule[] = "\nCET-1CEST,M3.5.0,M10.5.0/3\n";
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        uint8_t header[44] = "TZif2";
        header[39] = 1; /* one type */
        header[43] = 4; /* four bytes of names */
        memcpy(ret + bytes, header, 44);
        memcpy(ret + bytes + 44, "\0\0\x0e\x10\0\0CET", 10); /* an hour */
        bytes += 54;
    }
    memcpy(ret + bytes, rule, sizeof(rule) - 1);
    return bytes + sizeof(rule) - 1;
}

TEST(test_a_rule_alone_holds_and_a_cut_file_is_refused)
{
    uint8_t data[256];
    size_t bytes = slim(data);
    struct scratch scratch;
    struct zone zone;
    scratch_init(&scratch, MIB(1));
    assert_int_equal(zone_parse(bytes, data, &scratch, &zone, NULL), 0);
    assert_int_equal(zone_offset(&zone, 1743296399), 3600);
    assert_int_equal(zone_offset(&zone, 1743296400), 7200);
    assert_int_equal(zone_offset(&zone, 1761440399), 7200);
    assert_int_equal(zone_offset(&zone, 1761440400), 3600);
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(zone_parse(cut, data, &scratch, &zone, NULL), CAIRN_E_INVALID);
    }
    scratch_fini(&scratch);
}
