/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn help: the usage, or a manual page in roff.
 */
#include "cli.h"
#include "exit_status.h"

struct help_options {
    const char *topic;
    bool man;
};

static const struct argument arguments[] = {{"COMMAND", .kind = ARGUMENT_TEXT,
                                             .at = offsetof(struct help_options, topic),
                                             .optional = true},
                                            {0}};

static const struct option options[] = {
    {"man", NULL, "print the manual page as roff: `cairn help --man | man -l -`",
     OPTION_AT_FLAG(struct help_options, man), .alone = true},
    {0}};

static void json_options(struct json *json, const struct option *table)
{
    json_open(json, "options", '[');
    for (const struct option *option = table; option && option->name; option++) {
        char twin[OPTION_TWIN_BYTES];
        option_twin(option, twin);
        json_open(json, NULL, '{');
        json_str(json, "name", option->name);
        json_str(json, "value", option->value);
        json_str(json, "help", option->help);
        json_str(json, "preset", option->preset);
        json_str(json, "environment", option->alone ? NULL : twin);
        json_bool(json, "needed", option->needed);
        json_close(json, '}');
    }
    json_close(json, ']');
}

/* Everything, for programs. */
static int print_json(void)
{
    struct json json;
    json_begin(&json);
    json_options(&json, cli_options);
    json_open(&json, "commands", '[');
    for (size_t i = 0; commands[i]; i++) {
        char synopsis[300];
        command_synopsis(commands[i], sizeof(synopsis), synopsis);
        json_open(&json, NULL, '{');
        json_str(&json, "name", commands[i]->name);
        json_str(&json, "group", command_group_title(commands[i]->group));
        json_str(&json, "synopsis", synopsis);
        json_str(&json, "summary", commands[i]->summary);
        json_options(&json, commands[i]->options);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_open(&json, "exit_statuses", '[');
    for (const struct exit_status *row = exit_statuses; row->word; row++) {
        json_open(&json, NULL, '{');
        json_u64(&json, "status", (uint64_t)row->status);
        json_str(&json, "word", row->word);
        json_str(&json, "meaning", row->meaning);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    return json_end(&json);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct help_options *own = values;
    const struct command *topic = NULL;
    int status = own->topic ? command_find(own->topic, &topic, diag) : 0;
    if (status != 0) {
        return status;
    }
    if (cli->json && !own->man) {
        return print_json();
    }
    if (own->man) {
        cli_manual(stdout, topic);
    } else {
        cli_usage(stdout, topic);
    }
    return out_flush();
}

const struct command command_help = {
    .name = "help",
    .group = GROUP_SYSTEM,
    .summary = "show the usage of all commands, or of one",
    .details = "The text is that of `cairn COMMAND --help`. With --man the command prints the "
               "manual page, and with --json all tables of options, commands and exit statuses.",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct help_options),
    .run = run};
