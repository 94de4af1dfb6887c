/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn annotate: metrics and tags of a checkpoint after the fact, also on a store without its
 * daemon.
 */
#include "format/note.h"
#include "mark.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct metric_list {
    struct metric items[LIMIT_METRICS]; /* their names: */
    char names[LIMIT_METRICS][LABEL_BYTES_MAX + 1];
    uint32_t count;
};

struct annotate_options {
    struct metric_list metrics;
    struct option_texts tags, removed_tags;
};

static int take_metric(void *to, const char *text, struct diag *diag);

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN}, {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT}, {0}};

static const struct option options[] = {
    {"metric", "NAME=VALUE", "set a metric", .kind = OPTION_OTHER, .take = take_metric,
     .at = OPTION_AT(struct annotate_options, metrics, struct metric_list)},
    {"tag", "TEXT", "add a tag", OPTION_AT_TEXTS(struct annotate_options, tags), .max = LIMIT_TAGS},
    {"remove-tag", "TEXT", "remove a tag", OPTION_AT_TEXTS(struct annotate_options, removed_tags),
     .max = LIMIT_TAGS},
    {0}};

/* Takes NAME=VALUE. The last '=' separates the two, so a name may contain one. */
static int take_metric(void *to, const char *text, struct diag *diag)
{
    struct metric_list *list = to;
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    errno = 0;
    double value = equals ? strtod(equals + 1, &end) : 0;
    bool is_beyond = errno == ERANGE && isinf(value); /* `inf` itself is one, and said so */
    if (!equals || equals == text || end == equals + 1 || *end != '\0') {
        return diag_set(diag, CAIRN_E_INVALID, "it must be NAME=VALUE, for instance loss=1.25");
    }
    if (isnan(value)) {
        return diag_set(diag, CAIRN_E_INVALID, "NaN is not a value; leave the metric out");
    }
    if (is_beyond) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the value is larger than a metric can hold (1.8e308); write inf for infinity");
    }
    if (list->count == LIMIT_METRICS) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "more than %d metrics are given", LIMIT_METRICS);
    }
    size_t bytes = (size_t)(equals - text);
    if (bytes > LABEL_BYTES_MAX) {
        return diag_set(diag, CAIRN_E_INVALID, "a name has at most %d bytes", LABEL_BYTES_MAX);
    }
    char *name = list->names[list->count];
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    int status = note_check_label("the name", name, diag);
    if (status != 0) {
        return status;
    }
    list->items[list->count++] = (struct metric){.name = name, .value = value};
    return 0;
}

static int show(const struct cli *cli, const struct ckpt_info *info)
{
    if (cli->json) {
        return cli_print_info(info);
    }
    printf("%s: annotated, version %" PRIu64 "\n", ckpt_id_text(info->id).at, info->note_version);
    return out_flush();
}

static int check_tags(const struct annotate_options *own, struct diag *diag)
{
    int status = 0;
    for (uint32_t i = 0; status == 0 && i < own->tags.count; i++) {
        status = note_check_label("the tag", own->tags.items[i], diag);
    }
    for (uint32_t i = 0; status == 0 && i < own->removed_tags.count; i++) {
        status = note_check_label("the tag", own->removed_tags.items[i], diag);
    }
    return status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    struct annotate_options *own = values;
    if (own->metrics.count + own->tags.count + own->removed_tags.count == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "there is nothing to annotate with; give --metric, --tag or --remove-tag");
    }
    int status = check_tags(own, diag);
    status = status != 0 ? status : mark_connect(cli, true, diag);
    struct source_request request = {
        .call.request = {.type = MSG_ANNOTATE,
                         .u.annotate = {.selector = cli->selector,
                                        .metric_count = own->metrics.count,
                                        .metrics = own->metrics.items,
                                        .tag_count = own->tags.count,
                                        .tags = own->tags.items,
                                        .removed_count = own->removed_tags.count,
                                        .removed_tags = own->removed_tags.items}}};
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        status = show(cli, &request.call.reply.u.annotated.info);
    }
    engine_call_fini(&request.call);
    return status;
}

const struct command command_annotate = {
    .name = "annotate",
    .group = GROUP_KEEP,
    .summary = "add metrics and tags to a checkpoint",
    .details =
        "Metrics are set or replaced by name. The checkpoint's bytes do not change. `ls` and "
        "`show` show what was given with the save and what was annotated since then. With --store "
        "the command takes the store's lock, so no daemon may be using the store.",
    .example = "cairn annotate lab/gpt 1200 --metric eval=1.25 --tag best",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct annotate_options),
    .run = run};
