/* SPDX-License-Identifier: Apache-2.0
 *
 * See node_watch.h. A counter that rises is a notice, and so is an XID that changes to another
 * value than 0. The first reading is what the node had before the job began, and is no notice.
 */
#include "system/node_watch.h"

#include "base/check.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CANNOT_RUN = 126 }; /* the shell's status, and all above it, of a command that did not run */

/* A source is a row: its name, how many intervals lie between two probes, and a shell command that
 * prints one reading a line, a name and a number. What it has to complain of goes to stderr. XIDs
 * that an application's own mistake can cause (13, 31, 43 and others) are left out; the ones here
 * are NVIDIA's for ECC, row remapping, NVLink, a GPU off the bus and its firmware. */
static const struct row {
    const char *name;
    unsigned every;
    const char *shell;
} rows[] = {
    {"edac", 1,
     "cd \"$CAIRN_WATCH_ROOT/sys/devices/system/edac/mc\" && for f in mc*/ue_count; do"
     " if [ -e \"$f\" ]; then echo \"$f $(cat \"$f\")\"; fi; done"},
    {"mce", 1,
     "awk '/^ *MCE:/ { for (i = 2; $i ~ /^[0-9]+$/; i++) n += $i;"
     " print \"machine check exceptions\", n + 0 }' \"$CAIRN_WATCH_ROOT/proc/interrupts\""},
    {"smart", 12, /* bits 0 to 2 of smartctl's status: it could not ask; bit 3: the disk fails */
     "smartctl --scan | while read -r line; do disk=${line%% #*}; smartctl -H $disk >/dev/null "
     "2>&1;"
     " s=$?; if [ $((s & 7)) -ne 0 ]; then echo \"smartctl -H $disk ended with $s\" >&2;"
     " else echo \"failure of $disk $(((s & 8) / 8))\"; fi; done"},
    {"dcgm", 3,
     "text=$(curl -fsS --noproxy '*' \"$CAIRN_DCGM_URL\") || exit; printf '%s\\n' \"$text\" | awk '"
     "/^DCGM_FI_DEV_(XID_ERRORS|ECC_DBE_VOL_TOTAL|ROW_REMAP_FAILURE|UNCORRECTABLE_REMAPPED_ROWS)[{]"
     "/ { gpu = part = \"\"; if (match($0, /[{,]gpu=\"[^\"]*/)) gpu = substr($0, RSTART + 6, "
     "RLENGTH - 6); if (match($0, /[{,]GPU_I_ID=\"[^\"]*/)) part = \"/\" substr($0, RSTART + 11, "
     "RLENGTH - 11); name = substr($0, 1, index($0, \"{\") - 1); sub(/.*[}] */, \"\"); "
     "if (name ~ /XID/ && $1 !~ /^(48|64|74|79|92|94|95|119|120|140)$/ && $1 ~ /^[0-9]+$/) $1 = 0;"
     " print name \" of GPU \" gpu part, $1 }'"},
    {"nvidia", 3,
     "text=$(nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total"
     " --format=csv,noheader,nounits) || { echo \"$text\" >&2; exit 1; };"
     " printf '%s\\n' \"$text\" | awk -F ', *' '$2 !~ /N\\/A/ {"
     " print \"uncorrected ECC errors of GPU \" $1, $2 }'"}};

_Static_assert(ARRAY_LEN(rows) + NODE_WATCH_COMMANDS_MAX <= NODE_WATCH_SOURCES_MAX, "room for all");

static struct watched *add(struct node_watch *watch, const struct row *row)
{
    CHECK(watch->count < NODE_WATCH_SOURCES_MAX);
    struct watched *source = &watch->sources[watch->count++];
    *source = (struct watched){
        .name = row->name, .shell = row->shell, .every = row->every, .reads = true};
    return source;
}

