/* SPDX-License-Identifier: Apache-2.0
 *
 * See cluster_fake.h. A call is carried out as a whole under one lock: first every guard, then
 * every change. A late call is copied and kept with the number of the call before which it lands.
 */
#include "cluster_fake.h"

#include "base/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_A_CALL = 50 }; /* few, so that paging is always exercised */

struct object {
    struct object *next;
    enum cluster_pool pool;
    char *space, *name;
    size_t bytes;
    uint8_t *data;
    struct cluster_map keys; /* ascending */
    bool unreadable;
};

struct late {
    struct late *next;
    uint64_t due; /* call number */
    struct cluster_call call;
};

struct fake_medium {
    pthread_mutex_t lock;
    struct object *objects;
    struct late *late;
    struct fake_plan plan;
    bool has_plan, meta_is_coded;
    uint64_t random, calls, landed_late, capacity, used, read_bytes;
};

struct fake {
    struct cluster base;
    struct fake_medium *medium;
};

struct fake_medium *fake_medium_new(void)
{
    struct fake_medium *medium = calloc(1, sizeof(*medium));
    CHECK(medium && pthread_mutex_init(&medium->lock, NULL) == 0);
    return medium;
}

static void free_object(struct object *object)
{
    cluster_map_fini(&object->keys);
    free(object->space);
    free(object->name);
    free(object->data);
    free(object);
}

static void free_late(struct late *late)
{
    for (size_t i = 0; i < late->call.step_count; i++) {
        free((char *)late->call.steps[i].key);
        free((void *)late->call.steps[i].data);
    }
    free(late->call.steps);
    free((char *)late->call.space);
    free((char *)late->call.object);
    free(late);
}

void fake_medium_free(struct fake_medium *medium)
{
    if (!medium) {
        return;
    }
    while (medium->objects) {
        struct object *object = medium->objects;
        medium->objects = object->next;
        free_object(object);
    }
    while (medium->late) {
        struct late *late = medium->late;
        medium->late = late->next;
        free_late(late);
    }
    pthread_mutex_destroy(&medium->lock);
    free(medium);
}

/* --- objects ---------------------------------------------------------------------------------- */

static struct object **find(struct fake_medium *medium, const struct cluster_call *call)
{
    struct object **link = &medium->objects;
    while (*link && ((*link)->pool != call->pool || strcmp((*link)->name, call->object) != 0 ||
                     strcmp((*link)->space, call->space) != 0)) {
        link = &(*link)->next;
    }
    return link;
}

static size_t key_place(const struct object *object, const char *key)
{
    size_t i = 0;
    while (i < object->keys.count && strcmp(object->keys.pairs[i].key, key) < 0) {
        i++;
    }
    return i;
}

static const struct cluster_pair *key_find(const struct object *object, const char *key)
{
    size_t i = key_place(object, key);
    bool found = i < object->keys.count && strcmp(object->keys.pairs[i].key, key) == 0;
    return found ? &object->keys.pairs[i] : NULL;
}

static void key_remove(struct object *object, const char *key)
{
    const struct cluster_pair *found = key_find(object, key);
    if (found) {
        size_t i = (size_t)(found - object->keys.pairs);
        CHECK(i < object->keys.count);
        free(object->keys.pairs[i].key);
        free(object->keys.pairs[i].data);
        memmove(&object->keys.pairs[i], &object->keys.pairs[i + 1],
                (object->keys.count - i - 1) * sizeof(object->keys.pairs[0]));
        object->keys.count--;
    }
}

static void key_set(struct object *object, const struct cluster_step *step)
{
    key_remove(object, step->key);
    size_t i = key_place(object, step->key), last = object->keys.count;
    CHECK(cluster_map_add(&object->keys, step->key, step->bytes, step->data) == 0);
    struct cluster_pair pair = object->keys.pairs[last];
    memmove(&object->keys.pairs[i + 1], &object->keys.pairs[i],
            (last - i) * sizeof(object->keys.pairs[0]));
    object->keys.pairs[i] = pair;
}

/* --- changing --------------------------------------------------------------------------------- */

