/* SPDX-License-Identifier: Apache-2.0
 *
 * Field helpers of the message codecs. Invariants: nothing from a peer is believed before its
 * length, range and text were checked; a failure names message and field. Pure; any thread.
 */
#include "codec_private.h"

#include <string.h>

void enc_pack(struct enc *enc, const ProtobufCMessage *message)
{
    if (enc->status != 0) {
        return;
    }
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = scratch_alloc(enc->scratch, bytes);
    if (packed == NULL) {
        enc->status = CAIRN_E_NO_MEMORY;
        return;
    }
    size_t written = protobuf_c_message_pack(message, packed);
    CHECK(written == bytes);
    buf_put(enc->buf, bytes, packed);
}

void *enc_array(struct enc *enc, size_t count, size_t size)
{
    if (count == 0 || enc->status != 0) {
        return NULL;
    }
    void *array = scratch_array(enc->scratch, count, size);
    if (array == NULL) {
        enc->status = CAIRN_E_NO_MEMORY;
    }
    return array;
}

ProtobufCBinaryData enc_bytes(size_t bytes, const void *data)
{
    /* protobuf-c only reads what it packs. */
    return (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *)(uintptr_t)data};
}

ProtobufCBinaryData enc_name(const char *text)
{
    return text == NULL ? enc_bytes(0, NULL) : enc_bytes(strlen(text), text);
}

/* Returns the bytes of the UTF-8 character that text starts with, or 0 if there is none. */
static size_t character_bytes(const char *text, size_t left)
{
    for (size_t bytes = 1; bytes <= 4 && bytes <= left; bytes++) {
        if (text_is_valid(bytes, text, bytes)) {
            return bytes;
        }
    }
    return 0;
}

ProtobufCBinaryData enc_text(struct enc *enc, const char *text)
{
    if (text == NULL || text[0] == '\0') {
        return enc_bytes(0, NULL);
    }
    size_t bytes = strnlen(text, WIRE_TEXT_BYTES);
    if (text_is_valid(bytes, text, WIRE_TEXT_BYTES)) {
        return enc_bytes(bytes, text);
    }
    char *copy = enc_array(enc, bytes, 1);
    if (copy == NULL) {
        return enc_bytes(0, NULL);
    }
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        size_t step = character_bytes(text + at, bytes - at);
        if (step == 0) {
            copy[used++] = '?';
            at++;
            continue;
        }
        memcpy(copy + used, text + at, step);
        used += step;
        at += step;
    }
    return enc_bytes(used, copy);
}

Cairn__CkptId *enc_ckpt(struct ckpt_id id, Cairn__CkptId *store)
{
    cairn__ckpt_id__init(store);
    store->term = id.term;
    store->step = id.step;
    return id.term == 0 && id.step == 0 ? NULL : store;
}

Cairn__ObjectId *enc_object(const struct object_id *id, Cairn__ObjectId *store)
{
    cairn__object_id__init(store);
    store->term = id->term;
    store->step = id->step;
    store->writer = id->writer;
    store->rank = id->rank;
    store->sequence = id->sequence;
    return store;
}

Cairn__RunName *enc_run(const struct run_name *run, Cairn__RunName *store)
{
    cairn__run_name__init(store);
    store->project = enc_name(run->project);
    store->run = enc_name(run->run);
    return store;
}

void dec_fail(struct dec *dec, const char *field, const char *why)
{
    if (dec->status == 0) {
        dec->status = diag_set(dec->diag, CAIRN_E_PROTOCOL, "%s.%s: %s", dec->name, field, why);
    }
}

void dec_range(struct dec *dec, const char *field, uint64_t value, uint64_t least, uint64_t most)
{
    if (dec->status == 0 && (value < least || value > most)) {
        dec->status = diag_set(dec->diag, CAIRN_E_PROTOCOL, "%s.%s is %llu; it may be %llu to %llu",
                               dec->name, field, (unsigned long long)value,
                               (unsigned long long)least, (unsigned long long)most);
    }
}

