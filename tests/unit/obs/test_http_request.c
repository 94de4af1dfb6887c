/* SPDX-License-Identifier: Apache-2.0
 *
 * A head is taken only when it is whole and plainly a GET or HEAD without a body; everything else
 * is refused with the status that says why, and nothing is read past its end. Method: a table; a
 * good head cut at each byte; each byte of it replaced by each value.
 */
#include "obs/http_request.h"

#include <stdio.h>

#include "support/unit_test.h"

#define GET  "GET /metrics HTTP/1.1\r\n"
#define HOST "Host: h\r\n"

/* Parsed from memory that ends where the bytes end, so that a sanitizer sees a look beyond. */
static enum http_parsed parse(size_t bytes, const char *data, struct http_request *ret,
                              unsigned *ret_status)
{
    char *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    enum http_parsed parsed = http_request_parse(bytes, copy, ret, ret_status);
    free(copy);
    return parsed;
}

TEST(test_good_requests)
{
    static const struct {
        const char *text, *path;
        bool is_head, wants_openmetrics;
    } cases[] = {
        {GET HOST "\r\n", "/metrics", false, false},
        {"GET /metrics?name[]=x HTTP/1.1\r\n" HOST "\r\n", "/metrics", false, false},
        {"HEAD / HTTP/1.0\r\n\r\n", "/", true, false},
        {GET HOST "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain\r\n\r\n",
         "/metrics", false, true},
        {GET HOST "aCCept:*/*;q=0.1, Application/OpenMetrics-Text\r\n\r\n", "/metrics", false,
         true},
        {GET HOST "Accept: application/openmetrics-text; q=0.0, text/plain\r\n\r\n", "/metrics",
         false, false},
        {GET HOST "Accept: text/application/openmetrics-text\r\n\r\n", "/metrics", false, false},
        {GET HOST "Content-Length: 0\r\nX:\r\n\r\nand more", "/metrics", false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct http_request request;
        unsigned status = 0;
        if (parse(strlen(cases[i].text), cases[i].text, &request, &status) != HTTP_WHOLE) {
            fail_msg("%s: %u", cases[i].text, status);
        }
        assert_string_equal(request.path, cases[i].path);
        assert_int_equal(request.is_head, cases[i].is_head);
        assert_int_equal(request.wants_openmetrics, cases[i].wants_openmetrics);
    }
}

TEST(test_what_is_refused)
{
    static const struct {
        const char *text;
        unsigned status;
    } cases[] = {
        {"\x16\x03\x01", 400}, /* a TLS client */
        {"CARN\r\n\r\n", 400},
        {"get / HTTP/1.1\r\n" HOST "\r\n", 400},
        {"POST /metrics HTTP/1.1\r\n" HOST "\r\n", 405},
        {"GET /metrics HTTP/2.0\r\n" HOST "\r\n", 505},
        {"GET /metrics\r\n\r\n", 400},
        {"GET  /metrics HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http://h/metrics HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /me\ttrics HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /metrics HTTP/1.1 \r\n" HOST "\r\n", 400},
        {GET "\r\n", 400},             /* no Host */
        {GET HOST HOST "\r\n", 400},   /* two */
        {GET "Host : h\r\n\r\n", 400}, /* a space before the colon */
        {GET HOST " more\r\n\r\n", 400},
        {GET HOST "nothing\r\n\r\n", 400},
        {GET HOST "X: a\nY: b\r\n\r\n", 400},
        {GET HOST "X: \x01\r\n\r\n", 400},
        {GET HOST "Content-Length: 1\r\n\r\n", 413},
        {GET HOST "Content-Length: -0\r\n\r\n", 413},
        {GET HOST "Transfer-Encoding: chunked\r\n\r\n", 501},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct http_request request;
        unsigned status = 0;
        enum http_parsed parsed = parse(strlen(cases[i].text), cases[i].text, &request, &status);
        if (parsed != HTTP_REFUSED || status != cases[i].status) {
            fail_msg("%s: %d, %u", cases[i].text, (int)parsed, status);
        }
    }
}

TEST(test_what_is_too_long)
{
    static char text[HTTP_HEAD_MAX + 64];
    struct http_request request;
    unsigned status = 0;
    memset(text, 'A', sizeof(text));
    assert_int_equal(parse(HTTP_HEAD_MAX - 1, text, &request, &status), HTTP_MORE);
    assert_int_equal(parse(HTTP_HEAD_MAX, text, &request, &status), HTTP_REFUSED);
    assert_int_equal(status, 431);
    snprintf(text, sizeof(text), "GET /%0200d HTTP/1.1\r\n" HOST "\r\n", 0);
    assert_int_equal(parse(strlen(text), text, &request, &status), HTTP_REFUSED);
    assert_int_equal(status, 414);
    size_t at = (size_t)snprintf(text, sizeof(text), GET HOST);
    for (int i = 0; i < HTTP_HEADERS_MAX; i++) {
        at += (size_t)snprintf(text + at, sizeof(text) - at, "X: y\r\n");
    }
    snprintf(text + at, sizeof(text) - at, "\r\n");
    assert_int_equal(parse(strlen(text), text, &request, &status), HTTP_REFUSED);
    assert_int_equal(status, 431);
}

TEST(test_cut_and_changed)
{
    static const char good[] = GET HOST "Accept: application/openmetrics-text;q=0.5\r\n\r\n";
    size_t bytes = sizeof(good) - 1;
    struct http_request request;
    unsigned status = 0;
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(parse(cut, good, &request, &status), HTTP_MORE);
    }
    for (size_t at = 0; at < bytes; at++) {
        for (int value = 0; value < 256; value++) {
            char text[sizeof(good)];
            memcpy(text, good, sizeof(good));
            text[at] = (char)value;
            enum http_parsed parsed = parse(bytes, text, &request, &status);
            if (parsed == HTTP_WHOLE) {
                assert_int_equal(request.path[0], '/');
            } else if (parsed == HTTP_REFUSED) {
                assert_in_range(status, 400, 505);
            }
        }
    }
}
