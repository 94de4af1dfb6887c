/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn restore: a checkpoint as files: model.safetensors (what belongs to the run),
 * local-<coordinate>.safetensors, trees as JSON, other blobs as they are, and checkpoint.json,
 * which says what is what. Damage: the next older good one.
 */
#include "cli.h"
#include "documents.h"
#include "exit_status.h"
#include "files/rank_files.h"
#include "formats/safetensors.h"
#include "target.h"
#include "writeout.h"

#include "base/glob.h"
#include "format/tree.h"

#include <stdlib.h>
#include <string.h>

enum { FILES_MAX_TRIES = 1000, FILE_NAME_MAX = 240 };

struct restore_options {
    const char *to;
    bool no_fallback;
    struct option_texts only;
    struct rank_set ranks;
    uint64_t as_ranks;
};

static const struct option options[] = {
    {"to", "DIR", "directory to write to", OPTION_AT_TEXT(struct restore_options, to),
     .completes = COMPLETES_DIRECTORIES, .needed = true},
    {"only", "PATTERN", "only tensors and blobs whose names match (* ? [a-z])",
     OPTION_AT_TEXTS(struct restore_options, only)},
    {"ranks", "LIST", "write only what these ranks held, a file for each: 0,3-5",
     .kind = OPTION_OTHER, .take = rank_set_take,
     .at = OPTION_AT(struct restore_options, ranks, struct rank_set)},
    {"as-ranks", "M",
     "write a file for each of M ranks, with an even share of the rows of every tensor",
     OPTION_AT_COUNT(struct restore_options, as_ranks), .min = 1, .max = LIMIT_WORLD_SIZE},
    {"no-fallback", NULL, "fail if the checkpoint is damaged, instead of restoring an older one",
     OPTION_AT_FLAG(struct restore_options, no_fallback)},
    {0}};

struct restoring {
    struct cli *cli;
    const struct restore_options *own;
    struct documents *documents;
    struct target target;
    char (*files)[FILE_NAME_MAX]; /* of each entry of the index */
    size_t count;
};

/* --- files --- */

/* Two names may become the same file name: the second gets a number. */
struct file {
    int fd;
    char name[FILE_NAME_MAX];
};

static int create_file(struct restoring *restoring, const char *wish, const char *suffix,
                       struct file *ret, struct diag *diag)
{
    char clean[180];
    target_name(wish, sizeof(clean), clean);
    int status = CAIRN_E_EXISTS;
    for (unsigned i = 1; status == CAIRN_E_EXISTS && i < FILES_MAX_TRIES; i++) {
        struct diag why = DIAG_INIT;
        if (i == 1) {
            snprintf(ret->name, sizeof(ret->name), "%s%s", clean, suffix);
        } else {
            snprintf(ret->name, sizeof(ret->name), "%s-%u%s", clean, i, suffix);
        }
        status = target_create(&restoring->target, ret->name, &ret->fd, &why);
        if (status != 0 && status != CAIRN_E_EXISTS) {
            return diag_copy(diag, &why);
        }
    }
    return status;
}

struct content {
    const char *wish, *suffix; /* what the file would be called */
    size_t bytes;
    const void *data;
};

static int write_whole(struct restoring *restoring, const struct content *content,
                       char ret_name[FILE_NAME_MAX], struct diag *diag)
{
    struct file file;
    int status = create_file(restoring, content->wish, content->suffix, &file, diag);
    if (status != 0) {
        return status;
    }
    struct target_piece piece = {.name = file.name, .bytes = content->bytes, .data = content->data};
    memcpy(ret_name, file.name, sizeof(file.name));
    return target_close(file.fd, file.name, target_write(file.fd, &piece, diag), diag);
}

/* --- one safetensors file: all tensors of a coordinate
 * ------------------------------------------------------------------- */

