/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_trainer_memory URL-PREFIX SEED plain|delay: clients that open, register, grow, save, abort,
 * restore and close without a pause, each in a thread and a run of its own, beside the neighbours
 * (neighbours.h). Ends well when stdin ends: one JSON line on stdout, what was done. A call that
 * fails is counted and no more, since the daemon may die at any time; a byte of a tensor that is
 * not what it should be ends the process with exit status 3.
 */
#include "neighbours.h"

#include <cairn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLIENTS = 4, TENSORS = 4, IO_MS = 10000, SAVE_MS = 8000, TENSOR_BYTES_MIN = 256 << 10 };

struct tensor {
    char name[8];
    int64_t bytes;
    uint8_t *data;
};

struct client {
    pthread_t thread;
    uint64_t random, key, step;
    char url[256];
    cairn_t *cairn;
    struct tensor tensors[TENSORS];
    size_t tensor_count;
    uint64_t opens, saves, restores, failures;
    struct cairn_error failure; /* the last one */
};

static atomic_bool is_ending;

static bool one_in(struct client *client, unsigned n)
{
    return random_next(&client->random) % n == 0;
}

static bool worked(struct client *client, int status, const struct cairn_error *err)
{
    if (status != 0) {
        client->failures++;
        client->failure = *err;
    }
    return status == 0;
}

/* --- tensors --------------------------------------------------------------------------------- */

static uint64_t key_of(const struct client *client, uint64_t step, size_t idx)
{
    return client->key + (step << 32) + ((uint64_t)idx << 24);
}

static void fill(struct client *client, uint64_t step)
{
    for (size_t i = 0; i < client->tensor_count; i++) {
        const struct tensor *tensor = &client->tensors[i];
        pattern_fill(key_of(client, step, i), tensor->data, (size_t)tensor->bytes);
    }
}

static void check(const struct client *client, const char *what, uint64_t step)
{
    for (size_t i = 0; i < client->tensor_count; i++) {
        const struct tensor *tensor = &client->tensors[i];
        pattern_check(what, key_of(client, step, i), tensor->data, (size_t)tensor->bytes);
    }
}

static void add_tensor(struct client *client)
{
    struct tensor *tensor = &client->tensors[client->tensor_count];
    snprintf(tensor->name, sizeof tensor->name, "w%zu", client->tensor_count);
    tensor->bytes = TENSOR_BYTES_MIN + (int64_t)(random_next(&client->random) % (3 << 20)) / 8 * 8;
    tensor->data = malloc((size_t)tensor->bytes);
    if (!tensor->data) {
        fprintf(stderr, "no memory for a tensor\n");
        exit(1);
    }
    client->tensor_count++;
}

static bool set_tensors(struct client *client)
{
    struct cairn_tensor set[TENSORS];
    struct cairn_error err = {0};
    for (size_t i = 0; i < client->tensor_count; i++) {
        set[i] = (struct cairn_tensor)CAIRN_TENSOR_INIT;
        set[i].name = client->tensors[i].name;
        set[i].dtype = CAIRN_U8;
        set[i].ndim = 1;
        set[i].shape = &client->tensors[i].bytes;
        set[i].data = client->tensors[i].data;
    }
    return worked(client, cairn_set_tensors(client->cairn, set, client->tensor_count, &err), &err);
}

/* --- what a trainer does --------------------------------------------------------------------- */

/* One save, or one that is aborted on its way; whether it is durable. */
static bool save(struct client *client)
{
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    fill(client, ++client->step);
    bool good = worked(client, cairn_save(client->cairn, client->step, NULL, &op, &err), &err);
    if (good && one_in(client, 4)) {
        cairn_op_abort(op);
    }
    if (good && !one_in(client, 8)) { /* else it goes on beside the next one, or ends with close */
        good = worked(client, cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), &err);
        client->saves += good;
    } else {
        good = false;
    }
    cairn_op_free(op);
    check(client, "a tensor beside its save", client->step);
    return good;
}

