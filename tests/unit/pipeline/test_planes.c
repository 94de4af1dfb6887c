/* SPDX-License-Identifier: Apache-2.0
 *
 * The split into planes is what FORMAT.md says, every bit pattern comes back, and stored planes
 * that cannot be are refused without a byte read or written beyond their memory. Method: each
 * buffer is exactly as large as it was said to be.
 */
#include "pipeline/planes.h"

#include "base/buf.h"
#include "base/check.h"
#include "chunk_fixtures.h"
#include "format/ids.h"
#include "plain_data.h"
#include "support/unit_test.h"

static const struct planes_shape shapes[] = {{1, false}, {2, false}, {2, true}, {4, false},
                                             {4, true},  {8, false}, {8, true}};

static uint8_t *new_bytes(size_t bytes) /* malloc(0) may be NULL */
{
    uint8_t *data = malloc(bytes ? bytes : 1);
    assert_non_null(data);
    return data;
}

static uint8_t *new_copy(size_t bytes, const void *from)
{
    uint8_t *data = new_bytes(bytes);
    memcpy(data, from, bytes);
    return data;
}

/* Bit b of an element, counted from the lowest; rotation by the definition: bit b goes to b + 1. */
static uint8_t plane_byte(struct planes_shape shape, const uint8_t *element, unsigned plane)
{
    unsigned bits = 8u * shape.width;
    uint8_t byte = 0;
    for (unsigned i = 0; i < 8; i++) {
        unsigned from = (8 * plane + i + bits - (shape.rotate ? 1 : 0)) % bits;
        byte |= (uint8_t)((element[from / 8] >> (from % 8) & 1) << i);
    }
    return byte;
}

static void check_split(struct planes_shape shape, size_t elements, const uint8_t *plain)
{
    const size_t bytes = elements * shape.width;
    uint8_t *planes = new_bytes(bytes), *back = new_bytes(bytes);
    const uint8_t *pointers[PLANES_WIDTH_MAX] = {NULL};
    planes_split(shape, elements, plain, planes);
    for (unsigned plane = 0; plane < shape.width; plane++) {
        pointers[plane] = planes + plane * elements;
        for (size_t i = 0; i < elements; i++) {
            assert_int_equal(pointers[plane][i], plane_byte(shape, plain + i * shape.width, plane));
        }
    }
    planes_join(shape, elements, pointers, back);
    assert_memory_equal(back, plain, bytes);
    free(planes);
    free(back);
}

/* Goal: both the fast and the portable form cut as defined, at every alignment and remainder. */
TEST(the_split_is_the_defined_one_and_reversible)
{
    uint8_t plain[8 * 101 + 1];
    plain_fill(PLAIN_RANDOM, 8, sizeof plain, plain);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        for (size_t elements = 0; elements <= 100; elements++) {
            check_split(shapes[i], elements, plain + elements % 2);
        }
    }
}

/* Goal: no pattern is lost. Method: all of 16 bits; NaN payloads and signs of the wider ones. */
TEST(every_pattern_comes_back)
{
    uint16_t *all = (uint16_t *)(void *)new_bytes(sizeof *all << 16);
    uint8_t special[4096];
    for (uint32_t i = 0; i < 1u << 16; i++) {
        all[i] = (uint16_t)i;
    }
    check_split((struct planes_shape){2, true}, 1u << 16, (const uint8_t *)all);
    check_split((struct planes_shape){2, false}, 1u << 16, (const uint8_t *)all);
    for (unsigned width = 4; width <= 8; width += 4) {
        plain_fill(PLAIN_SPECIAL, width, sizeof special, special);
        check_split((struct planes_shape){(uint8_t)width, true}, sizeof special / width, special);
    }
    free(all);
}

TEST(dtypes_have_their_shapes)
{
    for (uint32_t dtype = 0; dtype < 64; dtype++) {
        struct planes_shape shape = planes_shape_of_dtype(dtype);
        uint32_t bits = dtype_bits(dtype);
        bool is_complex = dtype == CAIRN_C32 || dtype == CAIRN_C64 || dtype == CAIRN_C128;
        assert_int_equal(shape.width * 8u, bits == 0 ? 8 : is_complex ? bits / 2 : bits);
        assert_int_equal(shape.rotate, is_complex || dtype == CAIRN_F16 || dtype == CAIRN_BF16 ||
                                           dtype == CAIRN_F32 || dtype == CAIRN_F64);
    }
}

