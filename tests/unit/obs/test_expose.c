/* SPDX-License-Identifier: Apache-2.0
 *
 * Both formats of metrics are as their rules say, to the byte: help, type, unit, names of counters,
 * escapes, buckets that add up. Method: one family of each kind.
 */
#include "obs/expose.h"

#include "support/unit_test.h"

static const uint64_t bounds[] = {1000, 250000, 10000000};

static char *written(bool openmetrics)
{
    static const struct family families[] = {
        {"cairn_x_bytes", FAMILY_COUNTER, "bytes", "Bytes of x."},
        {"cairn_y_timestamp_seconds", FAMILY_GAUGE, "seconds", "When y was."},
        {"cairn_build", FAMILY_INFO, "", "The version."},
        {"cairn_z_seconds", FAMILY_HISTOGRAM, "seconds", "How long z took."},
    };
    struct expose expose;
    struct histogram histogram;
    expose_init(&expose, openmetrics);
    expose_family(&expose, &families[0]);
    expose_label(&expose, "run", "a\"b\\c\nd");
    expose_label(&expose, "op", "read");
    expose_u64(&expose, UINT64_MAX);
    expose_family(&expose, &families[1]);
    expose_wall(&expose, INT64_C(1700000000123456789));
    expose_family(&expose, &families[2]);
    expose_label(&expose, "version", "1");
    expose_u64(&expose, 1);
    histogram_init(&histogram, 3, bounds);
    histogram_add(&histogram, 1000);
    histogram_add(&histogram, 300000);
    histogram_add(&histogram, 99000001);
    expose_family(&expose, &families[3]);
    expose_label(&expose, "op", "z");
    expose_histogram(&expose, &histogram);
    assert_int_equal(expose_end(&expose), 0);
    char *text = strndup((const char *)expose.buf.data, expose.buf.bytes);
    assert_non_null(text);
    expose_fini(&expose);
    return text;
}

#define SAMPLES_X "cairn_x_bytes_total{run=\"a\\\"b\\\\c\\nd\",op=\"read\"} 18446744073709551615\n"
#define SAMPLES_Y "cairn_y_timestamp_seconds 1700000000.123\n"
#define SAMPLES_Z                                       \
    "cairn_z_seconds_bucket{op=\"z\",le=\"0.001\"} 1\n" \
    "cairn_z_seconds_bucket{op=\"z\",le=\"0.25\"} 1\n"  \
    "cairn_z_seconds_bucket{op=\"z\",le=\"10.0\"} 2\n"  \
    "cairn_z_seconds_bucket{op=\"z\",le=\"+Inf\"} 3\n"  \
    "cairn_z_seconds_count{op=\"z\"} 3\n"               \
    "cairn_z_seconds_sum{op=\"z\"} 99.301001\n"

TEST(test_prometheus)
{
    char *text = written(false);
    assert_string_equal(text, "# HELP cairn_x_bytes_total Bytes of x.\n"
                              "# TYPE cairn_x_bytes_total counter\n" SAMPLES_X
                              "# HELP cairn_y_timestamp_seconds When y was.\n"
                              "# TYPE cairn_y_timestamp_seconds gauge\n" SAMPLES_Y
                              "# HELP cairn_build_info The version.\n"
                              "# TYPE cairn_build_info gauge\n"
                              "cairn_build_info{version=\"1\"} 1\n"
                              "# HELP cairn_z_seconds How long z took.\n"
                              "# TYPE cairn_z_seconds histogram\n" SAMPLES_Z);
    free(text);
}

TEST(test_openmetrics)
{
    char *text = written(true);
    assert_string_equal(text, "# HELP cairn_x_bytes Bytes of x.\n"
                              "# TYPE cairn_x_bytes counter\n"
                              "# UNIT cairn_x_bytes bytes\n" SAMPLES_X
                              "# HELP cairn_y_timestamp_seconds When y was.\n"
                              "# TYPE cairn_y_timestamp_seconds gauge\n"
                              "# UNIT cairn_y_timestamp_seconds seconds\n" SAMPLES_Y
                              "# HELP cairn_build The version.\n"
                              "# TYPE cairn_build info\n"
                              "cairn_build_info{version=\"1\"} 1\n"
                              "# HELP cairn_z_seconds How long z took.\n"
                              "# TYPE cairn_z_seconds histogram\n"
                              "# UNIT cairn_z_seconds seconds\n" SAMPLES_Z "# EOF\n");
    free(text);
}
