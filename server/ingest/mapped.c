/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped: see mapped.h. Invariant: the memory that mapped_at() and mapped_room() give lies inside a
 * mapping that cannot shrink, and was the client's own memory when it was asked for. A client that
 * punches holes afterwards makes this process pay for the bytes in flight, not for its whole arena.
 * The loop's thread.
 */
#include "ingest/mapped.h"

#include "base/check.h"
#include "env/memfd.h"

#include <stdlib.h>
#include <unistd.h>

struct mapped {
    struct list link;
    uint32_t refs;
    uint64_t arena_id, owner;
    int fd; /* of the mapping, to look for holes */
    struct memfd_map map;
};

static int check_count(const struct list *all, uint64_t owner, struct diag *diag)
{
    unsigned count = 0;
    list_each (node, all) {
        count += list_item(node, struct mapped, link)->owner == owner ? 1 : 0;
    }
    if (count >= MAPPED_PER_OWNER_MAX) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "the daemon is still reading %u arenas of this connection: send the bytes "
                        "through the socket, or hand over the arena later",
                        count);
    }
    return 0;
}

int mapped_new(struct list *all, const struct mapped_offer *offer, struct mapped **ret,
               struct diag *diag)
{
    struct mapped *mapped = NULL;
    int status = check_count(all, offer->owner, diag);
    if (status == 0 && offer->fd < 0) {
        status = diag_set(diag, CAIRN_E_INVALID,
                          "no descriptor came with the arena; check that the daemon has free "
                          "descriptors (ulimit -n)");
    }
    if (status == 0) {
        mapped = calloc(1, sizeof(*mapped));
        status = mapped ? 0 : diag_no_memory(diag, "an arena");
    }
    if (status == 0) {
        status = memfd_map(offer->fd, offer->arena->bytes, offer->lands ? MEMFD_WRITE : MEMFD_READ,
                           &mapped->map, diag);
    }
    if (status != 0) {
        if (offer->fd >= 0) {
            err_ignore(close(offer->fd)); /* a memfd has nothing to flush */
        }
        free(mapped);
        return status;
    }
    mapped->refs = 1;
    mapped->fd = offer->fd;
    mapped->arena_id = offer->arena->arena_id;
    mapped->owner = offer->owner;
    list_add_tail(all, &mapped->link);
    *ret = mapped;
    return 0;
}

struct mapped *mapped_ref(struct mapped *mapped)
{
    CHECK(mapped->refs > 0);
    mapped->refs++;
    return mapped;
}

void mapped_unref(struct mapped *mapped)
{
    if (!mapped) {
        return;
    }
    CHECK(mapped->refs > 0);
    if (--mapped->refs == 0) {
        list_remove(&mapped->link);
        memfd_unmap(&mapped->map);
        err_ignore(close(mapped->fd)); /* a memfd has nothing to flush */
        free(mapped);
    }
}

uint64_t mapped_arena_id(const struct mapped *mapped) { return mapped->arena_id; }

static bool is_inside(const struct mapped *mapped, uint64_t offset, uint64_t bytes)
{
    uint64_t all = mapped->map.bytes;
    return offset <= all && bytes <= all - offset && memfd_is_filled(mapped->fd, offset, bytes);
}

const uint8_t *mapped_at(const struct mapped *mapped, uint64_t offset, uint64_t bytes)
{
    return is_inside(mapped, offset, bytes) ? mapped->map.data + offset : NULL;
}

uint8_t *mapped_room(const struct mapped *mapped, uint64_t offset, uint64_t bytes)
{
    uint8_t *room = mapped->map.room;
    return room && is_inside(mapped, offset, bytes) ? room + offset : NULL;
}
