/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn bench: saves and restores random bytes through the library, as one rank of this machine,
 * and says how long each took. It leaves its checkpoints in the run that it was given.
 */
#include "cairn.h"

#include "cli.h"
#include "files/library.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { TENSORS = 16, ROUNDS_MAX = 1000 };

struct bench_options {
    uint64_t bytes, rounds;
    bool dry_run;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN}, {0}};

static const struct option options[] = {
    {"size", "SIZE", "size of one checkpoint", OPTION_AT_SIZE(struct bench_options, bytes),
     .preset = "256MiB", .min = 1 << 20},
    {"rounds", "N", "number of saves and of restores",
     OPTION_AT_COUNT(struct bench_options, rounds), .preset = "3", .min = 1, .max = ROUNDS_MAX},
    {"dry-run", NULL, "show what would be done, and do nothing",
     OPTION_AT_FLAG(struct bench_options, dry_run), .letter = 'n'},
    {0}};

struct round {
    double blocked_s, durable_s, restore_s;
};

struct benching {
    struct cli *cli;
    const struct bench_options *own;
    cairn_t *cairn;
    uint8_t *memory;
    uint64_t seed, tensor_bytes, sum; /* sum: of what was saved last */
    struct round rounds[ROUNDS_MAX];
};

static double now_s(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Bytes that nothing can compress and no older checkpoint has: xorshift from a random seed. */
static void fill(struct benching *benching)
{
    uint64_t *words = (uint64_t *)(void *)benching->memory, x = benching->seed | 1, sum = 0;
    for (uint64_t i = 0; i < benching->tensor_bytes * TENSORS / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
        sum = sum * 31 + x;
    }
    benching->seed = x;
    benching->sum = sum;
}

static uint64_t sum_of(const struct benching *benching)
{
    const uint64_t *words = (const uint64_t *)(const void *)benching->memory;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < benching->tensor_bytes * TENSORS / 8; i++) {
        sum = sum * 31 + words[i];
    }
    return sum;
}

static int set_tensors(struct benching *benching, struct cairn_error *error)
{
    struct cairn_tensor tensors[TENSORS];
    char names[TENSORS][24];
    int64_t shape[] = {(int64_t)benching->tensor_bytes / 4};
    for (size_t i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "bench.%zu", i);
        tensors[i] = (struct cairn_tensor)CAIRN_TENSOR_INIT;
        tensors[i].name = names[i];
        tensors[i].dtype = CAIRN_F32;
        tensors[i].ndim = 1;
        tensors[i].shape = shape;
        tensors[i].data = benching->memory + i * benching->tensor_bytes;
    }
    return cairn_set_tensors(benching->cairn, tensors, TENSORS, error);
}

static int save_once(struct benching *benching, uint64_t idx, struct cairn_error *error)
{
    cairn_op_t *op = NULL;
    fill(benching);
    double began = now_s();
    int status = cairn_save(benching->cairn, idx + 1, NULL, &op, error);
    benching->rounds[idx].blocked_s = now_s() - began;
    status = status != 0 ? status : cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, error);
    benching->rounds[idx].durable_s = now_s() - began;
    cairn_op_free(op);
    return status;
}

static int restore_once(struct benching *benching, uint64_t idx, struct cairn_error *error)
{
    cairn_op_t *op = NULL;
    memset(benching->memory, 0, benching->tensor_bytes * TENSORS);
    double began = now_s();
    int status = cairn_restore(benching->cairn, NULL, &op, error);
    status = status != 0 ? status : cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, error);
    benching->rounds[idx].restore_s = now_s() - began;
    cairn_op_free(op);
    return status;
}

static int run_rounds(void *user, cairn_t *cairn, struct diag *diag)
{
    struct benching *benching = user;
    struct cairn_error error = {0};
    if (getrandom(&benching->seed, sizeof(benching->seed), 0) != (ssize_t)sizeof(benching->seed)) {
        return diag_set(diag, CAIRN_E_IO, "the system gives no random bytes; try again");
    }
    benching->cairn = cairn;
    int status = set_tensors(benching, &error);
    for (uint64_t i = 0; status == 0 && i < benching->own->rounds; i++) {
        status = save_once(benching, i, &error);
        if (status == 0) {
            status = restore_once(benching, i, &error);
        }
        if (status == 0 && sum_of(benching) != benching->sum) {
            return diag_set(diag, CAIRN_E_INTERNAL,
                            "round %" PRIu64
                            " restored other bytes than it saved; run `cairn verify` on the run",
                            i + 1);
        }
    }
    return status != 0 ? library_error(status, &error, diag) : 0;
}