static bool is_added(const struct node_watch *watch, const char *name)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        if (strcmp(watch->sources[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

int node_watch_add(struct node_watch *watch, const char *names, struct diag *diag)
{
    for (const char *at = names; at && *at != '\0'; at += *at == ',') {
        size_t length = strcspn(at, ",");
        bool all = length == 3 && memcmp(at, "all", length) == 0, found = all;
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            bool is_it = strlen(rows[i].name) == length && memcmp(at, rows[i].name, length) == 0;
            found = found || is_it;
            if ((all || is_it) && !is_added(watch, rows[i].name)) {
                (void)add(watch, &rows[i]);
            }
        }
        if (!found) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "there is no source '%.*s' to watch; it must be all, or of edac, mce, "
                            "smart, dcgm, nvidia, with commas between them",
                            (int)min_u64(length, 40), at);
        }
        at += length;
    }
    return 0;
}

void node_watch_add_command(struct node_watch *watch, const char *shell)
{
    unsigned number = 1;
    for (uint32_t i = 0; i < watch->count; i++) {
        number += !watch->sources[i].reads;
    }
    struct watched *source = add(watch, &(struct row){NULL, 1, shell});
    snprintf(source->label, sizeof(source->label), "command %u", number);
    source->name = source->label;
    source->reads = false;
}

/* --- what a probe printed --- */

/* Takes what a probe printed, without the line ends behind it. Returns its length in bytes; a probe
 * that printed more than fits has NODE_WATCH_TEXT_BYTES - 1. */
