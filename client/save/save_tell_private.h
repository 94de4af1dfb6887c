/* SPDX-License-Identifier: Apache-2.0
 *
 * What the caller of a save is told, and when; and how long the save took, which the next save
 * tells the server. Callbacks come from a post, never from inside a call. Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_TELL_PRIVATE_H
#define CAIRN_SAVE_SAVE_TELL_PRIVATE_H

#include "save/save_common.h"

/* A callback of the caller. */
enum news { NEWS_NONE, NEWS_DUE, NEWS_TOLD };

struct save_tell {
    struct save_common *common;
    struct post post;
    enum news released, staged, handed, done;
    int staged_status;
    bool named;         /* the diag of the failure names the rank */
    uint64_t free_ms;   /* when the caller could go on; 0 means not yet */
    uint64_t copied_ms; /* when its memory was not read any more; 0 means not yet */
    /* Durations of the previous save, as its OPEN tells them. */
    uint64_t blocked_ms, staged_ms, persist_ms;
};

void save_tell_init(struct save_tell *tell, struct save_common *common);
/* The caller may go on. Told once. */
void save_tell_released(struct save_tell *tell);
/* The caller's memory is not read any more, or the save has failed. Told once. */
void save_tell_staged(struct save_tell *tell, int status);
/* The server can finish this rank's part alone. Told once, and only if the save has not failed. */
void save_tell_handed(struct save_tell *tell);
/* The last word: the save is freed before on_done is called. */
void save_tell_done(struct save_tell *tell);
/* Keeps how long a committed save took, for the next OPEN to tell. */
void save_tell_keep_times(const struct save_tell *tell);
/* Writes the durations of the previous save into OPEN, and again into a second try of it. */
void save_tell_times(struct save_tell *tell, struct msg_open *io);

#endif
