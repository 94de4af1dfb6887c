/* SPDX-License-Identifier: Apache-2.0
 *
 * http_request: see http_request.h. The head is parsed once it is complete. Before that only its
 * length and its first byte are checked, so that a peer with another protocol is refused at
 * once.
 */
#include "obs/http_request.h"

#include "base/check.h"

#include <string.h>
#include <strings.h>

struct slice {
    const char *at;
    size_t bytes;
};

/* What the headers say. */
struct headers {
    unsigned count, hosts;
    bool wants_openmetrics;
};

static const struct {
    unsigned status;
    const char *text;
} texts[] = {
    {200, "OK"},
    {400, "Bad Request"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
};

const char *http_status_text(unsigned status)
{
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (texts[i].status == status) {
            return texts[i].text;
        }
    }
    return "Error";
}

static bool is(struct slice slice, const char *text)
{
    return slice.bytes == strlen(text) && memcmp(slice.at, text, slice.bytes) == 0;
}

static bool is_nocase(struct slice slice, const char *text)
{
    return slice.bytes == strlen(text) && strncasecmp(slice.at, text, slice.bytes) == 0;
}

/* Returns the bytes up to the separator, which is dropped; *io keeps the rest. Returns all bytes if
 * there is no separator. */
static struct slice cut(struct slice *io, char separator)
{
    const char *end = io->bytes > 0 ? memchr(io->at, separator, io->bytes) : NULL;
    size_t bytes = end ? (size_t)(end - io->at) : io->bytes;
    struct slice head = {io->at, bytes};
    io->at += end ? bytes + 1 : bytes;
    CHECK(bytes <= io->bytes);
    io->bytes -= end ? bytes + 1 : bytes;
    return head;
}

static bool is_space(char c) { return c == ' ' || c == '\t'; }

static struct slice trim(struct slice slice)
{
    while (slice.bytes > 0 && is_space(slice.at[0])) {
        slice.at++;
        slice.bytes--;
    }
    while (slice.bytes > 0 && is_space(slice.at[slice.bytes - 1])) {
        slice.bytes--;
    }
    return slice;
}

static bool is_token(struct slice slice)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < slice.bytes; i++) {
        char c = slice.at[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!alnum && (c == '\0' || !strchr(marks, c))) {
            return false;
        }
    }
    return slice.bytes > 0;
}

/* Returns true if the text has control characters, which no header may have. */
static bool has_controls(struct slice slice)
{
    for (size_t i = 0; i < slice.bytes; i++) {
        unsigned char c = (unsigned char)slice.at[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return true;
        }
    }
    return false;
}

/* Takes the path of a target such as "/metrics?name=x". Returns an HTTP status, or 0. */
static unsigned take_target(struct slice target, struct http_request *ret)
{
    if (target.bytes == 0 || target.at[0] != '/') {
        return 400;
    }
    for (size_t i = 0; i < target.bytes; i++) {
        if (target.at[i] <= ' ' || target.at[i] > '~') {
            return 400;
        }
    }
    struct slice path = cut(&target, '?');
    if (path.bytes >= sizeof(ret->path)) {
        return 414;
    }
    memcpy(ret->path, path.at, path.bytes);
    ret->path[path.bytes] = '\0';
    return 0;
}

/* Parses the request line. Returns an HTTP status, or 0. *ret_needs_host is set for HTTP/1.1, which
 * requires a Host header. */
static unsigned take_request_line(struct slice line, struct http_request *ret, bool *ret_needs_host)
{
    struct slice method = cut(&line, ' '), target = cut(&line, ' ');
    if (!is_token(method) || has_controls(line)) {
        return 400;
    }
    if (!is(line, "HTTP/1.1") && !is(line, "HTTP/1.0")) {
        bool other = line.bytes == 8 && memcmp(line.at, "HTTP/", 5) == 0;
        return other ? 505 : 400;
    }
    *ret_needs_host = is(line, "HTTP/1.1");
    unsigned status = take_target(target, ret);
    if (status != 0) {
        return status;
    }
    ret->is_head = is(method, "HEAD");
    return ret->is_head || is(method, "GET") ? 0 : 405;
}