static size_t take_text(int *fd, char ret[NODE_WATCH_TEXT_BYTES])
{
    size_t length = 0;
    ssize_t got = 0;
    do {
        got = read(*fd, ret + length, NODE_WATCH_TEXT_BYTES - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    } while (got > 0 || (got < 0 && errno == EINTR));
    close(*fd);
    *fd = -1;
    bool whole = length < NODE_WATCH_TEXT_BYTES - 1;
    while (whole && length > 0 && isspace((unsigned char)ret[length - 1])) {
        length--;
    }
    ret[length] = '\0';
    return length;
}

/* Reads a line "NAME NUMBER". Returns false if it is no reading. ret_name_bytes is the length of
 * the name. */
static bool read_line(const char *line, size_t *ret_name_bytes, double *ret_value)
{
    size_t length = strcspn(line, "\n"), name = length;
    while (name > 0 && line[name - 1] != ' ') {
        name--;
    }
    char *end = NULL;
    double value = strtod(line + name, &end);
    if (name < 2 || name == length || end != line + length || !isfinite(value)) {
        return false;
    }
    *ret_name_bytes = name - 1;
    *ret_value = value;
    return true;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* Returns whether there were readings of that name, none with this value, and a smaller one:
 * several things may have one name. An XID need not have been smaller, because it is the code of
 * the last error and no counter. *ret_before is the smallest that there was. */
static bool is_news(const char *readings, const char *line, size_t name_bytes, double now,
                    double *ret_before)
{
    static const char code[] = "DCGM_FI_DEV_XID_ERRORS ";
    bool is_code = strncmp(line, code, sizeof(code) - 1) == 0;
    size_t bytes = 0;
    bool known = false, same = false;
    double before = 0;
    for (const char *at = readings; *at != '\0'; at = next_line(at)) {
        if (read_line(at, &bytes, &before) && bytes == name_bytes && memcmp(at, line, bytes) == 0) {
            same = same || !(now > before || now < before);
            *ret_before = known && *ret_before < before ? *ret_before : before;
            known = true;
        }
    }
    return known && !same && (is_code || now > *ret_before);
}

/* Returns the first line that is no reading, or NULL. */
static const char *find_nonsense(const char *text)
{
    size_t bytes = 0;
    double value = 0;
    for (; *text != '\0'; text = next_line(text)) {
        if (!read_line(text, &bytes, &value)) {
            return text;
        }
    }
    return NULL;
}

/* --- what it means --- */

__attribute__((format(printf, 3, 4))) static void give_notice(struct node_watch *watch,
                                                              struct watched *source,
                                                              const char *format, ...)
{
    char text[NODE_WATCH_SAID_BYTES + 40];
    if (watch->fired) {
        return; /* one reason is enough */
    }
    va_list args;
    va_start(args, format);
    vsnprintf(watch->said, sizeof(watch->said), format, args);
    va_end(args);
    watch->said[strcspn(watch->said, "\n")] = '\0';
    watch->fired = source;
    source->notices++;
    snprintf(text, sizeof(text), "%s: %s", source->name, watch->said);
    watch->tell(watch->context, "notice", text);
}

/* Says once that a source has begun to fail, and once that it answers again. why is what is wrong,
 * or NULL. */
static void complain(struct node_watch *watch, struct watched *source, const char *why)
{
    char text[NODE_WATCH_SAID_BYTES + 100];
    if (source->complains == (why != NULL)) {
        return;
    }
    source->complains = why != NULL;
    if (why) {
        snprintf(text, sizeof(text), "%s: %.*s; the job goes on, and the source is asked again",
                 source->name, (int)min_u64(strcspn(why, "\n"), NODE_WATCH_SAID_BYTES), why);
    } else {
        snprintf(text, sizeof(text), "%s: it answers again", source->name);
    }
    watch->tell(watch->context, "watch", text);
}

static void compare(struct node_watch *watch, struct watched *source, const char *text)
{
    for (const char *line = text; *line != '\0'; line = next_line(line)) {
        size_t bytes = 0;
        double now = 0, before = 0;
        CHECK(read_line(line, &bytes, &now));
        bool is_set = now > 0 || now < 0;
        if (is_set && is_news(source->readings, line, bytes, now, &before)) {
            give_notice(watch, source, "%.*s was %g, now %g", (int)min_u64(bytes, 160), line,
                        before, now);
        }
    }
    snprintf(source->readings, sizeof(source->readings), "%s", text);
}

/* Takes what a source of the table printed, all of which must be readings. */
static void judge_readings(struct node_watch *watch, struct watched *source, int status,
                           const char *text)
{
    char errors[NODE_WATCH_TEXT_BYTES], why[NODE_WATCH_SAID_BYTES];
    size_t said = take_text(&source->err, errors);
    const char *nonsense = find_nonsense(text);
    bool good = status == 0 && text[0] != '\0' && !nonsense;
    if (good) {
        compare(watch, source, text);
    } else if (said == 0 && nonsense) {
        snprintf(why, sizeof(why), "\"%.*s\" is no reading",
                 (int)min_u64(strcspn(nonsense, "\n"), 80), nonsense);
    } else if (said == 0) {
        snprintf(why, sizeof(why), "there is nothing to read here (exit status %d)", status);
    }
    complain(watch, source, said > 0 ? errors : good ? NULL : why);
}

/* Takes what a command of the operator printed. It prints nothing and ends with 0 while all is
 * well. */
static void judge_command(struct node_watch *watch, struct watched *source, int status,
                          const char *text)
{
    char errors[NODE_WATCH_TEXT_BYTES], why[NODE_WATCH_SAID_BYTES];
    size_t said = take_text(&source->err, errors);
    bool ran = status < CANNOT_RUN;
    if (ran && (status != 0 || text[0] != '\0')) {
        give_notice(watch, source, "exit status %d%s%.160s", status,
                    text[0] != '\0' || said > 0 ? ": " : "", text[0] != '\0' ? text : errors);
        return;
    }
    snprintf(why, sizeof(why), "the command could not run (exit status %d)", status);
    complain(watch, source, said > 0 ? errors : ran ? NULL : why);
}

/* --- a probe --- */

static void collect(struct node_watch *watch, struct watched *source, int waited)
{
    char text[NODE_WATCH_TEXT_BYTES], why[NODE_WATCH_SAID_BYTES];
    int status = WIFEXITED(waited) ? WEXITSTATUS(waited) : 128 + WTERMSIG(waited);
    (void)kill(-source->probe, SIGKILL); /* what it left behind */
    source->probe = 0;
    size_t length = take_text(&source->out, text);
    if (source->killed) {
        snprintf(why, sizeof(why), "it did not answer within %g s",
                 (double)(source->every * watch->interval_ms) / 1000);
        complain(watch, source, why);
    } else if (source->stale) {
        source->due_ms = 0; /* the next one begins at once */
    } else if (length == NODE_WATCH_TEXT_BYTES - 1) {
        snprintf(why, sizeof(why), "it printed more than %d bytes", NODE_WATCH_TEXT_BYTES - 2);
        complain(watch, source, why);
    } else if (strlen(text) != length) {
        complain(watch, source, "it printed a zero byte");
    } else if (source->reads) {
        judge_readings(watch, source, status, text);
    } else {
        judge_command(watch, source, status, text);
    }
    if (source->err >= 0) {
        close(source->err);
        source->err = -1;
    }
}

static _Noreturn void become(const char *shell, int out, int err)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
        dup2(err, STDERR_FILENO) >= 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0) {
        (void)execl("/bin/sh", "sh", "-c", shell, (char *)NULL);
    }
    _exit(CANNOT_RUN);
}

