/* SPDX-License-Identifier: Apache-2.0
 *
 * The position of the pass in the store's record. Every save is guarded by the entry as it was last
 * read or written. If another daemon has moved the entry, that daemon is at work, and this one
 * leaves the pass. On the pass's thread.
 */
#include "scrub_private.h"

#include "base/buf.h"
#include "base/check.h"

#include <string.h>

/* Takes the entry from the record. An entry that this version cannot read belongs to a newer one,
 * whose pass is not disturbed. */
static int take_entry(struct scrub *scrub, const struct record *record)
{
    struct record_value value;
    scrub->now.entry = (struct entry_scrub){.state = SCRUB_ENDED};
    scrub->raw_bytes = 0;
    if (!record_get(record, SCRUB_KEY, &value)) {
        return 0;
    }
    if (value.bytes > sizeof(scrub->raw)) {
        return CAIRN_E_UNSUPPORTED;
    }
    int status = entry_scrub_decode(value, &scrub->now.entry, NULL);
    if (status == 0) {
        memcpy(scrub->raw, value.data, value.bytes);
        scrub->raw_bytes = value.bytes;
    }
    return status;
}

int position_load(struct scrub *scrub)
{
    struct store_req req = {.op = STORE_RECORD_GET};
    int status = ask_store(&scrub->ask, catalog_store(scrub->options.catalog), &req, NULL);
    if (status == 0) {
        status = take_entry(scrub, req.ret_record);
    }
    record_free(req.ret_record);
    scrub->now.counters.errors_total += status != 0;
    scrub_show(scrub);
    return status;
}

/* A full or failing disk does not end a scrub: it goes on, and would begin a little earlier after a
 * restart. Only an entry that another daemon has changed ends it. */
int position_save(struct scrub *scrub)
{
    struct buf buf;
    struct scrub_moment moment;
    buf_init(&buf, sizeof(scrub->raw));
    entry_scrub_encode(&scrub->now.entry, &buf);
    CHECK(buf_status(&buf) == 0); /* all its fields are bounded */
    struct record_guard guard = {
        .key = SCRUB_KEY, .absent = scrub->raw_bytes == 0, .value = {scrub->raw_bytes, scrub->raw}};
    struct record_change change = {.key = SCRUB_KEY, .value = {buf.bytes, buf.data}};
    struct record_update update = {
        .guard_count = 1, .guards = &guard, .change_count = 1, .changes = &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .update = &update};
    scrub->moved = false;
    int status = ask_store(&scrub->ask, catalog_store(scrub->options.catalog), &req, NULL);
    err_ignore(scrub_ask(scrub, &moment)); /* only the time is wanted */
    scrub->saved_ms = moment.now_ms;
    if (status == 0) {
        memcpy(scrub->raw, buf.data, buf.bytes);
        scrub->raw_bytes = buf.bytes;
    }
    buf_fini(&buf);
    bool is_others = status == CAIRN_E_CONFLICT || status == CAIRN_E_OUTCOME_UNKNOWN;
    scrub->now.counters.errors_total += status != 0 && !is_others;
    scrub_show(scrub);
    return is_others ? status : 0;
}

int position_moved(struct scrub *scrub)
{
    struct scrub_moment moment;
    uint64_t every = scrub->options.save_ms > 0 ? scrub->options.save_ms : SCRUB_SAVE_MS;
    int status = scrub_ask(scrub, &moment);
    scrub->moved = true;
    scrub_show(scrub);
    bool is_due = moment.now_ms - scrub->saved_ms >= every;
    return status != 0 || !is_due ? status : position_save(scrub);
}
