/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_rank: one rank that does what it is told: a line on stdin is a command, and each command is
 * answered by one JSON line on stdout, {"ok":true,...} or {"ok":false,"error":"NAME","text":".."};
 * `train` also tells events, {"event":...}. The tests (harness.py) are written with it, over
 * cairn.h alone. Main thread; nothing here outlives stdin.
 */
#include "state.h"

#include <inttypes.h>
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

/* open URL RANK WORLD TOKEN|- [read_only] [ca cert key|-], with deadlines short for tests */
static void command_open(struct program *program, int count, char **words)
{
    struct cairn_options options = program->options;
    struct cairn_error err = {0};
    if (count < 5) {
        refuse(CAIRN_E_INVALID, "open URL RANK WORLD TOKEN [viewer|rank] [IO_MS] [CA CERT KEY]");
        return;
    }
    options.rank = (int32_t)strtol(words[2], NULL, 10);
    options.world_size = (int32_t)strtol(words[3], NULL, 10);
    options.attempt = strcmp(words[4], "-") == 0 ? NULL : words[4];
    options.read_only = count > 5 && strcmp(words[5], "viewer") == 0;
    options.io_deadline_ms = count > 6 ? strtoll(words[6], NULL, 10) : 0;
    if (count > 9) {
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

/* tensor NAME DTYPE SHAPE PLACEMENT [COORDINATE|- [OFFSET LENGTH]] */
static void command_tensor(struct program *program, int count, char **words)
{
    struct state_tensor wish = {.dtype = CAIRN_DTYPE_NONE};
    if (count < 5) {
        refuse(CAIRN_E_INVALID, "tensor NAME DTYPE SHAPE PLACEMENT [COORDINATE [OFFSET LENGTH]]");
        return;
    }
    snprintf(wish.name, sizeof(wish.name), "%s", words[1]);
    for (int dtype = CAIRN_BOOL; dtype <= CAIRN_F4_E2M1FN_X2; dtype++) {
        if (strcmp(cairn_dtype_name(dtype), words[2]) == 0) {
            wish.dtype = dtype;
        }
    }
    wish.placement = placement_of(words[4]);
    if (count > 5 && strcmp(words[5], "-") != 0) {
        snprintf(wish.coordinate, sizeof(wish.coordinate), "%s", words[5]);
    }
    const char *wrong = state_add_tensor(&program->state, &wish, words[3],
                                         count > 7 ? words[6] : NULL, count > 7 ? words[7] : NULL);
    if (wrong) {
        refuse(CAIRN_E_INVALID, wrong);
    } else {
        answer(0, NULL);
    }
}

/* blob NAME bytes|tree PLACEMENT HEX [COORDINATE] */
static void command_blob(struct program *program, int count, char **words)
{
    struct state_blob wish = {.kind = CAIRN_BYTES};
    if (count < 5) {
        refuse(CAIRN_E_INVALID, "blob NAME bytes|tree PLACEMENT HEX [COORDINATE]");
        return;
    }
    snprintf(wish.name, sizeof(wish.name), "%s", words[1]);
    wish.kind = strcmp(words[2], "tree") == 0 ? CAIRN_TREE : CAIRN_BYTES;
    wish.placement = placement_of(words[3]);
    if (count > 5) {
        snprintf(wish.coordinate, sizeof(wish.coordinate), "%s", words[5]);
    }
    const char *wrong = state_add_blob(&program->state, &wish, words[4]);
    if (wrong) {
        refuse(CAIRN_E_INVALID, wrong);
    } else {
        answer(0, NULL);
    }
}

static void answer_op(struct program *program, int status, cairn_op_t *op,
                      const struct cairn_error *err)
{
    if (status != 0) {
        refuse(status, err->text);
        return;
    }
    program->ops[program->op_count] = op;
    printf("{\"ok\":true,\"op\":%zu}\n", program->op_count++);
}

/* save STEP [DEADLINE_MS] */
static void command_save(struct program *program, int count, char **words)
{
    struct cairn_save_options options = program->how;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    static const char *const tags[] = {"e2e"};
    const struct cairn_metric metric = {.name = "loss", .value = 0.5};
    if (count < 2 || program->op_count == OPS) {
        refuse(CAIRN_E_INVALID, "save STEP [DEADLINE_MS]");
        return;
    }
    options.deadline_ms = count > 2 ? strtoll(words[2], NULL, 10) : 0;
    options.tags = tags;
    options.tag_count = 1;
    options.metrics = &metric;
    options.metric_count = 1;
    int status = cairn_save(program->cairn, strtoull(words[1], NULL, 10), &options, &op, &err);
    answer_op(program, status, op, &err);
}

/* restore latest|STEP [TERM [ALLOW_OLDER [STRICT [DEADLINE_MS]]]] */
static void command_restore(struct program *program, int count, char **words)
{
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_error err = {0};
    cairn_op_t *op = NULL;
    if (count < 2 || program->op_count == OPS) {
        refuse(CAIRN_E_INVALID, "restore latest|STEP [TERM [ALLOW_OLDER [STRICT [DEADLINE_MS]]]]");
        return;
    }
    if (strcmp(words[1], "latest") != 0) {
        options.step = strtoull(words[1], NULL, 10);
    }
    options.term = count > 2 ? strtoull(words[2], NULL, 10) : 0;
    options.allow_older = count > 3 ? (int)strtol(words[3], NULL, 10) : -1;
    options.strict = count > 4 ? (int)strtol(words[4], NULL, 10) : 1;
    options.deadline_ms = count > 5 ? strtoll(words[5], NULL, 10) : 0;
    int status = cairn_restore(program->cairn, &options, &op, &err);
    answer_op(program, status, op, &err);
}

/* wait OP DEADLINE_MS */
static void command_wait(struct program *program, int count, char **words)
{
    struct cairn_error err = {0};
    size_t op = count > 2 ? strtoul(words[1], NULL, 10) : OPS;
    if (op >= program->op_count) {
        refuse(CAIRN_E_INVALID, "wait OP DEADLINE_MS");
        return;
    }
    int status = cairn_op_wait(program->ops[op], CAIRN_DONE, strtoll(words[2], NULL, 10), &err);
    if (status != 0) {
        refuse(status, err.text);
    } else {
        print_result(program->ops[op]);
    }
}

/* released OP DEADLINE_MS, handed OP DEADLINE_MS */
static void command_stage(struct program *program, int count, char **words)
{
    struct cairn_error err = {0};
    size_t op = count > 2 ? strtoul(words[1], NULL, 10) : OPS;
    if (op >= program->op_count) {
        refuse(CAIRN_E_INVALID, "released OP DEADLINE_MS, handed OP DEADLINE_MS");
        return;
    }
    enum cairn_stage stage = strcmp(words[0], "handed") == 0 ? CAIRN_HANDED_OVER : CAIRN_RELEASED;
    answer(cairn_op_wait(program->ops[op], stage, strtoll(words[2], NULL, 10), &err), &err);
}

/* annotate STEP TERM NAME VALUE */
static void command_annotate(struct program *program, int count, char **words)
{
    struct cairn_annotation annotation = CAIRN_ANNOTATION_INIT;
    struct cairn_error err = {0};
    if (count < 5) {
        refuse(CAIRN_E_INVALID, "annotate STEP TERM NAME VALUE");
        return;
    }
    const struct cairn_metric metric = {.name = words[3], .value = strtod(words[4], NULL)};
    uint64_t step = strtoull(words[1], NULL, 10);
    annotation.term = strtoull(words[2], NULL, 10);
    annotation.metrics = &metric;
    annotation.metric_count = 1;
    annotation.deadline_ms = 10000;
    answer(cairn_annotate(program->cairn, step, &annotation, &err), &err);
}

/* status STEP TERM */
static void command_status(struct program *program, int count, char **words)
{
    static const char *const states[] = {"none", "open", "committed", "aborted", "forgotten"};
    struct cairn_checkpoint checkpoint = CAIRN_CHECKPOINT_INIT;
    struct cairn_error err = {0};
    checkpoint.step = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    checkpoint.term = count > 2 ? strtoull(words[2], NULL, 10) : 0;
    int status = cairn_status(program->cairn, 10000, &checkpoint, &err);
    if (status != 0) {
        refuse(status, err.text);
    } else {
        printf("{\"ok\":true,\"state\":\"%s\"}\n", states[checkpoint.state]);
    }
}

static void command_list(struct program *program)
{
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
static void command_fork(void)
{
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

/* train FIRST LAST EVERY [TOLERANT]: a save every so many steps, one in flight behind the training.
 * A save that failed ends it, with its error, unless tolerant. */
static void command_train(struct program *program, int count, char **words)
{
    if (count < 4) {
        refuse(CAIRN_E_INVALID, "train FIRST LAST EVERY [TOLERANT]");
        return;
    }
    uint64_t first = strtoull(words[1], NULL, 10), last = strtoull(words[2], NULL, 10);
    uint64_t every = strtoull(words[3], NULL, 10), saved = 0, digest = 0;
    int tolerant = count > 4;
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

/* expect LAST: from the state as it is, the digests after each step from 1 on, without saving. */
static void command_expect(struct program *program, int count, char **words)
{
    uint64_t last = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    printf("{\"ok\":true,\"digests\":[");
    for (uint64_t step = 1; step <= last; step++) {
        state_train(&program->state, step);
        printf("%s\"%016" PRIx64 "\"", step > 1 ? "," : "", state_digest(&program->state));
    }
    printf("]}\n");
}

/* --- the loop -------------------------------------------------------------------------------- */

static void command_close(struct program *program, int count, char **words)
{
    struct cairn_error err = {0};
    int64_t deadline_ms = count > 1 ? strtoll(words[1], NULL, 10) : 10000;
    for (size_t i = 0; i < program->op_count; i++) {
        cairn_op_free(program->ops[i]);
    }
    program->op_count = 0;
    int status = cairn_close(program->cairn, deadline_ms, &err);
    program->cairn = NULL;
    answer(status, &err);
}

static void command_check(struct program *program, int count, char **words)
{
    const char *name = state_check(&program->state, count > 1 ? strtoull(words[1], NULL, 10) : 0);
    if (name) {
        refuse(CAIRN_E_DIGEST_MISMATCH, name);
    } else {
        answer(0, NULL);
    }
}

/* option NAME NUMBER: of the next open, or of every save from now on */
static void command_option(struct program *program, int count, char **words)
{
    int *at = count > 2 ? option_of(program, words[1]) : NULL;
    if (at) {
        *at = (int)strtol(words[2], NULL, 10);
    } else if (count > 2 && strcmp(words[1], "arena_bytes") == 0) {
        program->options.arena_bytes = strtoull(words[2], NULL, 10);
    } else {
        refuse(CAIRN_E_INVALID, "option NAME NUMBER");
        return;
    }
    answer(0, NULL);
}

/* paint|holds NAME COORDINATE|- SEED[,SEED..]: a seed for each of equal parts of the whole tensor
 */
static void command_paint(struct program *program, int count, char **words)
{
    const char *wrong = count < 4 ? "paint|holds NAME COORDINATE|- SEED[,SEED..]"
                                  : state_paint(&program->state, words[1],
                                                strcmp(words[2], "-") == 0 ? "" : words[2],
                                                words[3], strcmp(words[0], "holds") == 0);
    if (wrong) {
        refuse(CAIRN_E_DIGEST_MISMATCH, wrong);
    } else {
        answer(0, NULL);
    }
}

/* Commands on the state alone; 0: it was none of them. */
static int run_on_state(struct program *program, int count, char **words)
{
    if (strcmp(words[0], "tensor") == 0) {
        command_tensor(program, count, words);
    } else if (strcmp(words[0], "blob") == 0) {
        command_blob(program, count, words);
    } else if (strcmp(words[0], "clear") == 0) {
        state_clear(&program->state);
        answer(0, NULL);
    } else if (strcmp(words[0], "fill") == 0) {
        state_fill(&program->state, count > 1 ? strtoull(words[1], NULL, 10) : 0);
        answer(0, NULL);
    } else if (strcmp(words[0], "check") == 0) {
        command_check(program, count, words);
    } else if (strcmp(words[0], "digest") == 0) {
        printf("{\"ok\":true,\"digest\":\"%016" PRIx64 "\"}\n", state_digest(&program->state));
    } else if (strcmp(words[0], "expect") == 0) {
        command_expect(program, count, words);
    } else if (strcmp(words[0], "paint") == 0 || strcmp(words[0], "holds") == 0) {
        command_paint(program, count, words);
    } else if (strcmp(words[0], "option") == 0) {
        command_option(program, count, words);
    } else if (strcmp(words[0], "open") == 0) {
        command_open(program, count, words);
    } else {
        return 0;
    }
    return 1;
}

static void run_on_handle(struct program *program, int count, char **words)
{
    struct cairn_error err = {0};
    if (!program->cairn) {
        refuse(CAIRN_E_CLOSED, "open first");
    } else if (strcmp(words[0], "set") == 0) {
        answer(state_register(&program->state, program->cairn, &err), &err);
    } else if (strcmp(words[0], "save") == 0) {
        command_save(program, count, words);
    } else if (strcmp(words[0], "restore") == 0) {
        command_restore(program, count, words);
    } else if (strcmp(words[0], "wait") == 0) {
        command_wait(program, count, words);
    } else if (strcmp(words[0], "released") == 0 || strcmp(words[0], "handed") == 0) {
        command_stage(program, count, words);
    } else if (strcmp(words[0], "annotate") == 0) {
        command_annotate(program, count, words);
    } else if (strcmp(words[0], "train") == 0) {
        command_train(program, count, words);
    } else if (strcmp(words[0], "status") == 0) {
        command_status(program, count, words);
    } else if (strcmp(words[0], "list") == 0) {
        command_list(program);
    } else if (strcmp(words[0], "fork") == 0) {
        command_fork();
    } else if (strcmp(words[0], "close") == 0) {
        command_close(program, count, words);
    } else {
        refuse(CAIRN_E_INVALID, "unknown command");
    }
}

int main(void)
{
    static struct program program = {.options = CAIRN_OPTIONS_INIT, .how = CAIRN_SAVE_OPTIONS_INIT};
    char line[65536];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        char *words[WORDS], *save = NULL;
        int count = 0;
        for (char *word = strtok_r(line, " \n", &save); word && count < WORDS;
             word = strtok_r(NULL, " \n", &save)) {
            words[count++] = word;
        }
        if (count > 0 && !run_on_state(&program, count, words)) {
            run_on_handle(&program, count, words);
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
