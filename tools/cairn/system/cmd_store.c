/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn store: makes a store, or raises its feature bits. Making is a word of the operator alone:
 * a daemon that made a store where it finds none would do so below the mount point of a disk that
 * is missing, and training would begin again at step 0. This version knows no bit that a store of
 * its format lacks, so `upgrade` looks, says so, and changes nothing.
 */
#include "cli.h"
#include "system/offline_store.h"

#include "store/dir/store_dir.h"

#include <string.h>
#include <unistd.h>

struct store_options {
    const char *verb, *url;
    bool single_writer, if_missing, dry_run;
};

static const struct argument arguments[] = {
    {"create|upgrade", .kind = ARGUMENT_TEXT, .at = offsetof(struct store_options, verb)},
    {"URL", .kind = ARGUMENT_TEXT, .at = offsetof(struct store_options, url)},
    {0}};

static const struct option options[] = {
    {"single-writer", NULL,
     "create: allow tmpfs and network file systems, if you are sure that no other host writes "
     "there",
     OPTION_AT_FLAG(struct store_options, single_writer)},
    {"if-missing", NULL, "create: leave a store that is there already as it is, which is no error",
     OPTION_AT_FLAG(struct store_options, if_missing)},
    {"dry-run", NULL, "show what would change, and change nothing",
     OPTION_AT_FLAG(struct store_options, dry_run), .letter = 'n'},
    {0}};

/* The store that was found or made. */
struct store_found {
    char uuid[33];
    bool is_new; /* made by this command, or with --dry-run missing */
};

/* --- opening ---------------------------------------------------------------------------------- */

/* Opens the store, takes its UUID, and closes it. */
static int visit(struct offline_store *at, const struct store_open_options *open, char uuid[33],
                 struct diag *diag)
{
    int status = store_open(open, &at->store, diag);
    if (status == 0) {
        hex_encode(sizeof(at->store->caps.uuid), &at->store->caps.uuid, uuid);
        offline_store_leave(at);
    }
    return status;
}

/* Makes the store. One that is there already, or cannot be read, is left as it is. */
static int make(struct offline_store *at, const struct store_options *own,
                struct store_open_options *open, struct store_found *found, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    open->create = true; /* asked for: what is refused is a making */
    int status = visit(at, open, found->uuid, &why);
    if (status == 0 && own->if_missing) {
        return 0;
    }
    if (status == 0) {
        return diag_set(diag, CAIRN_E_EXISTS,
                        "%s already holds the store %s, so nothing was changed; start cairnd on it",
                        open->url, found->uuid);
    }
    if (status != CAIRN_E_NO_STORE) {
        return diag_copy(diag, &why);
    }
    found->uuid[0] = '\0';
    found->is_new = true;
    if (own->dry_run) {
        return 0;
    }
    open->read_only = false;
    open->force_fs = own->single_writer;
    status = visit(at, open, found->uuid, diag);
    if (status == CAIRN_E_DENIED) {
        diag_add(diag, "check that user %lu may write in %s", (unsigned long)geteuid(), open->url);
    }
    return status;
}

/* Opening reads the store's record and refuses, by name, what this version does not know. */
static int work(const struct store_options *own, bool creates, struct store_found *found,
                struct diag *diag)
{
    struct offline_store at = {.loop = NULL};
    int status = offline_store_begin(&at, own->url, diag);
    if (status == 0 && creates && strncmp(own->url, "dir:", 4) == 0 && own->url[4] != '/') {
        status = diag_set(diag, CAIRN_E_INVALID,
                          "URL is '%s'; the path after dir: must be absolute", own->url);
    }
    if (status == 0) {
        struct store_open_options open = {.loop = at.loop,
                                          .pool = at.store_pool,
                                          .url = own->url,
                                          .read_only = true,
                                          .reserve_bytes = STORE_DIR_RESERVE_BYTES};
        status =
            creates ? make(&at, own, &open, found, diag) : visit(&at, &open, found->uuid, diag);
    }
    offline_store_close(&at);
    return status;
}

/* --- showing ---------------------------------------------------------------------------------- */

static int show_json(const struct store_options *own, bool creates, const struct store_found *found)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "store", own->url);
    json_str(&json, "store_uuid", found->uuid[0] != '\0' ? found->uuid : NULL);
    json_bool(&json, "changed", found->is_new && !own->dry_run);
    if (!creates) {
        json_open(&json, "features", '[');
        json_close(&json, ']');
    }
    return json_end(&json);
}

static int show(const struct store_options *own, bool creates, const struct store_found *found)
{
    if (!creates) {
        printf("%s: there is nothing to upgrade, because cairn %s knows no feature that this store "
               "lacks\n",
               own->url, CAIRN_VERSION);
    } else if (own->dry_run && found->is_new) {
        printf("%s: there is no store yet; one would be created\n", own->url);
    } else {
        printf("%s: %s the store %s\nWith [store] uuid = %s in its configuration, cairnd "
               "starts on no other store\n",
               own->url, found->is_new ? "created" : "already holds", found->uuid, found->uuid);
    }
    return out_flush();
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct store_options *own = values;
    struct store_found found = {0};
    bool creates = strcmp(own->verb, "create") == 0;
    if (!creates && strcmp(own->verb, "upgrade") != 0) {
        return diag_set(diag, CAIRN_E_INVALID, "cairn store cannot '%s'; give create or upgrade",
                        own->verb);
    }
    int status = work(own, creates, &found, diag);
    if (status != 0) {
        return status;
    }
    return cli->json ? show_json(own, creates, &found) : show(own, creates, &found);
}

const struct command command_store = {
    .name = "store",
    .group = GROUP_SYSTEM,
    .summary = "create a store, or raise one to the features of this version",
    .details = "`create` makes a store at URL, which is dir:/PATH or rados:POOL[/NAMESPACE]. The "
               "directory must be absent or empty, and the one above it must exist. Only this "
               "command makes a store: a daemon that finds none ends with exit status 10, because "
               "the disk that should be there may not be mounted. Run the command as the daemon's "
               "user. Its last line gives the store's UUID for the configuration.\n\n`upgrade` "
               "raises feature bits in the store's record, which may lock older versions out, so "
               "this happens only on request. This version has no bits to raise: the command opens "
               "the store, refuses with exit status 10 if the store uses features that this "
               "version does not know, and otherwise says that there is nothing to do.",
    .example = "cairn store create dir:/var/lib/cairn/store\n"
               "cairn store upgrade dir:/var/lib/cairn/store",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct store_options),
    .run = run};
