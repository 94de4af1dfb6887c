/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_rank: one rank that does what it is told: a line on stdin is a command, and each command is
 * answered by one JSON line on stdout, {"ok":true,...} or {"ok":false,"error":"NAME","text":".."};
 * `train` also tells events, {"event":...}. The tests (harness.py) are written with it, over
 * cairn.h alone. Main thread; nothing here outlives stdin.
 */
#include "state.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 12, OPS = 64, TRAIN_WAIT_MS = 60000, CHILD_LIVES_S = 60 };

struct program {
    cairn_t *cairn;
    struct state state;
    cairn_op_t *ops[OPS];
    size_t op_count;
    struct cairn_options options;  /* of the next open */
    struct cairn_save_options how; /* of every save */
};

/* What `option` sets by name. */
static int *option_of(struct program *program, const char *name)
{
    const struct {
        const char *name;
        int *at;
    } table[] = {{"snapshots", &program->options.snapshots},
                 {"when_full", &program->options.when_full},
                 {"encoding", &program->options.encoding},
                 {"threads", &program->options.threads},
                 {"mode", &program->how.mode},
                 {"verify_staged", &program->how.verify_staged},
                 {"full", &program->how.full},
                 {"check_replicas", &program->how.check_replicas}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(table[i].name, name) == 0) {
            return table[i].at;
        }
    }
    return NULL;
}

/* --- answers --------------------------------------------------------------------------------- */

static void print_text(const char *text)
{
    putchar('"');
    for (const char *at = text; *at; at++) {
        if (*at == '"' || *at == '\\') {
            printf("\\%c", *at);
        } else if ((unsigned char)*at < 0x20) {
            printf("\\u%04x", (unsigned)*at);
        } else {
            putchar(*at);
        }
    }
    putchar('"');
}

static void refuse(int code, const char *text)
{
    printf("{\"ok\":false,\"error\":\"%s\",\"text\":", cairn_err_name(code));
    print_text(text);
    printf("}\n");
}

static void answer(int status, const struct cairn_error *err)
{
    if (status == 0) {
        printf("{\"ok\":true}\n");
    } else {
        refuse(status, err->text);
    }
}

/* wrong: what is, or NULL. */
static void answer_wrong(int code, const char *wrong)
{
    if (wrong) {
        refuse(code, wrong);
    } else {
        answer(0, NULL);
    }
}

static void print_result(cairn_op_t *op)
{
    struct cairn_result result = CAIRN_RESULT_INIT;
    struct cairn_error err = {0};
    int status = cairn_op_result(op, &result, &err);
    if (status != 0) {
        refuse(status, err.text);
        return;
    }
    printf("{\"ok\":true,\"term\":%" PRIu64 ",\"step\":%" PRIu64
           ",\"fell_back\":%s,\"new_lineage\":%s,\"missing\":[",
           result.term, result.step, result.fell_back ? "true" : "false",
           result.new_lineage ? "true" : "false");
    const char *name;
    for (size_t i = 0; (name = cairn_op_missing(op, i)) != NULL; i++) {
        printf("%s", i > 0 ? "," : "");
        print_text(name);
    }
    const void *metadata;
    size_t bytes = 0;
    status = cairn_op_metadata(op, &metadata, &bytes); /* INVALID of a save */
    printf("],\"metadata\":\"%s\"}\n", status == 0 ? "OK" : cairn_err_name(status));
}

/* --- commands -------------------------------------------------------------------------------- */

/* With deadlines short for tests. */
static void command_open(struct program *program, char **words)
{
    struct cairn_options options = program->options;
    struct cairn_error err = {0};
    options.rank = (int32_t)strtol(words[2], NULL, 10);
    options.world_size = (int32_t)strtol(words[3], NULL, 10);
    options.attempt = strcmp(words[4], "-") == 0 ? NULL : words[4];
    options.read_only = words[5] != NULL && strcmp(words[5], "viewer") == 0;
    options.io_deadline_ms = words[6] ? strtoll(words[6], NULL, 10) : 0;
    if (words[9] != NULL) {
        options.ca_file = words[7];
        options.cert_file = strcmp(words[8], "-") == 0 ? NULL : words[8];
        options.key_file = strcmp(words[9], "-") == 0 ? NULL : words[9];
    }
    answer(cairn_open(words[1], &options, &program->cairn, &err), &err);
}