static void begin(struct node_watch *watch, struct watched *source, uint64_t now_ms)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    char why[NODE_WATCH_SAID_BYTES];
    pid_t probe = -1;
    source->due_ms = now_ms + source->every * watch->interval_ms;
    source->killed = source->stale = false;
    if (pipe2(out, O_CLOEXEC | O_NONBLOCK) == 0 && pipe2(err, O_CLOEXEC | O_NONBLOCK) == 0 &&
        fcntl(out[1], F_SETFL, 0) == 0 && fcntl(err[1], F_SETFL, 0) == 0) {
        probe = fork();
    }
    if (probe == 0) {
        become(source->shell, out[1], err[1]);
    }
    if (probe < 0) {
        snprintf(why, sizeof(why), "cannot start a process: %s", strerror(errno));
        complain(watch, source, why);
    } else {
        (void)setpgid(probe, probe); /* whoever of the two comes first */
        source->probe = probe;
        source->out = out[0];
        source->err = err[0];
        out[0] = err[0] = -1;
    }
    for (size_t i = 0; i < 2; i++) {
        if (out[i] >= 0) {
            close(out[i]);
        }
        if (err[i] >= 0) {
            close(err[i]);
        }
    }
}

static void kill_probe(struct watched *source)
{
    source->killed = true;
    if (kill(-source->probe, SIGKILL) != 0) {
        (void)kill(source->probe, SIGKILL); /* it has not made its group yet */
    }
}

uint64_t node_watch_turn(struct node_watch *watch, uint64_t now_ms)
{
    uint64_t next_ms = UINT64_MAX;
    for (uint32_t i = 0; i < watch->count; i++) {
        struct watched *source = &watch->sources[i];
        int waited = 0;
        if (source->probe > 0 && waitpid(source->probe, &waited, WNOHANG) == source->probe) {
            collect(watch, source, waited);
        }
        if (source->probe > 0 && !source->killed && now_ms >= source->due_ms) {
            kill_probe(source);
        }
        if (source->probe == 0 && now_ms >= source->due_ms) {
            begin(watch, source, now_ms);
        }
        /* A probe that not even SIGKILL ends is waited for without asking: SIGCHLD tells. */
        next_ms = source->probe > 0 && source->killed ? next_ms : min_u64(next_ms, source->due_ms);
    }
    return next_ms == UINT64_MAX ? next_ms : next_ms - min_u64(next_ms, now_ms);
}

void node_watch_afresh(struct node_watch *watch, uint64_t now_ms)
{
    watch->fired = NULL;
    for (uint32_t i = 0; i < watch->count; i++) {
        struct watched *source = &watch->sources[i];
        source->readings[0] = '\0';
        source->stale = source->probe > 0;
        source->due_ms = source->stale ? source->due_ms : now_ms;
    }
}

void node_watch_end(struct node_watch *watch)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        if (watch->sources[i].probe > 0) {
            kill_probe(&watch->sources[i]);
        }
    }
}
