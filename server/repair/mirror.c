/* SPDX-License-Identifier: Apache-2.0
 *
 * The mirror: another store with the same things. A cluster may be away, and opening one waits for
 * it, so a daemon's mirror is opened on the repair's thread, when the first thing is asked of it.
 * Invariant: a mirror that has failed is asked nothing more by this work, and never ends it.
 */
#include "repair_private.h"

#include <stdio.h>

/* Called on the loop's thread. The threads of a cluster are many, so they are made when they are
 * needed, and stay. */
static void make_pool(void *user)
{
    struct repair *repair = user;
    if (!repair->mirror_pool) {
        repair->mirror_status =
            work_threads_new(repair->options.loop, repair->options.mirror_threads, "cairn-mirror",
                             &repair->mirror_pool, &repair->mirror_why);
    }
}

/* Keeps why the mirror cannot be asked, for people; status 0 means that it can be. */
static void note(struct repair *repair)
{
    const char *why =
        repair->mirror_status == 0 ? "" : diag_text(&repair->mirror_why, repair->mirror_status);
    pthread_mutex_lock(&repair->lock);
    snprintf(repair->mirror_text, sizeof(repair->mirror_text), "%s", why);
    pthread_mutex_unlock(&repair->lock);
}

static void open_now(struct repair *repair)
{
    const struct repair_options *options = &repair->options;
    if (repair->mirror_status == 0) {
        repair->mirror_status =
            options->open_mirror(options->user, options->loop, repair->mirror_pool, &repair->mirror,
                                 &repair->mirror_why);
    }
    note(repair);
}

static int result(const struct repair *repair, struct diag *diag)
{
    return repair->mirror_status == 0
               ? 0
               : repair_fail(diag, repair->mirror_status, &repair->mirror_why);
}

int mirror_begin(struct repair *repair, struct diag *diag)
{
    const struct repair_options *options = &repair->options;
    repair->mirror = NULL;
    repair->mirror_status = 0;
    repair->mirror_why = DIAG_INIT;
    repair->mirror_asked = options->open_mirror && options->mirror_first;
    if (repair->mirror_asked) {
        make_pool(repair);
        open_now(repair);
    }
    return result(repair, diag);
}

int mirror_open(struct repair *repair, struct diag *diag)
{
    if (!repair->options.open_mirror) {
        return diag_set(diag, CAIRN_E_NOT_FOUND, "no mirror is named");
    }
    int status = repair_check(repair, diag);
    if (status == 0 && !repair->mirror_asked) {
        repair->mirror_asked = true;
        ask_call(&repair->ask, make_pool, repair);
        open_now(repair);
    }
    return status != 0 ? status : result(repair, diag);
}

void mirror_failed(struct repair *repair, int status, const struct diag *why)
{
    if (reader_finding_of(status) == READER_NOT_GIVEN && status != CAIRN_E_CANCELLED) {
        diag_clear(&repair->mirror_why);
        repair->mirror_status = repair_fail(&repair->mirror_why, status, why);
        note(repair);
    }
}

void mirror_place(const struct repair *repair, size_t bytes, char *ret)
{
    if (repair->mirror_status != 0) {
        snprintf(ret, bytes, "; %.120s, which may have one, cannot be read: %.200s",
                 repair->options.mirror, diag_text(&repair->mirror_why, repair->mirror_status));
    } else if (repair->mirror) {
        snprintf(ret, bytes, " or in %.120s", repair->options.mirror);
    } else {
        snprintf(ret, bytes, "%s", "");
    }
}

bool repair_mirror_fails(struct repair *repair, char ret[REPAIR_TEXT_MAX])
{
    pthread_mutex_lock(&repair->lock);
    bool fails = repair->mirror_text[0] != '\0';
    snprintf(ret, REPAIR_TEXT_MAX, "%.120s cannot be read: %.500s",
             repair->options.mirror ? repair->options.mirror : "", repair->mirror_text);
    pthread_mutex_unlock(&repair->lock);
    return fails;
}
