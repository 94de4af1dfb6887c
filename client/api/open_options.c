/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of cairn_open, and the environment variables that stand in for them: checks each and
 * gives the handle and its engine what they say. Where both are set, the option wins. Any thread.
 */
#include "api_private.h"

#include "base/log.h"
#include "hash/hash.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/random.h>

int cairn_new_attempt(char ret_token[33])
{
    struct token token;
    ssize_t got;
    if (ret_token == NULL) {
        return CAIRN_E_INVALID;
    }
    do {
        got = getrandom(&token, sizeof token, 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof token) {
        return CAIRN_E_INTERNAL;
    }
    hex_encode(sizeof token, &token, ret_token);
    return 0;
}

/* Takes the attempt token from the options. Without one, a world of one rank draws its own: a
 * variable that a second start inherits would make it repeat the first. Ranks that must agree take
 * CAIRN_ATTEMPT. */
static int parse_attempt(const struct cairn_options *options, struct token *ret, struct diag *diag)
{
    const char *text = options->attempt, *where = "options.attempt";
    char fresh[33];
    if (text == NULL && options->world_size > 1) {
        text = getenv("CAIRN_ATTEMPT");
        where = "CAIRN_ATTEMPT";
    }
    if (text == NULL && options->world_size > 1) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no attempt token is given: draw one on rank 0 with cairn_new_attempt(), "
                        "and give it to all %d ranks (options.attempt or CAIRN_ATTEMPT)",
                        options->world_size);
    }
    if (text == NULL) {
        if (cairn_new_attempt(fresh) != 0) {
            return diag_set(diag, CAIRN_E_INTERNAL,
                            "the system call for random numbers failed; try again");
        }
        text = fresh;
    }
    if (strlen(text) != 2 * sizeof *ret || !hex_decode(sizeof *ret, text, ret)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "%s is not an attempt token, which has 32 hex digits; draw one with "
                        "cairn_new_attempt()",
                        where);
    }
    return 0;
}

/* Takes the transport from CAIRN_TRANSPORT. */
static int parse_transport(enum engine_transport *ret, struct diag *diag)
{
    static const char *const names[] = {
        [TRANSPORT_AUTO] = "auto", [TRANSPORT_SOCKET] = "socket", [TRANSPORT_MEMFD] = "memfd"};
    const char *text = getenv("CAIRN_TRANSPORT");
    if (text == NULL || text[0] == '\0') {
        *ret = TRANSPORT_AUTO;
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i], text) == 0) {
            *ret = (enum engine_transport)i;
            return 0;
        }
    }
    return diag_set(diag, CAIRN_E_INVALID,
                    "CAIRN_TRANSPORT is '%.40s'; it must be auto, socket or memfd", text);
}

/* Takes the encoding from the option or from CAIRN_ENCODING. */
static int parse_encoding(int option, enum encode_mode *ret, struct diag *diag)
{
    static const struct {
        const char *text;
        enum encode_mode mode;
    } table[] = {[CAIRN_ENCODE_AUTO] = {"auto", ENCODE_ADAPTIVE},
                 [CAIRN_ENCODE_RAW] = {"raw", ENCODE_NEVER},
                 [CAIRN_ENCODE_DENSE] = {"dense", ENCODE_DENSEST}};
    const char *text = option == 0 ? getenv("CAIRN_ENCODING") : NULL;
    if (option < 0 || (size_t)option >= ARRAY_LEN(table)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.encoding is %d; it must be CAIRN_ENCODE_AUTO, CAIRN_ENCODE_RAW or "
                        "CAIRN_ENCODE_DENSE",
                        option);
    }
    for (size_t i = CAIRN_ENCODE_AUTO; text != NULL && i < ARRAY_LEN(table); i++) {
        option = strcmp(text, table[i].text) == 0 ? (int)i : option;
    }
    if (text != NULL && text[0] != '\0' && option == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "CAIRN_ENCODING is '%.40s'; it must be auto, raw or dense", text);
    }
    *ret = table[option != 0 ? option : CAIRN_ENCODE_AUTO].mode;
    return 0;
}

/* Takes the trace of this process's saves from TRACEPARENT, which others set for other programs as
 * well: a value that is not valid is no reason not to train. */
static void take_trace(struct cairn *cairn)
{
    const char *text = getenv("TRACEPARENT");
    if (text != NULL && text[0] != '\0' && !trace_tag(text, cairn->trace)) {
        LOG(LOG_WARN, "api", "TRACEPARENT is not a valid traceparent, so saves get no trace",
            ls("value", text));
    }
}