/* --- what is said --- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* The median of one of the three figures. */
static double median(const struct benching *benching, size_t offset)
{
    double figures[ROUNDS_MAX];
    for (uint64_t i = 0; i < benching->own->rounds; i++) {
        memcpy(&figures[i], (const char *)&benching->rounds[i] + offset, sizeof(double));
    }
    qsort(figures, benching->own->rounds, sizeof(double), compare);
    return figures[benching->own->rounds / 2];
}

static void json_figure(struct json *json, const struct benching *benching, const char *name,
                        size_t offset)
{
    json_open(json, name, '{');
    json_f64(json, "median_s", median(benching, offset));
    json_open(json, "all_s", '[');
    for (uint64_t i = 0; i < benching->own->rounds; i++) {
        double figure;
        memcpy(&figure, (const char *)&benching->rounds[i] + offset, sizeof(double));
        json_f64(json, NULL, figure);
    }
    json_close(json, ']');
    json_close(json, '}');
}

static void print_figure(const struct benching *benching, const char *name, size_t offset)
{
    double seconds = median(benching, offset);
    double rate = (double)(benching->tensor_bytes * TENSORS) / seconds;
    printf("%-28s %8.3f s   %s/s\n", name, seconds, bytes_text((uint64_t)rate).at);
}

static int show(const struct benching *benching)
{
    const struct bench_options *own = benching->own;
    uint64_t bytes = benching->tensor_bytes * TENSORS;
    if (!benching->cli->json) {
        printf("%s of random bytes, %" PRIu64 " rounds, one rank, medians\n", bytes_text(bytes).at,
               own->rounds);
        if (!own->dry_run) {
            print_figure(benching, "save: training is blocked for",
                         offsetof(struct round, blocked_s));
            print_figure(benching, "save: until it is durable", offsetof(struct round, durable_s));
            print_figure(benching, "restore: until verified", offsetof(struct round, restore_s));
            fprintf(stderr, "cairn: each restore follows its save, so reads may come from a cache; "
                            "the checkpoints stay in the run\n");
        }
        return out_flush();
    }
    struct json json;
    json_begin(&json);
    json_bool(&json, "dry_run", own->dry_run);
    json_u64(&json, "bytes", bytes);
    json_u64(&json, "rounds", own->rounds);
    if (!own->dry_run) {
        json_figure(&json, benching, "blocked", offsetof(struct round, blocked_s));
        json_figure(&json, benching, "durable", offsetof(struct round, durable_s));
        json_figure(&json, benching, "restore", offsetof(struct round, restore_s));
    }
    return json_end(&json);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct bench_options *own = values;
    if (cli->source.store) {
        return diag_set(
            diag, CAIRN_E_READ_ONLY,
            "--store is read-only, and bench saves checkpoints; name a server (--server)");
    }
    struct benching *benching = calloc(1, sizeof(*benching));
    if (!benching) {
        return diag_no_memory(diag, "this command");
    }
    *benching = (struct benching){.cli = cli, .own = own};
    benching->tensor_bytes = own->bytes / TENSORS / 8 * 8;
    struct library_use use = {.use = run_rounds, .user = benching};
    int status = 0;
    if (!own->dry_run) {
        benching->memory = malloc(benching->tensor_bytes * TENSORS);
        status = benching->memory ? library_use(cli, &use, diag)
                                  : diag_no_memory(diag, "%" PRIu64 " bytes", own->bytes);
    }
    if (status == 0) {
        status = show(benching);
    }
    free(benching->memory);
    free(benching);
    return status;
}

const struct command command_bench = {
    .name = "bench",
    .group = GROUP_FILES,
    .summary = "measure saves and restores against a server",
    .details = "The command saves and restores as one rank from this machine, through the library "
               "that a training job uses. A save has 16 tensors of random bytes, which are new "
               "each time, so that nothing is shared with an older checkpoint and nothing "
               "compresses. Each restore is compared with its save. RUN must have no checkpoints; "
               "the checkpoints of the bench stay in it.\n\nThe figures do not cover several "
               "ranks, other machines, a cold cache of the server, or a disk under other load.",
    .example = "cairn bench try/bench --size 1GiB",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct bench_options),
    .run = run};
