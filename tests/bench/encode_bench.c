/* SPDX-License-Identifier: Apache-2.0
 *
 * What the encodings save and cost, per kind of data, on one core: encode_bench [MIB [REPEAT]], or
 * encode_bench --file PATH DTYPE for the bytes of a file. Rates are of plain bytes by the thread's
 * CPU time, the best of the repeats; "seal" is digest, encode and crc, "open" is crc, decode and
 * digest, as clients and servers call them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/limits.h"
#include "format/ids.h"
#include "pipeline/chunk.h"
#include "pipeline/encode.h"

struct random {
    uint64_t state;
};

static uint64_t random_u64(struct random *random)
{
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return random->state * 0x2545f4914f6cdd1dull;
}

static double random_unit(struct random *random)
{
    return ((double)(random_u64(random) >> 11) + 0.5) * 0x1p-53;
}

static double random_gauss(struct random *random)
{
    return sqrt(-2 * log(random_unit(random))) * cos(6.283185307179586 * random_unit(random));
}

/* A layer's weights: normal, each row of 1024 with a scale of its own. */
static double weight(struct random *random, size_t idx)
{
    struct random row = {.state = idx / 1024 * 0x9e3779b97f4a7c15ull + 77};
    return 0.02 * exp(0.3 * random_gauss(&row)) * random_gauss(random);
}

/* Second moments: positive, a row's scale times the spread of an average of 1000 squares. */
static double second_moment(struct random *random, size_t idx)
{
    double scale = weight(&(struct random){.state = idx / 1024 + 5}, idx);
    return scale * scale * 1e-4 * exp(1.2 * random_gauss(random));
}