static int placement_of(const char *word)
{
    return strcmp(word, "local") == 0     ? CAIRN_LOCAL
           : strcmp(word, "sharded") == 0 ? CAIRN_SHARDED
                                          : CAIRN_REPLICATED;
}

static void command_tensor(struct program *program, char **words)
{
    struct state_tensor wish = {.dtype = CAIRN_DTYPE_NONE};
    snprintf(wish.name, sizeof(wish.name), "%s", words[1]);
    for (int dtype = CAIRN_BOOL; dtype <= CAIRN_F4_E2M1FN_X2; dtype++) {
        if (strcmp(cairn_dtype_name(dtype), words[2]) == 0) {
            wish.dtype = dtype;
        }
    }
    wish.placement = placement_of(words[4]);
    if (words[5] != NULL && strcmp(words[5], "-") != 0) {
        snprintf(wish.coordinate, sizeof(wish.coordinate), "%s", words[5]);
    }
    const char *wrong = state_add_tensor(&program->state, &wish, words[3],
                                         words[7] ? words[6] : NULL, words[7] ? words[7] : NULL);
    answer_wrong(CAIRN_E_INVALID, wrong);
}

static void command_blob(struct program *program, char **words)
{
    struct state_blob wish = {.kind = CAIRN_BYTES};
    snprintf(wish.name, sizeof(wish.name), "%s", words[1]);
    wish.kind = strcmp(words[2], "tree") == 0 ? CAIRN_TREE : CAIRN_BYTES;
    wish.placement = placement_of(words[3]);
    if (words[5] != NULL) {
        snprintf(wish.coordinate, sizeof(wish.coordinate), "%s", words[5]);
    }
    const char *wrong = state_add_blob(&program->state, &wish, words[4]);
    answer_wrong(CAIRN_E_INVALID, wrong);
}

static void answer_op(struct program *program, int status, cairn_op_t *op,
                      const struct cairn_error *err)
{
    if (status != 0) {
        refuse(status, err->text);
        return;
    }
    if (program->op_count == OPS) {
        cairn_op_free(op);
        refuse(CAIRN_E_TOO_LARGE, "too many operations");
        return;
    }
    program->ops[program->op_count] = op;
    printf("{\"ok\":true,\"op\":%zu}\n", program->op_count++);
}

static void command_save(struct program *program, char **words)
{
    struct cairn_save_options options = program->how;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    static const char *const tags[] = {"e2e"};
    const struct cairn_metric metric = {.name = "loss", .value = 0.5};
    options.deadline_ms = words[2] ? strtoll(words[2], NULL, 10) : 0;
    options.tags = tags;
    options.tag_count = 1;
    options.metrics = &metric;
    options.metric_count = 1;
    int status = cairn_save(program->cairn, strtoull(words[1], NULL, 10), &options, &op, &err);
    answer_op(program, status, op, &err);
}

static void command_restore(struct program *program, char **words)
{
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    if (strcmp(words[1], "latest") != 0) {
        options.step = strtoull(words[1], NULL, 10);
    }
    options.term = words[2] ? strtoull(words[2], NULL, 10) : 0;
    options.allow_older = words[3] ? (int)strtol(words[3], NULL, 10) : -1;
    options.strict = words[4] ? (int)strtol(words[4], NULL, 10) : 1;
    options.deadline_ms = words[5] ? strtoll(words[5], NULL, 10) : 0;
    int status = cairn_restore(program->cairn, &options, &op, &err);
    answer_op(program, status, op, &err);
}

