/* SPDX-License-Identifier: Apache-2.0
 *
 * The medium of a memory store: hash table of things, sorted list of runs. No operation of the
 * store contract is decided here.
 */
#include "memory_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_add(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

static uint64_t hash_run(const struct run_name *run)
{
    uint64_t hash =
        hash_add(UINT64_C(14695981039346656037), run->project, strlen(run->project) + 1);
    return hash_add(hash, run->run, strlen(run->run));
}

static uint64_t hash_ids(uint64_t hash, const uint64_t ids[4])
{
    for (size_t i = 0; i < 4; i++) {
        hash = (hash ^ (hash >> 29) ^ ids[i]) * UINT64_C(1099511628211);
    }
    return (hash ^ (hash >> 29)) % MEMORY_BUCKETS;
}

int memory_run_compare(const struct run_name *a, const struct run_name *b)
{
    int order = strcmp(a->project, b->project);
    return order != 0 ? order : strcmp(a->run, b->run);
}

struct memory_thing **memory_find_object(struct memory_medium *medium, const struct run_name *run,
                                         const struct object_id *id)
{
    uint64_t ids[4] = {id->term, id->step, id->writer, (uint64_t)id->rank << 32 | id->sequence};
    struct memory_thing **link = &medium->things[hash_ids(hash_run(run), ids)];
    while (*link != NULL) {
        struct memory_thing *thing = *link;
        if (thing->is_object && object_id_equal(&thing->object, id) &&
            memory_run_compare(&thing->run, run) == 0) {
            break;
        }
        link = &thing->next;
    }
    return link;
}

struct memory_thing **memory_find_small(struct memory_medium *medium, const struct store_name *name)
{
    uint64_t ids[4] = {name->id.term, name->id.step, name->tag,
                       (uint64_t)name->kind << 32 | name->number};
    struct memory_thing **link = &medium->things[hash_ids(hash_run(&name->run), ids)];
    while (*link != NULL) {
        const struct store_name *have = &(*link)->name;
        if (!(*link)->is_object && ckpt_id_equal(have->id, name->id) && have->tag == name->tag &&
            have->kind == name->kind && have->number == name->number &&
            memory_run_compare(&have->run, &name->run) == 0) {
            break;
        }
        link = &(*link)->next;
    }
    return link;
}

void memory_drop(struct memory_thing **link)
{
    struct memory_thing *thing = *link;
    CHECK(thing != NULL);
    *link = thing->next;
    free(thing->data);
    free(thing);
}

struct memory_run **memory_find_run(struct memory_medium *medium, const struct run_name *name)
{
    struct memory_run **link = &medium->runs;
    while (*link != NULL && memory_run_compare(&(*link)->name, name) < 0) {
        link = &(*link)->next;
    }
    return link;
}

void memory_restart(struct memory_medium *medium)
{
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        struct memory_thing **link = &medium->things[i];
        while (*link != NULL) {
            if ((*link)->sealed) {
                link = &(*link)->next;
            } else {
                memory_drop(link);
            }
        }
    }
}

int memory_medium_new(struct memory_medium **ret)
{
    struct memory_medium *medium = calloc(1, sizeof(*medium));
    if (medium == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    if (pthread_mutex_init(&medium->lock, NULL) != 0) {
        free(medium);
        return CAIRN_E_NO_MEMORY;
    }
    *ret = medium;
    return 0;
}

void memory_medium_free(struct memory_medium *medium)
{
    if (medium == NULL) {
        return;
    }
    CHECK(!medium->in_use);
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        while (medium->things[i] != NULL) {
            memory_drop(&medium->things[i]);
        }
    }
    while (medium->runs != NULL) {
        struct memory_run *run = medium->runs;
        medium->runs = run->next;
        record_free(run->record);
        free(run);
    }
    pthread_mutex_destroy(&medium->lock);
    free(medium);
}

/* The lock is held on entry and given back. */
static bool flip(struct memory_medium *medium, struct memory_thing **link, uint64_t byte)
{
    struct memory_thing *thing = *link;
    bool is_there = thing != NULL && thing->sealed && byte < thing->bytes;
    if (is_there) {
        thing->data[byte] ^= 1;
    }
    pthread_mutex_unlock(&medium->lock);
    return is_there;
}

bool memory_medium_flip_small(struct memory_medium *medium, const struct store_name *name,
                              uint64_t byte)
{
    pthread_mutex_lock(&medium->lock);
    return flip(medium, memory_find_small(medium, name), byte);
}

bool memory_medium_flip_object(struct memory_medium *medium, const struct run_name *run,
                               const struct object_id *id, uint64_t byte)
{
    pthread_mutex_lock(&medium->lock);
    return flip(medium, memory_find_object(medium, run, id), byte);
}

struct record *memory_medium_copy_record(struct memory_medium *medium, const struct run_name *run)
{
    struct record *copy = NULL;
    pthread_mutex_lock(&medium->lock);
    const struct memory_run *found = *memory_find_run(medium, run);
    if (found != NULL && memory_run_compare(&found->name, run) == 0) {
        CHECK(record_clone(found->record, &copy) == 0);
    }
    pthread_mutex_unlock(&medium->lock);
    return copy;
}

void memory_medium_set_unreadable(struct memory_medium *medium, const struct run_name *run)
{
    pthread_mutex_lock(&medium->lock);
    struct memory_run *found = *memory_find_run(medium, run);
    CHECK(found != NULL && found->lost_from != 0);
    found->is_unreadable = true;
    pthread_mutex_unlock(&medium->lock);
}

void memory_medium_set_record(struct memory_medium *medium, const struct run_name *run,
                              struct record *record, uint64_t lost_from)
{
    pthread_mutex_lock(&medium->lock);
    struct memory_run **link = memory_find_run(medium, run), *found = *link;
    if (found != NULL && memory_run_compare(&found->name, run) == 0) {
        *link = found->next;
        record_free(found->record);
        free(found);
    }
    if (record != NULL) {
        struct memory_run *fresh = calloc(1, sizeof(*fresh));
        CHECK(fresh != NULL);
        *fresh = (struct memory_run){
            .next = *link, .name = *run, .record = record, .lost_from = lost_from};
        *link = fresh;
    }
    pthread_mutex_unlock(&medium->lock);
}
