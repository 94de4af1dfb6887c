/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn completion: scripts for bash, zsh and fish, made from the tables. Runs are offered by
 * asking `cairn ls`, which reads where the environment says.
 */
#include "cli.h"

#include <string.h>

struct completion_options {
    const char *shell;
};

static const struct argument arguments[] = {
    {"bash|zsh|fish", .kind = ARGUMENT_TEXT, .at = offsetof(struct completion_options, shell)},
    {0}};

#define LIST_RUNS "cairn ls --timeout 2s 2>/dev/null"

static bool has_argument(const struct command *command, enum argument_kind kind)
{
    for (const struct argument *argument = command->arguments; argument && argument->name;
         argument++) {
        if (argument->kind == kind) {
            return true;
        }
    }
    return false;
}

/* In single quotes of a shell: ' becomes '\''. */
static void put_quoted(const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '\'') {
            printf("'\\''");
        } else {
            putchar(*p);
        }
    }
}

/* --- bash --- */

static void bash_names(const struct option *table)
{
    for (const struct option *option = table; option && option->name; option++) {
        printf(" --%s", option->name);
    }
}

static void bash_values(const char *command, const struct option *table)
{
    for (const struct option *option = table; option && option->name; option++) {
        if (!option->value) {
            continue;
        }
        printf("    %s:--%s) ", command, option->name);
        if (option->choices) {
            printf("COMPREPLY=($(compgen -W '%s' -- \"$cur\"))", option->choices);
        } else if (option->completes != COMPLETES_NOTHING) {
            printf("COMPREPLY=($(compgen -%c -- \"$cur\"))",
                   option->completes == COMPLETES_FILES ? 'f' : 'd');
        } else {
            printf("COMPREPLY=()");
        }
        printf("; return;;\n");
    }
}

static void print_bash(void)
{
    printf("# bash completion for cairn: source <(cairn completion bash)\n_cairn() {\n"
           "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word "
           "words=\n"
           "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case $word in\n      ");
    for (size_t i = 0; commands[i]; i++) {
        printf("%s%s", i == 0 ? "" : "|", commands[i]->name);
    }
    printf(") command=$word; break;;\n    esac\n  done\n  case $command:$prev in\n");
    bash_values("*", cli_options);
    for (size_t i = 0; commands[i]; i++) {
        bash_values(commands[i]->name, commands[i]->options);
    }
    printf("  esac\n  case $command in\n    '') words='");
    for (size_t i = 0; commands[i]; i++) {
        printf("%s%s", i == 0 ? "" : " ", commands[i]->name);
    }
    printf("';;\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("    %s)\n      words='", commands[i]->name);
        bash_names(commands[i]->options);
        printf("'\n");
        if (has_argument(commands[i], ARGUMENT_RUN) || has_argument(commands[i], ARGUMENT_RUNS)) {
            printf("      [[ $cur == -* ]] || words=$(%s)\n", LIST_RUNS);
        } else if (has_argument(commands[i], ARGUMENT_FILE) ||
                   has_argument(commands[i], ARGUMENT_WORDS)) {
            printf(
                "      [[ $cur == -* ]] || { COMPREPLY=($(compgen -f -- \"$cur\")); return; }\n");
        }
        printf("      ;;\n");
    }
    printf("  esac\n  [[ $cur == -* ]] && words+='");
    bash_names(cli_options);
    printf("'\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _cairn cairn\n");
}

/* --- zsh --- */

/* '[' , ']' and ':' mean something in a specification of _arguments. */
static void zsh_text(const char *text)
{
    char one[2] = "";
    for (const char *p = text; *p; p++) {
        if (strchr("[]:\\", *p)) {
            printf("\\");
        }
        one[0] = *p;
        put_quoted(one);
    }
}

static void zsh_options(const struct option *table)
{
    for (const struct option *option = table; option && option->name; option++) {
        bool repeats = option->kind == OPTION_TEXTS || option->kind == OPTION_OTHER;
        printf(" \\\n        '%s--%s%s[", repeats ? "*" : "", option->name,
               option->value ? "=" : "");
        zsh_text(option->help);
        printf("]");
        if (option->value) {
            printf(":");
            zsh_text(option->value);
            if (option->choices) {
                printf(":(%s)", option->choices);
            } else if (option->completes != COMPLETES_NOTHING) {
                printf(":_files%s", option->completes == COMPLETES_FILES ? "" : " -/");
            } else {
                printf(": ");
            }
        }
        printf("'");
    }
}

