/* SPDX-License-Identifier: Apache-2.0
 *
 * agreement: who writes what each group holds, as its ranks agreed last; and the share of a save
 * that follows from it and from what the server said. Kept by the engine from save to save. A rank
 * whose list is the one agreed copies at once; what it says of a tensor stays for as long as it
 * lasts, because others copy by it. Loop's thread.
 */
#ifndef CAIRN_SHARE_AGREEMENT_H
#define CAIRN_SHARE_AGREEMENT_H

#include "base/list.h"
#include "share/held.h"
#include "share/share.h"

struct agreed_tensor {
    struct xxh128 key;
    const char *name;
    struct share_tensor place;
    uint64_t division; /* of which save (open_id) it was divided; 0: of this one, alone */
    bool wrote;        /* the division gave this rank cells of it */
};

enum agreed_state {
    AGREED_PENDING, /* its save is under way */
    AGREED_DOUBT,   /* nobody told whether its save was committed */
    AGREED_PROVEN   /* it was: coverage has seen that all members divided alike */
};

struct agreed_group {
    struct list link;
    struct scratch scratch; /* owns the list */
    struct xxh128 key, list_hash;
    enum agreed_state state;
    bool trusted;  /* no save has failed for want of agreement since */
    uint64_t save; /* number of the save that brought it */
    uint32_t count;
    struct agreed_tensor *tensors; /* by key */
};

struct agreement {
    struct list groups; /* at most one proven entry of a group, and some that may become it */
    uint32_t failures;  /* saves in a row that it was to blame for */
};

void agreement_init(struct agreement *agreement);
void agreement_fini(struct agreement *agreement);
/* The proven one; NULL: none. */
const struct agreed_group *agreement_find(const struct agreement *agreement,
                                          const struct xxh128 *group);
const struct agreed_tensor *agreed_find(const struct agreed_group *group, const struct xxh128 *key);
/* Does a save with that list copy by it, without asking? */
bool agreement_covers(const struct agreement *agreement, const struct held_group *group);

/* What the server said of one group, for share_init_agreed. */
struct agree_rule {
    bool keep;     /* what is proven stays where it is */
    uint64_t anew; /* the division that this save makes */
    uint32_t row_count;
    struct agree_row { /* by key: who divides this tensor, or by which division it is written */
        struct xxh128 key;
        uint64_t division;
        uint32_t bytes;
        const uint8_t *bits;
    } * rows;
};
struct agree_terms {
    const struct registered *set;
    const struct held *held;
    const struct agreement *agreement;
    const struct agree_rule *rules; /* one a group of held */
};
/* TOO_LARGE, NO_MEMORY. */
int MUST_USE share_init_agreed(struct share *share, const struct agree_terms *terms,
                               struct diag *diag);
/* LIST_MISMATCH: this rank no longer has a tensor of which the agreement gave it cells; names it.
 */
int MUST_USE agreement_check_losses(const struct agreement *agreement,
                                    const struct held_group *group, const struct held *held,
                                    uint32_t rank, struct diag *diag);

/* The division of a save is agreed for the group once it is committed. wrote, divisions: by tensor
 * of the set. NO_MEMORY: later saves ask. */
struct agree_news {
    const struct registered *set;
    const struct held *held;
    const struct share *share;
    const bool *wrote;
    uint64_t save;
};
int MUST_USE agreement_set(struct agreement *agreement, uint32_t group,
                           const struct agree_news *news);
/* How the save ended. Committed: what it brought is proven; LIST_MISMATCH and COVERAGE: nothing is
 * trusted before the next verdict. is_known: it was not committed, for sure. */
struct agree_end {
    uint64_t save, open_id;
    const struct held *held; /* its lists; NULL: it wrote none */
    int status;
    bool is_known;
};
void agreement_learn(struct agreement *agreement, const struct agree_end *end);

#endif
