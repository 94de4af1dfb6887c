/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual pages, from the tables: cairn(1), and cairn-COMMAND(1) for each command.
 */
#include "cli.h"
#include "exit_status.h"

#include <ctype.h>
#include <string.h>

/* roff's own characters: a backslash, a dash that is one, and a dot or quote that starts a line. */
static void put(FILE *out, const char *text)
{
    bool at_start = true;
    for (const char *p = text; *p; p++) {
        if (at_start && (*p == '.' || *p == '\'')) {
            fprintf(out, "\\&");
        }
        if (strncmp(p, "\n\n", 2) == 0) {
            fprintf(out, "\n.PP\n");
            p++;
        } else if (*p == '\\') {
            fprintf(out, "\\e");
        } else if (*p == '-') {
            fprintf(out, "\\-");
        } else {
            fputc(*p, out);
        }
        at_start = *p == '\n';
    }
}

static void put_options(FILE *out, const struct option *table)
{
    for (const struct option *option = table; option && option->name; option++) {
        char twin[OPTION_TWIN_BYTES];
        option_twin(option, twin);
        fprintf(out, ".TP\n");
        if (option->letter) {
            fprintf(out, "\\fB\\-%c\\fR, ", option->letter);
        }
        fprintf(out, "\\fB\\-\\-");
        put(out, option->name);
        fprintf(out, "\\fR");
        if (option->value) {
            fprintf(out, " \\fI%s\\fR", option->value);
        }
        fprintf(out, "\n%c", toupper((unsigned char)option->help[0]));
        put(out, option->help + 1);
        if (option->choices) {
            fprintf(out, ": one of ");
            put(out, option->choices);
        }
        fprintf(out, ".%s", option->needed ? " Needed." : "");
        if (option->kind == OPTION_TEXTS || option->kind == OPTION_OTHER) {
            fprintf(out, " May be repeated.");
        }
        if (option->preset) {
            fprintf(out, " Without it: ");
            put(out, option->preset);
            fprintf(out, ".");
        }
        if (!option->alone) {
            fprintf(out, "\nIn the environment: \\fB%s\\fR.", twin);
        }
        fprintf(out, "\n");
    }
}

static void put_head(FILE *out, const char *title, const char *about)
{
    fprintf(out, ".\\\" SPDX-License-Identifier: Apache-2.0\n.TH ");
    for (const char *p = title; *p; p++) {
        if (*p == '-') {
            fprintf(out, "\\-");
        } else {
            fputc(toupper((unsigned char)*p), out);
        }
    }
    fprintf(out, " 1 \"\" \"cairn %s\" \"Cairn\"\n.SH NAME\n", CAIRN_VERSION);
    put(out, title);
    fprintf(out, " \\- ");
    put(out, about);
    fprintf(out, "\n");
}

static void put_statuses(FILE *out)
{
    fprintf(out, ".SH EXIT STATUS\n");
    for (const struct exit_status *row = exit_statuses; row->word; row++) {
        fprintf(out, ".TP\n\\fB%d\\fR\n%c", row->status, toupper((unsigned char)row->meaning[0]));
        put(out, row->meaning + 1);
        fprintf(out, ".\n");
    }
}

static void put_examples(FILE *out, const char *example)
{
    fprintf(out, ".SH EXAMPLES\n.nf\n");
    put(out, example);
    fprintf(out, "\n.fi\n");
}

static void put_command(FILE *out, const struct command *command)
{
    char title[64], synopsis[300];
    snprintf(title, sizeof(title), "cairn-%s", command->name);
    command_synopsis(command, sizeof(synopsis), synopsis);
    put_head(out, title, command->summary);
    fprintf(out, ".SH SYNOPSIS\n\\fBcairn ");
    put(out, command->name);
    fprintf(out, "\\fR");
    put(out, synopsis);
    fprintf(out, " [options]\n.SH DESCRIPTION\n");
    put(out, command->details && command->details[0] ? command->details : command->summary);
    fprintf(out, "\n");
    if (command->options) {
        fprintf(out, ".SH OPTIONS\n");
        put_options(out, command->options);
    }
    if (command->example) {
        put_examples(out, command->example);
    }
    fprintf(out, ".SH SEE ALSO\n.BR cairn (1)\nfor the options of all commands and the exit "
                 "statuses, which are the same for all.\n");
}

static void put_program(FILE *out)
{
    put_head(out, "cairn", "look at, check, restore and keep checkpoints of training runs");
    fprintf(out, ".SH SYNOPSIS\n\\fBcairn\\fR \\fICOMMAND\\fR [arguments] [options]\n"
                 ".SH DESCRIPTION\n");
    put(out, "What Cairn lists is complete, verified and durable; what it restores is exactly what "
             "was saved, or a named error.\n\nRUN is project/run, or "
             "cairn://HOST:PORT/project/run. CHECKPOINT is latest, STEP, or STEP@TERM. Commands "
             "ask a server, or read a store directly with --store.\n");
    for (enum command_group group = 0; group < GROUP_COUNT; group++) {
        fprintf(out, ".SS %s\n", command_group_title(group));
        for (size_t i = 0; commands[i]; i++) {
            if (commands[i]->group == group) {
                fprintf(out, ".TP\n.BR cairn\\-");
                put(out, commands[i]->name);
                fprintf(out, " (1)\n%c", toupper((unsigned char)commands[i]->summary[0]));
                put(out, commands[i]->summary + 1);
                fprintf(out, ".\n");
            }
        }
    }
    fprintf(out, ".SH OPTIONS\nOf all commands; before or behind the command's name.\n");
    put_options(out, cli_options);
    fprintf(out, ".SH ENVIRONMENT\n");
    put(out, "Each option can also be set by a variable, whose name is CAIRN_ and the option's "
             "name in capitals, with _ for -. The value of a flag is yes or no there. The command "
             "line takes precedence over the environment; a server that the command line names "
             "takes precedence over CAIRN_STORE, and CAIRN_STORE over CAIRN_SERVER.\n");
    put_statuses(out);
    fprintf(out, ".SH SEE ALSO\n.BR cairn (3)\n");
}

void cli_manual(FILE *out, const struct command *command)
{
    if (command) {
        put_command(out, command);
    } else {
        put_program(out);
    }
}
