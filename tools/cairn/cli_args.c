/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: words become options of the common table or of the command's, and arguments.
 * What the words do not say is taken from the environment.
 */
#include "base/guess.h"
#include "cli.h"

#include <stdlib.h>
#include <string.h>

struct words {
    int count, at; /* at: the one that is looked at */
    char **words;
    bool ended;                      /* "--" was seen: no more options */
    const struct argument *argument; /* the next one */
};

/* --- options --- */

static int unknown_option(const struct cli *cli, const char *word, struct diag *diag)
{
    const char *name = cli->command ? cli->command->name : "", *space = name[0] ? " " : "";
    const struct option_set *sets[] = {&cli->common_set, &cli->own_set};
    struct guess guess = {.typed = word + strspn(word, "-")};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        for (const struct option *option = sets[i]->table; option && option->name; option++) {
            guess_consider(&guess, option->name);
        }
    }
    if (guess.name) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "%s is not an option of cairn%s%s; did you mean --%s?", word, space, name,
                        guess.name);
    }
    return diag_set(diag, CAIRN_E_INVALID, "%s is not an option of cairn%s%s; see cairn%s%s --help",
                    word, space, name, space, name);
}

static int take_option(struct option_set *set, const struct option *option, struct words *words,
                       const char *value, struct diag *diag)
{
    if (!option->value) {
        return value ? diag_set(diag, CAIRN_E_INVALID, "--%s takes no value", option->name)
                     : options_take(set, option, "", diag);
    }
    if (!value && words->at + 1 < words->count) {
        value = words->words[++words->at];
    }
    return value ? options_take(set, option, value, diag)
                 : diag_set(diag, CAIRN_E_INVALID, "--%s needs %s", option->name, option->value);
}

/* --name VALUE, --name=VALUE, -x VALUE. */
static int parse_option(struct cli *cli, struct words *words, struct diag *diag)
{
    struct option_set *sets[] = {&cli->common_set, &cli->own_set};
    const char *word = words->words[words->at];
    bool is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
    if (!is_long && word[2] != '\0') {
        return unknown_option(cli, word, diag);
    }
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        const struct option *option = is_long ? option_find(sets[i]->table, length, word + 2)
                                              : option_find_letter(sets[i]->table, word[1]);
        if (option) {
            return take_option(sets[i], option, words, equals ? equals + 1 : NULL, diag);
        }
    }
    return unknown_option(cli, word, diag);
}

/* --- the command and its arguments --- */

static int take_command(struct cli *cli, struct words *words, const char *text, struct diag *diag)
{
    int status = command_find(text, &cli->command, diag);
    if (status != 0) {
        return status;
    }
    cli->command_at = words->at;
    words->argument = cli->command->arguments;
    cli->own_set.table = cli->command->options;
    cli->own_set.values = calloc(1, cli->command->options_bytes + 1);
    return cli->own_set.values ? options_init(&cli->own_set, diag)
                               : diag_no_memory(diag, "options");
}

static int take_argument(struct cli *cli, struct words *words, const char *text, struct diag *diag)
{
    const struct argument *argument = words->argument;
    if (!argument || !argument->name) {
        return diag_set(diag, CAIRN_E_INVALID, "'%s' is one argument too many; see cairn %s --help",
                        text, cli->command->name);
    }
    char *own = (char *)cli->own_set.values + argument->at;
    words->argument += argument->kind != ARGUMENT_RUNS;
    switch (argument->kind) {
    case ARGUMENT_RUN:
        cli->run_text = text;
        break;
    case ARGUMENT_RUNS: {
        struct option_texts *texts = (struct option_texts *)(void *)own;
        if (texts->count == OPTION_TEXTS_MAX) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the command line names more than %d runs; see cairn %s --help",
                            OPTION_TEXTS_MAX, cli->command->name);
        }
        texts->items[texts->count++] = text;
        break;
    }
    case ARGUMENT_CHECKPOINT:
        cli->selector_text = text;
        break;
    case ARGUMENT_TEXT:
    case ARGUMENT_FILE:
        memcpy(own, &text, sizeof(text));
        break;
    case ARGUMENT_WORDS:
        *(struct option_words *)(void *)own = (struct option_words){
            .items = words->words + words->at, .count = (size_t)(words->count - words->at)};
        words->at = words->count;
        break;
    }
    return 0;
}

