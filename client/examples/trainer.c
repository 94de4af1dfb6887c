/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn-trainer: trains a small character model on a text, saves its state with Cairn while it goes
 * on training, and resumes bit for bit. Run it as N processes, one for each rank: all compute the
 * same steps, and each saves its share. It uses only cairn.h; everything about Cairn is in the
 * functions open_run, restore_run, begin_save and poll_saves, which main calls.
 */
#include "trainer_state.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum exit_code {
    EXIT_DONE = 0,
    EXIT_BROKEN = 1, /* no memory, or a text or file that cannot be used */
    EXIT_USAGE = 2,
    EXIT_UNSAVED = 3, /* trained to the end, but a save failed */
    EXIT_FENCED = 4,  /* a newer attempt has taken over the run */
    EXIT_SERVER = 5,  /* the run could not be opened */
    EXIT_RESTORE = 6, /* the state could not be restored */
};

static const char usage[] =
    "usage: cairn-trainer --url URL [option ...]\n"
    "\n"
    "    --url URL           cairn://host:port/project/run or cairn+unix:///path?run=project/run\n"
    "    --steps N           train up to step N (default 50)\n"
    "    --save-every N      save each N steps (default 10; 0: never)\n"
    "    --resume            restore the newest checkpoint first, where the run has one\n"
    "    --restore-step S    restore this one: STEP or STEP@TERM; it must be there\n"
    "    --attempt TOKEN     32 hex digits, the same for all ranks of one start (default: of "
    "several\n"
    "                        ranks CAIRN_ATTEMPT, else a new one)\n"
    "    --rank R --world N  this process's number, and how many there are (default 0 of 1)\n"
    "    --text FILE         what to learn (default: the licences in /usr/share/common-licenses)\n"
    "    --hidden N          width of the hidden layer, 8 to 8192 (default 1024: 1.2 million "
    "parameters)\n"
    "    --seed N            of all random numbers (default 1)\n"
    "    --step-ms N         makes each step last at least so long\n"
    "    --save-deadline-ms N   of each save (default 60000)\n"
    "    --cert FILE --key FILE --ca FILE   TLS\n"
    "    --digest FILE       writes \"rank R SHA256\" of the final state into line R of FILE\n"
    "    --report FILE       appends what happens, one JSON object a line\n"
    "    --restore-only      restores, prints the digest, and ends\n"
    "\n"
    "exit: 0 done, 1 out of memory or unusable file, 2 usage, 3 a save failed, 4 fenced by a newer "
    "attempt,\n"
    "      5 the run could not be opened, 6 the state could not be restored\n";

enum { SAVES_MAX = 2, TEXT_MAX = 64 << 20, WORLD_MAX = 64 };

struct options {
    const char *url, *text, *attempt, *digest, *report, *cert, *key, *ca;
    uint64_t steps, save_every, step_ms, save_deadline_ms, seed, restore_step, restore_term;
    int rank, world, hidden, resume, restore_exact, restore_only;
};

struct trainer {
    struct options options;
    struct state state;
    cairn_t *cairn;
    uint8_t *text;
    size_t text_bytes;
    FILE *report;
    struct pending {
        cairn_op_t *op;
        uint64_t step;
    } saves[SAVES_MAX];
    int save_count;
    int outcome; /* enum exit_code */
};

/* --- the command line --------------------------------------------------------------------- */

static int parse_number(const char *name, const char *text, uint64_t max, uint64_t *ret)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value > max) {
        fprintf(stderr,
                "cairn-trainer: --%s is \"%s\"; it must be a number from 0 to %" PRIu64 "\n", name,
                text, max);
        return -1;
    }
    *ret = value;
    return 0;
}

static int parse_checkpoint(char *text, struct options *options)
{
    char *at = strchr(text, '@');
    if (at != NULL) {
        *at = '\0';
    }
    options->restore_exact = 1;
    if (parse_number("restore-step", text, UINT64_MAX - 1, &options->restore_step) != 0) {
        return -1;
    }
    return at != NULL ? parse_number("restore-step, after the @,", at + 1, UINT64_MAX,
                                     &options->restore_term)
                      : 0;
}

static int parse_int(const char *name, const char *text, int max, int *ret)
{
    uint64_t value = 0;
    int rc = parse_number(name, text, (uint64_t)max, &value);
    *ret = (int)value;
    return rc;
}

enum option_kind { TEXT, NUMBER, SMALL, FLAG, CHECKPOINT, HELP };

