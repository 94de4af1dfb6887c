/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of fail points, read once from CAIRN_FAILPOINTS. Compiled only with CAIRN_TESTING.
 * Invariant: a setting that cannot be understood ends the program, because a test whose fault never
 * happens would prove nothing. Any thread; the counts are atomic.
 */
#include "base/failpoint.h"

#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAILPOINTS_MAX = 32, FAILPOINT_DELAY_MS_MAX = 60000 };

enum failpoint_action { FAILPOINT_ERROR, FAILPOINT_KILL, FAILPOINT_STOP, FAILPOINT_DELAY };

struct failpoint {
    const char *name; /* points into failpoint_text */
    enum failpoint_action action;
    int code;           /* of FAILPOINT_ERROR */
    unsigned delay_ms;  /* of FAILPOINT_DELAY */
    unsigned long at;   /* acts at this time only; 0 means each time */
    atomic_ulong times; /* reached so far */
};

static struct failpoint failpoints[FAILPOINTS_MAX];
static size_t failpoint_count;
static char *failpoint_text; /* lives as long as the process */
static pthread_once_t failpoint_once = PTHREAD_ONCE_INIT;

static _Noreturn void failpoint_refuse(const char *what, const char *why)
{
    fprintf(stderr,
            "CAIRN_FAILPOINTS: \"%s\" cannot be used: %s; write "
            "name=error:CODE|kill|stop|delay:MS[@n];...\n",
            what, why);
    abort();
}

static unsigned long failpoint_number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number == 0) {
        failpoint_refuse(text, "it is not a count from 1");
    }
    return number;
}

/* Parses one "name=action[@n]". The item is cut up in place. */
static void failpoint_parse(char *item, struct failpoint *ret)
{
    char *action = strchr(item, '=');
    if (action == NULL || action == item) {
        failpoint_refuse(item, "it has no name or no '='");
    }
    *action++ = '\0';
    char *at = strchr(action, '@');
    if (at != NULL) {
        *at++ = '\0';
        ret->at = failpoint_number(at);
    }
    ret->name = item;
    if (strcmp(action, "kill") == 0) {
        ret->action = FAILPOINT_KILL;
    } else if (strcmp(action, "stop") == 0) {
        ret->action = FAILPOINT_STOP;
    } else if (strncmp(action, "error:", 6) == 0) {
        ret->action = FAILPOINT_ERROR;
        ret->code = err_from_name(action + 6);
        if (ret->code == 0) {
            failpoint_refuse(action + 6, "it does not name an error code");
        }
    } else if (strncmp(action, "delay:", 6) == 0) {
        ret->action = FAILPOINT_DELAY;
        unsigned long ms = failpoint_number(action + 6);
        ret->delay_ms = ms < FAILPOINT_DELAY_MS_MAX ? (unsigned)ms : FAILPOINT_DELAY_MS_MAX;
    } else {
        failpoint_refuse(action, "it has an unknown action");
    }
}

/* Reads CAIRN_FAILPOINTS once. The points borrow from a copy of its text. */
static void failpoint_load(void)
{
    const char *setting = getenv("CAIRN_FAILPOINTS");
    if (setting == NULL || setting[0] == '\0') {
        return;
    }
    failpoint_text = strdup(setting);
    if (failpoint_text == NULL) {
        failpoint_refuse(setting, "out of memory");
    }
    char *rest = NULL;
    for (char *item = strtok_r(failpoint_text, ";", &rest); item != NULL;
         item = strtok_r(NULL, ";", &rest)) {
        if (failpoint_count == FAILPOINTS_MAX) {
            failpoint_refuse(item, "there are too many fail points");
        }
        failpoint_parse(item, &failpoints[failpoint_count]);
        failpoint_count++;
    }
}

/* Counts a visit, and does what the setting of the point says. */
static int failpoint_act(struct failpoint *point)
{
    unsigned long times = atomic_fetch_add(&point->times, 1) + 1;
    if (point->at != 0 && times != point->at) {
        return 0;
    }
    switch (point->action) {
    case FAILPOINT_ERROR:
        return point->code;
    case FAILPOINT_KILL:
        kill(getpid(), SIGKILL);
        pause(); /* SIGKILL comes before this returns */
        return 0;
    case FAILPOINT_STOP:
        raise(SIGSTOP);
        return 0;
    case FAILPOINT_DELAY:
        (void)poll(NULL, 0, (int)point->delay_ms); /* the fault is that it takes time */
        return 0;
    }
    return 0;
}

int failpoint_hit(const char *name)
{
    pthread_once(&failpoint_once, failpoint_load);
    int rc = 0;
    for (size_t i = 0; i < failpoint_count && rc == 0; i++) {
        if (strcmp(failpoints[i].name, name) == 0) {
            rc = failpoint_act(&failpoints[i]);
        }
    }
    return rc;
}