/* Checks the ranges of the options. */
static int check_options(const struct cairn_options *options, struct diag *diag)
{
    if (options->world_size < 1 || options->world_size > LIMIT_WORLD_SIZE) {
        return diag_set(diag, CAIRN_E_INVALID, "options.world_size is %d; it must be 1 to %d",
                        options->world_size, LIMIT_WORLD_SIZE);
    }
    if (options->rank < 0 || options->rank >= options->world_size) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.rank is %d; with a world_size of %d it must be 0 to %d",
                        options->rank, options->world_size, options->world_size - 1);
    }
    if (options->threads < 0 || options->threads > API_THREADS_MAX) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.threads is %d; it must be 0 (automatic) to %d", options->threads,
                        API_THREADS_MAX);
    }
    if (options->io_deadline_ms < 0 || options->save_deadline_ms < 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "a deadline in the options is negative; use 0 for the default");
    }
    if (options->snapshots < 0 || options->snapshots > API_SNAPSHOTS_MAX) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.snapshots is %d; it must be 0 (automatic) to %d",
                        options->snapshots, API_SNAPSHOTS_MAX);
    }
    if ((options->cert_file == NULL) != (options->key_file == NULL)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.cert_file and options.key_file must be set together");
    }
    if (options->cert_file != NULL && options->ca_file == NULL) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.cert_file is set without ca_file; to use TLS, name in ca_file the "
                        "authority that issued the server's certificate");
    }
    return args_check_when_full(options->when_full, diag);
}

/* Takes what is to become of saves that no server takes. */
static int parse_when_down(int64_t option, enum when_down *ret, struct diag *diag)
{
    if (option < 0 || option > CAIRN_DOWN_TRAIN) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.when_down is %lld; it must be CAIRN_DOWN_WAIT, CAIRN_DOWN_SKIP or "
                        "CAIRN_DOWN_TRAIN",
                        (long long)option);
    }
    *ret = option == 0 ? WHEN_DOWN_WAIT : (enum when_down)(option - CAIRN_DOWN_WAIT);
    return 0;
}

unsigned options_threads(int32_t wanted)
{
    cpu_set_t cpus;
    unsigned count = 1;
    if (wanted > 0) {
        return (unsigned)wanted;
    }
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        count = (unsigned)CPU_COUNT(&cpus);
    }
    return count < API_THREADS_DEFAULT ? count : API_THREADS_DEFAULT;
}

int options_apply(struct cairn *cairn, const char *url, const struct cairn_options *options,
                  struct diag *diag)
{
    CHECK(cairn != NULL);
    struct engine_options *engine = &cairn->engine_options;
    int rc = check_options(options, diag);
    if (rc == 0) {
        rc = parse_when_down(options->when_down, &engine->when_down, diag);
    }
    if (rc == 0) {
        rc = parse_encoding(options->encoding, &engine->encoding, diag);
    }
    if (rc == 0) {
        rc = url_parse(url, getenv("CAIRN_SERVER"), false, &engine->url, diag);
    }
    if (rc == 0) {
        rc = parse_transport(&engine->transport, diag);
    }
    if (rc == 0 && !options->read_only) {
        take_trace(cairn);
        rc = parse_attempt(options, &engine->token, diag);
    }
    if (rc != 0) {
        return rc;
    }
    cairn->viewer = options->read_only != 0;
    cairn->io_deadline_ms = args_deadline_ms(options->io_deadline_ms, API_IO_DEADLINE_MS);
    cairn->save_deadline_ms = args_deadline_ms(options->save_deadline_ms, API_SAVE_DEADLINE_MS);
    cairn->when_full = args_when_full(options->when_full);
    cairn->log = options->log;
    cairn->log_user = options->log_user;
    engine->viewer = cairn->viewer;
    engine->rank = cairn->viewer ? 0 : (uint32_t)options->rank;
    engine->world_size = cairn->viewer ? 1 : (uint32_t)options->world_size;
    engine->io_deadline_ms = cairn->io_deadline_ms;
    if (options->label != NULL) {
        cairn->label = strndup(options->label, LIMIT_COORDINATE_BYTES);
        if (cairn->label == NULL) {
            return diag_no_memory(diag, "the label");
        }
    }
    engine->label = cairn->label;
    struct registered_list nothing = {.rank = engine->rank, .world_size = engine->world_size};
    return registered_new(&nothing, &cairn->set, diag);
}
