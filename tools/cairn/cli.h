/* SPDX-License-Identifier: Apache-2.0
 *
 * cli: what the commands of `cairn` share: the parsed command line, the table of commands, and how
 * things are shown. Results go to stdout, everything else to stderr.
 */
#ifndef CAIRN_TOOLS_CLI_H
#define CAIRN_TOOLS_CLI_H

#include "options.h"
#include "out.h"
#include "source.h"
#include "wire/info_json.h"

#include <stdio.h>

/* What all commands take. */
struct cli_common {
    const char *server, *store, *ca_file, *cert_file, *key_file;
    uint64_t timeout_ms;
    bool json, quiet, help;
};

struct cli {
    struct cli_common common;
    struct option_set common_set, own_set; /* own_set.values: the command's struct, owned */
    const struct command *command;         /* NULL if none was named */
    struct source_options source;
    bool json, quiet, help;
    int word_count, command_at; /* of the command line; which of its words names the command */
    char *const *words;
    const char *run_text, *selector_text; /* positional; NULL when left out */
    struct selector selector;             /* latest when there is no selector_text */
    /* made from the above by cli_connect() */
    struct run_name run;
    bool has_run;
    struct source *connection;
    struct url asked;   /* the servers that were asked first; none before cli_reconnect() */
    char tls_name[256]; /* what cli_reconnect() has put into source.tls_name */
    char url_text[4096];
    char *whole_text; /* of the error, if diag has no room for all of it; else NULL */
    uint8_t *blob;    /* one that is in memory: after an interrupt reads still write into it */
};

enum command_group { GROUP_LOOK, GROUP_FILES, GROUP_KEEP, GROUP_SYSTEM, GROUP_COUNT };

/* A command is one const struct in a file of its own, cmd_<name>.c, and a row of commands.def. */
struct command {
    const char *name;
    enum command_group group;
    const char *summary; /* one line: no capital, no full stop */
    const char
        *details; /* whole sentences, for --help and the manual; an empty line: a paragraph */
    const char *example;              /* command lines, one a line; or NULL */
    const struct argument *arguments; /* NULL if it has none */
    const struct option *options;     /* its own; NULL if it has none */
    size_t options_bytes;             /* of its struct, which is zeroed and then preset */
    int failure; /* the status of errors that have none of their own; 0 means 1 */
    /* Exit status; an error is in diag and < 0. options: its struct. */
    int (*run)(struct cli *cli, void *options, struct diag *diag);
};

extern const struct command *const commands[]; /* in the order of commands.def, ended by NULL */
extern const struct option cli_options[];      /* of struct cli_common */
extern const struct argument cli_checkpoint_arguments[]; /* [RUN [CHECKPOINT]] */
/* Returns INVALID if there is no command of that name. */
int MUST_USE command_find(const char *name, const struct command **ret, struct diag *diag);
const char *command_group_title(enum command_group group);

/* cli_fini() also after a failure. */
int MUST_USE cli_parse(int argc, char **argv, struct cli *ret, struct diag *diag);
void cli_fini(struct cli *cli);
/* "RUN [CHECKPOINT] --to DIR", what stands behind the command's name. */
void command_synopsis(const struct command *command, size_t size, char *ret);
/* Prints the help of a command, or of all commands if it is NULL. */
void cli_usage(FILE *out, const struct command *command);
/* Prints the manual page of a command as roff, or cairn(1) if it is NULL. */
void cli_manual(FILE *out, const struct command *command);
/* Opens the source and the run. With `needs_run` a run must be named, or be the only one. */
int MUST_USE cli_connect(struct cli *cli, bool needs_run, struct diag *diag);
/* Ends the connection and makes one to another daemon of the same store, by the words of --server.
 * With TLS its certificate must have the name of a server that the operator asked, which the
 * daemons behind one name share, or the name in `server`; AUTH if it has neither. */
int MUST_USE cli_reconnect(struct cli *cli, const char *server, struct diag *diag);
/* The server alone: no run, and no store either, is needed. */
int MUST_USE cli_connect_server(struct cli *cli, struct diag *diag);

