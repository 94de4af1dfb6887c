/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: options with their environment twins (CAIRN_<OPTION>), positional arguments,
 * usage.
 */
#include "cli.h"

#include "base/digits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum option_id {
    OPT_SERVER,
    OPT_STORE,
    OPT_CERT,
    OPT_KEY,
    OPT_CA,
    OPT_TIMEOUT,
    OPT_JSON,
    OPT_QUIET,
    OPT_HELP,
    OPT_TO,
    OPT_SUBSET,
    OPT_NO_DATA,
    OPT_NO_FALLBACK,
    OPT_ALL,
    OPT_SUPERSEDED,
    OPT_LIMIT,
    OPT_METRIC,
    OPT_TAG,
    OPT_REMOVE_TAG,
    OPT_ONLY
};

struct option {
    enum option_id id;
    const char *name, *value; /* value: NULL when it takes none */
    char letter;              /* which commands take it; 0: all */
    const char *help;
};

static const struct option options[] = {
    {OPT_SERVER, "server", "HOST:PORT", 0,
     "the server (or unix:/path); also in RUN as cairn://HOST:PORT/project/run"},
    {OPT_STORE, "store", "URL", 0,
     "read the store itself, without a server: dir:/PATH or rados:POOL[/NAMESPACE][?conf=FILE]"},
    {OPT_CA, "ca-file", "FILE", 0, "use TLS; the server's certificate must be of this authority"},
    {OPT_CERT, "cert-file", "FILE", 0, "this client's certificate"},
    {OPT_KEY, "key-file", "FILE", 0, "its private key"},
    {OPT_TIMEOUT, "timeout", "SECONDS", 0, "for one answer of the server [10]"},
    {OPT_JSON, "json", NULL, 0, "one JSON document on stdout; errors as JSON on stderr"},
    {OPT_QUIET, "quiet", NULL, 0, "no progress"},
    {OPT_TO, "to", "DIR", 't', "where to write"},
    {OPT_NO_FALLBACK, "no-fallback", NULL, 'f',
     "fail when the checkpoint is damaged, take no older one"},
    {OPT_SUBSET, "read-data-subset", "N/T", 'd', "read only the Nth of T shares of the data"},
    {OPT_NO_DATA, "no-read-data", NULL, 'D', "check records, manifests, pages and parts only"},
    {OPT_ALL, "all", NULL, 'a', "aborted saves' last word too"},
    {OPT_SUPERSEDED, "superseded", NULL, 'S', "checkpoints off the lineage too"},
    {OPT_LIMIT, "limit", "N", 'l', "at most N checkpoints"},
    {OPT_ONLY, "only", "PATTERN", 't',
     "only tensors and blobs whose names match (* ? [a-z]); may be repeated"},
    {OPT_METRIC, "metric", "NAME=VALUE", 'n', "set a metric; may be repeated"},
    {OPT_TAG, "tag", "TEXT", 'n', "add a tag; may be repeated"},
    {OPT_REMOVE_TAG, "remove-tag", "TEXT", 'n', "remove a tag; may be repeated"},
    {OPT_HELP, "help", NULL, 0, "this text"},
};

static int parse_subset(const char *text, struct cli *cli, struct diag *diag)
{
    const char *at = text;
    uint64_t n = 0, t = 0;
    if (digits_read_decimal(&at, UINT32_MAX, &n) && digits_skip(&at, "/") &&
        digits_parse_decimal(at, UINT32_MAX, &t) && n >= 1 && n <= t) {
        cli->subset_n = n;
        cli->subset_t = t;
        return 0;
    }
    return diag_set(diag, CAIRN_E_INVALID,
                    "--read-data-subset '%s': write N/T with 1 <= N <= T, for instance 1/7", text);
}

static int take_number(const char *option, const char *text, uint64_t max, uint64_t *ret,
                       struct diag *diag)
{
    return digits_parse_decimal(text, max, ret)
               ? 0
               : diag_set(diag, CAIRN_E_INVALID, "--%s '%s': a number is wanted", option, text);
}

/* NAME=VALUE: the last '=' counts, so that a name may hold one. */
static int take_metric(struct cli *cli, const char *text, struct diag *diag)
{
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    double value = equals ? strtod(equals + 1, &end) : 0;
    if (!equals || equals == text || end == equals + 1 || *end != '\0') {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--metric '%s': write NAME=VALUE, for instance loss=1.25", text);
    }
    if (isnan(value)) {
        return diag_set(diag, CAIRN_E_INVALID, "--metric '%s': NaN is no value", text);
    }
    if (cli->metric_count == LIMIT_METRICS) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "more than %d times --metric", LIMIT_METRICS);
    }
    size_t bytes = (size_t)(equals - text);
    if (bytes > LABEL_BYTES_MAX) {
        return diag_set(diag, CAIRN_E_INVALID, "--metric '%.40s...': a name has at most %d bytes",
                        text, LABEL_BYTES_MAX);
    }
    char *name = cli->metric_names[cli->metric_count];
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    cli->metrics[cli->metric_count++] = (struct metric){.name = name, .value = value};
    return 0;
}

