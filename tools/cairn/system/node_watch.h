/* SPDX-License-Identifier: Apache-2.0
 *
 * node_watch: sources that tell of failing hardware or of the end of a node. A probe of a source is
 * a shell command in a process of its own, which is killed when the next probe is due, so a source
 * that hangs, crashes or prints nonsense costs a line in the log and nothing else. One thread,
 * which has SIGCHLD blocked, not ignored, and calls node_watch_turn() whenever one came.
 */
#ifndef CAIRN_TOOLS_NODE_WATCH_H
#define CAIRN_TOOLS_NODE_WATCH_H

#include "base/diag.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    NODE_WATCH_COMMANDS_MAX = 8,
    NODE_WATCH_SOURCES_MAX = NODE_WATCH_COMMANDS_MAX + 8,
    NODE_WATCH_TEXT_BYTES = 8192, /* of what a probe prints */
    NODE_WATCH_SAID_BYTES = 256
};

struct watched {       /* a source and its probes */
    const char *name;  /* in the log; of the table, or "command 1" */
    const char *shell; /* what a probe runs */
    unsigned every;    /* intervals between two probes */
    bool reads;        /* prints readings; otherwise whatever it prints is a notice */
    bool complains;    /* the last probe failed, or printed something to stderr */
    bool killed;       /* the probe that runs was too slow */
    bool stale;        /* the probe that runs began before node_watch_afresh() */
    unsigned notices;
    pid_t probe;     /* 0 means that none runs */
    int out, err;    /* what the probe prints */
    uint64_t due_ms; /* when the next probe begins, and when the one that runs is killed */
    char label[16];
    char readings[NODE_WATCH_TEXT_BYTES]; /* of the last good probe: lines of a name and a number */
};

struct node_watch {
    uint64_t interval_ms;
    /* Told of a notice (event "notice") and when a source begins or ends to fail ("watch"). */
    void (*tell)(void *context, const char *event, const char *text);
    void *context;
    struct watched *fired; /* the source of the notice that was not yet answered, or NULL */
    char said[NODE_WATCH_SAID_BYTES]; /* what it said: one line of foreign text */
    uint32_t count;
    struct watched sources[NODE_WATCH_SOURCES_MAX];
};

/* Adds the sources that `names` has, separated by commas; "all" is each of the table. INVALID names
 * a word that is no source. NULL adds none. */
int MUST_USE node_watch_add(struct node_watch *watch, const char *names, struct diag *diag);
/* Adds a command of the operator, of which any output and any exit status of 1 to 125 is a notice.
 * The text is borrowed. At most NODE_WATCH_COMMANDS_MAX. */
void node_watch_add_command(struct node_watch *watch, const char *shell);
/* Collects probes that have ended, kills those that are too slow, and begins those that are due.
 * Sets fired and said when a source gives notice. Returns after how many ms it must be called
 * again, at the latest; it must also be called after SIGCHLD. */
uint64_t node_watch_turn(struct node_watch *watch, uint64_t now_ms);
/* Forgets the notice that was given and all readings, also those of a probe that still runs, and
 * makes a probe of each source due. One fault often moves the counters of several sources, and is
 * to cost one notice. */
void node_watch_afresh(struct node_watch *watch, uint64_t now_ms);
/* Kills the probes that run. */
void node_watch_end(struct node_watch *watch);

#endif
