/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn import: safetensors files become a checkpoint, saved through the library as a rank of a
 * world of one. Files are mapped, never loaded: memory is the staging arena's. For other formats it
 * says which command to use.
 */
#include "cairn.h"

#include "base/digits.h"
#include "cli.h"
#include "files/convert.h"
#include "files/library.h"
#include "formats/bundle.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

struct import_options {
    const char *path, *format;
    uint64_t step, deadline_ms, arena_bytes;
    bool new_lineage, drop_metadata, dry_run;
    struct option_texts tags;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN},
    {"PATH", .kind = ARGUMENT_FILE, .at = offsetof(struct import_options, path)},
    {0}};

static const struct option options[] = {
    {"format", "FORMAT", "format of PATH", OPTION_AT_TEXT(struct import_options, format),
     .preset = "auto", .choices = "auto safetensors safetensors-index npz torch dcp"},
    {"step", "N", "step of the new checkpoint", OPTION_AT_COUNT(struct import_options, step),
     .preset = "0", .max = INT64_MAX},
    {"tag", "TEXT", "tag of the new checkpoint", OPTION_AT_TEXTS(struct import_options, tags),
     .max = LIMIT_TAGS},
    {"new-lineage", NULL,
     "import into a run that already has checkpoints, which are then superseded; a job that is "
     "training the run is fenced",
     OPTION_AT_FLAG(struct import_options, new_lineage), .alone = true},
    {"drop-metadata", NULL, "leave out __metadata__ of the files, which may take at most 16 KiB",
     OPTION_AT_FLAG(struct import_options, drop_metadata)},
    {"deadline", "DURATION", "time limit until the checkpoint is durable",
     OPTION_AT_DURATION(struct import_options, deadline_ms), .preset = "1h", .min = 1000},
    {"arena", "SIZE", "cannot prepare the staging memory",
     OPTION_AT_SIZE(struct import_options, arena_bytes), .preset = "256MiB", .min = 16 << 20},
    {"dry-run", NULL, "read and check the files, and save nothing",
     OPTION_AT_FLAG(struct import_options, dry_run), .letter = 'n'},
    {0}};

struct importing {
    struct cli *cli;
    const struct import_options *own;
    const char *format;
    struct bundle bundle;
    struct buf metadata; /* the checkpoint's */
    uint64_t bytes;
    struct cairn_tensor *tensors;
    struct cairn_result result;
};

/* --- what it is --- */

static bool is_there(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    struct stat info;
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof(path) && stat(path, &info) == 0;
}

/* Recognises the format by its first bytes: a zip archive comes from numpy.savez or torch.save, a
 * bare pickle from torch.save.
 */
static int detect_file(struct importing *importing, struct diag *diag)
{
    static const char index[] = ".index.json";
    const char *path = importing->own->path;
    size_t length = strlen(path);
    struct bundle_file file;
    if (length > sizeof(index) && strcmp(path + length - sizeof(index) + 1, index) == 0) {
        importing->format = "safetensors-index";
        return 0;
    }
    int status = bundle_map(&importing->bundle, path, &file, diag);
    if (status != 0) {
        return status;
    }
    bool pickle = file.bytes > 2 && file.data[0] == 0x80 && file.data[1] <= 5;
    bool archive = file.bytes >= 4 && memcmp(file.data, "PK\3\4", 4) == 0;
    importing->format = pickle ? "torch" : archive ? "npz" : "safetensors";
    return 0;
}

static int detect(struct importing *importing, struct diag *diag)
{
    const char *path = importing->own->path;
    struct stat info;
    if (strcmp(importing->own->format, "auto") != 0) {
        importing->format = importing->own->format;
        return 0;
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return detect_file(importing, diag);
    }
    if (is_there(path, ".metadata")) {
        importing->format = "dcp";
    } else if (is_there(path, "model.safetensors.index.json")) {
        importing->format = "safetensors-index";
    } else {
        return diag_set(diag, CAIRN_E_INVALID,
                        "%s has neither .metadata nor model.safetensors.index.json; name a file "
                        "instead of the directory",
                        path);
    }
    return 0;
}

static int read_bundle(struct importing *importing, struct diag *diag)
{
    int status = detect(importing, diag);
    if (status != 0) {
        return status;
    }
    if (strcmp(importing->format, "safetensors") == 0) {
        status = safetensors_read(&importing->bundle, importing->own->path, diag);
    } else if (strcmp(importing->format, "safetensors-index") == 0) {
        status = safetensors_index_read(&importing->bundle, importing->own->path, diag);
    } else {
        status = convert_refuse(importing->cli,
                                "files of torch.save, DCP directories and npz archives", diag);
    }
    return status != 0 ? status : bundle_finish(&importing->bundle, diag);
}

/* --- as the library wants it --- */

static int fill_metadata(struct importing *importing, struct diag *diag)
{
    const struct bundle *bundle = &importing->bundle;
    if (bundle->pair_count == 0 || importing->own->drop_metadata) {
        return 0;
    }
    metadata_encode(bundle->pair_count, bundle->pairs, &importing->metadata);
    int status = buf_status(&importing->metadata);
    if (status == CAIRN_E_TOO_LARGE) {
        return diag_set(diag, status,
                        "__metadata__ of %s has %zu texts that take more than the %d bytes that a "
                        "checkpoint keeps; --drop-metadata imports without them",
                        importing->own->path, bundle->pair_count, LIMIT_METADATA_BYTES);
    }
    return status != 0 ? diag_no_memory(diag, "__metadata__") : 0;
}

