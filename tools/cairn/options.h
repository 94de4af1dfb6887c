/* SPDX-License-Identifier: Apache-2.0
 *
 * options: tables of options and arguments, and how a text becomes a value. A command has a struct
 * of its own with the values, and a table that says for each option its name, its kind and its
 * place in that struct. From the same tables come --help, the manual pages and the completions.
 * Each option has a twin in the environment: CAIRN_ and its name in capitals, '-' written '_'.
 */
#ifndef CAIRN_TOOLS_OPTIONS_H
#define CAIRN_TOOLS_OPTIONS_H

#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

enum { OPTIONS_MAX = 64, OPTION_TEXTS_MAX = 256, OPTION_TWIN_BYTES = 64 };

struct option_texts { /* of an option that may be repeated; borrowed from argv or the environment */
    const char *items[OPTION_TEXTS_MAX];
    uint32_t count;
};

struct option_words { /* the rest of the line */
    char **items;     /* of argv, so ended by NULL */
    size_t count;
};

enum option_kind {
    OPTION_FLAG,     /* bool; takes no value */
    OPTION_TEXT,     /* const char *; with choices: one of them */
    OPTION_COUNT,    /* uint64_t, min to max */
    OPTION_SIZE,     /* uint64_t bytes, "64MiB" */
    OPTION_DURATION, /* uint64_t ms, min to max; "90", "90s", "1h30m", "7d": a bare number is
                        seconds */
    OPTION_NUMBER,   /* double, finite */
    OPTION_TEXTS,    /* struct option_texts; may be repeated, up to max (0: OPTION_TEXTS_MAX) */
    OPTION_OTHER     /* whatever take() makes of the text; may be repeated */
};

/* What a shell offers as its value. */
enum option_completes { COMPLETES_NOTHING, COMPLETES_FILES, COMPLETES_DIRECTORIES };

struct option {
    const char *name;    /* without "--"; NULL ends a table */
    const char *value;   /* what its value is called in the help; NULL for a flag */
    const char *help;    /* no capital, no full stop */
    const char *preset;  /* the value if none is given, as one would write it; NULL means zero */
    const char *choices; /* OPTION_TEXT: "safetensors npz", one of these */
    uint64_t min, max;   /* a max of 0 means no bound */
    size_t at;           /* OPTION_AT */
    int (*take)(void *to, const char *text, struct diag *diag); /* OPTION_OTHER; its message is
                                                                   prefixed with the option */
    enum option_kind kind;
    enum option_completes completes;
    char letter; /* "-n"; 0 if there is none */
    bool needed; /* an error when nobody gives it */
    bool alone;  /* has no twin: what destroys something is not switched on by an environment */
};

/* The place of a member of the type that the kind wants; another type does not compile. */
#define OPTION_AT(type, member, of)  (_Generic(((type *)0)->member, of : offsetof(type, member)))
#define OPTION_AT_FLAG(type, member) .kind = OPTION_FLAG, .at = OPTION_AT(type, member, bool)
#define OPTION_AT_TEXT(type, member) \
    .kind = OPTION_TEXT, .at = OPTION_AT(type, member, const char *)
#define OPTION_AT_COUNT(type, member) .kind = OPTION_COUNT, .at = OPTION_AT(type, member, uint64_t)
#define OPTION_AT_SIZE(type, member)  .kind = OPTION_SIZE, .at = OPTION_AT(type, member, uint64_t)
#define OPTION_AT_DURATION(type, member) \
    .kind = OPTION_DURATION, .at = OPTION_AT(type, member, uint64_t)
#define OPTION_AT_NUMBER(type, member) .kind = OPTION_NUMBER, .at = OPTION_AT(type, member, double)
#define OPTION_AT_TEXTS(type, member) \
    .kind = OPTION_TEXTS, .at = OPTION_AT(type, member, struct option_texts)

enum argument_kind {
    ARGUMENT_RUN,        /* struct cli's run_text */
    ARGUMENT_RUNS,       /* struct option_texts at `at`: all words that are left and no options */
    ARGUMENT_CHECKPOINT, /* struct cli's selector */
    ARGUMENT_TEXT,       /* const char * at `at` */
    ARGUMENT_FILE,       /* the same; shells offer files */
    ARGUMENT_WORDS       /* struct option_words at `at`: all that is left, options too */
};

struct argument {
    const char *name; /* NULL ends a table */
    enum argument_kind kind;
    size_t at;
    bool optional; /* may be left out, with all behind it */
};

struct option_set { /* a table and the struct that it fills */
    const struct option *table;
    void *values;
    uint64_t given; /* bit i: table[i] was on the command line */
};

/* The option of that name (length bytes), or letter; NULL. */
const struct option *option_find(const struct option *table, size_t length, const char *name);
const struct option *option_find_letter(const struct option *table, char letter);
/* "CAIRN_READ_DATA_SUBSET". */
void option_twin(const struct option *option, char ret[OPTION_TWIN_BYTES]);

/* Presets. An error is a mistake in the table. */
int MUST_USE options_init(struct option_set *set, struct diag *diag);
/* One value from the command line; "" for a flag. INVALID names the option. */
int MUST_USE options_take(struct option_set *set, const struct option *option, const char *text,
                          struct diag *diag);
/* What the command line did not say, from the environment. INVALID names the variable. An empty
 * variable is none. */
int MUST_USE options_take_twins(struct option_set *set, struct diag *diag);
/* A size as OPTION_SIZE takes it, for those of another kind. */
bool option_read_size(const char *text, uint64_t *ret);
bool options_given(const struct option_set *set, const char *name);

#endif
