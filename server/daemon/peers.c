/* SPDX-License-Identifier: Apache-2.0
 *
 * peers: see peers.h. Invariant: the times in the entries are for people; nothing but the removal
 * of an entry that is a day old is decided by them, and a daemon whose entry was removed too early
 * writes it again with its next renewal. Loop's thread.
 */
#include "daemon/peers.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum { STALE_MS = 24 * 3600 * 1000 };

static const char PREFIX[] = "duty/at-";

static void add(struct peers *peers, const struct duty_entry *entry)
{
    if (peers->count == PEERS_MAX) {
        return;
    }
    struct duty_entry *mine = &peers->entries[peers->count];
    *mine = *entry;
    char *space = strchr(mine->label, ' ');
    if (space) {
        *space = '\0';
    }
    peers->list[peers->count++] =
        (struct server_peer){.name = mine->label,
                             .addresses = space ? space + 1 : "",
                             .seen_wall_ms = (int64_t)mine->beat,
                             .is_self = mine->holder == peers->duty.holder};
}

/* Returns the daemon that holds a duty, or NULL if nobody does. A daemon that is too old to tell of
 * itself is added by its duty. */
static struct server_peer *holder_of(struct peers *peers, const struct record *record,
                                     const char *key)
{
    struct record_value value;
    struct duty_entry entry;
    if (!record_get(record, key, &value) || !duty_read(&value, &entry)) {
        return NULL;
    }
    for (size_t i = 0; i < peers->count; i++) {
        if (strcmp(peers->list[i].name, entry.label) == 0) {
            return &peers->list[i];
        }
    }
    entry.beat = 0; /* of an old daemon it is no time */
    add(peers, &entry);
    return peers->count < PEERS_MAX ? &peers->list[peers->count - 1] : NULL;
}

/* Takes the entries of all daemons, and has one that is a day old removed. */
static void on_record(struct duty *duty, const struct record *record)
{
    struct peers *peers = container_of(duty, struct peers, duty);
    if (!peers->server) {
        return;
    }
    uint64_t wall_ms = (uint64_t)(loop_wall_ns(duty->options.loop) / 1000000);
    struct record_value value;
    const char *key;
    peers->count = 0;
    for (size_t i = record_lower_bound(record, PREFIX);
         (key = record_at(record, i, &value)) && strncmp(key, PREFIX, sizeof(PREFIX) - 1) == 0;
         i++) {
        struct duty_entry entry;
        if (!duty_read(&value, &entry)) {
            continue;
        }
        if (entry.beat + STALE_MS < wall_ms && entry.holder != duty->holder) {
            duty_drop(duty, key, &value);
        } else {
            add(peers, &entry);
        }
    }
    struct server_peer *scrubs = holder_of(peers, record, "duty/scrub");
    struct server_peer *collects = holder_of(peers, record, "duty/gc");
    if (scrubs) {
        scrubs->scrubs = true;
    }
    if (collects) {
        collects->collects = true;
    }
    CHECK(peers->count <= PEERS_MAX);
    server_set_peers(peers->server, peers->count, peers->list);
}

static void on_changed(struct duty *duty, bool is_ours)
{
    (void)duty, (void)is_ours; /* nobody competes for it */
}

void peers_start(struct peers *peers, const struct peers_options *options)
{
    char name[DUTY_NAME_MAX], label[DUTY_LABEL_MAX + 1];
    uint32_t number;
    *peers = (struct peers){.server = options->server};
    CHECK(strlen(options->name) < sizeof(peers->name));
    snprintf(peers->name, sizeof(peers->name), "%s", options->name);
    snprintf(label, sizeof(label), "%s %s", options->name, options->addresses);
    loop_random(options->loop, sizeof(number), &number);
    snprintf(name, sizeof(name), "at-%08x", number);
    struct duty_options duty = {.loop = options->loop,
                                .store = options->store,
                                .name = name,
                                .label = label,
                                .changed = on_changed,
                                .on_record = on_record};
    duty_init(&peers->duty, &duty);
    duty_start(&peers->duty);
}

void peers_hide(struct peers *peers)
{
    server_set_peers(peers->server, 0, NULL);
    peers->server = NULL;
}

static void on_stopped(struct duty *duty)
{
    struct peers *peers = container_of(duty, struct peers, duty);
    peers->stopped(peers);
}

void peers_stop(struct peers *peers, void (*stopped)(struct peers *peers))
{
    CHECK(peers->stopped == NULL);
    peers->stopped = stopped;
    duty_stop(&peers->duty, on_stopped);
}
