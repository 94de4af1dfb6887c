/* SPDX-License-Identifier: Apache-2.0
 *
 * cli: what the commands of `cairn` share: the parsed command line, the table of commands, and how
 * things are shown. Results go to stdout, everything else to stderr.
 */
#ifndef CAIRN_TOOLS_CLI_H
#define CAIRN_TOOLS_CLI_H

#include "json.h"
#include "out.h"
#include "source.h"

#include <stdio.h>

/* Exit statuses of their own, beside those of the error table. */
enum { EXIT_FELL_BACK = 3, EXIT_DAMAGE = 6, EXIT_INTERRUPTED = 130 };

enum { ONLY_MAX = 256 };

struct cli {
    struct source_options source;
    bool json, quiet, help;
    bool server_named, store_named; /* by the command line, not by the environment */
    const char *command;
    const char *run_text, *selector_text; /* positional; NULL when left out */
    /* options of single commands */
    const char *to;
    bool no_read_data, no_fallback, all, superseded;
    uint64_t subset_n, subset_t; /* 0: all */
    uint64_t limit;
    struct metric metrics[LIMIT_METRICS]; /* their names: */
    char metric_names[LIMIT_METRICS][LABEL_BYTES_MAX + 1];
    const char *tags[LIMIT_TAGS], *removed_tags[LIMIT_TAGS];
    uint32_t metric_count, tag_count, removed_tag_count;
    const char *only[ONLY_MAX];
    uint32_t only_count;
    /* made from the above by cli_connect() */
    struct run_name run;
    bool has_run;
    struct selector selector;
    struct source *connection;
    char url_text[4096];
    uint8_t *blob; /* one that is in memory: after an interrupt reads still write into it */
};

struct command {
    const char *name, *arguments, *summary, *options; /* letters of what it takes, see cli_args.c */
    int (*run)(struct cli *cli, struct diag *diag);   /* exit status; an error is in diag and < 0 */
    const char *details;
};

extern const struct command commands[]; /* ended by a NULL name */

int MUST_USE cli_parse(int argc, char **argv, struct cli *ret, const struct command **ret_command,
                       struct diag *diag);
void cli_usage(FILE *out, const struct command *command); /* NULL: of all */
/* Opens the source and the run: needs_run: one must be named (or be the only one there is). */
int MUST_USE cli_connect(struct cli *cli, bool needs_run, struct diag *diag);

/* --- showing --- */
bool cli_stdout_is_terminal(void);
void format_bytes(uint64_t bytes, size_t size, char *ret);   /* "1.50 GiB" */
void format_time(int64_t wall_ns, size_t size, char *ret);   /* RFC 3339, UTC */
void format_ckpt(struct ckpt_id id, size_t size, char *ret); /* "STEP@TERM" */
const char *state_name(uint32_t state);                      /* enum ckpt_state */
const char *health_name(uint32_t health);
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
/* What the selector means, as a viewer. NOT_FOUND also for an empty run. */
int MUST_USE cli_resolve(struct cli *cli, const struct selector *selector, struct scratch *scratch,
                         struct ckpt_info *ret, struct diag *diag);
/* NOT_FOUND when the server or store does not list the run: an empty answer about it may be a
 * typing error. */
int MUST_USE cli_check_run(struct cli *cli, struct diag *diag);
/* The whole list, newest first; entries from scratch. */
int MUST_USE cli_list(struct cli *cli, struct scratch *scratch, size_t *ret_count,
                      struct ckpt_info **ret, struct diag *diag);
/* The tags and metrics of info, copied into scratch: they outlive the reply. */
int MUST_USE cli_keep_note(struct ckpt_info *io, struct scratch *scratch, struct diag *diag);
void json_info(struct json *json, const char *name, const struct ckpt_info *info);

int command_ls(struct cli *cli, struct diag *diag);
int command_show(struct cli *cli, struct diag *diag);
int command_annotate(struct cli *cli, struct diag *diag);
int command_status(struct cli *cli, struct diag *diag);
int command_verify(struct cli *cli, struct diag *diag);
int command_restore(struct cli *cli, struct diag *diag);
int command_version(struct cli *cli, struct diag *diag);

#endif
