/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn import: another program's files become a checkpoint, saved through the library as a rank of
 * a world of one. Files are mapped, never loaded: memory is the staging arena's.
 */
#include "cairn.h"

#include "base/digits.h"
#include "cli.h"
#include "files/library.h"
#include "formats/bundle.h"
#include "formats/zip.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, REPEATS_MAX = 1024 };
#define REPEATED_MIN (UINT64_C(1) << 30)

struct import_options {
    const char *path, *format;
    uint64_t step, deadline_ms, arena_bytes;
    bool new_lineage, dry_run;
    struct option_texts tags;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN},
    {"PATH", .kind = ARGUMENT_FILE, .at = offsetof(struct import_options, path)},
    {0}};

static const struct option options[] = {
    {"format", "FORMAT", "what PATH is", OPTION_AT_TEXT(struct import_options, format),
     .preset = "auto", .choices = "auto safetensors safetensors-index npz torch dcp"},
    {"step", "N", "the checkpoint's step", OPTION_AT_COUNT(struct import_options, step),
     .preset = "0", .max = INT64_MAX},
    {"tag", "TEXT", "a tag of the checkpoint", OPTION_AT_TEXTS(struct import_options, tags),
     .max = LIMIT_TAGS},
    {"new-lineage", NULL,
     "also into a run that has checkpoints: they are superseded, and a job that trains it is "
     "fenced",
     OPTION_AT_FLAG(struct import_options, new_lineage), .alone = true},
    {"deadline", "DURATION", "until it is durable",
     OPTION_AT_DURATION(struct import_options, deadline_ms), .preset = "1h", .min = 1000},
    {"arena", "SIZE", "staging memory", OPTION_AT_SIZE(struct import_options, arena_bytes),
     .preset = "256MiB", .min = 16 << 20},
    {"dry-run", NULL, "read and check the files, save nothing",
     OPTION_AT_FLAG(struct import_options, dry_run), .letter = 'n'},
    {0}};

struct importing {
    struct cli *cli;
    const struct import_options *own;
    const char *format;
    struct bundle bundle;
    uint64_t bytes;
    struct cairn_tensor *tensors;
    struct cairn_box *boxes;
    struct cairn_blob *blobs;
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

static int detect_file(struct importing *importing, struct diag *diag)
{
    static const char index[] = ".index.json";
    const char *path = importing->own->path;
    size_t length = strlen(path);
    struct bundle_file file;
    struct zip zip;
    if (length > sizeof(index) && strcmp(path + length - sizeof(index) + 1, index) == 0) {
        importing->format = "safetensors-index";
        return 0;
    }
    int status = bundle_map(&importing->bundle, path, &file, diag);
    importing->format = "safetensors";
    if (status != 0 || file.bytes < 4 || memcmp(file.data, "PK\3\4", 4) != 0) {
        bool pickle = status == 0 && file.bytes > 2 && file.data[0] == 0x80 && file.data[1] <= 5;
        importing->format = pickle ? "torch" : importing->format;
        return status;
    }
    status = zip_read(file.bytes, file.data, &importing->bundle.scratch, &zip, diag);
    importing->format = "npz";
    for (size_t i = 0; status == 0 && i < zip.count; i++) {
        if (strstr(zip.entries[i].name, "/data.pkl")) {
            importing->format = "torch";
        }
    }
    return status;
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
                        "%s holds neither .metadata nor model.safetensors.index.json: name a file",
                        path);
    }
    return 0;
}

static int read_bundle(struct importing *importing, struct diag *diag)
{
    static const struct {
        const char *format;
        int (*read)(struct bundle *bundle, const char *path, struct diag *diag);
    } readers[] = {{"safetensors", safetensors_read},
                   {"safetensors-index", safetensors_index_read},
                   {"npz", npz_read},
                   {"torch", torch_read},
                   {"dcp", dcp_read}};
    int status = detect(importing, diag);
    for (size_t i = 0; status == 0 && i < ARRAY_LEN(readers); i++) {
        if (strcmp(readers[i].format, importing->format) == 0) {
            status = readers[i].read(&importing->bundle, importing->own->path, diag);
        }
    }
    return status != 0 ? status : bundle_finish(&importing->bundle, diag);
}

/* --- as the library wants it --- */

