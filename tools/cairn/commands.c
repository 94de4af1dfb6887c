/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of commands, and the options that all take.
 */
#include "base/guess.h"
#include "cli.h"

#include <string.h>

#define COMMAND(name) extern const struct command command_##name;
#include "commands.def"
#undef COMMAND

const struct command *const commands[] = {
#define COMMAND(name) &command_##name,
#include "commands.def"
#undef COMMAND
    NULL};

const struct option cli_options[] = {
    {"server", "HOST:PORT",
     "the server (or unix:/path); RUN may name it too, as cairn://HOST:PORT/project/run or "
     "cairn+unix:///path?run=project/run",
     OPTION_AT_TEXT(struct cli_common, server)},
    {"store", "URL",
     "read the store directly, without a server: dir:/PATH or rados:POOL[/NAMESPACE][?conf=FILE]",
     OPTION_AT_TEXT(struct cli_common, store)},
    {"ca-file", "FILE", "use TLS, with a server certificate issued by this authority",
     OPTION_AT_TEXT(struct cli_common, ca_file), .completes = COMPLETES_FILES},
    {"cert-file", "FILE", "this client's certificate", OPTION_AT_TEXT(struct cli_common, cert_file),
     .completes = COMPLETES_FILES},
    {"key-file", "FILE", "the private key of this certificate",
     OPTION_AT_TEXT(struct cli_common, key_file), .completes = COMPLETES_FILES},
    {"timeout", "DURATION", "time limit for one answer of the server, 1s to 1d",
     OPTION_AT_DURATION(struct cli_common, timeout_ms), .preset = "10s", .min = 1000,
     .max = 86400000},
    {"json", NULL, "print JSON on stdout, and errors as JSON on stderr",
     OPTION_AT_FLAG(struct cli_common, json)},
    {"quiet", NULL, "show no progress", OPTION_AT_FLAG(struct cli_common, quiet), .letter = 'q'},
    {"help", NULL, "show this text", OPTION_AT_FLAG(struct cli_common, help), .letter = 'h',
     .alone = true},
    {0}};

int command_find(const char *name, const struct command **ret, struct diag *diag)
{
    struct guess guess = {.typed = name};
    for (size_t i = 0; commands[i]; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            *ret = commands[i];
            return 0;
        }
        guess_consider(&guess, commands[i]->name);
    }
    return guess.name
               ? diag_set(diag, CAIRN_E_INVALID, "'%s' is not a command; did you mean '%s'?", name,
                          guess.name)
               : diag_set(diag, CAIRN_E_INVALID, "'%s' is not a command; see cairn --help", name);
}

const char *command_group_title(enum command_group group)
{
    static const char *const titles[GROUP_COUNT] = {[GROUP_LOOK] = "Look",
                                                    [GROUP_FILES] = "Check, restore, move",
                                                    [GROUP_KEEP] = "Keep and remove",
                                                    [GROUP_SYSTEM] = "Run and maintain"};
    return titles[group];
}
