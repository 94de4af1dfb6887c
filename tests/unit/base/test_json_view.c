/* SPDX-License-Identifier: Apache-2.0
 *
 * Values are found where they are, and what is cut, or of another kind, is simply not found.
 */
#include "base/check.h"
#include "base/json_view.h"
#include "support/unit_test.h"

static const char TEXT[] =
    "\n{\"a\": [1, {\"x\\\"]\": \"]}\"}, -2.5e3, []], \"b\" :{\"c\":{\"d\":\"e\\\\\\n\\u00e9f\"}},"
    " \"t\":true, \"n\":18446744073709551615, \"o\": {} }\n";

static struct json_view member(const char *name)
{
    return json_view_member(json_view_of(strlen(TEXT), TEXT), name);
}

TEST(values_are_found)
{
    char text[16];
    uint64_t number;
    assert_true(json_view_u64(member("n"), &number));
    assert_true(number == UINT64_MAX);
    assert_true(json_view_is_true(member("t")));
    json_view_text(json_view_member(json_view_member(member("b"), "c"), "d"), sizeof(text), text);
    assert_string_equal(text, "e\\ ?f");
    json_view_text(json_view_member(json_view_member(member("b"), "c"), "d"), 2, text);
    assert_string_equal(text, "e");
    assert_null(member("c").at); /* not at the top */
    assert_null(json_view_member(member("a"), "x").at);
    assert_false(json_view_u64(member("t"), &number));
    assert_false(json_view_is_true(member("n")));
}

TEST(items_are_walked)
{
    struct json_view item = {NULL, 0}, name;
    double number = 0;
    size_t count = 0;
    while (json_view_next(member("a"), &item)) {
        count++;
        if (count == 3) {
            assert_true(json_view_f64(item, &number));
        }
    }
    assert_int_equal(count, 4);
    assert_true(number < -2499 && number > -2501);
    item = (struct json_view){NULL, 0};
    assert_false(json_view_next(member("t"), &item));
    assert_false(json_view_next(member("o"), &item));
    assert_false(json_view_next_member(member("o"), &name, &item));
    for (count = 0, item.at = NULL;
         json_view_next_member(json_view_of(strlen(TEXT), TEXT), &name, &item);) {
        count++;
    }
    assert_int_equal(count, 5);
}

/* Goal: every prefix, and every text with one byte changed, is read without harm: each copy ends
 * where the text ends, so that the sanitizers see a step too far. */
TEST(broken_texts_do_no_harm)
{
    static const char bad[] = "{}[]\",:\\0 ";
    size_t bytes = strlen(TEXT);
    for (size_t cut = 0; cut <= bytes; cut++) {
        for (size_t change = 0; change < sizeof(bad); change++) {
            char *copy = malloc(cut + (cut == 0)), text[8];
            assert_non_null(copy);
            memcpy(copy, TEXT, cut);
            if (cut > 0) {
                copy[(cut * 7 + change * 13) % cut] = bad[change];
            }
            struct json_view name, item = {NULL, 0}, whole = json_view_of(cut, copy);
            while (json_view_next_member(whole, &name, &item)) {
                struct json_view inner = {NULL, 0};
                json_view_text(name, sizeof(text), text);
                while (json_view_next(item, &inner)) {
                    json_view_text(inner, sizeof(text), text);
                }
            }
            free(copy);
        }
    }
}