static int write_group(struct restoring *restoring, const char *coordinate, struct diag *diag)
{
    struct safetensor *tensors = calloc(restoring->count + 1, sizeof(*tensors));
    struct file file;
    size_t count = 0;
    char wish[LIMIT_COORDINATE_BYTES + 16];
    if (!tensors) {
        return diag_no_memory(diag, "the files of the restore");
    }
    snprintf(wish, sizeof(wish), "%s%s", coordinate[0] ? "local-" : "model", coordinate);
    int status = create_file(restoring, wish, ".safetensors", &file, diag);
    for (size_t i = 0; status == 0 && i < restoring->count; i++) {
        const struct index_entry *entry = &restoring->documents->of.index[i];
        if (entry->kind == INDEX_TENSOR && strcmp(entry->coordinate, coordinate) == 0) {
            tensors[count++].entry = entry;
            memcpy(restoring->files[i], file.name, sizeof(file.name));
        }
    }
    if (status == 0) {
        struct tensor_file out = {file.fd, file.name, count, tensors};
        status = writeout_tensors(restoring->cli, restoring->documents, &out, diag);
    }
    free(tensors);
    return status;
}

static int write_tensors(struct restoring *restoring, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < restoring->count; i++) {
        const struct index_entry *entry = &restoring->documents->of.index[i];
        if (entry->kind == INDEX_TENSOR && restoring->files[i][0] == '\0') {
            status = write_group(restoring, entry->coordinate, diag);
        }
    }
    return status;
}

/* --- blobs --- */

static int write_tree(struct restoring *restoring, size_t i, const char *wish, const uint8_t *data,
                      struct diag *diag)
{
    const struct index_entry *entry = &restoring->documents->of.index[i];
    struct buf text;
    buf_init(&text, (size_t)1 << 30);
    int status = tree_check(entry->plain_bytes, data, diag);
    if (status == 0) {
        status = tree_to_json(entry->plain_bytes, data, 2, &text, diag);
    }
    if (status == 0) {
        struct content content = {wish, ".json", text.bytes, text.data};
        status = write_whole(restoring, &content, restoring->files[i], diag);
    }
    buf_fini(&text);
    return status;
}

static int write_blob(struct restoring *restoring, size_t i, struct diag *diag)
{
    const struct index_entry *entry = &restoring->documents->of.index[i];
    restoring->cli->blob = malloc(entry->plain_bytes + 1);
    struct sink sink = {.entry = entry, .fd = -1, .memory = restoring->cli->blob};
    char wish[400];
    if (!sink.memory) {
        return diag_no_memory(diag, "%s of %llu bytes", entry->name,
                              (unsigned long long)entry->plain_bytes);
    }
    snprintf(wish, sizeof(wish), "%.150s%s%.100s", entry->name, entry->coordinate[0] ? "-" : "",
             entry->coordinate);
    int status = entry->plain_bytes > 0
                     ? writeout(restoring->cli, &restoring->documents->info, 1, &sink, diag)
                     : 0;
    if (status == 0 && entry->blob_kind == BLOB_TREE) {
        status = write_tree(restoring, i, wish, sink.memory, diag);
    } else if (status == 0) {
        struct content content = {wish, ".bin", entry->plain_bytes, sink.memory};
        status = write_whole(restoring, &content, restoring->files[i], diag);
    }
    if (status != CAIRN_E_CANCELLED) {
        free(restoring->cli->blob);
        restoring->cli->blob = NULL;
    }
    return status;
}

/* --- checkpoint.json --- */

