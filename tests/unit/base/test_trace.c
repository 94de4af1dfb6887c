/* SPDX-License-Identifier: Apache-2.0
 *
 * A traceparent gives its trace id as a tag if it is valid by W3C Trace Context, and nothing else
 * does. Method: the examples of that text, each of their parts spoiled in turn.
 */
#include "base/check.h"
#include "base/trace.h"
#include "support/unit_test.h"

#define ID     "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

TEST(test_valid_values)
{
    static const char *const values[] = {
        "00-" ID "-" PARENT "-01", "00-" ID "-" PARENT "-00",
        "01-" ID "-" PARENT "-01",            /* a later version */
        "cc-" ID "-" PARENT "-01-what-comes", /* which may say more */
    };
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        char tag[TRACE_TAG_BYTES] = "old";
        assert_true(trace_tag(values[i], tag));
        assert_string_equal(tag, "trace:" ID);
    }
}

TEST(test_other_values)
{
    static const char *const values[] = {
        "",
        "00",
        "00-" ID,
        "00-" ID "-" PARENT,
        "00-" ID "-" PARENT "-0",
        "00-" ID "-" PARENT "-01 ",
        "00-" ID "-" PARENT "-01-more",
        "01-" ID "-" PARENT "-01more",
        "ff-" ID "-" PARENT "-01",
        "0x-" ID "-" PARENT "-01",
        "00_" ID "-" PARENT "-01",
        "00-" ID "_" PARENT "-01",
        "00-" ID "-" PARENT "_01",
        "00-" ID "-" PARENT "-g1",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" ID "-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-" PARENT "-011",
        "00-4bf92f3577b34da6a3ce929d0e0e473\xc3-" PARENT "-01",
    };
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        char tag[TRACE_TAG_BYTES] = "old";
        if (trace_tag(values[i], tag)) {
            fail_msg("\"%s\" was taken as %s", values[i], tag);
        }
        assert_string_equal(tag, "");
    }
}

TEST(test_the_tag_among_others)
{
    const char *tags[] = {"trac", "trace:", "trace:best", "trace:" ID "0", "trace:" ID, "trace:x"};
    assert_null(trace_of(0, NULL));
    assert_null(trace_of(4, tags));
    assert_string_equal(trace_of(ARRAY_LEN(tags), tags), ID);
}