/* Sets TOO_LARGE if the message needs more than its scratch may take, else NO_MEMORY. */
static void no_memory(struct dec *dec, const char *field, size_t bytes)
{
    if (dec->status != 0) {
        return;
    }
    if (bytes > dec->scratch->max - dec->scratch->used) {
        dec->status =
            diag_set(dec->diag, CAIRN_E_TOO_LARGE,
                     "%s.%s needs more memory than one message may take", dec->name, field);
    } else {
        dec->status =
            diag_set(dec->diag, CAIRN_E_NO_MEMORY, "no memory for %s.%s", dec->name, field);
    }
}

void *dec_array(struct dec *dec, const char *field, size_t count, size_t size, size_t most)
{
    if (dec->status == 0 && count > most) {
        dec->status =
            diag_set(dec->diag, CAIRN_E_TOO_LARGE, "%s.%s has %zu entries; the limit is %zu",
                     dec->name, field, count, most);
    }
    if (dec->status != 0) {
        return NULL;
    }
    void *array = scratch_array(dec->scratch, count, size);
    if (array == NULL) {
        no_memory(dec, field, count * size);
    }
    return array;
}

const char *dec_name(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t least,
                     size_t most)
{
    if (dec->status != 0) {
        return "";
    }
    if (data.len < least || data.len > most) {
        dec->status =
            diag_set(dec->diag, CAIRN_E_PROTOCOL, "%s.%s has %zu bytes; it may have %zu to %zu",
                     dec->name, field, data.len, least, most);
        return "";
    }
    if (data.len == 0) {
        return "";
    }
    if (!text_is_valid(data.len, (const char *)data.data, most)) {
        dec_fail(dec, field, "not UTF-8 text, or it holds a NUL");
        return "";
    }
    const char *text = scratch_string(dec->scratch, data.len, data.data);
    if (text == NULL) {
        no_memory(dec, field, data.len + 1);
        return "";
    }
    return text;
}

const char *dec_text(struct dec *dec, const char *field, ProtobufCBinaryData data)
{
    return dec_name(dec, field, data, 0, WIRE_TEXT_BYTES);
}

void dec_fixed(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t bytes,
               void *ret)
{
    if (dec->status == 0 && data.len != bytes) {
        dec->status = diag_set(dec->diag, CAIRN_E_PROTOCOL, "%s.%s has %zu bytes instead of %zu",
                               dec->name, field, data.len, bytes);
    }
    if (dec->status == 0) {
        memcpy(ret, data.data, bytes);
    }
}

struct ckpt_id dec_ckpt(struct dec *dec, const char *field, const Cairn__CkptId *id,
                        enum dec_need need)
{
    struct ckpt_id ret = {0};
    if (id != NULL) {
        ret = (struct ckpt_id){id->term, id->step};
    }
    if (need == DEC_REQUIRED && ret.term == 0) {
        dec_fail(dec, field, "no checkpoint is named (terms start at 1)");
    }
    return ret;
}

struct object_id dec_object(struct dec *dec, const Cairn__ObjectId *id)
{
    if (id == NULL) {
        dec_fail(dec, "object", "missing");
        return (struct object_id){0};
    }
    dec_range(dec, "object.term", id->term, 1, UINT64_MAX);
    dec_range(dec, "object.rank", id->rank, 0, LIMIT_WORLD_SIZE - 1);
    return (struct object_id){id->term, id->step, id->writer, id->rank, id->sequence};
}

struct run_name dec_run(struct dec *dec, const char *field, const Cairn__RunName *run)
{
    struct run_name ret = {{0}, {0}};
    if (run == NULL) {
        dec_fail(dec, field, "missing");
        return ret;
    }
    const char *project = dec_name(dec, field, run->project, 1, LIMIT_RUN_NAME_BYTES);
    const char *name = dec_name(dec, field, run->run, 1, LIMIT_RUN_NAME_BYTES);
    if (dec->status == 0) {
        dec->status = run_name_set(project, name, &ret, dec->diag);
        if (dec->status != 0) {
            diag_add(dec->diag, "%s.%s", dec->name, field);
        }
    }
    return ret;
}

int32_t dec_code(struct dec *dec, int32_t code, enum dec_need need)
{
    if (code > 0 || (need == DEC_REQUIRED && code == 0)) {
        dec_fail(dec, "code", "not the number of an error");
    }
    return code;
}