/* wait, released, handed: of an operation whose number was told. */
static void command_wait(struct program *program, char **words)
{
    struct cairn_error err = {0};
    size_t op = strtoul(words[1], NULL, 10);
    if (op >= program->op_count) {
        refuse(CAIRN_E_INVALID, "there is no such operation");
        return;
    }
    enum cairn_stage stage = strcmp(words[0], "handed") == 0     ? CAIRN_HANDED_OVER
                             : strcmp(words[0], "released") == 0 ? CAIRN_RELEASED
                                                                 : CAIRN_DONE;
    int status = cairn_op_wait(program->ops[op], stage, strtoll(words[2], NULL, 10), &err);
    if (status == 0 && stage == CAIRN_DONE) {
        print_result(program->ops[op]);
    } else {
        answer(status, &err);
    }
}

static void command_annotate(struct program *program, char **words)
{
    struct cairn_annotation annotation = CAIRN_ANNOTATION_INIT;
    struct cairn_error err = {0};
    const struct cairn_metric metric = {.name = words[3], .value = strtod(words[4], NULL)};
    uint64_t step = strtoull(words[1], NULL, 10);
    annotation.term = strtoull(words[2], NULL, 10);
    annotation.metrics = &metric;
    annotation.metric_count = 1;
    annotation.deadline_ms = 10000;
    answer(cairn_annotate(program->cairn, step, &annotation, &err), &err);
}

static void command_status(struct program *program, char **words)
{
    static const char *const states[] = {"none", "open", "committed", "aborted", "forgotten"};
    struct cairn_checkpoint checkpoint = CAIRN_CHECKPOINT_INIT;
    struct cairn_error err = {0};
    checkpoint.step = words[1] ? strtoull(words[1], NULL, 10) : 0;
    checkpoint.term = words[2] ? strtoull(words[2], NULL, 10) : 0;
    int status = cairn_status(program->cairn, 10000, &checkpoint, &err);
    if (status != 0) {
        refuse(status, err.text);
    } else {
        printf("{\"ok\":true,\"state\":\"%s\"}\n", states[checkpoint.state]);
    }
}

static void command_list(struct program *program, char **words)
{
    (void)words;
    struct cairn_error err = {0};
    cairn_list_t *list = NULL;
    int status = cairn_list(program->cairn, 10000, &list, &err);
    if (status != 0) {
        refuse(status, err.text);
        return;
    }
    printf("{\"ok\":true,\"checkpoints\":[");
    for (size_t i = 0; i < cairn_list_count(list); i++) {
        struct cairn_checkpoint checkpoint = CAIRN_CHECKPOINT_INIT;
        cairn_list_get(list, i, &checkpoint);
        printf("%s[%" PRIu64 ",%" PRIu64 "]", i > 0 ? "," : "", checkpoint.step, checkpoint.term);
    }
    printf("]}\n");
    cairn_list_free(list);
}

/* A child that holds everything open that fork() gave it; it ends by itself. */
static void command_fork(struct program *program, char **words)
{
    (void)program, (void)words;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_LIVES_S);
        for (;;) {
            pause();
        }
    }
    printf("{\"ok\":true,\"pid\":%ld}\n", (long)pid);
}

/* --- training -------------------------------------------------------------------------------- */

/* Waits for a save and tells what became of it. */
static int finish_save(cairn_op_t **io_op, uint64_t step, uint64_t digest)
{
    struct cairn_error err = {0};
    struct cairn_result result = CAIRN_RESULT_INIT;
    if (!*io_op) {
        return 0;
    }
    int status = cairn_op_wait(*io_op, CAIRN_DONE, TRAIN_WAIT_MS, &err);
    if (status == 0) {
        status = cairn_op_result(*io_op, &result, &err);
    }
    cairn_op_free(*io_op);
    *io_op = NULL;
    if (status == 0) {
        printf("{\"event\":\"durable\",\"step\":%" PRIu64 ",\"term\":%" PRIu64
               ",\"digest\":\"%016" PRIx64 "\"}\n",
               step, result.term, digest);
    } else {
        printf("{\"event\":\"failed\",\"step\":%" PRIu64 ",\"error\":\"%s\",\"text\":", step,
               cairn_err_name(status));
        print_text(err.text);
        printf("}\n");
    }
    return status;
}