static uint64_t bits_of_f32(double value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static uint64_t bits_of_bf16(double value)
{
    uint64_t bits = bits_of_f32(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* To a float of fewer bits, halves rounded up; too small becomes zero. Finite values only. */
static uint64_t bits_narrowed(double value, unsigned exponent_bits, unsigned mantissa_bits)
{
    uint64_t bits = bits_of_f32(value), sign = bits >> 31;
    int64_t exponent = (int64_t)(bits >> 23 & 0xff) - 127 + (1 << (exponent_bits - 1)) - 1;
    uint64_t mantissa = bits & 0x7fffff;
    if (exponent <= 0) {
        exponent = 0;
        mantissa = 0;
    }
    uint64_t joined = (uint64_t)exponent << 23 | mantissa;
    joined += 1ull << (22 - mantissa_bits);
    return sign << (exponent_bits + mantissa_bits) | joined >> (23 - mantissa_bits);
}

static uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

enum data {
    WEIGHTS_BF16,
    WEIGHTS_F16,
    WEIGHTS_F32,
    WEIGHTS_F64,
    WEIGHTS_F8,
    MASTER_F32, /* float32 that was made from bfloat16 */
    ADAM_M,
    ADAM_V,
    TOKENS_I64,
    SMALL_I32,
    ZEROS_F32,
    RANDOM_U8,
    DATA_COUNT
};

static const struct {
    const char *name;
    uint32_t dtype;
} datas[DATA_COUNT] = {[WEIGHTS_BF16] = {"weights", CAIRN_BF16},
                       [WEIGHTS_F16] = {"weights", CAIRN_F16},
                       [WEIGHTS_F32] = {"weights", CAIRN_F32},
                       [WEIGHTS_F64] = {"weights", CAIRN_F64},
                       [WEIGHTS_F8] = {"weights", CAIRN_F8_E4M3FN},
                       [MASTER_F32] = {"bf16 widened", CAIRN_F32},
                       [ADAM_M] = {"Adam m", CAIRN_F32},
                       [ADAM_V] = {"Adam v", CAIRN_F32},
                       [TOKENS_I64] = {"token ids", CAIRN_I64},
                       [SMALL_I32] = {"small, signed", CAIRN_I32},
                       [ZEROS_F32] = {"zeros", CAIRN_F32},
                       [RANDOM_U8] = {"random", CAIRN_U8}};

static uint64_t element(enum data data, struct random *random, size_t idx)
{
    switch (data) {
    case WEIGHTS_BF16:
        return bits_of_bf16(weight(random, idx));
    case WEIGHTS_F16:
        return bits_narrowed(weight(random, idx), 5, 10);
    case WEIGHTS_F32:
        return bits_of_f32(weight(random, idx));
    case WEIGHTS_F64:
        return bits_of_f64(weight(random, idx));
    case WEIGHTS_F8:
        return bits_narrowed(weight(random, idx) * 50, 4, 3);
    case MASTER_F32:
        return bits_of_bf16(weight(random, idx)) << 16;
    case ADAM_M:
        return bits_of_f32(sqrt(second_moment(random, idx)) * random_gauss(random));
    case ADAM_V:
        return bits_of_f32(second_moment(random, idx));
    case TOKENS_I64:
        return (uint64_t)(50000 * pow(random_unit(random), 3));
    case SMALL_I32:
        return (uint64_t)(int64_t)(20 * random_gauss(random));
    case ZEROS_F32:
        return 0;
    case RANDOM_U8:
    case DATA_COUNT:
        break;
    }
    return random_u64(random);
}

static void make_data(enum data data, size_t bytes, uint8_t *ret)
{
    struct random random = {.state = 4711};
    size_t width = dtype_bits(datas[data].dtype) / 8;
    for (size_t i = 0; i < bytes / width; i++) {
        uint64_t value = element(data, &random, i);
        memcpy(ret + i * width, &value, width);
    }
}

static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

struct bench {
    struct encoder *encoder;
    size_t bytes, chunk_count;
    unsigned repeat;
    uint8_t *plain, *stored, *back; /* a slot of LIMIT_CHUNK_BYTES for each chunk; back one chunk */
    struct chunk_sealed *sealed;
};

struct figures {
    double seal_s, open_s;
    uint64_t stored_bytes;
};

static size_t chunk_bytes(const struct bench *bench, size_t i)
{
    return (size_t)min_u64(LIMIT_CHUNK_BYTES, bench->bytes - i * LIMIT_CHUNK_BYTES);
}

static double seal_all(struct bench *bench, uint32_t dtype, enum encoding encoding)
{
    double start = cpu_s();
    for (size_t i = 0; i < bench->chunk_count; i++) {
        const struct chunk_plain plain = {.bytes = chunk_bytes(bench, i),
                                          .data = bench->plain + i * LIMIT_CHUNK_BYTES,
                                          .shape = planes_shape_of_dtype(dtype),
                                          .element_bytes = (uint8_t)(dtype_bits(dtype) / 8),
                                          .digest_alg = DIGEST_XXH3_128};
        const struct zstd_room room = {.data = bench->stored + i * LIMIT_CHUNK_BYTES,
                                       .cap = LIMIT_CHUNK_BYTES};
        chunk_seal(bench->encoder, encoding, &plain, &room, &bench->sealed[i]);
    }
    return cpu_s() - start;
}

static double open_all(struct bench *bench)
{
    double start = cpu_s();
    for (size_t i = 0; i < bench->chunk_count; i++) {
        struct diag diag = DIAG_INIT;
        int rc = chunk_open(&bench->sealed[i].envelope, bench->sealed[i].stored, LIMIT_CHUNK_BYTES,
                            bench->back, &diag);
        if (rc != 0) {
            fprintf(stderr, "encode_bench: chunk %zu: %s\n", i, diag_text(&diag, rc));
            exit(1);
        }
    }
    return cpu_s() - start;
}

static struct figures measure(struct bench *bench, uint32_t dtype, enum encoding encoding)
{
    struct figures figures = {.seal_s = INFINITY, .open_s = INFINITY};
    for (unsigned i = 0; i < bench->repeat; i++) {
        figures.seal_s = fmin(figures.seal_s, seal_all(bench, dtype, encoding));
        figures.open_s = fmin(figures.open_s, open_all(bench));
    }
    for (size_t i = 0; i < bench->chunk_count; i++) {
        figures.stored_bytes += bench->sealed[i].envelope.stored_bytes;
    }
    return figures;
}

static void print_rows(struct bench *bench, const char *name, uint32_t dtype)
{
    static const char *const names[] = {"raw", "zstd", "planes"};
    for (int e = ENCODING_RAW; e <= ENCODING_PLANES_ZSTD; e++) {
        struct figures figures = measure(bench, dtype, (enum encoding)e);
        double mb = (double)bench->bytes / 1e6;
        printf("%-14s %-14s %-7s %7.4f %10.0f %10.0f\n", e == ENCODING_RAW ? name : "",
               e == ENCODING_RAW ? dtype_name(dtype) : "", names[e],
               (double)figures.stored_bytes / (double)bench->bytes, mb / figures.seal_s,
               mb / figures.open_s);
    }
}

static void bench_init(struct bench *bench, size_t bytes, unsigned repeat)
{
    memset(bench, 0, sizeof *bench);
    bench->bytes = bytes;
    bench->repeat = repeat;
    bench->chunk_count = (bytes + LIMIT_CHUNK_BYTES - 1) / LIMIT_CHUNK_BYTES;
    bench->encoder = encoder_new(LIMIT_CHUNK_BYTES);
    bench->plain = calloc(bench->chunk_count, LIMIT_CHUNK_BYTES);
    bench->stored = malloc(bench->chunk_count * LIMIT_CHUNK_BYTES);
    bench->back = malloc(LIMIT_CHUNK_BYTES);
    bench->sealed = calloc(bench->chunk_count, sizeof *bench->sealed);
    if (!bench->encoder || !bench->plain || !bench->stored || !bench->back || !bench->sealed) {
        fprintf(stderr, "encode_bench: no memory for %zu bytes; give a smaller size\n", bytes);
        exit(1);
    }
    memset(bench->stored, 1, bench->chunk_count * LIMIT_CHUNK_BYTES);
    memset(bench->back, 1, LIMIT_CHUNK_BYTES);
}

static void bench_fini(struct bench *bench)
{
    encoder_free(bench->encoder);
    free(bench->plain);
    free(bench->stored);
    free(bench->back);
    free(bench->sealed);
}

static int run_file(const char *path, const char *dtype_text)
{
    struct bench bench;
    uint32_t dtype = CAIRN_DTYPE_NONE;
    for (uint32_t i = 1; dtype_bits(i) != 0; i++) {
        dtype = strcmp(dtype_name(i), dtype_text) == 0 ? i : dtype;
    }
    FILE *file = fopen(path, "rb");
    if (dtype == CAIRN_DTYPE_NONE || !file) {
        fprintf(stderr, "encode_bench: %s '%s'\n", file ? "unknown dtype" : "cannot open",
                file ? dtype_text : path);
        if (file) {
            fclose(file);
        }
        return 2;
    }
    bench_init(&bench, MIB(256), 3);
    bench.bytes = fread(bench.plain, 1, bench.bytes, file);
    bench.chunk_count = (bench.bytes + LIMIT_CHUNK_BYTES - 1) / LIMIT_CHUNK_BYTES;
    int failed = ferror(file) || bench.bytes == 0;
    fclose(file);
    if (failed) {
        fprintf(stderr, "encode_bench: nothing could be read from %s\n", path);
    } else {
        print_rows(&bench, "file", dtype);
    }
    bench_fini(&bench);
    return failed;
}

int main(int argc, char **argv)
{
    struct bench bench;
    if (argc == 4 && strcmp(argv[1], "--file") == 0) {
        return run_file(argv[2], argv[3]);
    }
    unsigned long mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 32;
    unsigned long repeat = argc > 2 ? strtoul(argv[2], NULL, 10) : 5;
    if (argc > 3 || mib == 0 || mib > 4096 || repeat == 0 || repeat > 1000) {
        fprintf(stderr, "usage: encode_bench [MIB [REPEAT]] | --file PATH DTYPE\n");
        return 2;
    }
    bench_init(&bench, MIB(mib), (unsigned)repeat);
    printf("%-14s %-14s %-7s %7s %10s %10s   (%lu MiB, one core, best of %lu)\n", "data", "dtype",
           "coding", "ratio", "seal MB/s", "open MB/s", mib, repeat);
    for (int data = 0; data < DATA_COUNT; data++) {
        make_data((enum data)data, bench.bytes, bench.plain);
        print_rows(&bench, datas[data].name, datas[data].dtype);
    }
    bench_fini(&bench);
    return 0;
}
