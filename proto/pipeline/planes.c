/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte planes, each stored as it is, as one byte that repeats, or as one zstd frame. A decoder
 * knows the length of each plane before it looks at it, and every stored byte has its place: planes
 * that are longer, shorter or of an unknown kind are refused. Pure; any thread.
 */
#include "planes.h"

#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "format/ids.h"

/* 0 width u8   1 transform u8   2 zero u16   4 per plane, u32: bytes in bits 0..23, kind above
 * Then the planes, what is left over of the last element, and zeros up to the least length. */
enum { HEADER_BYTES = 4, ENTRY_BYTES = 4, ENTRY_KIND_SHIFT = 24, ENTRY_BYTES_MASK = 0xffffff };
enum transform { TRANSFORM_NONE = 0, TRANSFORM_ROTATE = 1 };
enum plane_kind { PLANE_RAW = 0, PLANE_ZSTD = 1, PLANE_FILL = 2 };

/* A frame that saves less than this part of its plane is not worth decoding. */
enum { PLANE_GAIN_MIN = 64 };

struct planes_shape planes_shape_of_dtype(uint32_t dtype)
{
    switch (dtype) {
    case CAIRN_F16:
    case CAIRN_BF16:
    case CAIRN_C32:
        return (struct planes_shape){.width = 2, .rotate = true};
    case CAIRN_F32:
    case CAIRN_C64:
        return (struct planes_shape){.width = 4, .rotate = true};
    case CAIRN_F64:
    case CAIRN_C128:
        return (struct planes_shape){.width = 8, .rotate = true};
    case CAIRN_U16:
    case CAIRN_I16:
        return (struct planes_shape){.width = 2};
    case CAIRN_U32:
    case CAIRN_I32:
        return (struct planes_shape){.width = 4};
    case CAIRN_U64:
    case CAIRN_I64:
        return (struct planes_shape){.width = 8};
    default:
        return (struct planes_shape){.width = 1};
    }
}

/* Writing */

struct out {
    uint8_t *data;
    size_t cap, at;
};

static bool out_put(struct out *out, size_t bytes, const void *data)
{
    if (bytes > out->cap - out->at) {
        return false;
    }
    memcpy(out->data + out->at, data, bytes);
    out->at += bytes;
    return true;
}

static bool is_one_byte(size_t bytes, const uint8_t *data)
{
    return bytes > 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* Writes one plane as the shortest kind. The caller writes its kind and length into the header. */
static bool put_plane(struct zstd_encoder *encoder, const struct planes_plain *plain,
                      const uint8_t *plane, struct out *out, enum plane_kind *ret_kind)
{
    const size_t bytes = plain->bytes / plain->shape.width;
    const struct zstd_settings settings = {.level = plain->level, .checksum = false};
    if (is_one_byte(bytes, plane)) {
        *ret_kind = PLANE_FILL;
        return out_put(out, 1, plane);
    }
    size_t worth = bytes - bytes / PLANE_GAIN_MIN;
    struct zstd_room room = {.data = out->data + out->at, .cap = out->cap - out->at};
    room.cap = room.cap < worth ? room.cap : worth;
    if (bytes > 0 && zstd_encoder_run(encoder, &settings, bytes, plane, &room) == 0 &&
        room.bytes < bytes) {
        *ret_kind = PLANE_ZSTD;
        out->at += room.bytes;
        return true;
    }
    *ret_kind = PLANE_RAW;
    return out_put(out, bytes, plane);
}

static bool pad(struct out *out, size_t bytes_min)
{
    if (out->at >= bytes_min) {
        return true;
    }
    if (bytes_min > out->cap) {
        return false;
    }
    memset(out->data + out->at, 0, bytes_min - out->at);
    out->at = bytes_min;
    return true;
}

int planes_encode(struct zstd_encoder *encoder, const struct planes_plain *plain, uint8_t *scratch,
                  struct zstd_room *io)
{
    const unsigned width = plain->shape.width;
    const size_t elements = plain->bytes / width, left_over = plain->bytes % width;
    const uint8_t *planes = width == 1 ? plain->data : scratch;
    struct out out = {.data = io->data, .cap = io->cap, .at = HEADER_BYTES + ENTRY_BYTES * width};
    CHECK(plain->bytes > 0);
    CHECK(plain->bytes <= ENTRY_BYTES_MASK);
    if (out.at > out.cap) {
        return CAIRN_E_TOO_LARGE;
    }
    memset(out.data, 0, out.at);
    out.data[0] = plain->shape.width;
    out.data[1] = plain->shape.rotate ? TRANSFORM_ROTATE : TRANSFORM_NONE;
    if (width > 1) {
        planes_split(plain->shape, elements, plain->data, scratch);
    }
    for (unsigned i = 0; i < width; i++) {
        size_t before = out.at;
        enum plane_kind kind;
        if (!put_plane(encoder, plain, planes + i * elements, &out, &kind)) {
            return CAIRN_E_TOO_LARGE;
        }
        store_u32(out.data + HEADER_BYTES + (size_t)i * ENTRY_BYTES,
                  (uint32_t)(out.at - before) | (uint32_t)kind << ENTRY_KIND_SHIFT);
    }
    if (!out_put(&out, left_over, plain->data + plain->bytes - left_over) ||
        !pad(&out, zstd_stored_bytes_min(plain->bytes))) {
        return CAIRN_E_TOO_LARGE;
    }
    io->bytes = out.at;
    return 0;
}

/* Reading */

/* Reads width, transform and length of each plane, and refuses what cannot be. */
static int read_header(const struct planes_stored *stored, struct planes_shape *ret,
                       struct diag *diag)
{
    if (stored->bytes < zstd_stored_bytes_min(stored->plain_bytes)) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "%zu stored bytes cannot hold %zu plain ones: the ratio is above %d:1",
                        stored->bytes, stored->plain_bytes, ZSTD_RATIO_MAX);
    }
    if (stored->bytes < HEADER_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "the byte planes of %zu stored bytes are cut off",
                        stored->bytes);
    }
    const uint8_t *data = stored->data;
    unsigned width = data[0];
    if (width != 1 && width != 2 && width != 4 && width != 8) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the byte planes have width %u; only 1, 2, 4 and 8 are possible", width);
    }
    if (data[1] > TRANSFORM_ROTATE || (data[1] == TRANSFORM_ROTATE && width == 1) || data[2] != 0 ||
        data[3] != 0) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the byte planes of width %u have transform %u and reserved bytes "
                        "%02x%02x, which this version does not know",
                        width, data[1], data[2], data[3]);
    }
    if (stored->bytes < HEADER_BYTES + ENTRY_BYTES * width) {
        return diag_set(diag, CAIRN_E_FORMAT, "the byte planes of %zu stored bytes are cut off",
                        stored->bytes);
    }
    *ret = (struct planes_shape){.width = (uint8_t)width, .rotate = data[1] == TRANSFORM_ROTATE};
    return 0;
}