struct stored {
    uint8_t *plain, *data; /* exactly plain_bytes and bytes */
    size_t plain_bytes, bytes;
};

static struct stored encoded(enum plain_kind kind, struct planes_shape shape, size_t bytes)
{
    struct zstd_encoder *encoder = zstd_encoder_new();
    struct stored stored = {.plain = new_bytes(bytes), .plain_bytes = bytes};
    uint8_t *scratch = new_bytes(bytes), *large = new_bytes(bytes + 64);
    struct zstd_room room = {.data = large, .cap = bytes + 64};
    plain_fill(kind, shape.width, bytes, stored.plain);
    const struct planes_plain plain = {.bytes = bytes, .data = stored.plain, .shape = shape};
    assert_int_equal(planes_encode(encoder, &plain, scratch, &room), 0);
    stored.bytes = room.bytes;
    stored.data = new_copy(room.bytes, large);
    free(scratch);
    free(large);
    zstd_encoder_free(encoder);
    return stored;
}

static void stored_free(struct stored *stored)
{
    free(stored->plain);
    free(stored->data);
}

/* Decodes with memory of exactly the sizes; tells whether the plain bytes came out. */
static int decode(const struct stored *stored, bool *ret_same)
{
    uint8_t *data = new_copy(stored->bytes, stored->data);
    uint8_t *scratch = new_bytes(stored->plain_bytes), *back = new_bytes(stored->plain_bytes);
    const struct planes_stored planes = {stored->bytes, data, stored->plain_bytes};
    struct diag diag = DIAG_INIT;
    int rc = planes_decode(&planes, scratch, back, &diag);
    assert_int_equal(diag.code, rc);
    *ret_same = rc == 0 && memcmp(back, stored->plain, stored->plain_bytes) == 0;
    free(data);
    free(scratch);
    free(back);
    return rc;
}

static void assert_refused(const struct stored *stored)
{
    bool same;
    assert_int_equal(decode(stored, &same), CAIRN_E_FORMAT);
}

TEST(planes_come_back_for_all_kinds_and_sizes)
{
    static const size_t sizes[] = {1,  2,    3,     7,     8,     9,     15,      16,
                                   17, 1000, 65535, 65536, 65537, 65543, 4194303, 4194304};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
            for (int kind = 0; kind < PLAIN_KINDS; kind++) {
                if (sizes[s] > 65543 && kind != PLAIN_WEIGHTS) {
                    continue;
                }
                bool same;
                struct stored stored = encoded((enum plain_kind)kind, shapes[i], sizes[s]);
                assert_int_equal(decode(&stored, &same), 0);
                assert_true(same);
                stored_free(&stored);
            }
        }
    }
}

/* Goal: TOO_LARGE and no byte beyond the room, for every smaller room. */
TEST(every_smaller_room_is_too_small)
{
    struct stored stored = encoded(PLAIN_WEIGHTS, (struct planes_shape){2, true}, 2001);
    const struct planes_plain plain = {
        .bytes = 2001, .data = stored.plain, .shape = {.width = 2, .rotate = true}};
    struct zstd_encoder *encoder = zstd_encoder_new();
    uint8_t *scratch = new_bytes(2001);
    for (size_t cap = 0; cap < stored.bytes; cap++) {
        uint8_t *data = new_bytes(cap);
        struct zstd_room room = {.data = data, .cap = cap};
        assert_int_equal(planes_encode(encoder, &plain, scratch, &room), CAIRN_E_TOO_LARGE);
        free(data);
    }
    free(scratch);
    zstd_encoder_free(encoder);
    stored_free(&stored);
}

