/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, selectors, URLs and dtypes take exactly what FORMAT.md allows. Method: tables of good and
 * bad texts; each bad one must say INVALID with a text.
 */
#include "base/check.h"
#include "base/utf8.h"
#include "format/ids.h"
#include "support/unit_test.h"

static void expect_invalid(const char *text, int rc, struct diag *diag)
{
    if (rc != CAIRN_E_INVALID || diag->code != CAIRN_E_INVALID || diag->text[0] == '\0') {
        fail_msg("\"%s\" gave %d (%s)", text, rc, diag->text);
    }
    diag_clear(diag);
}

TEST(test_run_names)
{
    static const char *const good[] = {"a/b", "nlp/gpt-small.1", "0/9_", "a..b/c--",
                                       "A/b", "a/BERT-Z"};
    static const char *const bad[] = {"",     "/",     "a",     "a/",        "/b",   "a@/b",
                                      "a/[",  "a b/c", "a/b/c", ".a/b",      "a/-b", "a/_b",
                                      "a/..", "../a",  "a/b\n", "\xc3\xa9/a"};
    struct run_name name;
    char text[RUN_NAME_TEXT_MAX], longest[2 * LIMIT_RUN_NAME_BYTES + 4];
    struct diag diag = DIAG_INIT;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(run_name_parse(good[i], &name, &diag), 0);
        run_name_format(&name, text);
        assert_string_equal(text, good[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_invalid(bad[i], run_name_parse(bad[i], &name, &diag), &diag);
    }
    memset(longest, 'a', sizeof longest);
    longest[LIMIT_RUN_NAME_BYTES] = '/';
    longest[2 * LIMIT_RUN_NAME_BYTES + 1] = '\0';
    assert_int_equal(run_name_parse(longest, &name, &diag), 0);
    run_name_format(&name, text);
    assert_string_equal(text, longest);
    longest[2 * LIMIT_RUN_NAME_BYTES + 1] = 'a';
    longest[2 * LIMIT_RUN_NAME_BYTES + 2] = '\0';
    expect_invalid(longest, run_name_parse(longest, &name, &diag), &diag);
}

TEST(test_names_collide_if_only_capitals_differ)
{
    static const struct {
        const char *a, *b;
        bool collide;
    } rows[] = {{"lab/bert", "lab/Bert", true},
                {"lab/bert", "LAB/bert", true},
                {"lab/bert", "Lab/gpt", true},
                {"lab/bert", "lab/bert", false},
                {"lab/bert", "lab/Bert2", false},
                {"lab/bert", "lab2/Bert", false},
                {"a/b", "A-/B", false}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct run_name a, b;
        assert_int_equal(run_name_parse(rows[i].a, &a, NULL), 0);
        assert_int_equal(run_name_parse(rows[i].b, &b, NULL), 0);
        if (run_name_collides(&a, &b) != rows[i].collide ||
            run_name_collides(&b, &a) != rows[i].collide) {
            fail_msg("%s and %s", rows[i].a, rows[i].b);
        }
        assert_int_equal(run_name_has_capitals(&b), strpbrk(rows[i].b, "ABL") != NULL);
    }
}

TEST(test_selectors)
{
    static const char *const bad[] = {"",
                                      "Latest",
                                      "latest ",
                                      "-1",
                                      "+1",
                                      "1@",
                                      "@1",
                                      "1@0",
                                      "01",
                                      "1@01",
                                      "1.5",
                                      "18446744073709551616",
                                      "1@18446744073709551616",
                                      "1@2@3",
                                      " 1",
                                      "0x10"};
    struct selector selector;
    struct diag diag = DIAG_INIT;
    assert_int_equal(selector_parse("latest", &selector, &diag), 0);
    assert_int_equal(selector.kind, SELECT_LATEST);
    assert_int_equal(selector_parse("0", &selector, &diag), 0);
    assert_int_equal(selector.kind, SELECT_STEP);
    assert_int_equal(selector.id.step, 0);
    assert_int_equal(selector_parse("18446744073709551615@7", &selector, &diag), 0);
    assert_int_equal(selector.kind, SELECT_EXACT);
    assert_true(selector.id.step == UINT64_MAX && selector.id.term == 7);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_invalid(bad[i], selector_parse(bad[i], &selector, &diag), &diag);
    }
}

TEST(test_texts_are_utf8_without_nul)
{
    static const char *const good[] = {
        "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {
        "",     "\xc3", "\xc0\x80",         "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xff", "\x80", "\xf0\x8f\xbf\xbf", "a\xe2\x82"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_true(text_is_valid(strlen(good[i]), good[i], 8));
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_false(text_is_valid(strlen(bad[i]), bad[i], 8));
    }
    assert_false(text_is_valid(3, "a\0b", 8));
    assert_false(text_is_valid(3, "abc", 2));
    assert_true(utf8_is_valid(3, "a\0b"));
}

