/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration: the file (libinih, read line by line so that every message has its line), the
 * flags, printing, and the checks across keys.
 */
#include "daemon/config.h"

#include "base/check.h"
#include "base/guess.h"
#include "base/limits.h"
#include "base/log.h"
#include "daemon/config_retention.h"
#include "daemon/config_value.h"
#include "hash/hash.h"
#include "store/open/store_open.h"

#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { SESSION_TIME_MAX_MS = 24 * 3600 * 1000 };

enum kind { KIND_TEXT, KIND_BYTES, KIND_DURATION, KIND_COUNT, KIND_COUNT_OR_0, KIND_BOOL };

struct key {
    const char *section, *name, *flag; /* flag: "section-key" */
    enum kind kind;
    size_t offset;
    const char *value, *help;
};

static const struct key keys[] = {
#define CONF(section, key, kind, field, value, help) \
    {#section, key, #section "-" key, KIND_##kind, offsetof(struct config, field), value, help},
#include "config.def"
#undef CONF
};

/* Sets a key from a text, according to its kind. */
static int set_key(struct config *config, const struct key *key, const char *value,
                   struct diag *diag)
{
    void *field = (char *)config + key->offset;
    if (key->offset == offsetof(struct config, retention_ms)) {
        config->retention_said = true;
    }
    switch (key->kind) {
    case KIND_TEXT:
        return value_text(value, CONFIG_TEXT_MAX, field, diag);
    case KIND_BYTES:
        return value_bytes(value, field, diag);
    case KIND_DURATION:
        return value_duration_ms(value, field, diag);
    case KIND_COUNT:
        return value_count(value, 1, field, diag);
    case KIND_COUNT_OR_0:
        return value_count(value, 0, field, diag);
    case KIND_BOOL:
        return value_bool(value, field, diag);
    }
    UNREACHABLE();
}

void config_defaults(struct config *config)
{
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        CHECK(set_key(config, &keys[i], keys[i].value, NULL) == 0);
    }
    config->retention_said = false; /* a default does not count as set */
}

/* --- finding a key -------------------------------------------------------------------------- */

/* Keys that are in another section now. The old name still works. */
static const struct {
    const char *section, *name, *new_section;
} moved[] = {{"metrics", "listen", "http"}, {"metrics", "on-network", "http"}};

