/* SPDX-License-Identifier: Apache-2.0
 *
 * Field helpers of the message codecs. Invariants: nothing from a peer is believed before its
 * length, range and text were checked; a failure names message and field. Pure; any thread.
 */
#include "codec_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_BYTES = 96, WHY_BYTES = 160 };

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

ProtobufCBinaryData *enc_tags(struct enc *enc, uint32_t count, const char *const *tags,
                              size_t *ret_count)
{
    ProtobufCBinaryData *ret = enc_array(enc, count, sizeof(*ret));
    for (uint32_t i = 0; ret != NULL && i < count; i++) {
        ret[i] = enc_name(tags[i]);
    }
    *ret_count = ret != NULL ? count : 0;
    return ret;
}

/* Writes the full name of a field, such as "STATUS_REPLY.info.health": message, the two parts that
 * it is in, field. */
static void put_place(const struct dec *dec, const char *field, size_t size, char *ret)
{
    const struct dec_part *part = dec->part, *outer = part != NULL ? part->outer : NULL;
    snprintf(ret, size, "%s%s%s%s%s.%s", dec->name, outer != NULL ? "." : "",
             outer != NULL ? outer->field : "", part != NULL ? "." : "",
             part != NULL ? part->field : "", field);
}

void dec_refuse(struct dec *dec, int code, const char *field, const char *fmt, ...)
{
    CHECK(code < 0);
    char place[PLACE_BYTES], why[WHY_BYTES];
    if (dec->status == 0) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(why, sizeof(why), fmt, args);
        va_end(args);
        put_place(dec, field, sizeof(place), place);
        dec->status = diag_set(dec->diag, code, "%s%s", place, why);
    }
}

void dec_take(struct dec *dec, const char *field, int status)
{
    char place[PLACE_BYTES];
    dec->status = status;
    if (status != 0) {
        put_place(dec, field, sizeof(place), place);
        diag_add(dec->diag, "%s", place);
    }
}

void dec_fail(struct dec *dec, const char *field, const char *why)
{
    dec_refuse(dec, CAIRN_E_PROTOCOL, field, ": %s", why);
}

void dec_range(struct dec *dec, const char *field, uint64_t value, uint64_t least, uint64_t most)
{
    if (value < least || value > most) {
        dec_refuse(dec, CAIRN_E_PROTOCOL, field, " is %llu; it may be %llu to %llu",
                   (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
    }
}

/* Sets TOO_LARGE if the message needs more than its scratch may take, else NO_MEMORY. */
static void no_memory(struct dec *dec, const char *field, size_t bytes)
{
    if (bytes > dec->scratch->max - dec->scratch->used) {
        dec_refuse(dec, CAIRN_E_TOO_LARGE, field, " needs more memory than one message may take");
    } else {
        dec_refuse(dec, CAIRN_E_NO_MEMORY, field, ": no memory");
    }
}

void *dec_array(struct dec *dec, const char *field, size_t count, size_t size, size_t most)
{
    if (count > most) {
        dec_refuse(dec, CAIRN_E_TOO_LARGE, field, " has %zu entries; the limit is %zu", count,
                   most);
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
    const char *text = NULL;
    if (data.len < least || data.len > most) {
        dec_refuse(dec, CAIRN_E_PROTOCOL, field, " has %zu bytes; it may have %zu to %zu", data.len,
                   least, most);
    } else if (data.len > 0 && !text_is_valid(data.len, (const char *)data.data, most)) {
        dec_fail(dec, field, "not UTF-8 text, or it holds a NUL");
    }
    if (dec->status == 0 && data.len > 0) {
        text = scratch_string(dec->scratch, data.len, data.data);
        if (text == NULL) {
            no_memory(dec, field, data.len + 1);
        }
    }
    return text != NULL ? text : "";
}

const char *dec_text(struct dec *dec, const char *field, ProtobufCBinaryData data)
{
    return dec_name(dec, field, data, 0, WIRE_TEXT_BYTES);
}

void dec_fixed(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t bytes,
               void *ret)
{
    if (data.len != bytes) {
        dec_refuse(dec, CAIRN_E_PROTOCOL, field, " has %zu bytes instead of %zu", data.len, bytes);
    }
    if (dec->status == 0) {
        memcpy(ret, data.data, bytes);
    }
}

const uint8_t *dec_bytes(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t most)
{
    uint8_t *ret = dec_array(dec, field, data.len, 1, most);
    if (ret == NULL || data.len == 0) {
        return NULL;
    }
    return memcpy(ret, data.data, data.len);
}

const char **dec_tags(struct dec *dec, const char *field, size_t count,
                      const ProtobufCBinaryData *tags)
{
    const char **ret = dec_array(dec, field, count, sizeof(*ret), LIMIT_TAGS);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        ret[i] = dec_name(dec, field, tags[i], 1, LABEL_BYTES_MAX);
    }
    return ret;
}

uint32_t *dec_numbers(struct dec *dec, const char *field, size_t count, const uint32_t *numbers,
                      size_t most)
{
    uint32_t *ret = dec_array(dec, field, count, sizeof(*ret), most);
    if (ret != NULL && count > 0) {
        memcpy(ret, numbers, count * sizeof(*ret));
    }
    return ret;
}

void dec_project(struct dec *dec, const char *project)
{
    struct run_name name;
    if (dec->status == 0 && project != NULL && project[0] != '\0') {
        dec_take(dec, "project", run_name_set(project, "any", &name, dec->diag));
    }
}
