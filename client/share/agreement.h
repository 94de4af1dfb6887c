/* SPDX-License-Identifier: Apache-2.0
 *
 * agreement: how the tensors of each group are divided among its ranks, as they agreed last; and
 * the share of a save, which follows from that and from the server's verdict. The engine keeps it
 * from save to save. A rank whose list is the one agreed copies at once. The division of a tensor
 * is kept as long as the agreement lasts, because other ranks copy by it. Loop's thread.
 */
#ifndef CAIRN_SHARE_AGREEMENT_H
#define CAIRN_SHARE_AGREEMENT_H

#include "base/list.h"
#include "share/held.h"
#include "share/share.h"

/* The place of one tensor in a division. */
struct agreed_tensor {
    struct xxh128 key;
    const char *name;
    struct share_tensor place;
    /* The open_id of the save that divided it. 0 means that it had no opening yet. */
    uint64_t division;
    bool wrote; /* the division gave this rank cells of it */
};

/* What is known of the save that brought an entry. Only a proven entry is used. */
enum agreed_state {
    AGREED_PENDING, /* its save is under way */
    AGREED_DOUBT,   /* it is not known whether its save was committed */
    AGREED_PROVEN   /* it was committed: coverage has proven that all members divided alike */
};

/* What was agreed on one group: the list of its tensors, and the place of each in its division. */
struct agreed_group {
    struct list link;
    struct scratch scratch; /* owns the list */
    struct xxh128 key, list_hash;
    enum agreed_state state;
    bool trusted;  /* no save has failed for want of agreement since then */
    uint64_t save; /* number of the save that brought it */
    uint32_t count;
    struct agreed_tensor *tensors; /* sorted by key */
};

/* All that was agreed, by group. The engine owns it. */
struct agreement {
    /* At most one proven entry for each group, and some that may become proven. */
    struct list groups;
    uint32_t failures; /* saves in a row that failed for want of agreement */
    /* Number of the newest restore, which counts among the saves. 0 means that there was none. */
    uint64_t restored;
};

void agreement_init(struct agreement *agreement);
void agreement_fini(struct agreement *agreement);
/* Returns the proven entry of the group, or NULL. since: the newest restore before the save that
 * asks. What older saves brought is not followed, because the ranks may hold other tensors by now;
 * it is kept in case another rank follows it still. */
const struct agreed_group *agreement_find(const struct agreement *agreement,
                                          const struct xxh128 *group, uint64_t since);
const struct agreed_tensor *agreed_find(const struct agreed_group *group, const struct xxh128 *key);
/* Returns whether a save with this list copies by the agreement, without asking. */
bool agreement_covers(const struct agreement *agreement, const struct held_group *group,
                      uint64_t since);
/* Returns whether a save under way may change what is agreed on the group. */
bool agreement_may_change(const struct agreement *agreement, const struct xxh128 *group);

/* The server's answer for one group, for share_init_agreed. */
struct agree_rule {
    const struct agreed_group *keep; /* its tensors stay where they are; may be NULL */
    uint64_t anew;                   /* the open_id under which this save divides anew */
    uint32_t row_count;
    /* Sorted by key: who divides this tensor, or by which division it is written. */
    struct agree_row {
        struct xxh128 key;
        uint64_t division;
        uint32_t bytes;
        const uint8_t *bits;
    } * rows;
};
/* The inputs of share_init_agreed; all are borrowed. */
struct agree_terms {
    const struct registered *set;
    const struct held *held;
    const struct agreement *agreement;
    const struct agree_rule *rules; /* one for each group in held */
};
/* Computes this rank's share of a save. Fails with TOO_LARGE or NO_MEMORY. */
int MUST_USE share_init_agreed(struct share *share, const struct agree_terms *terms,
                               struct diag *diag);
/* Returns LIST_MISMATCH, with the tensor's name, if this rank no longer has a tensor of which the
 * entry gave it cells. agreed: as agreement_find gives it. */
int MUST_USE agreement_check_losses(const struct agreed_group *agreed,
                                    const struct held_group *group, const struct held *held,
                                    uint32_t rank, struct diag *diag);

/* Keeps the division of a save as the one that is agreed for the group if the save is committed.
 * The arrays of agree_news are by tensor of the set. NO_MEMORY only means that later saves ask
 * again. */
struct agree_news {
    const struct registered *set;
    const struct held *held;
    const struct share *share;
    const bool *wrote;
    uint64_t save;
};
int MUST_USE agreement_set(struct agreement *agreement, uint32_t group,
                           const struct agree_news *news);
/* Takes the outcome of a save. If it is committed, what it brought is proven. After LIST_MISMATCH
 * and COVERAGE nothing is trusted before the next verdict. is_known says that a save that failed is
 * certainly not committed. */
struct agree_end {
    uint64_t save, open_id;
    const struct held *held; /* the lists of the save; NULL if it wrote none */
    int status;
    bool is_known;
};
void agreement_learn(struct agreement *agreement, const struct agree_end *end);

#endif
