/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks what a message says about the payload behind it, before a buffer is taken for that.
 * Invariant: a DATA that has passed has every envelope inside its payload, in order, without
 * overlap. Pure.
 */
#include "wire/msg.h"

#include "base/check.h"
#include "wire/plan.h"

/* Checks that the envelopes follow each other within the payload, and that the payload ends within
 * the largest object. */
static int check_data(const struct msg_data *data, uint32_t payload_bytes, struct diag *diag)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        const struct envelope *envelope = &data->envelopes[i];
        if (envelope->offset < end || envelope->offset > payload_bytes ||
            envelope->stored_bytes > payload_bytes - envelope->offset) {
            return diag_set(
                diag, CAIRN_E_PROTOCOL,
                "DATA.envelopes[%u] covers bytes %llu to %llu: they overlap the one before, or "
                "leave the payload of %u",
                i, (unsigned long long)envelope->offset,
                (unsigned long long)envelope->offset + envelope->stored_bytes, payload_bytes);
        }
        end = envelope->offset + envelope->stored_bytes;
    }
    if (data->offset > (uint64_t)LIMIT_OBJECT_BYTES - payload_bytes) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "DATA ends at byte %llu of its object; the limit is %d",
                        (unsigned long long)data->offset + payload_bytes, LIMIT_OBJECT_BYTES);
    }
    return 0;
}

static int check_run(const char *name, uint64_t offset, uint64_t total, uint32_t payload_bytes,
                     struct diag *diag)
{
    if (payload_bytes > total || offset > total - payload_bytes) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "%s at %llu with %u bytes goes beyond its total of %llu", name,
                        (unsigned long long)offset, payload_bytes, (unsigned long long)total);
    }
    return 0;
}

static int check_exact(const char *name, uint64_t said, uint32_t payload_bytes, struct diag *diag)
{
    if (said != payload_bytes) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s announces %llu bytes and carries %u", name,
                        (unsigned long long)said, payload_bytes);
    }
    return 0;
}

int msg_check_payload(const struct msg *msg, uint32_t payload_bytes, struct diag *diag)
{
    uint32_t type = (uint32_t)msg->type;
    if (!msg_has_payload(type)) {
        return payload_bytes == 0
                   ? 0
                   : diag_set(diag, CAIRN_E_PROTOCOL, "%s carries a payload of %u bytes",
                              msg_name(type), payload_bytes);
    }
    if (type == MSG_PLAN_REPLY) {
        return check_exact("PLAN_REPLY", (uint64_t)msg->u.plan_reply.record_count * PLAN_READ_BYTES,
                           payload_bytes, diag);
    }
    if (type == MSG_READ_REPLY) {
        return check_exact("READ_REPLY", msg->u.read_reply.bytes, payload_bytes, diag);
    }
    if (type == MSG_BYTES) {
        return check_run("BYTES", msg->u.bytes.offset, msg->u.bytes.total_bytes, payload_bytes,
                         diag);
    }
    if (payload_bytes == 0) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s carries no payload", msg_name(type));
    }
    if (type == MSG_PART) {
        return check_run("PART", msg->u.part.offset, msg->u.part.total_bytes, payload_bytes, diag);
    }
    CHECK(type == MSG_DATA);
    return check_data(&msg->u.data, payload_bytes, diag);
}
