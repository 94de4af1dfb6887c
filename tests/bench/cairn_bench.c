/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of the benchmark: it holds its share of a state, does what each line on its standard
 * input says, and answers with one line of JSON, so that a driver can let several ranks, transports
 * and peers take turns within one run.
 *
 * - save STEP [lazy MS] [check]: seconds until cairn_save returned (blocked) and until all ranks
 * are durable; lazy: a training step of MS milliseconds runs elsewhere meanwhile, as on a GPU, and
 * what the wait for the copy takes after it counts as blocked too; check: replicas are compared
 * - restore: of the latest, over wiped memory; checked against what was last saved
 * - memcpy: the same bytes, with as many threads as the snapshot, into prefaulted memory
 * - change SEED: new contents; they follow from SEED and the place in the tensor alone
 * - usage: CPU seconds so far; peak memory since the last memcpy and what of it is known
 *
 * With BENCH_REPLICATED set every rank holds everything, as under DDP.
 */
#include "bench_state.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS_MAX = 4, SLICE_BYTES = 4 << 20, DEADLINE_MS = 300000, LINE_BYTES = 512 };
#define COPY_BYTES_MAX (UINT64_C(2) << 30) /* of all ranks: state, arena and copy must fit */

struct bench {
    struct bench_state state;
    cairn_t *cairn;
    uint64_t sum; /* of what was last saved */
    unsigned threads;
    uint8_t *copy;       /* of memcpy, while that runs; prefaulted */
    uint64_t copy_bytes; /* used again from its start when the state is larger */
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int complain(const char *what, const struct cairn_error *err)
{
    printf("{\"error\": \"%s: %s: ", what, cairn_err_name(err->code));
    for (const char *c = err->text; *c; c++) {
        putchar(*c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '\'' : *c);
    }
    printf("\"}\n");
    fflush(stdout);
    return 1;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* The peak counts from here on; where the kernel does not allow that, it keeps the copy in it. */
static void forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
}

static uint64_t peak_bytes(void)
{
    char line[LINE_BYTES];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %llu kB", &kib) != 1) {
    }
    if (file) {
        fclose(file);
    }
    return kib * 1024;
}

/* What of the library's staging memory, the mapping of its memfd, counts as resident here. */
static uint64_t arena_bytes(void)
{
    char line[LINE_BYTES];
    uint64_t bytes = 0;
    bool is_arena = false;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long from, to, kib;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            is_arena = strstr(line, "memfd:cairn-arena") != NULL;
        } else if (is_arena && sscanf(line, "Rss: %llu kB", &kib) == 1) {
            bytes += kib * 1024;
        }
    }
    if (file) {
        fclose(file);
    }
    return bytes;
}

static int run_usage(const struct bench *bench)
{
    uint64_t peak = peak_bytes(), arena = arena_bytes();
    printf("{\"cpu_s\": %.6f, \"rss_peak\": %llu, \"arena\": %llu, \"state\": %llu, "
           "\"extra\": %lld}\n",
           cpu_s(), (unsigned long long)peak, (unsigned long long)arena,
           (unsigned long long)bench->state.bytes,
           (long long)peak - (long long)arena - (long long)bench->state.bytes);
    return 0;
}

/* --- memcpy: the baseline of blocked time ---------------------------------------------------- */

struct copier {
    pthread_t thread;
    const struct bench *bench;
    unsigned idx;
};

/* Slices dealt out in turn, so that all threads end together. */
static void *copy_main(void *arg)
{
    const struct copier *copier = arg;
    const struct bench *bench = copier->bench;
    uint64_t to = 0;
    unsigned turn = 0;
    for (size_t i = 0; i < bench->state.count; i++) {
        size_t bytes;
        const uint8_t *from = bench_state_data(&bench->state, i, &bytes);
        for (size_t at = 0; at < bytes; at += SLICE_BYTES) {
            if (turn++ % bench->threads == copier->idx) {
                memcpy(bench->copy + (to + at) % bench->copy_bytes, from + at,
                       bytes - at < SLICE_BYTES ? bytes - at : SLICE_BYTES);
            }
        }
        to += bytes;
    }
    return NULL;
}

