/* SPDX-License-Identifier: Apache-2.0
 *
 * A streamed copy copies exactly what memcpy would, whatever the alignment and the length, and
 * touches nothing around it.
 */
#include "arena/streamed.h"

#include "support/unit_test.h"

enum { ROOM_BYTES = 300 << 10, MARGIN_BYTES = 256, UNTOUCHED = 0xa5 };

TEST(copies_exactly)
{
    static const size_t lengths[] = {
        0, 1, 63, 64, 65535, 65536, 65537, 65599, 64 * 1024 + 64, 256 << 10};
    uint8_t *from = malloc(ROOM_BYTES), *to = malloc(ROOM_BYTES), *wanted = malloc(ROOM_BYTES);
    assert_true(from && to && wanted);
    for (size_t i = 0; i < ROOM_BYTES; i++) {
        from[i] = (uint8_t)(i * 2654435761u >> 11);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (size_t shift = 0; shift < 130; shift += 13) {
            memset(to, UNTOUCHED, ROOM_BYTES);
            memset(wanted, UNTOUCHED, ROOM_BYTES);
            memcpy(wanted + MARGIN_BYTES + shift, from + shift / 2, lengths[i]);
            streamed_copy(to + MARGIN_BYTES + shift, from + shift / 2, lengths[i]);
            assert_memory_equal(to, wanted, ROOM_BYTES);
        }
    }
    free(wanted);
    free(to);
    free(from);
}