static const struct key *find_key(const char *section, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(moved); i++) {
        if (strcmp(moved[i].section, section) == 0 && strcmp(moved[i].name, name) == 0) {
            section = moved[i].new_section;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

static const struct key *find_flag(const char *flag)
{
    char old[64];
    for (size_t i = 0; i < ARRAY_LEN(moved); i++) {
        snprintf(old, sizeof(old), "%s-%s", moved[i].section, moved[i].name);
        if (strcmp(old, flag) == 0) {
            return find_key(moved[i].section, moved[i].name);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strcmp(keys[i].flag, flag) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

/* Keys that were removed, with what replaces them, so that a file of an older version is refused
 * with a remedy. */
static const struct {
    const char *section, *name, *remedy;
} retired[] = {
    {"store", "create", "a store is made once, with `cairn store create URL`"},
    {"listen", "plaintext-on-network", "write plain-tcp = network"},
};

static const char *find_retired(const char *section, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(retired); i++) {
        if (strcmp(retired[i].section, section) == 0 && strcmp(retired[i].name, name) == 0) {
            return retired[i].remedy;
        }
    }
    return NULL;
}

/* Returns the remedy for a removed flag (section, dash, name), or NULL. */
static const char *find_retired_flag(const char *flag)
{
    char section[64];
    const char *dash = strchr(flag, '-');
    if (!dash || (size_t)(dash - flag) >= sizeof(section)) {
        return NULL;
    }
    snprintf(section, sizeof(section), "%.*s", (int)(dash - flag), flag);
    return find_retired(section, dash + 1);
}

/* Returns the flag of cairnd that may be meant by the one that was typed, or NULL. */
static const char *guess_flag(const char *typed)
{
    static const char *const others[] = {"config", "help", "version", "check-config",
                                         "print-config"};
    struct guess guess = {.typed = typed};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        guess_consider(&guess, keys[i].flag);
    }
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        guess_consider(&guess, others[i]);
    }
    return guess.name;
}

/* Refuses a key that does not exist, or its section if that does not exist either. */
static int refuse_key(const char *section, const char *name, struct diag *diag)
{
    struct guess sections = {.typed = section}, names = {.typed = name};
    bool is_section = false;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        bool is_of = strcmp(keys[i].section, section) == 0;
        is_section = is_section || is_of;
        guess_consider(&sections, keys[i].section);
        if (is_of) {
            guess_consider(&names, keys[i].name);
        }
    }
    guess_consider(&sections, "quota"); /* its keys are projects */
    const char *best = is_section ? names.name : sections.name;
    char hint[128] = "`cairnd --print-config` shows all that there are";
    if (best) {
        snprintf(hint, sizeof(hint), is_section ? "did you mean '%s'?" : "did you mean [%s]?",
                 best);
    }
    if (!is_section) {
        return diag_set(diag, CAIRN_E_CONFIG, "there is no section [%s]; %s", section, hint);
    }
    return diag_set(diag, CAIRN_E_CONFIG, "there is no key '%s' in section [%s]; %s", name, section,
                    hint);
}

int config_set(struct config *config, const char *name, const char *value, struct diag *diag)
{
    const struct key *key = find_flag(name);
    const char *remedy = key ? NULL : find_retired_flag(name);
    if (remedy) {
        return diag_set(diag, CAIRN_E_CONFIG, "cairnd no longer has the option --%s: %s", name,
                        remedy);
    }
    if (!value && (key || strcmp(name, "config") == 0)) {
        return diag_set(diag, CAIRN_E_CONFIG, "the option --%s needs a value; see cairnd --help",
                        name);
    }
    if (!key) {
        const char *best = guess_flag(name);
        return best ? diag_set(diag, CAIRN_E_CONFIG,
                               "cairnd has no option --%s; did you mean --%s?", name, best)
                    : diag_set(diag, CAIRN_E_CONFIG, "cairnd has no option --%s; see cairnd --help",
                               name);
    }
    int status = set_key(config, key, value, diag);
    if (status != 0) {
        diag_add(diag, "--%s", name);
    }
    return status;
}

/* --- the file --- */

struct reading {
    struct config *config;
    const char *path;
    FILE *file;
    int line;
    bool seen[ARRAY_LEN(keys)];
    struct diag *diag;
};

/* Reads a line for inih as fgets() does: counts lines, and refuses those that its buffer would
 * cut. */
static char *read_line(char *text, int size, void *stream)
{
    struct reading *reading = stream;
    char *got = fgets(text, size, reading->file);
    if (!got) {
        return NULL;
    }
    reading->line++;
    CHECK(size > 2);
    size_t length = strlen(text);
    if (length > 0 && text[length - 1] != '\n' && !feof(reading->file)) {
        err_ignore(diag_set(reading->diag, CAIRN_E_CONFIG, "%s:%d: the line has more than %d bytes",
                            reading->path, reading->line, size - 2)); /* config_read() reports it */
        return NULL;
    }
    if (text[strspn(text, " \t\r\n")] == '#') {
        text[0] = '\0'; /* # begins a comment, as inih's ; does */
    }
    return got;
}

/* Adds a row of [quota]. Returns CONFIG if the project has one already, or if the table is full. */
static int add_quota(struct config *config, const char *project, const char *value,
                     struct diag *diag)
{
    struct quota_table *table = &config->quotas;
    struct quota quota;
    int status = value_quota(project, value, &quota, diag);
    for (size_t i = 0; status == 0 && i < table->count; i++) {
        if (strcmp(table->quotas[i].project, project) == 0) {
            status = diag_set(diag, CAIRN_E_CONFIG,
                              "'%s' is set twice in [quota]; remove one of the lines", project);
        }
    }
    if (status == 0 && table->count == QUOTAS_MAX) {
        status = diag_set(diag, CAIRN_E_CONFIG,
                          "[quota] has more than %d rows; use * for all projects without a row",
                          QUOTAS_MAX);
    }
    if (status == 0) {
        CHECK(table->count < QUOTAS_MAX);
        table->quotas[table->count++] = quota;
    }
    return status;
}

/* Called by libinih for each value of the file. Only the first mistake is reported, with its
 * line. */
static int on_value(void *user, const char *section, const char *name, const char *value)
{
    struct reading *reading = user;
    const struct key *key = find_key(section, name);
    struct diag why = DIAG_INIT;
    if (reading->diag->code != 0) {
        return 0;
    }
    if (strcmp(section, "quota") == 0) {
        err_ignore(add_quota(reading->config, name, value, &why)); /* reported below */
    } else if (!key && config_is_retention(section)) {
        err_ignore(config_add_retention(&reading->config->retention, section, name, value,
                                        &why)); /* reported below */
    } else if (!key && find_retired(section, name)) {
        err_ignore(diag_set(&why, CAIRN_E_CONFIG, "the key '%s' in [%s] no longer exists: %s", name,
                            section, find_retired(section, name)));
    } else if (!key) {
        err_ignore(refuse_key(section, name, &why)); /* reported below */
    } else if (reading->seen[key - keys]) {
        err_ignore(diag_set(&why, CAIRN_E_CONFIG,
                            "'%s' is set twice in [%s]; remove one of the lines", name, section));
    } else {
        CHECK((size_t)(key - keys) < ARRAY_LEN(keys));
        reading->seen[key - keys] = true;
        if (set_key(reading->config, key, value, &why) != 0) {
            diag_add(&why, "[%s] %s", section, name);
        }
    }
    if (why.code == 0) {
        return 1;
    }
    err_ignore(diag_set(reading->diag, CAIRN_E_CONFIG, "%s:%d: %s", reading->path, reading->line,
                        why.text));
    return 0;
}

int config_read(struct config *config, const char *path, struct diag *diag)
{
    struct diag local = DIAG_INIT;
    struct reading reading = {.config = config, .path = path, .diag = &local};
    reading.file = fopen(path, "re");
    if (!reading.file) {
        return diag_set(
            diag, CAIRN_E_CONFIG,
            "the configuration file %s cannot be opened: %s; check its path and its permissions",
            path, strerror(errno));
    }
    int line = ini_parse_stream(read_line, &reading, on_value, &reading);
    bool failed = ferror(reading.file) != 0;
    fclose(reading.file);
    if (local.code == 0 && failed) {
        return diag_set(diag, CAIRN_E_IO, "cannot read the configuration file %s", path);
    }
    if (local.code == 0 && line != 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "%s:%d: the line is neither [section] nor key = value", path, line);
    }
    return diag_copy(diag, &local);
}