/* Options that may be given several times. */
static int take_repeated(struct cli *cli, enum option_id id, const char *value, struct diag *diag)
{
    struct repeated {
        const char **texts;
        uint32_t *count, max;
    } to = {cli->tags, &cli->tag_count, LIMIT_TAGS};
    if (id == OPT_METRIC) {
        return take_metric(cli, value, diag);
    }
    if (id == OPT_REMOVE_TAG) {
        to = (struct repeated){cli->removed_tags, &cli->removed_tag_count, LIMIT_TAGS};
    } else if (id == OPT_ONLY) {
        to = (struct repeated){cli->only, &cli->only_count, ONLY_MAX};
    }
    if (*to.count == to.max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "'%s' is one more than the %u that are allowed",
                        value, to.max);
    }
    to.texts[(*to.count)++] = value;
    return 0;
}

static int take_option(struct cli *cli, enum option_id id, const char *value, struct diag *diag)
{
    int status = 0;
    switch (id) {
    case OPT_SERVER:
        cli->source.url = value;
        cli->server_named = true;
        break;
    case OPT_STORE:
        cli->source.store = value;
        cli->store_named = true;
        break;
    case OPT_CERT:
        cli->source.cert_file = value;
        break;
    case OPT_KEY:
        cli->source.key_file = value;
        break;
    case OPT_CA:
        cli->source.ca_file = value;
        break;
    case OPT_TIMEOUT:
        status = take_number("timeout", value, 86400, &cli->source.deadline_ms, diag);
        if (status == 0 && cli->source.deadline_ms == 0) {
            status = diag_set(diag, CAIRN_E_INVALID, "--timeout 0: at least one second is wanted");
        }
        cli->source.deadline_ms *= 1000;
        break;
    case OPT_JSON:
        cli->json = true;
        break;
    case OPT_QUIET:
        cli->quiet = true;
        break;
    case OPT_HELP:
        cli->help = true;
        break;
    case OPT_TO:
        cli->to = value;
        break;
    case OPT_SUBSET:
        status = parse_subset(value, cli, diag);
        break;
    case OPT_NO_DATA:
        cli->no_read_data = true;
        break;
    case OPT_NO_FALLBACK:
        cli->no_fallback = true;
        break;
    case OPT_ALL:
        cli->all = true;
        break;
    case OPT_SUPERSEDED:
        cli->superseded = true;
        break;
    case OPT_LIMIT:
        status = take_number("limit", value, UINT32_MAX, &cli->limit, diag);
        break;
    case OPT_METRIC:
    case OPT_TAG:
    case OPT_REMOVE_TAG:
    case OPT_ONLY:
        status = take_repeated(cli, id, value, diag);
        break;
    }
    return status;
}

/* CAIRN_STORE, CAIRN_CA_FILE ... stand for the options; CAIRN_SERVER is read where URLs are. */
static void take_environment(struct cli *cli)
{
    cli->source.store = getenv("CAIRN_STORE");
    cli->source.ca_file = getenv("CAIRN_CA_FILE");
    cli->source.cert_file = getenv("CAIRN_CERT_FILE");
    cli->source.key_file = getenv("CAIRN_KEY_FILE");
}

static const struct option *find_option(const char *name, size_t length)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

static bool takes(const struct command *command, const struct option *option)
{
    return option->letter == 0 || (command && strchr(command->options, option->letter));
}

/* --name VALUE or --name=VALUE. */
struct words {
    int count, at; /* at: the one that is looked at */
    char **words;
};

static int parse_option(struct cli *cli, const struct command *command, struct words *words,
                        struct diag *diag)
{
    const char *word = words->words[words->at];
    const char *text = word + 2;
    const char *equals = strchr(text, '=');
    const struct option *option =
        find_option(text, equals ? (size_t)(equals - text) : strlen(text));
    if (!option || !takes(command, option)) {
        return diag_set(diag, CAIRN_E_INVALID, "%s is no option of cairn%s%s; see cairn%s%s --help",
                        word, command ? " " : "", command ? command->name : "", command ? " " : "",
                        command ? command->name : "");
    }
    if (!option->value) {
        return equals ? diag_set(diag, CAIRN_E_INVALID, "--%s takes no value", option->name)
                      : take_option(cli, option->id, "", diag);
    }
    const char *value = equals ? equals + 1 : NULL;
    if (!value && words->at + 1 < words->count) {
        value = words->words[++words->at];
    }
    return value ? take_option(cli, option->id, value, diag)
                 : diag_set(diag, CAIRN_E_INVALID, "--%s wants %s", option->name, option->value);
}

