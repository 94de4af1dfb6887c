/* SPDX-License-Identifier: Apache-2.0
 *
 * A pattern matches the names that its rules say, and a pattern that is made to be slow is not.
 * Method: a table of both answers.
 */
#include "base/check.h"
#include "base/glob.h"
#include "support/unit_test.h"

TEST(test_what_matches)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "model.layers.0/w", true},
        {"model.*", "model.w", true},
        {"model.*", "model", false},
        {"*.weight", "a.b.weight", true},
        {"*.weight", "a.b.weights", false},
        {"layers.?.w", "layers.7.w", true},
        {"layers.?.w", "layers.17.w", false},
        {"l?yer", "l\xc3\xa4yer", true}, /* one character of two bytes */
        {"layers.[0-3].w", "layers.3.w", true},
        {"layers.[0-3].w", "layers.4.w", false},
        {"layers.[!0-3].w", "layers.4.w", true},
        {"layers.[!0-3].w", "layers.0.w", false},
        {"[abc]*", "beta", true},
        {"[]x]", "]", true},
        {"[!]x]", "]", false},
        {"w[0]", "w[0]", true}, /* the name itself */
        {"w[0]", "w0", true},
        {"w[[]0]", "w[0]", true},
        {"w[0", "w[0", true},
        {"w[?", "w[x", true},
        {"[a-]", "-", true},
        {"[\xc3\xa4-\xc3\xb6]", "\xc3\xb6", true},
        {"a*b*c", "a-bb-c-c", true},
        {"a*b*c", "a-cc-b", false},
        {"**a**", "bab", true},
        {"?*", "", false},
        {"A", "a", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (glob_matches(cases[i].pattern, cases[i].name) != cases[i].matches) {
            fail_msg("'%s' and '%s'", cases[i].pattern, cases[i].name);
        }
    }
}

TEST(test_one_of_several)
{
    static const char *const patterns[] = {"a.*", "b"};
    assert_true(glob_matches_any(2, patterns, "b"));
    assert_true(glob_matches_any(2, patterns, "a.x"));
    assert_false(glob_matches_any(2, patterns, "c"));
    assert_false(glob_matches_any(0, NULL, "c"));
}

/* Method: with a way back for each star this would take 2^40 steps. */
TEST(test_no_pattern_is_slow)
{
    char name[1025];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_false(glob_matches("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
}