static bool uses_keys(const struct cluster_call *call)
{
    for (size_t i = 0; i < call->step_count; i++) {
        enum cluster_step_kind kind = call->steps[i].kind;
        if (kind == STEP_KEY || kind == STEP_KEYS || kind == STEP_KEY_IS || kind == STEP_KEY_SET ||
            kind == STEP_KEY_REMOVE) {
            return true;
        }
    }
    return false;
}

/* What the guards say, in order; like an OSD, a step sees the steps before it. */
static int check(const struct fake_medium *medium, const struct object *object,
                 const struct cluster_call *call)
{
    bool is_there = object != NULL;
    for (size_t i = 0; i < call->step_count; i++) {
        const struct cluster_step *step = &call->steps[i];
        const struct cluster_pair *pair =
            object && step->kind == STEP_KEY_IS ? key_find(object, step->key) : NULL;
        size_t have = pair ? pair->bytes : 0;
        if (step->kind == STEP_CREATE && is_there) {
            return -EEXIST;
        }
        if ((step->kind == STEP_EXISTS || step->kind == STEP_REMOVE || step->kind == STEP_KEY_IS) &&
            !is_there) {
            return -ENOENT;
        }
        if (step->kind == STEP_KEY_IS &&
            (have != step->bytes || (have > 0 && memcmp(pair->data, step->data, have) != 0))) {
            return -ECANCELED;
        }
        if (step->kind == STEP_WRITE_FULL && medium->capacity > 0 &&
            medium->used + step->bytes > medium->capacity) {
            return -ENOSPC;
        }
        is_there = true;
    }
    return 0;
}

static void change_one(struct fake_medium *medium, struct object *object,
                       const struct cluster_step *step)
{
    if (step->kind == STEP_WRITE_FULL) {
        medium->used += step->bytes - object->bytes;
        free(object->data);
        object->data = malloc(step->bytes + 1);
        CHECK(object->data);
        object->bytes = step->bytes;
        if (step->bytes > 0) {
            memcpy(object->data, step->data, step->bytes);
        }
    } else if (step->kind == STEP_KEY_SET) {
        key_set(object, step);
    } else if (step->kind == STEP_KEY_REMOVE) {
        key_remove(object, step->key);
    }
}