static const struct row {
    const char *name;
    enum option_kind kind;
    size_t offset; /* in struct options */
    uint64_t max;
} rows[] = {{"url", TEXT, offsetof(struct options, url), 0},
            {"steps", NUMBER, offsetof(struct options, steps), UINT64_MAX - 1},
            {"save-every", NUMBER, offsetof(struct options, save_every), UINT64_MAX},
            {"resume", FLAG, offsetof(struct options, resume), 0},
            {"restore-step", CHECKPOINT, 0, 0},
            {"attempt", TEXT, offsetof(struct options, attempt), 0},
            {"rank", SMALL, offsetof(struct options, rank), WORLD_MAX - 1},
            {"world", SMALL, offsetof(struct options, world), WORLD_MAX},
            {"text", TEXT, offsetof(struct options, text), 0},
            {"hidden", SMALL, offsetof(struct options, hidden), 8192},
            {"seed", NUMBER, offsetof(struct options, seed), UINT64_MAX},
            {"step-ms", NUMBER, offsetof(struct options, step_ms), 3600000},
            {"save-deadline-ms", NUMBER, offsetof(struct options, save_deadline_ms), 86400000},
            {"digest", TEXT, offsetof(struct options, digest), 0},
            {"report", TEXT, offsetof(struct options, report), 0},
            {"cert", TEXT, offsetof(struct options, cert), 0},
            {"key", TEXT, offsetof(struct options, key), 0},
            {"ca", TEXT, offsetof(struct options, ca), 0},
            {"restore-only", FLAG, offsetof(struct options, restore_only), 0},
            {"help", HELP, 0, 0}};

enum { ROWS = sizeof rows / sizeof rows[0] };

static int take_option(const struct row *row, char *value, struct options *options)
{
    void *at = (char *)options + row->offset;
    switch (row->kind) {
    case TEXT:
        *(const char **)at = value;
        return 0;
    case NUMBER:
        return parse_number(row->name, value, row->max, at);
    case SMALL:
        return parse_int(row->name, value, (int)row->max, at);
    case FLAG:
        *(int *)at = 1;
        return 0;
    case CHECKPOINT:
        return parse_checkpoint(value, options);
    case HELP:
        fputs(usage, stdout);
        exit(EXIT_DONE);
    }
    return -1;
}

static int parse_options(int argc, char **argv, struct options *options)
{
    struct option long_options[ROWS + 1] = {{0}};
    int row;
    for (int i = 0; i < ROWS; i++) {
        bool is_alone = rows[i].kind == FLAG || rows[i].kind == HELP;
        long_options[i] =
            (struct option){rows[i].name, is_alone ? no_argument : required_argument, NULL, i};
    }
    *options = (struct options){.steps = 50,
                                .save_every = 10,
                                .world = 1,
                                .hidden = 1024,
                                .seed = 1,
                                .save_deadline_ms = 60000};
    while ((row = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (row == '?' || take_option(&rows[row], optarg, options) != 0) {
            return -1;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "cairn-trainer: \"%s\" is not an option; see --help\n", argv[optind]);
        return -1;
    }
    if (options->url == NULL) {
        fputs("cairn-trainer: --url is missing; see --help\n", stderr);
        return -1;
    }
    if (options->rank >= options->world || options->hidden < 8) {
        fputs("cairn-trainer: --rank must be below --world, and --hidden must be at least 8\n",
              stderr);
        return -1;
    }
    return 0;
}

/* --- the text ----------------------------------------------------------------------------- */

static const char *const licences[] = {"Apache-2.0", "Artistic", "BSD",    "GPL-2",
                                       "GPL-3",      "LGPL-2.1", "MPL-2.0"};

static void add_file(struct trainer *trainer, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return;
    }
    size_t got;
    do {
        uint8_t *more = realloc(trainer->text, trainer->text_bytes + 65536);
        if (more == NULL) {
            break;
        }
        trainer->text = more;
        got = fread(more + trainer->text_bytes, 1, 65536, file);
        trainer->text_bytes += got;
    } while (got > 0 && trainer->text_bytes < TEXT_MAX);
    fclose(file);
}

static int read_text(struct trainer *trainer)
{
    char path[128];
    if (trainer->options.text != NULL) {
        add_file(trainer, trainer->options.text);
    }
    for (size_t i = 0; trainer->options.text == NULL && i < sizeof licences / sizeof licences[0];
         i++) {
        snprintf(path, sizeof path, "/usr/share/common-licenses/%s", licences[i]);
        add_file(trainer, path);
    }
    if (trainer->text_bytes <= MODEL_CONTEXT) {
        fprintf(
            stderr, "cairn-trainer: %s has no text to learn; name another file with --text FILE\n",
            trainer->options.text != NULL ? trainer->options.text : "/usr/share/common-licenses");
        return -1;
    }
    return 0;
}

/* --- reports ------------------------------------------------------------------------------ */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Writes one line of the report: what happened to which step. It is flushed at once, because the
 * process may be killed. */
