/* SPDX-License-Identifier: Apache-2.0
 *
 * Identities and the texts that people type for them. Every parser refuses what it does not know
 * completely; nothing is guessed, trimmed or turned into lower case. Pure; any thread.
 */
#include "ids.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/digits.h"
#include "base/utf8.h"

bool object_id_equal(const struct object_id *a, const struct object_id *b)
{
    return object_id_compare(a, b) == 0;
}

size_t ckpt_id_bound(const void *sorted, size_t count, size_t size, size_t id_at, struct ckpt_id id)
{
    size_t low = 0, high = count;
    CHECK(id_at + sizeof(id) <= size);
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        struct ckpt_id at;
        memcpy(&at, (const uint8_t *)sorted + mid * size + id_at, sizeof(at));
        if (ckpt_id_compare(at, id) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

int object_id_compare(const struct object_id *a, const struct object_id *b)
{
    return a->term != b->term       ? compare_u64(a->term, b->term)
           : a->step != b->step     ? compare_u64(a->step, b->step)
           : a->rank != b->rank     ? compare_u64(a->rank, b->rank)
           : a->writer != b->writer ? compare_u64(a->writer, b->writer)
                                    : compare_u64(a->sequence, b->sequence);
}

bool token_equal(const struct token *a, const struct token *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

static bool is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || is_upper(c) || (c >= '0' && c <= '9');
}

static bool is_run_name_char(char c)
{
    return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-';
}

/* Copies one of the two halves of a run's name. `what` says which half, for the message. */
static int run_name_part(const char *what, size_t bytes, const char *text,
                         char ret[LIMIT_RUN_NAME_BYTES + 1], struct diag *diag)
{
    if (bytes == 0) {
        return diag_set(diag, CAIRN_E_INVALID, "the %s name is empty", what);
    }
    for (size_t i = 0; i < bytes; i++) {
        if (is_run_name_char(text[i])) {
            continue;
        }
        unsigned c = (unsigned char)text[i];
        if (c > 0x20 && c < 0x7f) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the %s name has the character '%c' at position %zu; allowed are A-Z "
                            "a-z 0-9 . _ -%s",
                            what, (int)c, i + 1,
                            c == '/' ? "; a run is project/run, with no step behind it" : "");
        }
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the %s name has the byte 0x%02x at position %zu; allowed are A-Z a-z 0-9 . _ -", what,
            c, i + 1);
    }
    if (!is_letter_or_digit(text[0])) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the %s name starts with '%c'; the first character must be a letter or digit", what,
            text[0]);
    }
    if (bytes > LIMIT_RUN_NAME_BYTES) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the %s name has %zu characters; at most %d are allowed", what, bytes,
                        LIMIT_RUN_NAME_BYTES);
    }
    memcpy(ret, text, bytes);
    memset(ret + bytes, 0, LIMIT_RUN_NAME_BYTES + 1 - bytes);
    return 0;
}

int run_name_set(const char *project, const char *run, struct run_name *ret, struct diag *diag)
{
    struct run_name name;
    int rc = run_name_part("project", strlen(project), project, name.project, diag);
    if (rc == 0) {
        rc = run_name_part("run", strlen(run), run, name.run, diag);
    }
    if (rc == 0) {
        *ret = name;
    }
    return rc;
}

int run_name_parse(const char *text, struct run_name *ret, struct diag *diag)
{
    const char *slash = strchr(text, '/');
    if (slash == NULL) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%.64s\" does not name a run, because it has no '/'; write project/run",
                        text);
    }
    struct run_name name;
    int rc = run_name_part("project", (size_t)(slash - text), text, name.project, diag);
    if (rc == 0) {
        rc = run_name_part("run", strlen(slash + 1), slash + 1, name.run, diag);
    }
    if (rc == 0) {
        *ret = name;
    }
    return rc;
}

int run_name_compare(const struct run_name *a, const struct run_name *b)
{
    int order = strcmp(a->project, b->project);
    return order != 0 ? order : strcmp(a->run, b->run);
}

bool run_name_equal(const struct run_name *a, const struct run_name *b)
{
    return run_name_compare(a, b) == 0;
}

bool run_name_has_capitals(const struct run_name *name)
{
    struct run_name_text text = run_name_text(name);
    for (const char *at = text.at; *at != '\0'; at++) {
        if (is_upper(*at)) {
            return true;
        }
    }
    return false;
}

/* Returns whether two texts are the same but for capitals. */
static bool is_same_letters(const char *a, const char *b)
{
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        if ((is_upper(*a) ? *a - 'A' + 'a' : *a) != (is_upper(*b) ? *b - 'A' + 'a' : *b)) {
            return false;
        }
    }
    return *a == *b;
}

bool run_name_collides(const struct run_name *a, const struct run_name *b)
{
    return is_same_letters(a->project, b->project) &&
           (strcmp(a->project, b->project) != 0 ||
            (is_same_letters(a->run, b->run) && strcmp(a->run, b->run) != 0));
}

void run_name_format(const struct run_name *name, char ret[RUN_NAME_TEXT_MAX])
{
    int n = snprintf(ret, RUN_NAME_TEXT_MAX, "%s/%s", name->project, name->run);
    CHECK(n > 0 && n < RUN_NAME_TEXT_MAX);
}

struct run_name_text run_name_text(const struct run_name *name)
{
    struct run_name_text text;
    run_name_format(name, text.at);
    return text;
}

struct ckpt_id_text ckpt_id_text(struct ckpt_id id)
{
    struct ckpt_id_text text;
    snprintf(text.at, sizeof(text.at), "%" PRIu64 "@%" PRIu64, id.step, id.term);
    return text;
}

bool text_is_valid(size_t bytes, const char *text, size_t max_bytes)
{
    return bytes > 0 && bytes <= max_bytes && memchr(text, 0, bytes) == NULL &&
           utf8_is_valid(bytes, text);
}

int selector_parse(const char *text, struct selector *ret, struct diag *diag)
{
    struct selector selector = {SELECT_LATEST, {0, 0}};
    if (strcmp(text, "latest") == 0) {
        *ret = selector;
        return 0;
    }
    const char *at = text;
    bool good = digits_read_decimal(&at, UINT64_MAX, &selector.id.step);
    selector.kind = SELECT_STEP;
    if (good && digits_skip(&at, "@")) {
        selector.kind = SELECT_EXACT;
        good = digits_read_decimal(&at, UINT64_MAX, &selector.id.term) && selector.id.term > 0;
    }
    if (!good || *at != '\0') {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%.64s\" does not name a checkpoint; write latest, STEP or STEP@TERM "
                        "(terms start at 1)",
                        text);
    }
    *ret = selector;
    return 0;
}
