/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch of the message codecs, and the memory budget of decoding. Invariant: unpacking a message
 * of n bytes takes at most 32 n + 64 KiB, whatever the bytes are, because protobuf-c itself has no
 * limits. Pure; any thread.
 */
#include "codec_private.h"

enum { BUDGET_FACTOR = 32, BUDGET_BASE_BYTES = 64 << 10, ENCODE_SCRATCH_BYTES = 64 << 20 };

const char *msg_name(uint32_t type)
{
    const struct msg_codec *codec = msg_codec_of(type);
    return codec != NULL ? codec->name : NULL;
}

bool msg_has_payload(uint32_t type)
{
    const struct msg_codec *codec = msg_codec_of(type);
    return codec != NULL && codec->has_payload;
}

void msg_encode(const struct msg *msg, struct buf *buf)
{
    const struct msg_codec *codec = msg_codec_of((uint32_t)msg->type);
    CHECK(codec != NULL);
    struct scratch scratch;
    scratch_init(&scratch, ENCODE_SCRATCH_BYTES);
    struct enc enc = {.buf = buf, .scratch = &scratch, .status = buf_status(buf)};
    if (codec->encode != NULL) {
        codec->encode(&enc, msg);
    }
    scratch_fini(&scratch);
    if (enc.status != 0) {
        buf->status = enc.status;
    }
}

int msg_check(const struct msg *msg, struct diag *diag)
{
    const struct msg_codec *codec = msg_codec_of((uint32_t)msg->type);
    CHECK(codec != NULL);
    struct dec dec = {.name = codec->name, .diag = diag};
    if (codec->check != NULL) {
        codec->check(&dec, msg);
    }
    return dec.status;
}

/* The allocator for protobuf-c: a scratch whose maximum is the budget; everything is freed at
 * once. */
struct budget {
    struct scratch scratch;
    bool exhausted; /* the budget refused, not the machine */
    bool no_memory;
};

static void *budget_alloc(void *user, size_t bytes)
{
    struct budget *budget = user;
    void *memory = scratch_alloc(&budget->scratch, bytes);
    if (memory == NULL && bytes > budget->scratch.max - budget->scratch.used) {
        budget->exhausted = true;
    } else if (memory == NULL) {
        budget->no_memory = true;
    }
    return memory;
}

static void budget_free(void *user, void *memory)
{
    (void)user;
    (void)memory;
}

int msg_decode(uint32_t type, size_t bytes, const uint8_t *data, struct scratch *scratch,
               struct msg *ret, struct diag *diag)
{
    const struct msg_codec *codec = msg_codec_of(type);
    if (codec == NULL) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "message type %u is not known to this version",
                        type);
    }
    if (bytes > LIMIT_MESSAGE_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "%s has %zu bytes; the limit is %d", codec->name,
                        bytes, LIMIT_MESSAGE_BYTES);
    }
    struct budget budget = {.exhausted = false};
    scratch_init(&budget.scratch, BUDGET_FACTOR * bytes + BUDGET_BASE_BYTES);
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    static const uint8_t nothing[1];
    const ProtobufCMessage *message =
        protobuf_c_message_unpack(codec->descriptor, &allocator, bytes, bytes > 0 ? data : nothing);
    int status;
    if (message != NULL) {
        struct dec dec = {.name = codec->name, .scratch = scratch, .diag = diag};
        struct msg msg = {.type = (enum msg_type)type};
        if (codec->decode != NULL) {
            codec->decode(&dec, message, &msg);
        }
        status = dec.status;
        if (status == 0) {
            *ret = msg;
        }
    } else if (budget.exhausted) {
        status = diag_set(diag, CAIRN_E_TOO_LARGE,
                          "%s of %zu bytes would take more than %zu bytes of memory to decode",
                          codec->name, bytes, budget.scratch.max);
    } else if (budget.no_memory) {
        status = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to decode %s", codec->name);
    } else {
        status = diag_set(diag, CAIRN_E_PROTOCOL, "%s is not a well-formed message", codec->name);
    }
    scratch_fini(&budget.scratch);
    return status;
}

int msg_list_next(const struct msg_list_reply *reply, uint64_t *io_before, struct diag *diag)
{
    CHECK(reply->count == 0 || reply->entries != NULL);
    uint64_t before = *io_before, least = 0;
    for (uint32_t i = 0; i < reply->count; i++) {
        const struct ckpt_info *info = &reply->entries[i];
        if (info->state == CKPT_COMMITTED || info->state == CKPT_FORGOTTEN) {
            least = info->seq;
        }
    }
    *io_before = reply->more ? least : 0;
    if (reply->more && (least <= 1 || (before != 0 && least >= before))) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the server sent the same part of its list of checkpoints again (below "
                        "sequence %llu); upgrade the server",
                        (unsigned long long)before);
    }
    return 0;
}