static void tell(struct trainer *trainer, const char *event, uint64_t step, uint64_t term, int code)
{
    if (trainer->report != NULL) {
        fprintf(trainer->report,
                "{\"event\":\"%s\",\"rank\":%d,\"step\":%" PRIu64 ",\"term\":%" PRIu64
                ",\"code\":\"%s\"}\n",
                event, trainer->options.rank, step, term, cairn_err_name(code));
        fflush(trainer->report);
    }
}

static int write_digest(const struct trainer *trainer, const char *digest)
{
    char line[80];
    int length = snprintf(line, sizeof line, "rank %4d %s\n", trainer->options.rank, digest);
    int fd = open(trainer->options.digest, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    /* Lines have the same length on all ranks, so that ranks do not wait for each other. */
    if (fd < 0 ||
        pwrite(fd, line, (size_t)length, (off_t)length * trainer->options.rank) != length ||
        close(fd) != 0) {
        fprintf(stderr, "cairn-trainer: cannot write %s: %s\n", trainer->options.digest,
                strerror(errno));
        return -1;
    }
    return 0;
}

/* --- Cairn -------------------------------------------------------------------------------- */

static int open_run(struct trainer *trainer)
{
    const struct options *from = &trainer->options;
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn_error err;
    options.rank = from->rank;
    options.world_size = from->world;
    options.attempt = from->attempt;
    options.save_deadline_ms = (int64_t)from->save_deadline_ms;
    options.cert_file = from->cert;
    options.key_file = from->key;
    options.ca_file = from->ca;
    options.label = "cairn-trainer";
    if (cairn_open(from->url, &options, &trainer->cairn, &err) != 0) {
        fprintf(stderr, "cairn-trainer: %s\n", err.text);
        return err.code == CAIRN_E_INVALID ? EXIT_USAGE : EXIT_SERVER;
    }
    return 0;
}

static int restore_run(struct trainer *trainer)
{
    const struct options *from = &trainer->options;
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_result result = CAIRN_RESULT_INIT;
    struct cairn_error err;
    cairn_op_t *op = NULL;
    options.step = from->restore_exact ? from->restore_step : CAIRN_LATEST;
    options.term = from->restore_term;
    options.strict = 0; /* another world size: state_restored looks at what is missing */
    int rc = state_register(&trainer->state, trainer->cairn, STATE_RESTORE, &err);
    if (rc == 0) {
        rc = cairn_restore(trainer->cairn, &options, &op, &err);
    }
    if (rc == 0) {
        rc = cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err);
    }
    if (cairn_op_run_is_empty(op) && !from->restore_exact && !from->restore_only) {
        cairn_op_free(op);
        printf("the run has no checkpoint, so training starts from the beginning\n");
        tell(trainer, "empty", 0, 0, 0);
        return 0;
    }
    if (rc == 0) {
        rc = cairn_op_result(op, &result, &err);
    }
    if (rc == 0) {
        rc = state_restored(&trainer->state, op, &err);
    }
    cairn_op_free(op);
    tell(trainer, "restored", result.step, result.term, rc);
    if (rc != 0) {
        fprintf(stderr, "cairn-trainer: the restore failed: %s: %s\n", cairn_err_name(rc),
                err.text);
        return EXIT_RESTORE;
    }
    printf("restored step %" PRIu64 " of term %" PRIu64 "%s\n", result.step, result.term,
           result.fell_back ? " (newer checkpoints are damaged)" : "");
    return 0;
}

/* Looks at the saves in flight, oldest first. Waits for them if `wait` is set. */
static void poll_saves(struct trainer *trainer, int wait)
{
    while (trainer->save_count > 0) {
        struct pending *first = &trainer->saves[0];
        struct cairn_result result = CAIRN_RESULT_INIT;
        struct cairn_error err;
        int rc = cairn_op_wait(first->op, CAIRN_DONE, wait ? CAIRN_FOREVER : 0, &err);
        if (rc == CAIRN_E_AGAIN) {
            return;
        }
        if (rc == 0 && (rc = cairn_op_result(first->op, &result, &err)) == 0) {
            printf("step %" PRIu64 "  durable in term %" PRIu64
                   ", training was blocked for %.1f ms\n",
                   first->step, result.term, (double)result.blocked_ns / 1e6);
            tell(trainer, "durable", first->step, result.term, 0);
        } else {
            fprintf(stderr, "cairn-trainer: the save of step %" PRIu64 " failed: %s: %s\n",
                    first->step, cairn_err_name(rc), err.text);
            tell(trainer, "failed", first->step, 0, rc);
            trainer->outcome = rc == CAIRN_E_FENCED ? EXIT_FENCED : EXIT_UNSAVED;
        }
        cairn_op_free(first->op);
        trainer->save_count--;
        memmove(first, first + 1, (size_t)trainer->save_count * sizeof *first);
        wait = 0;
    }
}