/* A save every so many steps, one in flight behind the training.
 * A save that failed ends it, with its error, unless tolerant. */
static void command_train(struct program *program, char **words)
{
    uint64_t first = strtoull(words[1], NULL, 10), last = strtoull(words[2], NULL, 10);
    uint64_t every = strtoull(words[3], NULL, 10), saved = 0, digest = 0;
    int tolerant = words[4] != NULL;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    int status = 0;
    for (uint64_t step = first; status == 0 && step <= last; step++) {
        state_train(&program->state, step);
        if (step % every != 0 && step != last) {
            continue;
        }
        status = finish_save(&op, saved, digest);
        if (status == 0 || tolerant) {
            saved = step;
            digest = state_digest(&program->state);
            status = cairn_save(program->cairn, step, NULL, &op, &err);
        }
    }
    int ended = finish_save(&op, saved, digest);
    status = status != 0 ? status : ended;
    if (status != 0) {
        refuse(status, err.text);
    } else {
        printf("{\"ok\":true,\"digest\":\"%016" PRIx64 "\"}\n", state_digest(&program->state));
    }
}

/* From the state as it is, the digests after each step from 1 on, without saving. */
static void command_expect(struct program *program, char **words)
{
    uint64_t last = strtoull(words[1], NULL, 10);
    printf("{\"ok\":true,\"digests\":[");
    for (uint64_t step = 1; step <= last; step++) {
        state_train(&program->state, step);
        printf("%s\"%016" PRIx64 "\"", step > 1 ? "," : "", state_digest(&program->state));
    }
    printf("]}\n");
}

/* --- the loop -------------------------------------------------------------------------------- */

static void command_close(struct program *program, char **words)
{
    struct cairn_error err = {0};
    int64_t deadline_ms = words[1] ? strtoll(words[1], NULL, 10) : 10000;
    for (size_t i = 0; i < program->op_count; i++) {
        cairn_op_free(program->ops[i]);
    }
    program->op_count = 0;
    int status = cairn_close(program->cairn, deadline_ms, &err);
    program->cairn = NULL;
    answer(status, &err);
}

static void command_check(struct program *program, char **words)
{
    uint64_t seed = words[1] ? strtoull(words[1], NULL, 10) : 0;
    answer_wrong(CAIRN_E_DIGEST_MISMATCH, state_check(&program->state, seed));
}

/* Of the next open, or of every save from now on. */
static void command_option(struct program *program, char **words)
{
    int *at = option_of(program, words[1]);
    if (strcmp(words[1], "arena_bytes") == 0) {
        program->options.arena_bytes = strtoull(words[2], NULL, 10);
    } else if (at) {
        *at = (int)strtol(words[2], NULL, 10);
    } else {
        refuse(CAIRN_E_INVALID, "there is no such option");
        return;
    }
    answer(0, NULL);
}

/* A seed for each of equal parts of the whole tensor. */
static void command_paint(struct program *program, char **words)
{
    const char *coordinate = strcmp(words[2], "-") == 0 ? "" : words[2];
    answer_wrong(CAIRN_E_DIGEST_MISMATCH, state_paint(&program->state, words[1], coordinate,
                                                      words[3], strcmp(words[0], "holds") == 0));
}

static void command_clear(struct program *program, char **words)
{
    (void)words;
    state_clear(&program->state);
    answer(0, NULL);
}

static void command_fill(struct program *program, char **words)
{
    state_fill(&program->state, words[1] ? strtoull(words[1], NULL, 10) : 0);
    answer(0, NULL);
}