static int write_summary(struct restoring *restoring, struct diag *diag)
{
    struct json json;
    char file[FILE_NAME_MAX];
    json_begin(&json);
    json_str(&json, "run", run_name_text(&restoring->cli->run).at);
    json_info(&json, "checkpoint", &restoring->documents->info);
    json_open(&json, "entries", '[');
    for (size_t i = 0; i < restoring->count; i++) {
        const struct index_entry *entry = &restoring->documents->of.index[i];
        json_open(&json, NULL, '{');
        json_str(&json, "name", entry->name);
        json_str(&json, "coordinate", entry->coordinate[0] ? entry->coordinate : NULL);
        json_str(&json, "file", restoring->files[i]);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
    struct content content = {"checkpoint", ".json", json.buf.bytes, json.buf.data};
    int status = buf_status(&json.buf);
    if (status == 0) {
        status = write_whole(restoring, &content, file, diag);
    }
    json_fini(&json);
    return status;
}

/* --- one try --- */

static int write_files(struct restoring *restoring, struct diag *diag)
{
    int status = write_tensors(restoring, diag);
    for (size_t i = 0; status == 0 && i < restoring->count; i++) {
        if (restoring->documents->of.index[i].kind == INDEX_BLOB) {
            status = write_blob(restoring, i, diag);
        }
    }
    return status != 0 ? status : write_summary(restoring, diag);
}

static int restore_documents(struct cli *cli, const struct restore_options *own,
                             struct documents *documents, struct diag *diag)
{
    struct restoring restoring = {
        .cli = cli, .own = own, .documents = documents, .count = documents->of.index_count};
    restoring.files = calloc(restoring.count + 1, sizeof(*restoring.files));
    int status = restoring.files ? target_begin(own->to, &restoring.target, diag)
                                 : diag_no_memory(diag, "the files of the restore");
    if (status == 0) {
        struct rank_choice choice = {&own->ranks, (uint32_t)own->as_ranks};
        status = own->ranks.count > 0 || own->as_ranks > 0
                     ? rank_files_write(cli, documents, &choice, &restoring.target, diag)
                     : write_files(&restoring, diag);
        if (status == 0) {
            status = target_commit(&restoring.target, diag);
        }
        if (status != 0) {
            target_explain(&restoring.target, status, diag);
            target_abort(&restoring.target);
        }
    }
    free(restoring.files);
    return status;
}

/* Leaves the entries that --only names; each pattern must name one. */
static int choose(const struct option_texts *only, struct documents *documents, struct diag *diag)
{
    size_t kept = 0;
    for (uint32_t i = 0; i < only->count; i++) {
        bool found = false;
        for (size_t k = 0; !found && k < documents->of.index_count; k++) {
            found = glob_matches(only->items[i], documents->of.index[k].name);
        }
        if (!found) {
            return diag_set(
                diag, CAIRN_E_MISSING_TENSOR,
                "no name in the checkpoint matches '%s' (--only); `cairn show` lists the names",
                only->items[i]);
        }
    }
    for (size_t k = 0; only->count > 0 && k < documents->of.index_count; k++) {
        if (glob_matches_any(only->count, only->items, documents->of.index[k].name)) {
            documents->of.index[kept++] = documents->of.index[k];
        }
    }
    documents->of.index_count = only->count > 0 ? kept : documents->of.index_count;
    return 0;
}

static int restore_one(struct cli *cli, const struct restore_options *own,
                       const struct ckpt_info *info, struct diag *diag)
{
    struct documents documents;
    int status = documents_load(cli, info, &documents, diag);
    if (status == 0) {
        status = choose(&own->only, &documents, diag);
    }
    if (status == 0) {
        status = restore_documents(cli, own, &documents, diag);
    }
    if (status != CAIRN_E_CANCELLED) {
        documents_fini(&documents);
    }
    return status;
}

/* --- falling back --- */

/* Returns whether the checkpoint is damaged, or was reclaimed meanwhile. Of any other error another
 * checkpoint would be no cure. */
static bool is_damage(int status)
{
    return err_exit_status(status) == EXIT_DAMAGE || status == CAIRN_E_NOT_FOUND;
}

static const struct ckpt_info *next_older(const struct ckpt_info *infos, size_t count,
                                          struct ckpt_id below)
{
    const struct ckpt_info *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_info *info = &infos[i];
        bool candidate = info->state == CKPT_COMMITTED && info->on_lineage &&
                         info->health != HEALTH_DAMAGED && ckpt_id_compare(info->id, below) < 0;
        if (candidate && (!best || ckpt_id_compare(info->id, best->id) > 0)) {
            best = info;
        }
    }
    return best;
}

struct falling { /* from a checkpoint that is damaged, status and diag say how */
    const struct restore_options *own;
    struct scratch *scratch;
    struct ckpt_info info; /* in: the damaged one; out: what was restored */
};