static int run_memcpy(struct bench *bench)
{
    struct copier copiers[THREADS_MAX];
    uint64_t most = COPY_BYTES_MAX / (uint64_t)bench->state.world_size;
    bench->copy_bytes = bench->state.bytes < most ? bench->state.bytes : most;
    size_t mapped = bench->copy_bytes + SLICE_BYTES; /* a slice may begin at the very end */
    void *copy = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        struct cairn_error err = {.code = CAIRN_E_NO_MEMORY, .text = "memory for the copy"};
        return complain("memcpy", &err);
    }
    bench->copy = copy;
    memset(bench->copy, 1, mapped);
    double begin = now_s();
    unsigned started = 0;
    while (started < bench->threads) {
        copiers[started] = (struct copier){.bench = bench, .idx = started};
        if (pthread_create(&copiers[started].thread, NULL, copy_main, &copiers[started]) != 0) {
            break;
        }
        started++;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(copiers[i].thread, NULL);
    }
    printf("{\"memcpy_s\": %.6f, \"threads\": %u}\n", now_s() - begin, started);
    munmap(bench->copy, mapped);
    bench->copy = NULL;
    forget_peak();
    return started == bench->threads ? 0 : 1;
}

/* --- save and restore ------------------------------------------------------------------------ */

/* The step that trains on meanwhile needs no processor of ours. */
static void pass_ms(unsigned ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

struct save_how {
    bool lazy, check;
    unsigned step_ms; /* of training meanwhile; lazy */
};

static int run_save(struct bench *bench, uint64_t step, const struct save_how *how)
{
    struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    options.mode = how->lazy ? CAIRN_LAZY : CAIRN_COPY;
    options.check_replicas = how->check ? CAIRN_CHECK_FAIL : 0;
    double cpu = cpu_s(), begin = now_s();
    int rc = cairn_save(bench->cairn, step, &options, &op, &err);
    if (rc != 0) {
        return complain("save", &err);
    }
    double blocked = now_s() - begin;
    if (how->lazy) {
        pass_ms(how->step_ms);
    }
    double wait = now_s();
    rc = cairn_op_wait(op, CAIRN_STAGED, DEADLINE_MS, &err);
    blocked +=
        how->lazy ? now_s() - wait : 0; /* in copy mode all is copied when the call returns */
    rc = rc != 0 ? rc : cairn_op_wait(op, CAIRN_DONE, DEADLINE_MS, &err);
    double end = now_s();
    cairn_op_free(op);
    if (rc != 0) {
        return complain("durable", &err);
    }
    printf("{\"blocked_s\": %.6f, \"durable_s\": %.6f, \"cpu_s\": %.6f}\n", blocked, end - begin,
           cpu_s() - cpu);
    return 0;
}

/* Memory that held the right bytes before would hide a restore that does nothing. */
static void wipe(struct bench *bench)
{
    for (size_t i = 0; i < bench->state.count; i++) {
        size_t bytes;
        uint8_t *data = bench_state_data(&bench->state, i, &bytes);
        memset(data, 0x5a, bytes);
    }
}

static int run_restore(struct bench *bench)
{
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    wipe(bench);
    double cpu = cpu_s(), begin = now_s();
    int rc = cairn_restore(bench->cairn, NULL, &op, &err);
    rc = rc != 0 ? rc : cairn_op_wait(op, CAIRN_DONE, DEADLINE_MS, &err);
    double end = now_s();
    cpu = cpu_s() - cpu;
    cairn_op_free(op);
    if (rc != 0) {
        return complain("restore", &err);
    }
    if (bench_state_sum(&bench->state) != bench->sum) {
        err = (struct cairn_error){.code = CAIRN_E_INTERNAL, .text = "not what was saved"};
        return complain("restore", &err);
    }
    printf("{\"restore_s\": %.6f, \"cpu_s\": %.6f}\n", end - begin, cpu);
    return 0;
}

static int run_change(struct bench *bench, uint64_t seed)
{
    bench_state_fill(&bench->state, seed);
    bench->sum = bench_state_sum(&bench->state);
    printf("{\"ok\": true}\n");
    return 0;
}

static int run_command(struct bench *bench, const char *line)
{
    unsigned long long number;
    struct save_how how = {0};
    int words = sscanf(line, "save %llu lazy %u", &number, &how.step_ms);
    if (words >= 1) {
        how.lazy = words == 2;
        how.check = strstr(line, " check") != NULL;
        return run_save(bench, number, &how);
    }
    if (sscanf(line, "change %llu", &number) == 1) {
        return run_change(bench, number);
    }
    if (strcmp(line, "restore\n") == 0) {
        return run_restore(bench);
    }
    if (strcmp(line, "memcpy\n") == 0) {
        return run_memcpy(bench);
    }
    if (strcmp(line, "usage\n") == 0) {
        return run_usage(bench);
    }
    printf("{\"error\": \"unknown command\"}\n");
    return 1;
}

/* --- set-up ---------------------------------------------------------------------------------- */

static unsigned core_count(void)
{
    cpu_set_t cpus;
    unsigned count = 1;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        count = (unsigned)CPU_COUNT(&cpus);
    }
    return count < THREADS_MAX ? count : THREADS_MAX;
}