static void zsh_arguments(const struct argument *table)
{
    for (const struct argument *argument = table; argument && argument->name; argument++) {
        /* Behind another optional one, an argument of which nothing is offered would hide the
         * options from _arguments. */
        bool many = argument->kind == ARGUMENT_WORDS || argument->kind == ARGUMENT_RUNS;
        const char *action = argument->kind == ARGUMENT_RUN          ? "_cairn_runs"
                             : argument->kind == ARGUMENT_RUNS       ? "_cairn_runs"
                             : argument->kind == ARGUMENT_CHECKPOINT ? "(latest)"
                             : argument->kind == ARGUMENT_FILE       ? "_files"
                             : argument->kind == ARGUMENT_WORDS      ? "_normal"
                                                                     : " ";
        printf(" \\\n        '%s%s:", many ? "*:" : "", argument->optional ? ":" : "");
        zsh_text(argument->name);
        printf(":%s'", action);
    }
}

static void print_zsh(void)
{
    printf("#compdef cairn\n# zsh completion for cairn: cairn completion zsh > "
           "\"${fpath[1]}/_cairn\"\n"
           "_cairn_runs() {\n  local -a runs; runs=(${(f)\"$(%s)\"}); compadd -a runs\n}\n"
           "_cairn() {\n  local context state state_descr line; typeset -A opt_args\n"
           "  _arguments -C '1:command:->command' '*::argument:->argument'\n"
           "  case $state in\n    command)\n      local -a names; names=(\n",
           LIST_RUNS);
    for (size_t i = 0; commands[i]; i++) {
        printf("        '%s:", commands[i]->name);
        zsh_text(commands[i]->summary);
        printf("'\n");
    }
    printf("      ); _describe command names;;\n    argument)\n      case $words[1] in\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("      %s) _arguments", commands[i]->name);
        zsh_options(commands[i]->options);
        zsh_options(cli_options);
        zsh_arguments(commands[i]->arguments);
        printf(";;\n");
    }
    printf("      esac;;\n  esac\n}\n"
           "if [[ $funcstack[1] == _cairn ]]; then _cairn \"$@\"; else compdef _cairn cairn; fi\n");
}

/* --- fish --- */

static void fish_options(const char *command, const struct option *table)
{
    for (const struct option *option = table; option && option->name; option++) {
        printf("complete -c cairn");
        if (command) {
            printf(" -n '__fish_seen_subcommand_from %s'", command);
        }
        if (option->letter) {
            printf(" -s %c", option->letter);
        }
        printf(" -l %s -d '", option->name);
        put_quoted(option->help);
        printf("'");
        if (option->choices) {
            printf(" -x -a '%s'", option->choices);
        } else if (option->completes == COMPLETES_DIRECTORIES) {
            printf(" -x -a '(__fish_complete_directories)'");
        } else if (option->value) {
            printf(option->completes == COMPLETES_FILES ? " -r -F" : " -x");
        }
        printf("\n");
    }
}

static void print_fish(void)
{
    printf("# fish completion for cairn: cairn completion fish > "
           "~/.config/fish/completions/cairn.fish\n"
           "complete -c cairn -f\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("complete -c cairn -n __fish_use_subcommand -a %s -d '", commands[i]->name);
        put_quoted(commands[i]->summary);
        printf("'\n");
    }
    fish_options(NULL, cli_options);
    for (size_t i = 0; commands[i]; i++) {
        fish_options(commands[i]->name, commands[i]->options);
        if (has_argument(commands[i], ARGUMENT_RUN) || has_argument(commands[i], ARGUMENT_RUNS)) {
            printf("complete -c cairn -n '__fish_seen_subcommand_from %s' -a '(%s)'\n",
                   commands[i]->name, LIST_RUNS);
        } else if (has_argument(commands[i], ARGUMENT_FILE) ||
                   has_argument(commands[i], ARGUMENT_WORDS)) {
            printf("complete -c cairn -n '__fish_seen_subcommand_from %s' -F\n", commands[i]->name);
        }
    }
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct completion_options *own = values;
    (void)cli;
    if (strcmp(own->shell, "bash") == 0) {
        print_bash();
    } else if (strcmp(own->shell, "zsh") == 0) {
        print_zsh();
    } else if (strcmp(own->shell, "fish") == 0) {
        print_fish();
    } else {
        return diag_set(diag, CAIRN_E_INVALID,
                        "there is no script for '%s'; name bash, zsh or fish", own->shell);
    }
    return out_flush();
}

const struct command command_completion = {
    .name = "completion",
    .group = GROUP_SYSTEM,
    .summary = "print a completion script for a shell",
    .details = "Packages install all three scripts. By hand, put `source <(cairn completion bash)` "
               "in ~/.bashrc, or write the file that the script's first line names.",
    .example = "source <(cairn completion bash)",
    .arguments = arguments,
    .options_bytes = sizeof(struct completion_options),
    .run = run};