TEST(what_is_cut_or_longer_is_refused)
{
    struct stored stored = encoded(PLAIN_WEIGHTS, (struct planes_shape){4, true}, 4003);
    struct stored other = stored;
    for (other.bytes = 0; other.bytes < stored.bytes; other.bytes++) {
        assert_refused(&other);
    }
    other.data = new_bytes(stored.bytes + 1);
    memcpy(other.data, stored.data, stored.bytes);
    other.data[stored.bytes] = 0;
    other.bytes = stored.bytes + 1;
    assert_refused(&other);
    free(other.data);
    other = stored;
    for (size_t plain_bytes = 1; plain_bytes < 4100; plain_bytes += 3) {
        other.plain_bytes = plain_bytes;
        if (plain_bytes != stored.plain_bytes) {
            assert_refused(&other);
        }
    }
    stored_free(&stored);
}

/* Goal: each field of the header is checked. Method: a table of changes, each refused. */
TEST(impossible_headers_are_refused)
{
    static const struct {
        unsigned at;
        uint8_t value;
    } changes[] = {{0, 0},  {0, 3}, {0, 16}, {0, 1},   {0, 4},  {0, 8},   {1, 2}, {1, 255},
                   {2, 1},  {3, 1}, {7, 1},  {7, 2},   {7, 3},  {7, 255}, {4, 0}, {6, 255},
                   {11, 0}, {8, 0}, {8, 1},  {10, 64}, {11, 2}, {11, 3},  {9, 0}};
    struct stored stored = encoded(PLAIN_WEIGHTS, (struct planes_shape){2, true}, 20000);
    assert_true(stored.bytes > 11);
    assert_int_equal(stored.data[7], 0);  /* plane 0: raw */
    assert_int_equal(stored.data[11], 1); /* plane 1: zstd */
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        uint8_t was = stored.data[changes[i].at];
        stored.data[changes[i].at] = changes[i].value;
        assert_int_not_equal(was, changes[i].value);
        assert_refused(&stored);
        stored.data[changes[i].at] = was;
    }
    stored_free(&stored);
}

/* Goal: constants need a byte, but no chunk goes above the ratio, and the filling is checked. */
TEST(zeros_are_stored_at_the_ratio_and_no_further)
{
    struct stored stored = encoded(PLAIN_ZEROS, (struct planes_shape){4, true}, 1 << 20);
    assert_int_equal(stored.bytes, (1 << 20) / ZSTD_RATIO_MAX + 1);
    stored.bytes--;
    assert_refused(&stored);
    stored.bytes = 24; /* nothing is missing but the zeros */
    assert_refused(&stored);
    stored.bytes = (1 << 20) / ZSTD_RATIO_MAX + 1;
    for (size_t at = 20; at < stored.bytes; at++) { /* 16 + 4 of header, 4 fills, then zeros */
        if (at >= 24) {
            stored.data[at] = 1;
            assert_refused(&stored);
            stored.data[at] = 0;
        }
    }
    stored_free(&stored);
}

/* Goal: a hostile plane's frame is held to its plane. Method: frames of other lengths, with a
 * dictionary id, a large window, two frames, and none, in a plane that says zstd. */
TEST(hostile_frames_are_refused)
{
    enum { ELEMENTS = 5000, CAP = 6000 };
    uint8_t *plane = calloc(1, ELEMENTS + 1), data[CAP] = {1};
    plain_fill(PLAIN_RUNS, 1, ELEMENTS + 1, plane);
    for (size_t plain_bytes = ELEMENTS - 1; plain_bytes <= ELEMENTS + 1; plain_bytes++) {
        struct zstd_room room = {.data = data + 8, .cap = CAP - 8};
        struct stored stored = {.plain = plane, .plain_bytes = ELEMENTS, .data = data};
        bool same;
        assert_int_equal(chunk_fixture_zstd(1, plain_bytes, plane, &room), 0);
        store_u32(data + 4, (uint32_t)room.bytes | 1u << 24);
        stored.bytes = 8 + room.bytes;
        assert_int_equal(decode(&stored, &same), plain_bytes == ELEMENTS ? 0 : CAIRN_E_FORMAT);
        data[8 + 4] |= 3; /* a dictionary id follows */
        assert_refused(&stored);
        data[8 + 4] &= 0xfc;
        data[8 + 4] = (uint8_t)(data[8 + 4] & ~0x20); /* not a single segment: a window byte */
        data[8 + 5] = 0xf8;
        assert_refused(&stored);
        memset(data + 8, 0x5a, room.bytes);
        assert_refused(&stored);
    }
    free(plane);
}