static bool parse(const char *text, uint64_t max, uint64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *ret <= max;
}

/* The TLS files come from the environment, as jobs have them. */
static int open_handle(struct bench *bench, const char *url, const char *attempt)
{
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn_error err = {0};
    options.rank = bench->state.rank;
    options.world_size = bench->state.world_size;
    options.attempt = attempt;
    options.threads = (int32_t)bench->threads;
    options.ca_file = getenv("BENCH_CA");
    options.cert_file = getenv("BENCH_CERT");
    options.key_file = getenv("BENCH_KEY");
    int rc = cairn_open(url, &options, &bench->cairn, &err);
    if (rc == 0) {
        rc = cairn_set_tensors(bench->cairn, bench->state.tensors, bench->state.count, &err);
    }
    return rc == 0 ? 0 : complain("open", &err);
}

int main(int argc, char **argv)
{
    struct bench bench = {.threads = core_count()};
    uint64_t rank, world_size, bytes;
    char line[128];
    if (argc != 6 || !parse(argv[3], 1023, &rank) || !parse(argv[4], 1024, &world_size) ||
        rank >= world_size || !parse(argv[5], UINT64_C(1) << 40, &bytes)) {
        fprintf(stderr, "usage: cairn_bench URL ATTEMPT RANK WORLD BYTES\n");
        return 2;
    }
    bench.state.replicated = getenv("BENCH_REPLICATED") != NULL;
    if (!bench_state_init(&bench.state, bytes, (int32_t)rank, (int32_t)world_size)) {
        fprintf(stderr, "cairn_bench: no memory for %llu bytes\n", (unsigned long long)bytes);
        return 1;
    }
    bench_state_fill(&bench.state, 1);
    bench.sum = bench_state_sum(&bench.state);
    int rc = open_handle(&bench, argv[1], argv[2]);
    if (rc == 0) {
        printf("{\"ready\": true, \"bytes\": %llu}\n", (unsigned long long)bench.state.bytes);
        fflush(stdout);
    }
    while (rc == 0 && fgets(line, sizeof line, stdin) && strcmp(line, "quit\n") != 0) {
        rc = run_command(&bench, line);
        fflush(stdout);
    }
    struct cairn_error err = {0};
    if (bench.cairn && cairn_close(bench.cairn, DEADLINE_MS, &err) != 0 && rc == 0) {
        rc = complain("close", &err);
    }
    bench_state_fini(&bench.state);
    return rc;
}
