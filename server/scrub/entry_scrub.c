/* SPDX-License-Identifier: Apache-2.0
 *
 * entry_scrub: see entry_scrub.h.
 */
#include "entry_scrub.h"

#include <string.h>

#include "base/buf.h"
#include "base/check.h"

enum { SCRUB_VERSION = 1 };

void entry_scrub_encode(const struct entry_scrub *entry, struct buf *buf)
{
    size_t project = strlen(entry->run.project), run = strlen(entry->run.run);
    CHECK(project <= LIMIT_RUN_NAME_BYTES);
    CHECK(run <= LIMIT_RUN_NAME_BYTES);
    buf_put_u8(buf, SCRUB_VERSION);
    buf_put_u64(buf, entry->pass);
    buf_put_u32(buf, entry->state);
    buf_put_u64(buf, (uint64_t)entry->begun_wall_ns);
    buf_put_u64(buf, (uint64_t)entry->ended_wall_ns);
    buf_put_u64(buf, entry->seq);
    buf_put_u32(buf, entry->rank);
    buf_put_u32(buf, entry->objects);
    buf_put_u32(buf, entry->found);
    buf_put_u64(buf, entry->bytes);
    buf_put_u64(buf, entry->ckpts);
    buf_put_u64(buf, entry->findings);
    buf_put_u8(buf, (uint8_t)project);
    buf_put_u8(buf, (uint8_t)run);
    buf_put(buf, project, entry->run.project);
    buf_put(buf, run, entry->run.run);
}

static bool take_name(struct cur *cur, char *ret, size_t bytes)
{
    const uint8_t *text = cur_bytes(cur, bytes);
    if (!text || bytes > LIMIT_RUN_NAME_BYTES) {
        return false;
    }
    memcpy(ret, text, bytes);
    ret[bytes] = '\0';
    return strlen(ret) == bytes;
}

int entry_scrub_decode(struct record_value value, struct entry_scrub *ret, struct diag *diag)
{
    struct entry_scrub entry;
    struct run_name checked;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    cur_init(&cur, value.bytes, value.data);
    uint8_t version = cur_u8(&cur);
    if (cur.status == 0 && version != SCRUB_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the scrub entry has version %u; this program reads %d", version,
                        SCRUB_VERSION);
    }
    entry.pass = cur_u64(&cur);
    entry.state = cur_u32(&cur);
    entry.begun_wall_ns = (int64_t)cur_u64(&cur);
    entry.ended_wall_ns = (int64_t)cur_u64(&cur);
    entry.seq = cur_u64(&cur);
    entry.rank = cur_u32(&cur);
    entry.objects = cur_u32(&cur);
    entry.found = cur_u32(&cur);
    entry.bytes = cur_u64(&cur);
    entry.ckpts = cur_u64(&cur);
    entry.findings = cur_u64(&cur);
    size_t project = cur_u8(&cur), run = cur_u8(&cur);
    bool good = take_name(&cur, entry.run.project, project) && take_name(&cur, entry.run.run, run);
    if (cur_finish(&cur) != 0 || !good) {
        return diag_set(diag, CAIRN_E_FORMAT, "the scrub entry is broken at offset %zu of %zu",
                        cur.at, cur.bytes);
    }
    bool named = project > 0 || run > 0;
    if (entry.pass == 0 || entry.state < SCRUB_RUNNING || entry.state > SCRUB_ENDED ||
        (named && run_name_set(entry.run.project, entry.run.run, &checked, NULL) != 0)) {
        return diag_set(diag, CAIRN_E_FORMAT, "the scrub entry contradicts itself");
    }
    *ret = entry;
    return 0;
}
