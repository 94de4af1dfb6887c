/* SPDX-License-Identifier: Apache-2.0
 *
 * store_url: see store_url.h.
 */
#include "store_url.h"

#include "base/digits.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_S_MAX = 3600 };

static const char *after(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

static int wrong(const char *url, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_CONFIG,
                    "store '%s': %s; write dir:/path or rados:POOL[/NAMESPACE]"
                    "[?conf=/path&user=NAME&keyring=/path&data-pool=NAME&timeout=SECONDS]",
                    url, what);
}

/* Takes one parameter of the URL, "name=value". It changes the word: the texts of `parsed` point
 * into it. */
static int take_parameter(struct store_url *parsed, char *word, const char *url, struct diag *diag)
{
    char *value = strchr(word, '=');
    uint64_t seconds;
    if (value == NULL || value[1] == '\0') {
        return wrong(url, "a parameter has no value", diag);
    }
    *value++ = '\0';
    if (strcmp(word, "conf") == 0) {
        parsed->cluster.conf = value;
    } else if (strcmp(word, "user") == 0) {
        parsed->cluster.user = value;
    } else if (strcmp(word, "keyring") == 0) {
        parsed->cluster.keyring = value;
    } else if (strcmp(word, "data-pool") == 0) {
        parsed->cluster.data_pool = value;
    } else if (strcmp(word, "timeout") == 0) {
        if (!digits_parse_decimal(value, TIMEOUT_S_MAX, &seconds) || seconds == 0) {
            return wrong(url, "timeout must be a number of seconds from 1 to 3600", diag);
        }
        parsed->cluster.op_timeout_ms = seconds * 1000;
    } else {
        return wrong(url, "it has an unknown parameter", diag);
    }
    return 0;
}

int store_url_parse(const char *url, struct store_url *ret, struct diag *diag)
{
    *ret = (struct store_url){.space = "cairn"};
    if (strlen(url) >= sizeof(ret->text)) {
        return wrong(url, "it is too long", diag);
    }
    snprintf(ret->text, sizeof(ret->text), "%s", after(url, "rados:"));
    char *query = strchr(ret->text, '?');
    if (query != NULL) {
        *query++ = '\0';
    }
    char *space = strchr(ret->text, '/');
    if (space != NULL) {
        *space++ = '\0';
        ret->space = space;
    }
    ret->cluster.meta_pool = ret->text;
    if (ret->text[0] == '\0') {
        return wrong(url, "it names no pool", diag);
    }
    if (ret->space[0] == '\0' || strchr(ret->space, '/') != NULL || strlen(ret->space) > 100) {
        return wrong(url, "a namespace must be 1 to 100 characters without '/'", diag);
    }
    int status = 0;
    for (char *rest = query, *word; status == 0 && (word = strsep(&rest, "&")) != NULL;) {
        status = take_parameter(ret, word, url, diag);
    }
    return status;
}

/* Returns true if the text has only letters, digits and characters that no shell interprets. */
static bool is_plain(const char *text)
{
    return text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                             "_./:=,@%+-")] == '\0';
}

static bool is_quotable(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f || *text == '\'' || *text == '`') {
            return false;
        }
    }
    return true;
}

void store_url_typed(const char *url, size_t size, char *ret)
{
    char text[STORE_URL_MAX + PATH_MAX], whole[PATH_MAX];
    const char *path = store_url_path(url);
    const char *resolved = path && path[0] != '/' ? realpath(path, whole) : path;
    int count = resolved ? snprintf(text, sizeof(text), "dir:%s", resolved)
                : path   ? 0
                         : snprintf(text, sizeof(text), "%s", url);
    ret[0] = '\0';
    if (count <= 0 || (size_t)count + 3 > size || !is_quotable(text)) {
        return;
    }
    const char *quote = is_plain(text) ? "" : "'";
    snprintf(ret, size, "%s%s%s", quote, text, quote);
}

const char *store_url_path(const char *url) { return after(url, "dir:"); }

int store_url_check(const char *url, struct diag *diag)
{
    struct store_url parsed;
    const char *path = store_url_path(url);
    if (path != NULL) {
        return path[0] != '\0' ? 0 : wrong(url, "it names no path", diag);
    }
    return after(url, "rados:") ? store_url_parse(url, &parsed, diag)
                                : wrong(url, "it names no known kind of store", diag);
}