static int take_positional(struct cli *cli, const struct command **io_command, const char *text,
                           struct diag *diag)
{
    if (!*io_command) {
        for (const struct command *command = commands; command->name; command++) {
            if (strcmp(command->name, text) == 0) {
                *io_command = command;
                return 0;
            }
        }
        return diag_set(diag, CAIRN_E_INVALID, "'%s' is no command; see cairn --help", text);
    }
    if (!cli->run_text && (*io_command)->arguments[0] != '\0') {
        cli->run_text = text;
    } else if (!cli->selector_text && strchr((*io_command)->arguments, ' ')) {
        cli->selector_text = text;
    } else {
        return diag_set(diag, CAIRN_E_INVALID, "'%s' is too much; see cairn %s --help", text,
                        (*io_command)->name);
    }
    return 0;
}

static int check_combinations(const struct cli *cli, struct diag *diag)
{
    if (cli->no_read_data && cli->subset_t != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--no-read-data reads none of the data, --read-data-subset a share of it: "
                        "name one of them");
    }
    return 0;
}

/* A server that the command line names beats CAIRN_STORE; naming both there is a mistake. */
static int choose_source(struct cli *cli, struct diag *diag)
{
    bool server = cli->server_named || (cli->run_text && strstr(cli->run_text, "://") &&
                                        strncmp(cli->run_text, "cairn:///", 9) != 0);
    if (server && cli->store_named) {
        return diag_set(diag, CAIRN_E_INVALID, "a server and --store: name one of them");
    }
    if (server) {
        cli->source.store = NULL;
    }
    return 0;
}

int cli_parse(int argc, char **argv, struct cli *ret, const struct command **ret_command,
              struct diag *diag)
{
    *ret = (struct cli){.source.deadline_ms = 10000};
    *ret_command = NULL;
    take_environment(ret);
    int status = 0;
    for (int i = 1; i < argc;
         i++) { /* errors are shown as JSON also when --json comes behind the mistake */
        ret->json = ret->json || strcmp(argv[i], "--json") == 0;
    }
    struct words words = {.count = argc, .at = 1, .words = argv};
    for (; status == 0 && words.at < argc; words.at++) {
        const char *word = argv[words.at];
        if (strcmp(word, "-h") == 0) {
            ret->help = true;
        } else if (strcmp(word, "--version") == 0 && !*ret_command) {
            status = take_positional(ret, ret_command, "version", diag);
        } else if (strncmp(word, "--", 2) == 0) {
            status = parse_option(ret, *ret_command, &words, diag);
        } else {
            status = take_positional(ret, ret_command, word, diag);
        }
    }
    status = status != 0 ? status : check_combinations(ret, diag);
    status = status != 0 ? status : choose_source(ret, diag);
    if (status == 0 && ret->selector_text) {
        status = selector_parse(ret->selector_text, &ret->selector, diag);
    }
    return status;
}

static void print_options(FILE *out, const struct command *command, bool common)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        const struct option *option = &options[i];
        if ((option->letter == 0) == common && takes(command, option)) {
            char text[64];
            snprintf(text, sizeof(text), "--%s%s%s", option->name, option->value ? " " : "",
                     option->value ? option->value : "");
            fprintf(out, "  %-28s %s\n", text, option->help);
        }
    }
}

void cli_usage(FILE *out, const struct command *command)
{
    if (command) {
        fprintf(out, "usage: cairn %s %s [options]\n\n%s.\n%s%s\n", command->name,
                command->arguments, command->summary, command->details[0] ? "\n" : "",
                command->details);
        print_options(out, command, false);
    } else {
        fprintf(out, "usage: cairn COMMAND [arguments] [options]\n\nWhat Cairn lists is complete, "
                     "verified and durable.\n\n");
        for (command = commands; command->name; command++) {
            fprintf(out, "  %-10s %-28s %s\n", command->name, command->arguments, command->summary);
        }
        command = NULL;
        fprintf(out, "\n");
    }
    print_options(out, command, true);
    fprintf(out, "\nRUN is project/run, or cairn://HOST:PORT/project/run. CAIRN_SERVER, "
                 "CAIRN_STORE, CAIRN_CA_FILE, CAIRN_CERT_FILE\n"
                 "and CAIRN_KEY_FILE stand for the options.\n"
                 "Exit: 0 good, 1 failed, 2 usage, 3 an older checkpoint was restored, 4 not "
                 "found, 5 unreachable, 6 damage,\n"
                 "10 no store, 11 busy, 12 refused, 130 interrupted.\n");
}