struct plane {
    unsigned idx, kind;
    size_t stored_bytes, plain_bytes;
    const uint8_t *data;
};

/* Returns an error if the plane's stored length is impossible. Its bytes are all there. */
static int check_plane(const struct plane *plane, struct diag *diag)
{
    bool good = false;
    switch (plane->kind) {
    case PLANE_RAW:
        good = plane->stored_bytes == plane->plain_bytes;
        break;
    case PLANE_ZSTD:
        good = plane->stored_bytes > 0 && plane->stored_bytes < plane->plain_bytes;
        break;
    case PLANE_FILL:
        good = plane->stored_bytes == 1 && plane->plain_bytes > 0;
        break;
    default:
        return diag_set(diag, CAIRN_E_FORMAT, "byte plane %u has kind %u; only 0 to %d are known",
                        plane->idx, plane->kind, PLANE_FILL);
    }
    if (!good) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "byte plane %u of kind %u cannot have %zu stored bytes for %zu plain ones",
                        plane->idx, plane->kind, plane->stored_bytes, plane->plain_bytes);
    }
    return 0;
}

/* Gives the plane's plain bytes: where they are stored, or in room. */
static int open_plane(const struct plane *plane, uint8_t *room, const uint8_t **ret,
                      struct diag *diag)
{
    int rc = check_plane(plane, diag);
    if (rc != 0) {
        return rc;
    }
    if (plane->kind == PLANE_RAW) {
        *ret = plane->data;
        return 0;
    }
    if (plane->kind == PLANE_FILL) {
        memset(room, plane->data[0], plane->plain_bytes);
    } else {
        rc = zstd_decode_inner(plane->stored_bytes, plane->data, plane->plain_bytes, room, diag);
    }
    if (rc != 0) {
        diag_add(diag, "byte plane %u", plane->idx);
        return rc;
    }
    *ret = room;
    return 0;
}

/* Reads what follows the planes: the rest of the last element, then zeros, which are there only if
 * the chunk would otherwise exceed the ratio. */
static int read_tail(const struct planes_stored *stored, size_t at, size_t left_over,
                     uint8_t *ret_plain, struct diag *diag)
{
    size_t end = at + left_over;
    if (end > stored->bytes ||
        (end < stored->bytes && stored->bytes != zstd_stored_bytes_min(stored->plain_bytes))) {
        return diag_set(diag, CAIRN_E_FORMAT, "the byte planes end at %zu of %zu stored bytes", end,
                        stored->bytes);
    }
    for (size_t i = end; i < stored->bytes; i++) {
        if (stored->data[i] != 0) {
            return diag_set(diag, CAIRN_E_FORMAT,
                            "byte %zu after the byte planes is %02x instead of zero", i,
                            stored->data[i]);
        }
    }
    memcpy(ret_plain + stored->plain_bytes - left_over, stored->data + at, left_over);
    return 0;
}

int planes_decode(const struct planes_stored *stored, uint8_t *scratch, void *ret_plain,
                  struct diag *diag)
{
    const uint8_t *planes[PLANES_WIDTH_MAX] = {NULL};
    struct planes_shape shape;
    int rc = read_header(stored, &shape, diag);
    if (rc != 0) {
        return rc;
    }
    const size_t elements = stored->plain_bytes / shape.width;
    size_t at = HEADER_BYTES + (size_t)ENTRY_BYTES * shape.width;
    for (unsigned i = 0; i < shape.width; i++) {
        uint32_t entry = load_u32(stored->data + HEADER_BYTES + (size_t)i * ENTRY_BYTES);
        const struct plane plane = {.idx = i,
                                    .kind = entry >> ENTRY_KIND_SHIFT,
                                    .stored_bytes = entry & ENTRY_BYTES_MASK,
                                    .plain_bytes = elements,
                                    .data = stored->data + at};
        if (plane.stored_bytes > stored->bytes - at) {
            return diag_set(diag, CAIRN_E_FORMAT,
                            "byte plane %u has %zu stored bytes, but only %zu are left", i,
                            plane.stored_bytes, stored->bytes - at);
        }
        rc = open_plane(&plane, scratch + i * elements, &planes[i], diag);
        if (rc != 0) {
            return rc;
        }
        at += plane.stored_bytes;
    }
    rc = read_tail(stored, at, stored->plain_bytes % shape.width, ret_plain, diag);
    if (rc == 0) {
        planes_join(shape, elements, planes, ret_plain);
    }
    return rc;
}