TEST(test_good_urls)
{
    struct url url;
    struct diag diag = DIAG_INIT;
    assert_int_equal(
        url_parse("cairn://h1:1,h2,[::1]:65535,[fe80::2]/p/r", NULL, false, &url, &diag), 0);
    assert_int_equal(url.server_count, 4);
    assert_string_equal(url.servers[0], "h1:1");
    assert_string_equal(url.servers[1], "h2:7421");
    assert_string_equal(url.servers[2], "[::1]:65535");
    assert_string_equal(url.servers[3], "[fe80::2]:7421");
    assert_true(url.has_run);
    assert_string_equal(url.run.project, "p");
    assert_string_equal(url.run.run, "r");
    assert_int_equal(url_parse("cairn:///p/r", "host:9,other", false, &url, &diag), 0);
    assert_int_equal(url.server_count, 2);
    assert_string_equal(url.servers[1], "other:7421");
    assert_int_equal(url_parse("cairn:///p/r", "unix:/run/c.sock", false, &url, &diag), 0);
    assert_string_equal(url.servers[0], "unix:/run/c.sock");
    assert_int_equal(url_parse("cairn+unix:///run/c.sock?run=p/r", NULL, false, &url, &diag), 0);
    assert_string_equal(url.servers[0], "unix:/run/c.sock");
    assert_string_equal(url.run.run, "r");
    assert_int_equal(url_parse("cairn+unix:///run/c.sock", NULL, true, &url, &diag), 0);
    assert_false(url.has_run);
    assert_int_equal(url_parse("cairn://h", NULL, true, &url, &diag), 0);
    assert_false(url.has_run);
    assert_int_equal(url_parse("cairn://h/", NULL, true, &url, &diag), 0);
    assert_false(url.has_run);
}

TEST(test_bad_urls)
{
    static const char *const bad[] = {"",
                                      "http://h/p/r",
                                      "cairn:/h/p/r",
                                      "cairn://h",
                                      "cairn://h/",
                                      "cairn://h/p",
                                      "cairn://h/p/",
                                      "cairn://h/p/r/x",
                                      "cairn://h:0/p/r",
                                      "cairn://h:65536/p/r",
                                      "cairn://h:/p/r",
                                      "cairn://h:x/p/r",
                                      "cairn://:1/p/r",
                                      "cairn://h,,g/p/r",
                                      "cairn://h,/p/r",
                                      "cairn://[::1/p/r",
                                      "cairn://[]/p/r",
                                      "cairn://::1/p/r",
                                      "cairn://u@h/p/r",
                                      "cairn://h/p/r%20",
                                      "cairn://h/p/r#x",
                                      "cairn://h/p/r?x=1",
                                      "cairn://h /p/r",
                                      "cairn:///p/r",
                                      "cairn+unix://rel?run=p/r",
                                      "cairn+unix:///s?ran=p/r",
                                      "cairn+unix:///s?run=",
                                      "cairn+unix:///s",
                                      "cairn+unix:///?run=p/r",
                                      "cairn://a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q/p/r"};
    struct url url;
    struct diag diag = DIAG_INIT;
    char text[400];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_invalid(bad[i], url_parse(bad[i], NULL, false, &url, &diag), &diag);
    }
    expect_invalid("default", url_parse("cairn:///p/r", "unix:rel", false, &url, &diag), &diag);
    memset(text, 'h', sizeof text);
    memcpy(text, "cairn://", 8);
    memcpy(text + sizeof text - 5, "/p/r", 5);
    expect_invalid(text, url_parse(text, NULL, false, &url, &diag), &diag);
    memcpy(text, "cairn+unix:///", 14);
    memcpy(text + sizeof text - 9, "?run=p/r", 9);
    expect_invalid(text, url_parse(text, NULL, false, &url, &diag), &diag);
}

TEST(test_dtypes)
{
    assert_int_equal(dtype_parse("bfloat16"), CAIRN_BF16);
    assert_int_equal(dtype_parse("nonsense"), 0);
    assert_int_equal(dtype_bits(CAIRN_C128), 128);
    assert_int_equal(dtype_bits(0), 0);
    assert_int_equal(dtype_bits(9999), 0);
    assert_string_equal(dtype_name(9999), "unknown");
    assert_string_equal(dtype_safetensors(CAIRN_BF16), "BF16");
    assert_null(dtype_safetensors(CAIRN_C32));
    for (uint32_t dtype = 1; dtype_is_known(dtype); dtype++) {
        assert_int_equal(dtype_parse(dtype_name(dtype)), dtype);
        assert_int_equal(dtype_bits(dtype) % 8, 0);
    }
}