/* --- across keys --- */

static int check_tls(const struct config *config, struct diag *diag)
{
    int set =
        (config->tls_cert[0] != '\0') + (config->tls_key[0] != '\0') + (config->tls_ca[0] != '\0');
    if (set != 0 && set != 3) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[tls] cert, key and ca must be set together, and only %d of them are set",
                        set);
    }
    return 0;
}

/* Checks the numbers that depend on each other or have a range. */
static int check_numbers(const struct config *config, struct diag *diag)
{
    uint64_t chunk = config->chunk_bytes;
    if (chunk < LIMIT_CHUNK_BYTES_MIN || chunk > LIMIT_CHUNK_BYTES || (chunk & (chunk - 1)) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[save] chunk is %" PRIu64
                        " bytes; it must be a power of two from 4KiB to 4MiB",
                        chunk);
    }
    if (config->buffer_bytes < UINT64_C(4) * LIMIT_CHUNK_BYTES) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[memory] buffers is too small: it must be at least 16MiB");
    }
    if (config->dead_after_ms < 2 * config->heartbeat_ms || config->heartbeat_ms == 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[session] dead-after is too short: it must be at least twice heartbeat");
    }
    if (config->login_ms == 0 || config->grant_idle_ms == 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[session] login and grant-idle must be longer than zero");
    }
    const uint64_t times[] = {config->login_ms, config->heartbeat_ms, config->dead_after_ms,
                              config->grant_idle_ms, config->rank_grace_ms};
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        if (times[i] > SESSION_TIME_MAX_MS) {
            return diag_set(diag, CAIRN_E_CONFIG,
                            "the times in [session] and [save] rank-grace may be at most 24h");
        }
    }
    if (config->store_threads > 64 || config->verify_threads > 64) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[store] threads and [daemon] verify-threads may be at most 64");
    }
    return 0;
}