/* A chunk of one plane in one hand-made frame: a run of 5000 bytes, with the window, dictionary id
 * and trailing bytes that are asked for. Returns what the decoder says. */
static int decode_made(unsigned window_log, uint8_t dictionary, size_t trailing, struct diag *diag)
{
    enum { ELEMENTS = 5000, AT = 8 };
    uint8_t data[64] = {1, 0, 0, 0, 0, 0, 0, 0, 0x28, 0xb5, 0x2f, 0xfd}, *stored;
    static const uint8_t skippable[8] = {0x50, 0x2a, 0x4d, 0x18};
    uint8_t *scratch = new_bytes(ELEMENTS), *back = new_bytes(ELEMENTS);
    size_t at = AT + 4;
    data[at++] = dictionary ? 0x81 : 0x80; /* content size of 4 bytes, a window, an id of 1 byte */
    data[at++] = (uint8_t)((window_log - 10) << 3);
    if (dictionary) {
        data[at++] = dictionary;
    }
    store_u32(data + at, ELEMENTS);
    store_u32(data + at + 4, ELEMENTS << 3 | 1 << 1 | 1); /* the last block, a run; 3 bytes */
    data[at + 7] = 0x42;
    at += 8;
    memcpy(data + at, skippable, trailing);
    at += trailing;
    store_u32(data + 4, (uint32_t)(at - AT) | 1u << 24);
    stored = new_copy(at, data);
    const struct planes_stored planes = {at, stored, ELEMENTS};
    int rc = planes_decode(&planes, scratch, back, diag);
    if (rc == 0) {
        assert_true(back[0] == 0x42 && back[ELEMENTS - 1] == 0x42);
    }
    free(stored);
    free(scratch);
    free(back);
    return rc;
}

/* Goal: what libzstd alone would take is refused too, for its own reason. */
TEST(windows_dictionaries_and_second_frames_are_refused)
{
    static const struct {
        unsigned window_log;
        uint8_t dictionary;
        size_t trailing;
        const char *why;
    } cases[] = {{24, 0, 0, "window"},
                 {31, 0, 0, "window"},
                 {20, 7, 0, "dictionary"},
                 {20, 0, 8, "exactly one"},
                 {20, 0, 3, "exactly one"}};
    assert_int_equal(decode_made(ZSTD_WINDOW_LOG_MAX, 0, 0, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct diag diag = DIAG_INIT;
        int rc = decode_made(cases[i].window_log, cases[i].dictionary, cases[i].trailing, &diag);
        assert_int_equal(rc, CAIRN_E_FORMAT);
        assert_non_null(strstr(diag.text, cases[i].why));
        assert_non_null(strstr(diag.text, "byte plane 0"));
    }
}

/* Goal: no change of stored bytes can crash. Method: each byte flipped, then many bytes at random;
 * raw bytes may change the values (digests are for that), lengths never. */
TEST(changed_planes_never_crash)
{
    uint64_t seed = 4711;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct stored stored = encoded(PLAIN_INTS, shapes[i], 1501);
        uint8_t *good = new_copy(stored.bytes, stored.data);
        for (size_t round = 0; round < stored.bytes + 1500; round++) {
            bool same;
            unsigned changes = round < stored.bytes ? 0 : 1 + (unsigned)(plain_random(&seed) % 6);
            if (round < stored.bytes) {
                stored.data[round] ^= (uint8_t)(1u << (round % 8));
            }
            for (unsigned c = 0; c < changes; c++) {
                size_t span = plain_random(&seed) % 2 ? 40 : stored.bytes;
                stored.data[plain_random(&seed) % span] = (uint8_t)plain_random(&seed);
            }
            int rc = decode(&stored, &same);
            assert_true(rc == 0 || rc == CAIRN_E_FORMAT);
            memcpy(stored.data, good, stored.bytes);
        }
        free(good);
        stored_free(&stored);
    }
}
