/* SPDX-License-Identifier: Apache-2.0
 *
 * The sections [retention] and [retention "project/pattern"]: the options of `cairn forget`, one
 * policy for each pattern. config.c reads the file.
 */
#include "daemon/config_retention.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum { POLICY_SCRATCH_BYTES = 64 << 10 };

bool config_is_retention(const char *section)
{
    return strcmp(section, "retention") == 0 || strncmp(section, "retention ", 10) == 0;
}

/* Gives the pattern between the quotes of a section's name, or "" for [retention]. */
static int take_pattern(const char *section, size_t bytes, char *ret, struct diag *diag)
{
    size_t length = strlen(section);
    ret[0] = '\0';
    if (length == strlen("retention")) {
        return 0;
    }
    const char *from = section + strlen("retention ");
    length -= strlen("retention ");
    if (length < 3 || from[0] != '"' || from[length - 1] != '"' || length - 2 >= bytes) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "the section [%s] must be written [retention \"project/pattern\"], with a "
                        "pattern of at most 36 bytes",
                        section);
    }
    CHECK(config_is_retention(section));
    memcpy(ret, from + 1, length - 2);
    ret[length - 2] = '\0';
    return strchr(ret, '/') != NULL
               ? 0
               : diag_set(diag, CAIRN_E_CONFIG,
                          "the section [%s] needs a pattern of project/run; did you mean \"%s/*\"?",
                          section, ret);
}

/* Returns the row of a pattern, and adds it if it is new. Returns NULL if the table is full. */
static struct policy_row *find_row(struct policy_table *table, const char *pattern)
{
    for (size_t i = 0; i < table->count; i++) {
        if (strcmp(table->rows[i].pattern, pattern) == 0) {
            return &table->rows[i];
        }
    }
    if (table->count == POLICY_ROWS_MAX) {
        return NULL;
    }
    struct policy_row *row = &table->rows[table->count++];
    memset(row, 0, sizeof(*row));
    snprintf(row->pattern, sizeof(row->pattern), "%s", pattern);
    CHECK(strcmp(row->pattern, pattern) == 0); /* it fits */
    return row;
}

int config_add_retention(struct policy_table *table, const char *section, const char *name,
                         const char *value, struct diag *diag)
{
    char pattern[sizeof(table->rows[0].pattern)];
    int status = take_pattern(section, sizeof(pattern), pattern, diag);
    if (status != 0) {
        return status;
    }
    struct policy_row *row = find_row(table, pattern);
    if (row == NULL) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[retention] has too many rows: at most %d sections are allowed",
                        POLICY_ROWS_MAX);
    }
    if (policy_row_add(row, name, value, diag) != 0) {
        diag_add(diag, "[%s] %s", section, name);
        return CAIRN_E_CONFIG;
    }
    return 0;
}

int config_check_retention(const struct config *config, struct diag *diag)
{
    const struct policy_table *table = &config->retention;
    for (size_t i = 0; i < table->count; i++) {
        struct retention_policy policy;
        struct scratch scratch;
        scratch_init(&scratch, POLICY_SCRATCH_BYTES);
        int status = policy_make(&table->rows[i], &scratch, &policy, diag);
        scratch_fini(&scratch);
        if (status != 0) {
            diag_add(diag, "[retention%s%s]", table->rows[i].pattern[0] != '\0' ? " " : "",
                     table->rows[i].pattern);
            return CAIRN_E_CONFIG;
        }
    }
    if (table->count > 0 && !config->retention_said) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[retention] has a policy but no interval, so it would never be applied: "
                        "set interval = 1h in [retention], or 0s to suspend the policy");
    }
    return 0;
}

void config_print_retention(const struct policy_table *table, FILE *out)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct policy_row *row = &table->rows[i];
        if (row->pattern[0] != '\0') {
            fprintf(out, "\n[retention \"%s\"]\n", row->pattern);
        } else {
            fprintf(out, "\n[retention]\n");
        }
        for (unsigned o = 0; o < row->option_count; o++) {
            fprintf(out, "%s = %s\n", row->options[o].name, row->options[o].value);
        }
    }
}