/* Checks the URL of a store, which a daemon takes only with an absolute path. */
static int check_url(const char *url, const char *key, struct diag *diag)
{
    if (url[0] == '\0') {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "%s is not set; write the store's URL there, such as dir:/srv/cairn/store",
                        key);
    }
    if (store_url_check(url, diag) != 0) {
        diag_add(diag, "%s", key);
        return CAIRN_E_CONFIG;
    }
    if (strncmp(url, "dir:", 4) == 0 && url[4] != '/') {
        return diag_set(diag, CAIRN_E_CONFIG, "%s is '%s'; the path after dir: must be absolute",
                        key, url);
    }
    return 0;
}

/* Checks the mirror of repairs. */
static int check_mirror(const struct config *config, struct diag *diag)
{
    const char *url = config->scrub_repair_from;
    int status = url[0] != '\0' ? check_url(url, "[scrub] repair-from", diag) : 0;
    if (status == 0 && url[0] != '\0' && strcmp(url, config->store_url) == 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[scrub] repair-from names the daemon's own store; name a mirror of it");
    }
    return status;
}

/* Checks the values that are one of several words, a mode or a uuid. */
static int check_words(const struct config *config, struct diag *diag)
{
    enum log_level level;
    enum log_format format;
    char *end;
    uint8_t uuid[16];
    unsigned long mode = strtoul(config->listen_unix_mode, &end, 8);
    if (log_parse_level(config->log_level, &level) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[log] level is '%s'; it must be debug, info, warn or error",
                        config->log_level);
    }
    if (log_parse_format(config->log_format, &format) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "[log] format is '%s'; it must be text or json",
                        config->log_format);
    }
    const char *plain = config->listen_plain_tcp;
    if (strcmp(plain, "no") != 0 && strcmp(plain, "loopback") != 0 &&
        strcmp(plain, "network") != 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[listen] plain-tcp is '%s'; it must be no, loopback or network", plain);
    }
    if (*end != '\0' || end == config->listen_unix_mode || mode > 0777) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[listen] unix-mode is '%s'; it must be an octal mode such as 0660",
                        config->listen_unix_mode);
    }
    if (config->store_uuid[0] != '\0' && !hex_decode(16, config->store_uuid, uuid)) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[store] uuid must be 32 hex digits, as `cairn store create` prints them");
    }
    return 0;
}

int config_check(const struct config *config, struct diag *diag)
{
    int status = check_url(config->store_url, "[store] url", diag);
    if (status != 0) {
        return status;
    }
    if (config->listen_unix[0] == '\0' && config->listen_tcp[0] == '\0') {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[listen] names no address, so no client could connect: set unix or tcp");
    }
    status = check_tls(config, diag);
    int (*const checks[])(const struct config *, struct diag *) = {
        config_check_retention, check_numbers, check_mirror, check_words};
    for (size_t i = 0; status == 0 && i < ARRAY_LEN(checks); i++) {
        status = checks[i](config, diag);
    }
    return status;
}

/* --- what may change while the daemon runs --- */

/* These values are read each time they are used, or daemon_reload.c passes a new one on. */
static const size_t live[] = {
    offsetof(struct config, retention_ms),    offsetof(struct config, scrub_every_ms),
    offsetof(struct config, scrub_rate),      offsetof(struct config, scrub_repair),
    offsetof(struct config, gc_every_ms),     offsetof(struct config, gc_keep_cycles),
    offsetof(struct config, gc_lease_cycles), offsetof(struct config, gc_pressure),
    offsetof(struct config, grace_ms),        offsetof(struct config, log_level),
    offsetof(struct config, log_format)};

/* Returns the size of a key's field, for copying it. */
static size_t size_of(const struct key *key)
{
    switch (key->kind) {
    case KIND_TEXT:
        return CONFIG_TEXT_MAX;
    case KIND_BOOL:
        return sizeof(bool);
    case KIND_BYTES:
    case KIND_DURATION:
    case KIND_COUNT:
    case KIND_COUNT_OR_0:
        return sizeof(uint64_t);
    }
    UNREACHABLE();
}

