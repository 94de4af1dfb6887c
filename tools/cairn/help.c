/* SPDX-License-Identifier: Apache-2.0
 *
 * `cairn --help` and `cairn COMMAND --help`, from the tables.
 */
#include "cli.h"
#include "exit_status.h"

#include <string.h>

enum { WIDTH = 100, OPTION_COLUMN = 30 };

void command_synopsis(const struct command *command, size_t size, char *ret)
{
    size_t at = 0, brackets = 0;
    ret[0] = '\0';
    for (const struct option *option = command->options; option && option->name; option++) {
        if (option->needed && at < size) {
            at += (size_t)snprintf(ret + at, size - at, " --%s %s", option->name, option->value);
        }
    }
    for (const struct argument *argument = command->arguments; argument && argument->name;
         argument++) {
        const char *dashes = argument->kind == ARGUMENT_WORDS ? "-- " : "";
        const char *dots = argument->kind == ARGUMENT_WORDS  ? " [ARGUMENT ...]"
                           : argument->kind == ARGUMENT_RUNS ? " ..."
                                                             : "";
        if (at < size) {
            at += (size_t)snprintf(ret + at, size - at, " %s%s%s%s", argument->optional ? "[" : "",
                                   dashes, argument->name, dots);
        }
        brackets += argument->optional ? 1 : 0;
    }
    for (; brackets > 0 && at + 2 < size; brackets--) {
        ret[at++] = ']';
        ret[at] = '\0';
    }
}

/* Words of text, broken at WIDTH, each line after the first indented. An empty line stays. */
static void print_wrapped(FILE *out, const char *text, size_t column, size_t indent)
{
    const char *at = text;
    bool start = true;
    while (*at) {
        size_t word = strcspn(at, " \n");
        if (!start && column + 1 + word > WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            start = true;
        }
        fprintf(out, "%s%.*s", start ? "" : " ", (int)word, at);
        column += word + (start ? 0 : 1);
        start = false;
        at += word;
        if (strncmp(at, "\n\n", 2) == 0) {
            fprintf(out, "\n\n%*s", (int)indent, "");
            column = indent;
            start = true;
            at += 2;
        } else if (*at) {
            at++;
        }
    }
    fprintf(out, "\n");
}

static void print_options(FILE *out, const struct option *table)
{
    for (const struct option *option = table; option && option->name; option++) {
        char letter[8] = "", text[96], help[600];
        if (option->letter) {
            snprintf(letter, sizeof(letter), "-%c, ", option->letter);
        }
        int length = snprintf(text, sizeof(text), "  %s--%s%s%s", letter, option->name,
                              option->value ? " " : "", option->value ? option->value : "");
        const char *more =
            option->kind == OPTION_TEXTS || option->kind == OPTION_OTHER ? "; may be repeated" : "";
        snprintf(help, sizeof(help), "%s%s%s%s%s%s%s%s", option->help, option->choices ? ": " : "",
                 option->choices ? option->choices : "", more, option->preset ? " [" : "",
                 option->preset ? option->preset : "", option->preset ? "]" : "",
                 option->needed ? "; needed" : "");
        fprintf(out, "%s", text);
        if (length + 1 >= OPTION_COLUMN) {
            fprintf(out, "\n");
            length = 0;
        }
        fprintf(out, "%*s", OPTION_COLUMN - length, "");
        print_wrapped(out, help, OPTION_COLUMN, OPTION_COLUMN);
    }
}

static void print_examples(FILE *out, const char *example)
{
    fprintf(out, "\nexamples:\n");
    while (*example) {
        size_t line = strcspn(example, "\n");
        fprintf(out, "  %.*s\n", (int)line, example);
        example += line + (example[line] == '\n' ? 1 : 0);
    }
}

static void print_command(FILE *out, const struct command *command)
{
    char synopsis[300];
    command_synopsis(command, sizeof(synopsis), synopsis);
    fprintf(out, "usage: cairn %s%s [options]\n\n", command->name, synopsis);
    print_wrapped(out, command->summary, 0, 0);
    if (command->details && command->details[0]) {
        fprintf(out, "\n");
        print_wrapped(out, command->details, 0, 0);
    }
    if (command->example) {
        print_examples(out, command->example);
    }
    if (command->options) {
        fprintf(out, "\noptions:\n");
        print_options(out, command->options);
    }
    fprintf(out, "\noptions of all commands:\n");
}

static void print_commands(FILE *out)
{
    fprintf(out, "usage: cairn COMMAND [arguments] [options]\n\nWhat Cairn lists is complete, "
                 "verified and durable.\n");
    for (enum command_group group = 0; group < GROUP_COUNT; group++) {
        fprintf(out, "\n%s:\n", command_group_title(group));
        for (size_t i = 0; commands[i]; i++) {
            if (commands[i]->group == group) {
                fprintf(out, "  %-14s ", commands[i]->name);
                print_wrapped(out, commands[i]->summary, 17, 17);
            }
        }
    }
    fprintf(out, "\noptions of all commands:\n");
}

static void print_statuses(FILE *out)
{
    char text[600] = "Exit:";
    size_t at = strlen(text);
    for (const struct exit_status *row = exit_statuses; row->word && at < sizeof(text); row++) {
        at += (size_t)snprintf(text + at, sizeof(text) - at, " %d %s%s", row->status, row->word,
                               row[1].word ? "," : ".");
    }
    print_wrapped(out, text, 0, 0);
}

void cli_usage(FILE *out, const struct command *command)
{
    if (command) {
        print_command(out, command);
    } else {
        print_commands(out);
    }
    print_options(out, cli_options);
    fprintf(out, "\n");
    print_wrapped(
        out,
        "RUN is project/run, or cairn://HOST:PORT/project/run; CHECKPOINT is latest, STEP, or "
        "STEP@TERM. Each option can also be set in the environment: CAIRN_SERVER for --server, "
        "CAIRN_CA_FILE for --ca-file. The command line takes precedence.",
        0, 0);
    print_statuses(out);
}