static void fill_tensor(const struct bundle_tensor *from, struct cairn_tensor *tensor,
                        struct cairn_box *boxes)
{
    *tensor = (struct cairn_tensor)CAIRN_TENSOR_INIT;
    tensor->name = from->name;
    tensor->dtype = (int)from->dtype;
    tensor->ndim = from->shape.ndim;
    tensor->shape = from->shape.length;
    tensor->boxes = boxes;
    tensor->box_count = from->box_count;
    tensor->placement = CAIRN_REPLICATED;
    for (size_t i = 0; i < from->box_count; i++) {
        const struct bundle_box *box = &from->boxes[i];
        boxes[i] = (struct cairn_box){.offset = box->box.offset,
                                      .length = box->box.length,
                                      .stride = box->strided ? box->stride : NULL,
                                      .data = (void *)(uintptr_t)box->data};
    }
}

static int fill(struct importing *importing, struct diag *diag)
{
    const struct bundle *bundle = &importing->bundle;
    size_t box_count = 0;
    for (size_t i = 0; i < bundle->tensor_count; i++) {
        box_count += bundle->tensors[i].box_count;
    }
    importing->tensors = calloc(bundle->tensor_count + 1, sizeof(*importing->tensors));
    importing->boxes = calloc(box_count + 1, sizeof(*importing->boxes));
    importing->blobs = calloc(bundle->blob_count + 1, sizeof(*importing->blobs));
    if (!importing->tensors || !importing->boxes || !importing->blobs) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %zu tensors", bundle->tensor_count);
    }
    struct cairn_box *boxes = importing->boxes;
    for (size_t i = 0; i < bundle->tensor_count; i++) {
        const struct bundle_tensor *tensor = &bundle->tensors[i];
        uint64_t bytes = 0;
        err_ignore(shape_check(&tensor->shape, tensor->dtype, &bytes, NULL)); /* was checked */
        fill_tensor(tensor, &importing->tensors[i], boxes);
        boxes += tensor->box_count;
        importing->bytes += bytes;
    }
    for (size_t i = 0; i < bundle->blob_count; i++) {
        struct cairn_blob *blob = &importing->blobs[i];
        *blob = (struct cairn_blob)CAIRN_BLOB_INIT;
        blob->name = bundle->blobs[i].name;
        blob->kind = bundle->blobs[i].is_tree ? CAIRN_TREE : CAIRN_BYTES;
        blob->data = bundle->blobs[i].data;
        blob->data_bytes = bundle->blobs[i].bytes;
        importing->bytes += blob->data_bytes;
    }
    return 0;
}

/* A view may repeat one element without end, and a kilobyte would fill a store. */
static int check_size(const struct importing *importing, struct diag *diag)
{
    const struct bundle *bundle = &importing->bundle;
    uint64_t there = 0;
    for (size_t i = 0; i < bundle->file_count; i++) {
        there += bundle->files[i].bytes;
    }
    if (importing->bytes <= REPEATED_MIN || importing->bytes / REPEATS_MAX <= there) {
        return 0;
    }
    char said[32], held[32];
    format_bytes(importing->bytes, sizeof(said), said);
    format_bytes(there, sizeof(held), held);
    return diag_set(diag, CAIRN_E_TOO_LARGE,
                    "%s: tensors of %s in a file of %s, which repeat the same bytes again and "
                    "again; where that is meant, save them as copies (.contiguous())",
                    importing->own->path, said, held);
}

/* --- the save --- */

static int save(struct importing *importing, cairn_t *cairn, struct diag *diag)
{
    struct cairn_save_options how = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_error error = {0};
    cairn_op_t *op = NULL;
    how.tags = importing->own->tags.items;
    how.tag_count = importing->own->tags.count;
    int status =
        cairn_set_tensors(cairn, importing->tensors, importing->bundle.tensor_count, &error);
    status = status != 0
                 ? status
                 : cairn_set_blobs(cairn, importing->blobs, importing->bundle.blob_count, &error);
    status = status != 0 ? status : cairn_save(cairn, importing->own->step, &how, &op, &error);
    status = status != 0 ? status : cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &error);
    importing->result = (struct cairn_result)CAIRN_RESULT_INIT;
    status = status != 0 ? status : cairn_op_result(op, &importing->result, &error);
    cairn_op_free(op);
    return status != 0 ? library_error(status, &error, diag) : 0;
}