static void restore(struct client *client)
{
    struct cairn_result result = CAIRN_RESULT_INIT;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    for (size_t i = 0; i < client->tensor_count; i++) {
        memset(client->tensors[i].data, 0xee, (size_t)client->tensors[i].bytes);
    }
    if (worked(client, cairn_restore(client->cairn, NULL, &op, &err), &err) &&
        worked(client, cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), &err) &&
        worked(client, cairn_op_result(op, &result, &err), &err)) {
        check(client, "a restored tensor", result.step);
        client->restores++;
    }
    cairn_op_free(op);
}

static void use_handle(struct client *client)
{
    while (client->tensor_count < TENSORS && !atomic_load(&is_ending)) {
        add_tensor(client); /* the arena grows with it */
        if (!set_tensors(client) || one_in(client, 2)) {
            continue; /* a save goes on, or the arena is made in the background for nobody */
        }
        bool good = save(client);
        good = one_in(client, 2) ? save(client) : good;
        if (good && one_in(client, 2)) {
            restore(client);
        }
    }
}

static void log_nothing(void *user, int level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static void *client_main(void *arg)
{
    static const uint64_t arenas[] = {0, 0, 3 << 20, 8 << 20};
    static const int encodings[] = {0, CAIRN_ENCODE_RAW, CAIRN_ENCODE_DENSE};
    struct client *client = arg;
    while (!atomic_load(&is_ending)) {
        struct cairn_options options = CAIRN_OPTIONS_INIT;
        struct cairn_error err = {0};
        options.arena_bytes = arenas[random_next(&client->random) % 4];
        options.snapshots = (int32_t)(random_next(&client->random) % 3);
        /* Dense and in waves does not go by hand: CAIRN_TRANSPORT=memfd refuses it by name. */
        options.encoding =
            options.arena_bytes == 0 ? encodings[random_next(&client->random) % 3] : 0;
        options.io_deadline_ms = IO_MS;
        options.save_deadline_ms = SAVE_MS;
        options.log = log_nothing;
        if (worked(client, cairn_open(client->url, &options, &client->cairn, &err), &err)) {
            client->opens++;
            use_handle(client);
            int64_t deadline_ms = one_in(client, 4) ? 1 : SAVE_MS;
            worked(client, cairn_close(client->cairn, deadline_ms, &err), &err);
        }
        while (client->tensor_count > 0) {
            free(client->tensors[--client->tensor_count].data);
        }
    }
    return NULL;
}

static void tell(struct client *clients, uint64_t rounds)
{
    struct client sum = {.opens = 0};
    for (size_t i = 0; i < CLIENTS; i++) {
        sum.opens += clients[i].opens;
        sum.saves += clients[i].saves;
        sum.restores += clients[i].restores;
        sum.failures += clients[i].failures;
        if (clients[i].failures > 0) {
            fprintf(stderr, "client %zu: %" PRIu64 " calls failed, at last: %s\n", i,
                    clients[i].failures, clients[i].failure.text);
        }
    }
    printf("{\"opens\":%" PRIu64 ",\"saves\":%" PRIu64 ",\"restores\":%" PRIu64
           ",\"failures\":%" PRIu64 ",\"unmaps\":%" PRIu64 ",\"rounds\":%" PRIu64 "}\n",
           sum.opens, sum.saves, sum.restores, sum.failures, neighbours_unmaps(), rounds);
}

int main(int argc, char **argv)
{
    static struct client clients[CLIENTS];
    char byte;
    if (argc != 4) {
        fprintf(stderr, "usage: e2e_trainer_memory URL-PREFIX SEED plain|delay\n");
        return 2;
    }
    uint64_t seed = strtoull(argv[2], NULL, 10);
    neighbours_start(seed, strcmp(argv[3], "delay") == 0);
    for (size_t i = 0; i < CLIENTS; i++) {
        struct client *client = &clients[i];
        client->random = client->key = seed * 31 + i;
        snprintf(client->url, sizeof client->url, "%s%zu", argv[1], i);
        if (pthread_create(&client->thread, NULL, client_main, client) != 0) {
            fprintf(stderr, "cannot start a client\n");
            return 1;
        }
    }
    while (read(STDIN_FILENO, &byte, 1) > 0) { /* until it ends */
    }
    atomic_store(&is_ending, true);
    for (size_t i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
    }
    tell(clients, neighbours_stop());
    return 0;
}