static int fall_back(struct cli *cli, struct falling *falling, int status, struct diag *diag)
{
    struct cli_list list = {0};
    struct ckpt_info *io = &falling->info;
    struct diag why = *diag;
    if (cli_list(cli, falling->scratch, &list, NULL) != 0) {
        return status;
    }
    while (is_damage(status)) {
        const struct ckpt_info *older = next_older(list.items, list.count, io->id);
        struct shown room;
        fprintf(stderr, "cairn: checkpoint %s cannot be restored: %s\n", ckpt_id_text(io->id).at,
                shown(&room, diag_text(&why, status)));
        if (!older) {
            diag_clear(diag);
            return diag_set(diag, CAIRN_E_DAMAGED,
                            "no older good checkpoint is left on the lineage");
        }
        *io = *older;
        why = DIAG_INIT;
        status = restore_one(cli, falling->own, io, &why);
    }
    *diag = why;
    return status;
}

static int finish(struct cli *cli, const char *to, const struct ckpt_info *info, bool fell_back)
{
    if (!cli->json) {
        printf("restored %s to %s%s\n", ckpt_id_text(info->id).at, to,
               fell_back ? " (FELL BACK: newer checkpoints are damaged or lost)" : "");
        int flushed = out_flush();
        return flushed != 0 ? flushed : fell_back ? EXIT_FELL_BACK : 0;
    }
    struct json json;
    json_begin(&json);
    json_info(&json, "checkpoint", info);
    json_str(&json, "to", to);
    json_bool(&json, "fell_back", fell_back);
    int status = json_end(&json);
    return status != 0 ? status : fell_back ? EXIT_FELL_BACK : 0;
}

/* Adds the checkpoint's name to an error of damage, whose text may name the tensor alone. */
static void name_damaged(const struct ckpt_info *info, struct diag *diag)
{
    struct ckpt_id_text id = ckpt_id_text(info->id);
    if (!strstr(diag->text, id.at)) {
        diag_add(diag, "checkpoint %s", id.at);
    }
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct restore_options *own = values;
    const struct selector *selector = &cli->selector;
    struct scratch scratch;
    struct falling falling = {.own = own, .scratch = &scratch};
    struct ckpt_info *info = &falling.info;
    int status = cli_connect(cli, true, diag);
    if (status != 0) {
        return status;
    }
    scratch_init(&scratch, (size_t)1 << 30);
    bool fell_back = false;
    status = own->no_fallback ? cli_resolve_newest(cli, selector, &scratch, info, diag)
                              : cli_resolve(cli, selector, &scratch, info, diag);
    if (status == 0) {
        status = cli_passed_over(cli, selector, info, &fell_back, diag);
    }
    if (status == 0) {
        struct ckpt_id wanted = info->id;
        status = restore_one(cli, own, info, diag);
        if (is_damage(status) && selector->kind == SELECT_LATEST && !own->no_fallback) {
            status = fall_back(cli, &falling, status, diag);
        } else if (is_damage(status)) {
            name_damaged(info, diag);
        }
        fell_back = fell_back || !ckpt_id_equal(wanted, info->id);
    }
    /* info's text is in scratch */
    if (status == 0) {
        status = finish(cli, own->to, info, fell_back);
    }
    scratch_fini(&scratch);
    return status;
}

const struct command command_restore = {
    .name = "restore",
    .group = GROUP_FILES,
    .summary = "write a checkpoint as safetensors and JSON files",
    .details =
        "DIR must be absent or empty. The command writes to DIR.partial first, checks and syncs "
        "the files, and then renames the directory. If the newest checkpoint is damaged, the "
        "newest good one is restored and the exit status is 3 (not with --no-fallback).\n\nWith "
        "--ranks the files are rank-R.safetensors, each with the rectangles of the tensors that "
        "rank R held, and ranks.json, which says where they belong; blobs are left out. With "
        "--as-ranks M the command writes the same files for M ranks, whatever number of ranks "
        "saved the checkpoint: of a tensor of L rows rank R gets rows L*R/M to L*(R+1)/M, rounded "
        "so that each row is written once. A scalar, and a tensor that belongs to a coordinate "
        "(NAME@COORDINATE), is in the file of rank 0. --ranks then chooses among the M ranks.",
    .example = "cairn restore lab/gpt --to out\ncairn restore lab/gpt 1200 --to out --only "
               "'model.*'\ncairn restore lab/gpt --to out --as-ranks 8",
    .arguments = cli_checkpoint_arguments,
    .options = options,
    .options_bytes = sizeof(struct restore_options),
    .run = run};