static int fill(struct importing *importing, struct diag *diag)
{
    const struct bundle *bundle = &importing->bundle;
    importing->tensors = calloc(bundle->tensor_count + 1, sizeof(*importing->tensors));
    if (!importing->tensors) {
        return diag_no_memory(diag, "%zu tensors", bundle->tensor_count);
    }
    for (size_t i = 0; i < bundle->tensor_count; i++) {
        const struct bundle_tensor *from = &bundle->tensors[i];
        struct cairn_tensor *tensor = &importing->tensors[i];
        *tensor = (struct cairn_tensor)CAIRN_TENSOR_INIT;
        tensor->name = from->name;
        tensor->dtype = (int)from->dtype;
        tensor->ndim = from->shape.ndim;
        tensor->shape = from->shape.length;
        tensor->data = (void *)(uintptr_t)from->data;
        tensor->placement = CAIRN_REPLICATED;
        importing->bytes += from->bytes;
    }
    return fill_metadata(importing, diag);
}

/* --- the save --- */

static int save(void *user, cairn_t *cairn, struct diag *diag)
{
    struct importing *importing = user;
    struct cairn_save_options how = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_error error = {0};
    cairn_op_t *op = NULL;
    how.tags = importing->own->tags.items;
    how.tag_count = importing->own->tags.count;
    how.metadata = importing->metadata.data;
    how.metadata_bytes = importing->metadata.bytes;
    int status =
        cairn_set_tensors(cairn, importing->tensors, importing->bundle.tensor_count, &error);
    importing->result = (struct cairn_result)CAIRN_RESULT_INIT;
    if (status == 0) {
        status = cairn_save(cairn, importing->own->step, &how, &op, &error);
    }
    if (status == 0) {
        status = cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &error);
    }
    if (status == 0) {
        status = cairn_op_result(op, &importing->result, &error);
    }
    cairn_op_free(op);
    return status != 0 ? library_error(status, &error, diag) : 0;
}

static int show(const struct importing *importing)
{
    const struct import_options *own = importing->own;
    if (!importing->cli->json) {
        printf("%s %zu tensor%s, %s, from %s (%s)", own->dry_run ? "would import" : "imported",
               importing->bundle.tensor_count, plural(importing->bundle.tensor_count),
               bytes_text(importing->bytes).at, own->path, importing->format);
        if (!own->dry_run) {
            printf(" as %" PRIu64 "@%" PRIu64, importing->result.step, importing->result.term);
        }
        printf("\n");
        return out_flush();
    }
    struct json json;
    json_begin(&json);
    json_str(&json, "format", importing->format);
    json_bool(&json, "dry_run", own->dry_run);
    json_u64(&json, "tensors", importing->bundle.tensor_count);
    json_u64(&json, "blobs", 0); /* cairn-convert has some */
    json_u64(&json, "plain_bytes", importing->bytes);
    json_u64(&json, "step", own->step);
    json_u64(&json, "term", own->dry_run ? 0 : importing->result.term);
    return json_end(&json);
}

/* Files are mapped: one that becomes shorter meanwhile, or that the disk cannot give, is a signal
 * to whichever thread reads it. The process is the one rank of its save, which is not staged then,
 * so with it the save ends: nothing half read is ever committed. */
static void on_bus(int signum)
{
    static const char text[] = "cairn: IO: a file that was being imported became shorter while it "
                               "was read, or could not be read, so nothing was imported\n";
    (void)signum;
    ssize_t wrote = write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(wrote > 0 ? EXIT_FAILURE : EXIT_FAILURE + 1);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    struct importing importing = {.cli = cli, .own = values};
    struct sigaction bus = {.sa_handler = on_bus};
    if (sigaction(SIGBUS, &bus, NULL) != 0) {
        return diag_errno(diag, errno, "cannot set a handler for SIGBUS");
    }
    if (cli->source.store && !importing.own->dry_run) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "--store is read-only; import through the server (--server)");
    }
    bundle_init(&importing.bundle);
    buf_init(&importing.metadata, LIMIT_METADATA_BYTES);
    struct library_use use = {.new_lineage = importing.own->new_lineage,
                              .arena_bytes = importing.own->arena_bytes,
                              .deadline_ms = importing.own->deadline_ms,
                              .use = save,
                              .user = &importing};
    int status = read_bundle(&importing, diag);
    if (status == 0) {
        status = fill(&importing, diag);
    }
    if (status == 0 && !importing.own->dry_run) {
        status = library_use(cli, &use, diag);
    }
    if (status == 0) {
        status = show(&importing);
    }
    free(importing.tensors);
    buf_fini(&importing.metadata);
    bundle_fini(&importing.bundle);
    return status;
}

const struct command command_import = {
    .name = "import",
    .group = GROUP_FILES,
    .summary = "make a checkpoint from files of another program",
    .details =
        "PATH is a safetensors file, or a folder with model.safetensors.index.json. The new "
        "checkpoint has a world of one rank, each tensor is replicated, and it can be restored at "
        "any world size. What the files say in __metadata__ becomes the checkpoint's metadata, "
        "which `cairn show` prints and `cairn export` writes back.\n\nFiles of torch.save, "
        "directories of torch.distributed.checkpoint and "
        "archives of numpy.savez are read by `cairn-convert import`, which is installed with "
        "Cairn's Python package and takes the same words. For such a PATH this command prints the "
        "whole command line and ends with status 2.",
    .example = "cairn import lab/base model.safetensors\ncairn import lab/base ./sharded-model "
               "--step 1200 --tag imported",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct import_options),
    .run = run};