static int parse_word(struct cli *cli, struct words *words, struct diag *diag)
{
    const char *word = words->words[words->at];
    if (!words->ended && strcmp(word, "--") == 0) {
        words->ended = true;
        return 0;
    }
    if (!words->ended && strcmp(word, "--version") == 0 && !cli->command) {
        return take_command(cli, words, "version", diag);
    }
    if (!words->ended && word[0] == '-' && word[1] != '\0') {
        return parse_option(cli, words, diag);
    }
    return cli->command ? take_argument(cli, words, word, diag)
                        : take_command(cli, words, word, diag);
}

/* --- what the whole line must be --- */

/* Returns whether the argument takes several words, and has one. */
static bool has_runs(const struct option_set *own, const struct argument *argument)
{
    const struct option_texts *texts = (const void *)((const char *)own->values + argument->at);
    return argument->kind == ARGUMENT_RUNS && texts->count > 0;
}

static int check_complete(const struct cli *cli, const struct words *words, struct diag *diag)
{
    const struct option_set *own = &cli->own_set;
    const char *name = cli->command->name;
    if (words->argument && words->argument->name && !words->argument->optional &&
        !has_runs(own, words->argument)) {
        return diag_set(diag, CAIRN_E_INVALID, "cairn %s: %s is missing; see cairn %s --help", name,
                        words->argument->name, name);
    }
    for (const struct option *option = own->table; option && option->name; option++) {
        char twin[OPTION_TWIN_BYTES];
        option_twin(option, twin);
        const char *text = option->alone ? NULL : getenv(twin);
        if (option->needed && !options_given(own, option->name) && !(text && text[0])) {
            return diag_set(diag, CAIRN_E_INVALID, "cairn %s: --%s %s is missing", name,
                            option->name, option->value);
        }
    }
    return 0;
}

/* A server that the command line names beats CAIRN_STORE; naming both there is a mistake. */
static int choose_source(struct cli *cli, struct diag *diag)
{
    bool server = options_given(&cli->common_set, "server") ||
                  (cli->run_text && strstr(cli->run_text, "://") &&
                   strncmp(cli->run_text, "cairn:///", 9) != 0);
    if (server && options_given(&cli->common_set, "store")) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the command line names both a server and --store; name only one of them");
    }
    const struct cli_common *common = &cli->common;
    cli->source = (struct source_options){.url = common->server,
                                          .store = server ? NULL : common->store,
                                          .cert_file = common->cert_file,
                                          .key_file = common->key_file,
                                          .ca_file = common->ca_file,
                                          .deadline_ms = common->timeout_ms};
    return 0;
}

const struct argument cli_checkpoint_arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN, .optional = true},
    {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT, .optional = true},
    {0}};

static int finish(struct cli *cli, const struct words *words, struct diag *diag)
{
    int status = options_take_twins(&cli->common_set, diag);
    cli->help = cli->common.help;
    cli->quiet = cli->common.quiet;
    cli->json = cli->json || cli->common.json;
    if (cli->command && status == 0) {
        status = options_take_twins(&cli->own_set, diag);
    }
    status = status != 0 ? status : choose_source(cli, diag);
    if (status == 0 && cli->command && !cli->help) {
        status = check_complete(cli, words, diag);
    }
    if (status == 0 && cli->selector_text) {
        status = selector_parse(cli->selector_text, &cli->selector, diag);
    }
    return status;
}

int cli_parse(int argc, char **argv, struct cli *ret, struct diag *diag)
{
    struct words words = {.count = argc, .at = 1, .words = argv};
    *ret = (struct cli){.selector = {.kind = SELECT_LATEST}, .word_count = argc, .words = argv};
    ret->common_set = (struct option_set){.table = cli_options, .values = &ret->common};
    /* Errors are shown as JSON also when --json comes behind the mistake. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        ret->json = ret->json || strcmp(argv[i], "--json") == 0;
    }
    int status = options_init(&ret->common_set, diag);
    for (; status == 0 && words.at < argc; words.at++) {
        status = parse_word(ret, &words, diag);
    }
    return status != 0 ? status : finish(ret, &words, diag);
}

void cli_fini(struct cli *cli)
{
    source_free(cli->connection);
    free(cli->own_set.values);
    free(cli->whole_text);
    cli->whole_text = NULL;
    cli->connection = NULL;
    cli->own_set.values = NULL;
}