static void begin_save(struct trainer *trainer, double loss)
{
    struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_metric metric = {"loss", loss};
    struct cairn_error err;
    cairn_op_t *op = NULL;
    poll_saves(trainer, trainer->save_count == SAVES_MAX);
    options.metrics = &metric;
    options.metric_count = 1;
    tell(trainer, "saving", trainer->state.step, 0, 0);
    int rc = state_register(&trainer->state, trainer->cairn, STATE_SAVE, &err);
    rc = rc != 0 ? rc : cairn_save(trainer->cairn, trainer->state.step, &options, &op, &err);
    if (rc != 0) {
        fprintf(stderr, "cairn-trainer: %s: %s\n", cairn_err_name(rc), err.text);
        tell(trainer, "failed", trainer->state.step, 0, rc);
        trainer->outcome = rc == CAIRN_E_FENCED ? EXIT_FENCED : EXIT_UNSAVED;
        return;
    }
    trainer->saves[trainer->save_count++] = (struct pending){op, trainer->state.step};
}

/* --- training ----------------------------------------------------------------------------- */

static void pause_until(uint64_t due_ns)
{
    struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000),
                           .tv_nsec = (long)(due_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) {
    }
}

static void train(struct trainer *trainer)
{
    const struct options *options = &trainer->options;
    while (trainer->state.step < options->steps && trainer->outcome != EXIT_FENCED) {
        uint64_t begin_ns = now_ns();
        double loss = state_step(&trainer->state, trainer->text_bytes, trainer->text);
        int saves = options->save_every != 0 && trainer->state.step % options->save_every == 0;
        if (saves || trainer->state.step == options->steps) {
            printf("step %" PRIu64 "  loss %.4f%s\n", trainer->state.step, loss,
                   saves ? "  saving" : "");
        }
        if (saves) {
            begin_save(trainer, loss);
        }
        poll_saves(trainer, 0);
        pause_until(begin_ns + options->step_ms * 1000000);
    }
    while (trainer->save_count > 0) {
        poll_saves(trainer, 1);
    }
}

static int finish(struct trainer *trainer)
{
    struct cairn_error err;
    char digest[65];
    if (cairn_close(trainer->cairn, (int64_t)trainer->options.save_deadline_ms, &err) != 0) {
        fprintf(stderr, "cairn-trainer: closing the handle failed: %s\n", err.text);
        trainer->outcome = trainer->outcome != 0 ? trainer->outcome : EXIT_UNSAVED;
    }
    trainer->cairn = NULL;
    if (trainer->outcome == EXIT_FENCED) {
        return EXIT_FENCED;
    }
    if (state_digest(&trainer->state, digest) != 0) {
        fprintf(stderr, "cairn-trainer: there is no memory for the digest of the state\n");
        return EXIT_BROKEN;
    }
    printf("step %" PRIu64 "  rank %d digest %s\n", trainer->state.step, trainer->options.rank,
           digest);
    if (trainer->options.digest != NULL && write_digest(trainer, digest) != 0) {
        return EXIT_BROKEN;
    }
    return trainer->outcome;
}

static int run(struct trainer *trainer)
{
    const struct options *options = &trainer->options;
    if (read_text(trainer) != 0) {
        return EXIT_BROKEN;
    }
    if (options->report != NULL && (trainer->report = fopen(options->report, "a")) == NULL) {
        fprintf(stderr, "cairn-trainer: %s: %s\n", options->report, strerror(errno));
        return EXIT_BROKEN;
    }
    if (state_init(&trainer->state, options->hidden, options->rank, options->world,
                   options->seed) != 0) {
        fputs("cairn-trainer: there is not enough memory; a smaller --hidden needs less\n", stderr);
        return EXIT_BROKEN;
    }
    int rc = open_run(trainer);
    if (rc != 0) {
        return rc;
    }
    if (options->resume || options->restore_exact || options->restore_only) {
        rc = restore_run(trainer);
    }
    if (rc == 0 && !options->restore_only) {
        train(trainer);
    }
    if (rc != 0) {
        trainer->outcome = rc;
        (void)cairn_close(trainer->cairn, 0,
                          NULL); /* nothing is in flight, and the failure is told already */
        return rc;
    }
    return finish(trainer);
}

int main(int argc, char **argv)
{
    static struct trainer trainer;
    if (parse_options(argc, argv, &trainer.options) != 0) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* each line at once, also into a file */
    int code = run(&trainer);
    tell(&trainer, "exit", trainer.state.step, 0, 0);
    if (trainer.report != NULL) {
        fclose(trainer.report);
    }
    state_fini(&trainer.state);
    free(trainer.text);
    return code;
}