static void command_digest(struct program *program, char **words)
{
    (void)words;
    printf("{\"ok\":true,\"digest\":\"%016" PRIx64 "\"}\n", state_digest(&program->state));
}

static void command_set(struct program *program, char **words)
{
    (void)words;
    struct cairn_error err = {0};
    answer(state_register(&program->state, program->cairn, &err), &err);
}

static const struct command {
    const char *name;
    int words; /* with the name, at least */
    bool on_handle;
    const char *usage;
    void (*run)(struct program *program, char **words);
} commands[] = {
    {"tensor", 5, false, "NAME DTYPE SHAPE PLACEMENT [COORDINATE|- [OFFSET LENGTH]]",
     command_tensor},
    {"blob", 5, false, "NAME bytes|tree PLACEMENT HEX [COORDINATE]", command_blob},
    {"clear", 1, false, "", command_clear},
    {"fill", 1, false, "[SEED]", command_fill},
    {"check", 1, false, "[SEED]", command_check},
    {"digest", 1, false, "", command_digest},
    {"expect", 2, false, "LAST", command_expect},
    {"paint", 4, false, "NAME COORDINATE|- SEED[,SEED..]", command_paint},
    {"holds", 4, false, "NAME COORDINATE|- SEED[,SEED..]", command_paint},
    {"option", 3, false, "NAME NUMBER", command_option},
    {"open", 5, false, "URL RANK WORLD TOKEN|- [viewer|rank] [IO_MS] [CA CERT|- KEY|-]",
     command_open},
    {"set", 1, true, "", command_set},
    {"save", 2, true, "STEP [DEADLINE_MS]", command_save},
    {"restore", 2, true, "latest|STEP [TERM [ALLOW_OLDER [STRICT [DEADLINE_MS]]]]",
     command_restore},
    {"wait", 3, true, "OP DEADLINE_MS", command_wait},
    {"released", 3, true, "OP DEADLINE_MS", command_wait},
    {"handed", 3, true, "OP DEADLINE_MS", command_wait},
    {"annotate", 5, true, "STEP TERM NAME VALUE", command_annotate},
    {"train", 4, true, "FIRST LAST EVERY [TOLERANT]", command_train},
    {"status", 1, true, "[STEP [TERM]]", command_status},
    {"list", 1, true, "", command_list},
    {"fork", 1, true, "", command_fork},
    {"close", 1, true, "[DEADLINE_MS]", command_close},
};

static void run(struct program *program, int count, char **words)
{
    const struct command *command = NULL;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        command = strcmp(words[0], commands[i].name) == 0 ? &commands[i] : command;
    }
    if (!command) {
        refuse(CAIRN_E_INVALID, "unknown command");
    } else if (command->on_handle && !program->cairn) {
        refuse(CAIRN_E_CLOSED, "open first");
    } else if (count < command->words) {
        refuse(CAIRN_E_INVALID, command->usage);
    } else {
        command->run(program, words);
    }
}

int main(void)
{
    static struct program program = {.options = CAIRN_OPTIONS_INIT, .how = CAIRN_SAVE_OPTIONS_INIT};
    char line[65536];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        char *words[WORDS + 1] = {NULL}, *save = NULL; /* NULL ends them */
        int count = 0;
        for (char *word = strtok_r(line, " \n", &save); word && count < WORDS;
             word = strtok_r(NULL, " \n", &save)) {
            words[count++] = word;
        }
        if (count > 0) {
            run(&program, count, words);
        }
    }
    for (size_t i = 0; i < program.op_count; i++) {
        cairn_op_free(program.ops[i]);
    }
    if (program.cairn) {
        struct cairn_error err = {0};
        if (cairn_close(program.cairn, 1000, &err) != 0) {
            fprintf(stderr, "e2e_rank: close: %s\n", err.text);
        }
    }
    state_clear(&program.state);
    return 0;
}