/* Returns true if the parameter "q" is zero. */
static bool is_q_zero(struct slice parameters)
{
    while (parameters.bytes > 0) {
        struct slice value = trim(cut(&parameters, ';'));
        struct slice name = trim(cut(&value, '='));
        if (is_nocase(name, "q")) {
            value = trim(value);
            size_t zeros = 0;
            while (zeros < value.bytes && (value.at[zeros] == '0' || value.at[zeros] == '.')) {
                zeros++;
            }
            return value.bytes > 0 && zeros == value.bytes;
        }
    }
    return false;
}

/* Returns true if the Accept header wants OpenMetrics. */
static bool names_openmetrics(struct slice accept)
{
    while (accept.bytes > 0) {
        struct slice range = cut(&accept, ',');
        struct slice type = trim(cut(&range, ';'));
        if (is_nocase(type, "application/openmetrics-text") && !is_q_zero(range)) {
            return true;
        }
    }
    return false;
}

/* Parses one header line. Returns an HTTP status, or 0. A request with a body is refused. */
static unsigned take_header(struct slice line, struct headers *io)
{
    struct slice value = line;
    struct slice name = cut(&value, ':');
    if (name.bytes == line.bytes || !is_token(name) || has_controls(value)) {
        return 400; /* a continuation line is refused too */
    }
    if (++io->count > HTTP_HEADERS_MAX) {
        return 431;
    }
    value = trim(value);
    if (is_nocase(name, "host")) {
        io->hosts++;
    } else if (is_nocase(name, "transfer-encoding")) {
        return 501;
    } else if (is_nocase(name, "content-length") && !is(value, "0")) {
        return 413;
    } else if (is_nocase(name, "accept")) {
        io->wants_openmetrics = io->wants_openmetrics || names_openmetrics(value);
    }
    return 0;
}

/* Takes one line without its CR LF. Returns false if it does not end with CR LF. */
static bool take_line(struct slice *io, struct slice *ret)
{
    *ret = cut(io, '\n');
    if (ret->bytes == 0 || ret->at[ret->bytes - 1] != '\r') {
        return false;
    }
    ret->bytes--;
    return true;
}

/* Parses a complete head. Returns an HTTP status, or 0. */
static unsigned take_head(struct slice head, struct http_request *ret)
{
    struct headers headers = {0};
    struct slice line;
    bool needs_host = false;
    unsigned status = take_line(&head, &line) ? take_request_line(line, ret, &needs_host) : 400;
    while (status == 0 && head.bytes > 0) {
        status = take_line(&head, &line) ? take_header(line, &headers) : 400;
    }
    if (status == 0 && (headers.hosts > 1 || (needs_host && headers.hosts == 0))) {
        status = 400;
    }
    ret->wants_openmetrics = headers.wants_openmetrics;
    return status;
}

enum http_parsed http_request_parse(size_t bytes, const char *data, struct http_request *ret,
                                    unsigned *ret_status)
{
    static const char end[] = "\r\n\r\n";
    if (bytes == 0) {
        return HTTP_MORE;
    }
    if (data[0] < 'A' || data[0] > 'Z') {
        *ret_status = 400;
        return HTTP_REFUSED;
    }
    const char *found = memmem(data, bytes, end, sizeof(end) - 1);
    /* Includes the CR LF of the last header. */
    size_t head = found ? (size_t)(found - data) + 2 : bytes;
    if (head > HTTP_HEAD_MAX || (!found && bytes >= HTTP_HEAD_MAX)) {
        *ret_status = 431;
        return HTTP_REFUSED;
    }
    if (!found) {
        return HTTP_MORE;
    }
    struct http_request request = {0};
    unsigned status = take_head((struct slice){data, head}, &request);
    CHECK(status < 600);
    if (status != 0) {
        *ret_status = status;
        return HTTP_REFUSED;
    }
    CHECK(request.path[0] == '/');
    *ret = request;
    return HTTP_WHOLE;
}