static int save_bundle(struct importing *importing, struct diag *diag)
{
    char url[LIBRARY_URL_BYTES];
    struct cairn_options how;
    struct cairn_error error = {0};
    cairn_t *cairn = NULL;
    int status = library_url(importing->cli, url, diag);
    library_options(importing->cli, &how);
    if (status == 0 && !importing->own->new_lineage) {
        status = library_check_empty(url, &how, diag);
    }
    if (status != 0) {
        return status;
    }
    how.arena_bytes = importing->own->arena_bytes;
    how.save_deadline_ms = (int64_t)importing->own->deadline_ms;
    status = cairn_open(url, &how, &cairn, &error);
    if (status != 0) {
        return library_error(status, &error, diag);
    }
    status = save(importing, cairn, diag);
    int closed = cairn_close(cairn, status == 0 ? 10000 : 0, &error);
    return status != 0 ? status : closed != 0 ? library_error(closed, &error, diag) : 0;
}

static int show(const struct importing *importing)
{
    const struct import_options *own = importing->own;
    char bytes[32];
    format_bytes(importing->bytes, sizeof(bytes), bytes);
    if (!importing->cli->json) {
        printf("%s %zu tensor%s and %zu blob%s, %s, from %s (%s)",
               own->dry_run ? "would import" : "imported", importing->bundle.tensor_count,
               plural(importing->bundle.tensor_count), importing->bundle.blob_count,
               plural(importing->bundle.blob_count), bytes, own->path, importing->format);
        if (!own->dry_run) {
            printf(" as %" PRIu64 "@%" PRIu64, importing->result.step, importing->result.term);
        }
        printf("\n");
        return out_flush();
    }
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_str(&json, "format", importing->format);
    json_bool(&json, "dry_run", own->dry_run);
    json_u64(&json, "tensors", importing->bundle.tensor_count);
    json_u64(&json, "blobs", importing->bundle.blob_count);
    json_u64(&json, "plain_bytes", importing->bytes);
    json_u64(&json, "step", own->step);
    json_u64(&json, "term", own->dry_run ? 0 : importing->result.term);
    json_close(&json, '}');
    int status = json_print(&json);
    json_fini(&json);
    return status;
}

/* Files are mapped: one that becomes shorter meanwhile, or that the disk cannot give, is a signal
 * to whichever thread reads it. The process is the one rank of its save, which is not staged then,
 * so with it the save ends: nothing half read is ever committed. */
static void on_bus(int signum)
{
    static const char text[] =
        "cairn: IO: a file that is being imported became shorter while it was read, or cannot be "
        "read; nothing was imported\n";
    (void)signum;
    ssize_t wrote = write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(wrote > 0 ? EXIT_FAILURE : EXIT_FAILURE + 1);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    struct importing importing = {.cli = cli, .own = values};
    struct sigaction bus = {.sa_handler = on_bus};
    if (sigaction(SIGBUS, &bus, NULL) != 0) {
        return diag_errno(diag, errno, "catch SIGBUS");
    }
    if (cli->source.store && !importing.own->dry_run) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "--store is read only: import through the server (--server)");
    }
    bundle_init(&importing.bundle);
    int status = read_bundle(&importing, diag);
    status = status != 0 ? status : fill(&importing, diag);
    status = status != 0 ? status : check_size(&importing, diag);
    if (status == 0 && !importing.own->dry_run) {
        status = save_bundle(&importing, diag);
    }
    status = status != 0 ? status : show(&importing);
    free(importing.tensors);
    free(importing.boxes);
    free(importing.blobs);
    bundle_fini(&importing.bundle);
    return status;
}

const struct command command_import = {
    .name = "import",
    .group = GROUP_FILES,
    .summary = "make a checkpoint of another program's files",
    .details =
        "PATH is a safetensors file, a folder with model.safetensors.index.json, an archive of "
        "numpy.savez, a file of torch.save, or a directory of torch.distributed.checkpoint. The "
        "checkpoint is one of a world of one rank, each tensor replicated, and can be restored at "
        "any world size.\n\n"
        "Pickles are read by a parser that knows a short list of names and runs nothing; what it "
        "does not know is an error. Tensors of a nested state are named by the keys that lead to "
        "them, joined by dots; all else of a torch.save file becomes the tree torch.state, and "
        "objects of a DCP directory that are no tensors are kept as the bytes they were.",
    .example =
        "cairn import lab/base model.safetensors\ncairn import lab/base ./dcp-step-1200 --step "
        "1200 --tag imported",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct import_options),
    .run = run};
