/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn export: a checkpoint as safetensors files. The headers are laid out first; then the
 * tensors' bytes go from the source to their places, each chunk checked. DIR appears when all is
 * durable. For other formats it says which command to use.
 */
#include "cli.h"
#include "files/convert.h"
#include "files/export.h"

#include "base/digits.h"
#include "base/glob.h"

#include <stdlib.h>
#include <string.h>

struct export_command_options {
    const char *to, *format;
    uint64_t shard_bytes;
    bool local, dry_run;
    struct option_texts only;
};

static const struct option options[] = {
    {"to", "DIR", "directory to write to", OPTION_AT_TEXT(struct export_command_options, to),
     .completes = COMPLETES_DIRECTORIES, .needed = true},
    {"format", "FORMAT", "format to write", OPTION_AT_TEXT(struct export_command_options, format),
     .preset = "safetensors", .choices = "safetensors npz torch dcp"},
    {"only", "PATTERN", "only tensors whose names match (* ? [a-z])",
     OPTION_AT_TEXTS(struct export_command_options, only)},
    {"max-shard-size", "SIZE",
     "safetensors: most bytes of tensors in a file; several files get an index",
     OPTION_AT_SIZE(struct export_command_options, shard_bytes), .preset = "5GiB", .min = 4096},
    {"local", NULL, "also write tensors that belong to one rank, as NAME@COORDINATE",
     OPTION_AT_FLAG(struct export_command_options, local)},
    {"dry-run", NULL, "show what would be written, and write nothing",
     OPTION_AT_FLAG(struct export_command_options, dry_run), .letter = 'n'},
    {0}};

static bool is_chosen(const struct export_command_options *own, const struct index_entry *entry)
{
    return own->only.count == 0 || glob_matches_any(own->only.count, own->only.items, entry->name);
}

static bool fits(const struct export_command_options *own, const struct index_entry *entry)
{
    return entry->kind == INDEX_TENSOR && (entry->coordinate[0] == '\0' || own->local);
}

static int choose(const struct export_command_options *own, const struct documents *documents,
                  struct export *io, struct diag *diag)
{
    io->items = calloc(documents->of.index_count + 1, sizeof(*io->items));
    if (!io->items) {
        return diag_no_memory(diag, "%zu tensors", documents->of.index_count);
    }
    for (size_t i = 0; i < documents->of.index_count; i++) {
        const struct index_entry *entry = &documents->of.index[i];
        if (!is_chosen(own, entry)) {
            continue;
        }
        if (!fits(own, entry)) {
            io->left_out++;
            continue;
        }
        struct export_item *item = &io->items[io->count++];
        item->entry = entry;
        snprintf(item->name, sizeof(item->name), "%s%s%s", entry->name,
                 entry->coordinate[0] ? "@" : "", entry->coordinate);
        io->bytes += entry->plain_bytes;
    }
    if (io->count == 0) {
        return diag_set(diag, CAIRN_E_MISSING_TENSOR, "the checkpoint has nothing to export%s",
                        own->only.count > 0 ? " that matches --only" : "");
    }
    return 0;
}

static int write_files(struct export *export, const struct export_command_options *own,
                       struct diag *diag)
{
    int status = target_begin(own->to, &export->target, diag);
    if (status != 0) {
        return status;
    }
    status = export_safetensors(export, diag);
    if (status == 0) {
        status = target_commit(&export->target, diag);
    }
    if (status != 0) {
        target_explain(&export->target, status, diag);
        target_abort(&export->target);
    }
    return status;
}

static int show(const struct export *export, const struct export_command_options *own)
{
    if (!export->cli->json) {
        printf("%s %s: %zu tensor%s, %s, %s %s (%s)\n", own->dry_run ? "would export" : "exported",
               ckpt_id_text(export->documents->info.id).at, export->count, plural(export->count),
               bytes_text(export->bytes).at, own->dry_run ? "would go to" : "are in", own->to,
               own->format);
        if (export->left_out > 0) {
            fprintf(stderr,
                    "cairn: %zu items were left out: tensors that belong to one rank (see "
                    "--local), and blobs\n",
                    export->left_out);
        }
        return out_flush();
    }
    struct json json;
    json_begin(&json);
    json_info(&json, "checkpoint", &export->documents->info);
    json_str(&json, "to", own->to);
    json_str(&json, "format", own->format);
    json_bool(&json, "dry_run", own->dry_run);
    json_u64(&json, "exported", export->count);
    json_u64(&json, "left_out", export->left_out);
    json_u64(&json, "plain_bytes", export->bytes);
    return json_end(&json);
}

static int export_documents(struct cli *cli, const struct export_command_options *own,
                            struct documents *documents, struct diag *diag)
{
    struct export export = {.cli = cli, .documents = documents, .shard_bytes = own->shard_bytes};

    scratch_init(&export.scratch, (size_t)1 << 30);
    int status = choose(own, documents, &export, diag);
    if (status == 0 && !own->dry_run) {
        status = write_files(&export, own, diag);
    }
    if (status == 0) {
        status = show(&export, own);
    }
    if (status != CAIRN_E_CANCELLED) {
        scratch_fini(&export.scratch);
        free(export.items);
    }
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): after an interrupt reads still go there */
    return status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct export_command_options *own = values;
    struct scratch scratch;
    struct documents documents;
    struct ckpt_info info;
    if (strcmp(own->format, "safetensors") != 0) {
        return convert_refuse(cli, "files of torch.save, DCP directories and npz archives", diag);
    }
    int status = cli_connect(cli, true, diag);
    if (status != 0) {
        return status;
    }
    scratch_init(&scratch, MIB(1));
    status = cli_resolve_newest(cli, &cli->selector, &scratch, &info, diag);
    if (status == 0) {
        status = documents_load(cli, &info, &documents, diag);
        if (status == 0) {
            status = export_documents(cli, own, &documents, diag);
        }
        if (status != CAIRN_E_CANCELLED) {
            documents_fini(&documents);
        }
    }
    scratch_fini(&scratch);
    return status;
}

const struct command command_export = {
    .name = "export",
    .group = GROUP_FILES,
    .summary = "write a checkpoint as safetensors files",
    .details =
        "DIR must be absent or empty. The command writes model.safetensors there, or numbered "
        "files with model.safetensors.index.json. It writes to DIR.partial first, checks and syncs "
        "the files, and then renames the directory. A damaged checkpoint is an error (exit status "
        "6), and no other checkpoint takes its place.\n\nTypes that safetensors lacks are written "
        "as bytes and named beside them, and `cairn import` reads them back. Tensors that belong "
        "to one rank and blobs are left out, and counted.\n\nFiles of torch.save, directories of "
        "torch.distributed.checkpoint and archives of numpy.savez are written by `cairn-convert "
        "export`, which is installed with Cairn's Python package and takes the same words. For "
        "these formats this command prints the whole command line and ends with status 2.",
    .example = "cairn export lab/gpt --to out\ncairn export lab/gpt 1200 --to out --only "
               "'model.*'",
    .arguments = cli_checkpoint_arguments,
    .options = options,
    .options_bytes = sizeof(struct export_command_options),
    .run = run};