static bool is_same(const struct key *key, const char *a, const char *b)
{
    return key->kind == KIND_TEXT ? strcmp(a, b) == 0 : memcmp(a, b, size_of(key)) == 0;
}

static bool are_same_quotas(const struct quota_table *a, const struct quota_table *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        const struct quota *x = &a->quotas[i], *y = &b->quotas[i];
        same = strcmp(x->project, y->project) == 0 && x->bytes == y->bytes &&
               x->checkpoints == y->checkpoints;
    }
    return same;
}

static bool are_same_policies(const struct policy_table *a, const struct policy_table *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        const struct policy_row *x = &a->rows[i], *y = &b->rows[i];
        same = strcmp(x->pattern, y->pattern) == 0 && x->option_count == y->option_count;
        for (unsigned k = 0; same && k < x->option_count; k++) {
            same = strcmp(x->options[k].name, y->options[k].name) == 0 &&
                   strcmp(x->options[k].value, y->options[k].value) == 0;
        }
    }
    return same;
}

void config_reload(struct config *config, const struct config *fresh,
                   void (*differs)(void *user, const char *section, const char *name,
                                   bool is_taken),
                   void *user)
{
    CHECK(config != fresh);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        char *to = (char *)config + keys[i].offset;
        const char *from = (const char *)fresh + keys[i].offset;
        bool is_live = false;
        for (size_t k = 0; k < ARRAY_LEN(live); k++) {
            is_live = is_live || live[k] == keys[i].offset;
        }
        if (!is_same(&keys[i], to, from)) {
            differs(user, keys[i].section, keys[i].name, is_live);
        }
        if (is_live) {
            memcpy(to, from, size_of(&keys[i]));
        }
    }
    if (!are_same_quotas(&config->quotas, &fresh->quotas)) {
        differs(user, "quota", "", true);
    }
    if (!are_same_policies(&config->retention, &fresh->retention)) {
        differs(user, "retention", "", true);
    }
    config->quotas = fresh->quotas;
    config->retention = fresh->retention;
    config->retention_said = fresh->retention_said;
}

/* --- printing --- */

/* Prints a value so that the file can be read back. */
static void print_value(const struct config *config, const struct key *key, FILE *out)
{
    const void *field = (const char *)config + key->offset;
    char text[64];
    switch (key->kind) {
    case KIND_TEXT:
        fprintf(out, "%s", (const char *)field);
        return;
    case KIND_BOOL:
        fprintf(out, "%s", *(const bool *)field ? "yes" : "no");
        return;
    case KIND_COUNT:
    case KIND_COUNT_OR_0:
        fprintf(out, "%" PRIu64, *(const uint64_t *)field);
        return;
    case KIND_BYTES:
        value_format_bytes(*(const uint64_t *)field, sizeof(text), text);
        break;
    case KIND_DURATION:
        value_format_duration(*(const uint64_t *)field, sizeof(text), text);
        break;
    }
    fprintf(out, "%s", text);
}

void config_print(const struct config *config, FILE *out)
{
    const char *section = "";
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strcmp(section, keys[i].section) != 0) {
            section = keys[i].section;
            fprintf(out, "%s[%s]\n", i == 0 ? "" : "\n", section);
        }
        fprintf(out, "# %s (default: %s)\n%s = ", keys[i].help,
                keys[i].value[0] ? keys[i].value : "empty", keys[i].name);
        print_value(config, &keys[i], out);
        fputc('\n', out);
    }
    fprintf(out, "\n[quota]\n# PROJECT = BYTES, N checkpoints: no save is opened while the project "
                 "holds that much; * stands for each project without a row\n");
    for (size_t i = 0; i < config->quotas.count; i++) {
        char text[96];
        value_format_quota(&config->quotas.quotas[i], sizeof(text), text);
        fprintf(out, "%s = %s\n", config->quotas.quotas[i].project, text);
    }
    config_print_retention(&config->retention, out);
}

void config_usage(FILE *out)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        fprintf(out, "  --%-28s %s%s%s%s\n", keys[i].flag, keys[i].help,
                keys[i].value[0] ? " [" : "", keys[i].value, keys[i].value[0] ? "]" : "");
    }
}
