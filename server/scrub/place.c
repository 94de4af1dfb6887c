/* SPDX-License-Identifier: Apache-2.0
 *
 * The position of the pass in the store's record. Every save is guarded by the entry as it was last
 * read or written. If another daemon has moved the entry, that daemon is at work, and this one
 * leaves the pass.
 */
#include "scrub_private.h"

#include "base/buf.h"
#include "base/check.h"

#include <string.h>

static void on_loaded(struct store_req *req);
static void on_saved(struct store_req *req);

void place_load(struct scrub *scrub, void (*then)(struct scrub *scrub))
{
    scrub->step = then;
    scrub->busy = true;
    scrub->req = (struct store_req){
        .op = STORE_RECORD_GET, .deadline_ms = SCRUB_STORE_DEADLINE_MS, .done = on_loaded};
    store_submit(catalog_store(scrub->options.catalog), &scrub->req);
}

/* Takes the entry from the record. An entry that this version cannot read belongs to a newer one,
 * whose pass is not disturbed. */
static int take_entry(struct scrub *scrub, const struct record *record)
{
    struct record_value value;
    scrub->entry = (struct entry_scrub){.state = SCRUB_ENDED};
    scrub->raw_bytes = 0;
    if (!record_get(record, SCRUB_KEY, &value)) {
        return 0;
    }
    if (value.bytes > sizeof(scrub->raw)) {
        return CAIRN_E_UNSUPPORTED;
    }
    int status = entry_scrub_decode(value, &scrub->entry, NULL);
    if (status == 0) {
        memcpy(scrub->raw, value.data, value.bytes);
        scrub->raw_bytes = value.bytes;
    }
    return status;
}

/* Called when the record with the place of the scrubber was read. */
static void on_loaded(struct store_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, req);
    int status = req->status;
    scrub->busy = false;
    if (status == 0) {
        status = take_entry(scrub, req->ret_record);
    }
    record_free(req->ret_record);
    req->ret_record = NULL;
    if (status != 0) {
        scrub->counters.errors_total++;
        scrub_leave(scrub);
        return;
    }
    scrub->step(scrub);
}

void place_save(struct scrub *scrub, void (*then)(struct scrub *scrub))
{
    struct buf buf;
    buf_init(&buf, sizeof(scrub->will));
    entry_scrub_encode(&scrub->entry, &buf);
    CHECK(buf_status(&buf) == 0); /* all its fields are bounded */
    memcpy(scrub->will, buf.data, buf.bytes);
    scrub->will_bytes = buf.bytes;
    buf_fini(&buf);
    scrub->guard = (struct record_guard){
        .key = SCRUB_KEY, .absent = scrub->raw_bytes == 0, .value = {scrub->raw_bytes, scrub->raw}};
    scrub->change =
        (struct record_change){.key = SCRUB_KEY, .value = {scrub->will_bytes, scrub->will}};
    scrub->update = (struct record_update){
        .guard_count = 1, .guards = &scrub->guard, .change_count = 1, .changes = &scrub->change};
    scrub->step = then;
    scrub->moved = false;
    scrub->busy = true;
    scrub->req = (struct store_req){.op = STORE_RECORD_UPDATE,
                                    .update = &scrub->update,
                                    .deadline_ms = SCRUB_STORE_DEADLINE_MS,
                                    .done = on_saved};
    store_submit(catalog_store(scrub->options.catalog), &scrub->req);
}

/* Called when a save was answered. A full or failing disk does not end a scrub: it goes on, and
 * would begin a little earlier after a restart. Only an entry that another daemon has changed ends
 * it. */
static void on_saved(struct store_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, req);
    scrub->busy = false;
    scrub->saved_ms = loop_now_ms(scrub->options.loop);
    if (req->status == CAIRN_E_CONFLICT || req->status == CAIRN_E_OUTCOME_UNKNOWN) {
        scrub_leave(scrub);
        return;
    }
    if (req->status == 0) {
        memcpy(scrub->raw, scrub->will, scrub->will_bytes);
        scrub->raw_bytes = scrub->will_bytes;
    } else {
        scrub->counters.errors_total++;
    }
    scrub->step(scrub);
}

void place_save_sometimes(struct scrub *scrub, void (*then)(struct scrub *scrub))
{
    scrub->moved = true;
    uint64_t every = scrub->options.save_ms > 0 ? scrub->options.save_ms : SCRUB_SAVE_MS;
    if (loop_now_ms(scrub->options.loop) - scrub->saved_ms >= every) {
        place_save(scrub, then);
    } else {
        scrub_later(scrub, 0, then);
    }
}