static int change(struct fake_medium *medium, const struct cluster_call *call)
{
    struct object **link = find(medium, call);
    if (uses_keys(call) && (call->pool == CLUSTER_DATA || medium->meta_is_coded)) {
        return -EOPNOTSUPP;
    }
    bool removes = call->steps[call->step_count - 1].kind == STEP_REMOVE;
    int rc = *link && (*link)->unreadable && !removes ? -EIO : check(medium, *link, call);
    if (rc != 0) {
        return rc;
    }
    if (removes) { /* behind its guards */
        struct object *object = *link;
        CHECK(object);
        *link = object->next;
        medium->used -= object->bytes;
        free_object(object);
        return 0;
    }
    if (!*link) {
        struct object *object = calloc(1, sizeof(*object));
        CHECK(object);
        object->pool = call->pool;
        object->space = strdup(call->space);
        object->name = strdup(call->object);
        CHECK(object->space && object->name);
        *link = object;
    }
    for (size_t i = 0; i < call->step_count; i++) {
        change_one(medium, *link, &call->steps[i]);
    }
    return 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

static void give_keys(const struct object *object, struct cluster_step *step)
{
    const char *prefix = step->key ? step->key : "", *after = step->after ? step->after : "";
    for (size_t i = 0; i < object->keys.count; i++) {
        const struct cluster_pair *pair = &object->keys.pairs[i];
        if (strcmp(pair->key, after) <= 0 || strncmp(pair->key, prefix, strlen(prefix)) != 0) {
            continue;
        }
        if (step->ret_map.count == KEYS_A_CALL) {
            step->ret_map.more = true;
            return;
        }
        CHECK(cluster_map_add(&step->ret_map, pair->key, pair->bytes, pair->data) == 0);
    }
}

static void give_one(const struct object *object, struct cluster_step *step)
{
    if (step->kind == STEP_STAT) {
        step->ret_bytes = object->bytes;
    } else if (step->kind == STEP_READ) {
        size_t left = step->offset < object->bytes ? object->bytes - step->offset : 0;
        step->ret_bytes = step->bytes < left ? step->bytes : left;
        if (step->ret_bytes > 0) {
            memcpy(step->into, object->data + step->offset, step->ret_bytes);
        }
    } else if (step->kind == STEP_KEYS) {
        give_keys(object, step);
    } else {
        const struct cluster_pair *pair = key_find(object, step->key);
        if (pair) {
            CHECK(cluster_map_add(&step->ret_map, pair->key, pair->bytes, pair->data) == 0);
        }
    }
}

static int look(struct fake_medium *medium, struct cluster_call *call)
{
    const struct object *object = *find(medium, call);
    if (uses_keys(call) && (call->pool == CLUSTER_DATA || medium->meta_is_coded)) {
        return -EOPNOTSUPP;
    }
    if (!object) {
        return -ENOENT;
    }
    if (object->unreadable) {
        return -EIO;
    }
    for (size_t i = 0; i < call->step_count; i++) {
        give_one(object, &call->steps[i]);
        medium->read_bytes += call->steps[i].kind == STEP_READ ? call->steps[i].ret_bytes : 0;
    }
    return 0;
}

/* --- faults ----------------------------------------------------------------------------------- */

static unsigned draw(struct fake_medium *medium, unsigned below)
{
    medium->random += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t x = medium->random;
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (unsigned)((x ^ x >> 31) % below);
}

static void keep_late(struct fake_medium *medium, const struct cluster_call *call)
{
    struct late *late = calloc(1, sizeof(*late));
    CHECK(late);
    late->call = *call;
    late->call.space = strdup(call->space);
    late->call.object = strdup(call->object);
    late->call.steps = calloc(call->step_count, sizeof(call->steps[0]));
    CHECK(late->call.space && late->call.object && late->call.steps);
    for (size_t i = 0; i < call->step_count; i++) {
        struct cluster_step *to = &late->call.steps[i];
        const struct cluster_step *from = &call->steps[i];
        *to = *from;
        to->key = from->key ? strdup(from->key) : NULL;
        uint8_t *data = malloc(from->bytes + 1);
        CHECK(data && (!from->key || to->key));
        if (from->bytes > 0) {
            memcpy(data, from->data, from->bytes);
        }
        to->data = data;
    }
    late->due =
        medium->calls + 1 + draw(medium, medium->plan.later_max > 0 ? medium->plan.later_max : 1);
    late->next = medium->late;
    medium->late = late;
}

static void land(struct fake_medium *medium, bool all)
{
    struct late **link = &medium->late;
    while (*link) {
        struct late *late = *link;
        if (!all && late->due > medium->calls) {
            link = &late->next;
            continue;
        }
        *link = late->next;
        medium->landed_late += change(medium, &late->call) == 0;
        free_late(late);
    }
}

static int run(struct fake_medium *medium, struct cluster_call *call)
{
    const struct fake_plan *plan = &medium->plan;
    bool changes = call->steps[0].kind < STEP_STAT;
    medium->calls++;
    land(medium, false);
    if (medium->has_plan && changes && medium->plan.spare > 0) {
        medium->plan.spare--;
    } else if (medium->has_plan) {
        unsigned at = draw(medium, 100), from = 0;
        for (unsigned fault = 0; fault < FAKE_FAULTS; fault++) {
            from += plan->percent[fault];
            if (at >= from) {
                continue;
            }
            if (fault == FAKE_REFUSED) {
                return -plan->error;
            }
            if (!changes) {
                break;
            }
            if (fault == FAKE_LATE) {
                keep_late(medium, call);
            } else if (fault == FAKE_UNANSWERED) {
                (void)change(medium, call); /* nobody hears what became of it */
            }
            return -ETIMEDOUT;
        }
    }
    return changes ? change(medium, call) : look(medium, call);
}

/* --- the table -------------------------------------------------------------------------------- */

static struct fake_medium *medium_of(struct cluster *cluster)
{
    return ((struct fake *)cluster)->medium;
}

static void fake_start(struct cluster *cluster, struct cluster_call *call)
{
    (void)cluster;
    CHECK(call->step_count > 0 && call->space[0] != 0 && call->object[0] != 0);
    call->impl = cluster;
}

static int fake_wait(struct cluster *cluster, struct cluster_call *call)
{
    struct fake_medium *medium = medium_of(cluster);
    CHECK(call->impl == cluster); /* started, and not waited for yet */
    call->impl = NULL;
    pthread_mutex_lock(&medium->lock);
    int rc = run(medium, call);
    pthread_mutex_unlock(&medium->lock);
    return rc;
}

static int fake_usage(struct cluster *cluster, struct cluster_usage *ret)
{
    struct fake_medium *medium = medium_of(cluster);
    pthread_mutex_lock(&medium->lock);
    uint64_t total = medium->capacity > 0 ? medium->capacity : UINT64_C(1) << 40;
    *ret = (struct cluster_usage){.total_bytes = total,
                                  .free_bytes = total > medium->used ? total - medium->used : 0};
    ret->records_free_bytes = ret->free_bytes;
    pthread_mutex_unlock(&medium->lock);
    return 0;
}

static void fake_close(struct cluster *cluster) { free(cluster); }

static const struct cluster_ops fake_ops = {
    .start = fake_start, .wait = fake_wait, .usage = fake_usage, .close = fake_close};

struct cluster *fake_cluster_new(struct fake_medium *medium)
{
    struct fake *fake = calloc(1, sizeof(*fake));
    CHECK(fake);
    fake->base.ops = &fake_ops;
    fake->medium = medium;
    return &fake->base;
}

/* --- the test's hand -------------------------------------------------------------------------- */

void fake_medium_plan(struct fake_medium *medium, const struct fake_plan *plan)
{
    pthread_mutex_lock(&medium->lock);
    medium->has_plan = plan != NULL;
    if (plan) {
        medium->plan = *plan;
        medium->random = plan->seed;
    }
    pthread_mutex_unlock(&medium->lock);
}

void fake_medium_settle(struct fake_medium *medium)
{
    pthread_mutex_lock(&medium->lock);
    land(medium, true);
    pthread_mutex_unlock(&medium->lock);
}

void fake_medium_erasure_coded_meta(struct fake_medium *medium, bool is)
{
    pthread_mutex_lock(&medium->lock);
    medium->meta_is_coded = is;
    pthread_mutex_unlock(&medium->lock);
}

void fake_medium_capacity(struct fake_medium *medium, uint64_t bytes)
{
    pthread_mutex_lock(&medium->lock);
    medium->capacity = bytes;
    pthread_mutex_unlock(&medium->lock);
}

static uint64_t read_locked(struct fake_medium *medium, const uint64_t *value)
{
    pthread_mutex_lock(&medium->lock);
    uint64_t copy = *value;
    pthread_mutex_unlock(&medium->lock);
    return copy;
}

/* Passes over bytes of an object; *io_at is how many are left to pass. NULL means that all were
 * passed. */
static uint8_t *find_byte(struct object *object, uint64_t *io_at)
{
    if (*io_at < object->bytes) {
        return object->data + *io_at;
    }
    *io_at -= object->bytes;
    for (size_t i = 0; i < object->keys.count; i++) {
        struct cluster_pair *pair = &object->keys.pairs[i];
        if (*io_at < pair->bytes) {
            return pair->data + *io_at;
        }
        *io_at -= pair->bytes;
    }
    return NULL;
}

static uint8_t *find_run_byte(struct fake_medium *medium, uint64_t *io_at)
{
    uint8_t *byte = NULL;
    for (struct object *object = medium->objects; object && !byte; object = object->next) {
        if (strchr(object->space, '/')) { /* a project's: not the store's own */
            byte = find_byte(object, io_at);
        }
    }
    return byte;
}

bool fake_medium_flip(struct fake_medium *medium, uint64_t at, unsigned bit)
{
    pthread_mutex_lock(&medium->lock);
    uint8_t *byte = find_run_byte(medium, &at);
    if (byte) {
        *byte ^= (uint8_t)(1u << bit % 8);
    }
    pthread_mutex_unlock(&medium->lock);
    return byte != NULL;
}

uint64_t fake_medium_bytes(struct fake_medium *medium)
{
    uint64_t left = UINT64_MAX;
    pthread_mutex_lock(&medium->lock);
    (void)find_run_byte(medium, &left);
    pthread_mutex_unlock(&medium->lock);
    return UINT64_MAX - left;
}

uint64_t fake_medium_used(struct fake_medium *medium) { return read_locked(medium, &medium->used); }

size_t fake_medium_objects(struct fake_medium *medium)
{
    size_t count = 0;
    pthread_mutex_lock(&medium->lock);
    for (const struct object *object = medium->objects; object; object = object->next) {
        count++;
    }
    pthread_mutex_unlock(&medium->lock);
    return count;
}

uint64_t fake_medium_read_bytes(struct fake_medium *medium)
{
    return read_locked(medium, &medium->read_bytes);
}

uint64_t fake_medium_calls(struct fake_medium *medium)
{
    return read_locked(medium, &medium->calls);
}
uint64_t fake_medium_landed_late(struct fake_medium *medium)
{
    return read_locked(medium, &medium->landed_late);
}

/* --- one fault -------------------------------------------------------------------------------- */

static struct object **object_at(struct fake_medium *medium, size_t number)
{
    struct object **link = &medium->objects;
    for (size_t i = 0; i < number && *link; i++) {
        link = &(*link)->next;
    }
    CHECK(*link);
    return link;
}

static bool damage_locked(struct fake_medium *medium, struct object **link, enum fake_damage damage,
                          size_t at)
{
    struct object *object = *link;
    uint64_t left = at;
    uint8_t *byte = damage == FAKE_FLIPPED ? find_byte(object, &left) : NULL;
    if ((damage == FAKE_FLIPPED && !byte) ||
        (damage == FAKE_KEY_LOST && at >= object->keys.count)) {
        return false;
    }
    if (damage == FAKE_FLIPPED) {
        *byte ^= 0x10;
    } else if (damage == FAKE_KEY_LOST) {
        key_remove(object, object->keys.pairs[at].key);
    } else if (damage == FAKE_UNREADABLE) {
        object->unreadable = true;
    } else {
        medium->used -= object->bytes;
        object->bytes = 0;
        cluster_map_fini(&object->keys);
        object->keys = (struct cluster_map){.count = 0};
    }
    if (damage == FAKE_DELETED) {
        *link = object->next;
        free_object(object);
    }
    return true;
}

bool fake_medium_damage(struct fake_medium *medium, size_t number, enum fake_damage damage,
                        size_t at)
{
    pthread_mutex_lock(&medium->lock);
    bool done = damage_locked(medium, object_at(medium, number), damage, at);
    pthread_mutex_unlock(&medium->lock);
    return done;
}

void fake_medium_get(struct fake_medium *medium, size_t number, struct fake_object *ret)
{
    pthread_mutex_lock(&medium->lock);
    const struct object *object = *object_at(medium, number);
    *ret = (struct fake_object){.bytes = object->bytes, .keys = object->keys.count};
    strncpy(ret->space, object->space, sizeof(ret->space) - 1);
    strncpy(ret->name, object->name, sizeof(ret->name) - 1);
    for (size_t i = 0; i < object->keys.count; i++) {
        ret->bytes += object->keys.pairs[i].bytes;
    }
    pthread_mutex_unlock(&medium->lock);
}

struct fake_medium *fake_medium_copy(struct fake_medium *medium)
{
    struct fake_medium *copy = fake_medium_new();
    struct object **link = &copy->objects;
    pthread_mutex_lock(&medium->lock);
    for (const struct object *from = medium->objects; from; from = from->next) {
        struct object *to = calloc(1, sizeof(*to));
        CHECK(to);
        *to = (struct object){.pool = from->pool,
                              .space = strdup(from->space),
                              .name = strdup(from->name),
                              .bytes = from->bytes,
                              .data = malloc(from->bytes + 1)};
        CHECK(to->space && to->name && to->data);
        if (from->bytes > 0) {
            memcpy(to->data, from->data, from->bytes);
        }
        for (size_t i = 0; i < from->keys.count; i++) {
            const struct cluster_pair *pair = &from->keys.pairs[i];
            CHECK(cluster_map_add(&to->keys, pair->key, pair->bytes, pair->data) == 0);
        }
        copy->used += to->bytes;
        *link = to;
        link = &to->next;
    }
    pthread_mutex_unlock(&medium->lock);
    return copy;
}
