/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells a store ahead what an opening will write (STORE_ENTER), where it has to note that down
 * before: beside the update that opens, and beside the objects, where CREATE and PUBLISH would wait
 * for it. The names of small things are told only when the opening stands in the record: from then
 * on nobody takes them out again until it ends. A hint: the outcome does not matter. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

#include <stdlib.h>

enum { PAGES_MOST = 2 }; /* what most checkpoints have: one of parts, one of tensors */

struct enter {
    struct store_req req;
    struct catalog *catalog;
    struct store_name names[2 + PAGES_MOST];
};

static void on_entered(struct store_req *req)
{
    struct enter *enter = container_of(req, struct enter, req);
    struct catalog *catalog = enter->catalog;

    free(enter);
    catalog_drop(catalog);
}

static struct enter *enter_new(struct run *run, struct ckpt_id id)
{
    struct catalog *catalog = run->catalog;
    bool useful = catalog->store->caps.enters && !catalog->closing;
    struct enter *enter = useful ? calloc(1, sizeof *enter) : NULL;

    if (enter) {
        enter->catalog = catalog;
        enter->req = (struct store_req){.op = STORE_ENTER,
                                        .run = run->name,
                                        .id = id,
                                        .names = enter->names,
                                        .deadline_ms = RUN_STORE_DEADLINE_MS,
                                        .done = on_entered};
    }
    return enter;
}

static void enter_submit(struct enter *enter)
{
    catalog_hold(enter->catalog);
    store_submit(enter->catalog->store, &enter->req);
}

void enter_ckpt(struct run *run, struct ckpt_id id)
{
    struct enter *enter = enter_new(run, id);

    if (enter) {
        enter_submit(enter);
    }
}

static void add(struct enter *enter, uint64_t tag, enum store_kind kind, uint32_t number)
{
    CHECK(enter->req.name_count < ARRAY_LEN(enter->names));
    enter->names[enter->req.name_count++] = (struct store_name){
        .run = enter->req.run, .id = enter->req.id, .kind = kind, .number = number, .tag = tag};
}

void run_enter_rank(struct run *run, struct ckpt_id id, uint64_t open_id, uint32_t rank)
{
    struct enter *enter = enter_new(run, id);

    if (!enter) {
        return;
    }
    add(enter, open_id, STORE_PART, rank);
    for (uint32_t number = 0; rank == 0 && number < PAGES_MOST; number++) {
        add(enter, open_id, STORE_PAGE, number);
    }
    if (rank == 0) {
        add(enter, open_id, STORE_MANIFEST, 0);
    }
    enter_submit(enter);
}