/* --- showing --- */
/* Begins a document: an object that begins with schema_version. */
void json_begin(struct json *json);
/* Writes "name": [lengths]. */
void json_lengths(struct json *json, const char *name, uint32_t ndim, const int64_t *lengths);
/* Ends the object, prints the document and frees it. Returns what json_print() says. */
int MUST_USE json_end(struct json *json);
/* Prints the document and a newline to stdout. NO_MEMORY, and what out_flush() says. */
int MUST_USE json_print(struct json *json);
/* One line on stderr, with --json one object. status: the exit status. */
void cli_error(const struct cli *cli, int code, int status, const char *text);
bool cli_stdout_is_terminal(void);
/* A terminal on which a line can be drawn again. */
bool cli_stderr_is_terminal(void);
/* A short text, which lives in the expression that asks for it: printf("%s", bytes_text(n).at). */
struct text {
    char at[48];
};
struct text bytes_text(uint64_t bytes);               /* "1.50 GiB" */
struct text time_text(int64_t wall_ns);               /* RFC 3339, UTC; "-" for 0 */
bool names_ckpt(const char *text, struct ckpt_id id); /* it begins with "checkpoint STEP@TERM" */
/* "damaged, superseded, pinned" of a committed one, else the state: the words of ls, show, status.
 */
enum { STANDING_BYTES = 64 };
void format_standing(const struct ckpt_info *info, char ret[STANDING_BYTES]);
const char *placement_name(uint32_t placement);

/* A table: cells are copied; numbers are right-aligned when their column's title starts with '>'.
 */
struct table;
struct table *table_new(size_t columns, const char *const *titles);
void table_row(struct table *table, const char *const *cells);
void table_print(struct table *table, FILE *out);
void table_free(struct table *table);

/* One line on stderr that is drawn again and again; nothing unless stderr is a terminal (and TERM
 * is not dumb). */
struct progress {
    const char *what;
    uint64_t total, done, shown_ms;
    bool active;
    struct loop *loop;
};
void progress_start(struct progress *progress, struct cli *cli, const char *what, uint64_t total);
void progress_set(struct progress *progress, uint64_t done);
void progress_end(struct progress *progress);

/* --- checkpoints --- */
/* Finds the checkpoint that the selector means, as a viewer. Returns NOT_FOUND for an empty run,
 * too. */
int MUST_USE cli_resolve(struct cli *cli, const struct selector *selector, struct scratch *scratch,
                         struct ckpt_info *ret, struct diag *diag);
/* Sets *ret to whether `latest` means `than` only because newer ones of the lineage are known to be
 * damaged or may be lost. */
int MUST_USE cli_passed_over(struct cli *cli, const struct selector *selector,
                             const struct ckpt_info *than, bool *ret, struct diag *diag);
/* Does the same as cli_resolve(), but returns DAMAGED if `latest` has passed over newer ones. */
int MUST_USE cli_resolve_newest(struct cli *cli, const struct selector *selector,
                                struct scratch *scratch, struct ckpt_info *ret, struct diag *diag);
/* Returns NOT_FOUND if the server or store does not list the run: an empty answer about it may be a
 * typing error. */
int MUST_USE cli_check_run(struct cli *cli, struct diag *diag);
/* A list of checkpoints, newest first. Its entries are from the scratch. */
struct cli_list {
    uint64_t limit; /* in: stops asking once it has so many; 0 asks for all */
    bool forgotten; /* in: only those that can be brought back */
    size_t count;
    struct ckpt_info *items;
    const char *mark; /* what the record has lost, so that checkpoints may be missing here; "" */
};
int MUST_USE cli_list(struct cli *cli, struct scratch *scratch, struct cli_list *io,
                      struct diag *diag);
/* Calls `each` with the run that is named, connected, or with each run of the store. A run of many
 * that fails is told at stderr and does not hold up the others; the return is EXIT_PARTIAL then. */
int MUST_USE cli_each_run(struct cli *cli,
                          int (*each)(struct cli *cli, void *user, const struct run_name *run,
                                      struct diag *diag),
                          void *user, struct diag *diag);
/* Says at stderr what the record of the listed run has lost, if anything. */
void cli_say_mark(const struct cli *cli, const struct cli_list *list);
/* Copies the tags and metrics of io into scratch, so that they outlive the reply. */
int MUST_USE cli_keep_note(struct ckpt_info *io, struct scratch *scratch, struct diag *diag);
/* Prints {"schema_version": 1, "checkpoint": info}. */
int MUST_USE cli_print_info(const struct ckpt_info *info);

#endif
