/* SPDX-License-Identifier: Apache-2.0
 *
 * See library.h.
 */
#include "files/library.h"

#include <string.h>

enum { LIBRARY_URL_BYTES = 6000 };

int library_error(int code, const struct cairn_error *error, struct diag *diag)
{
    return diag_set(diag, code, "%s", error->text);
}

/* The URL of server and run as the library takes it. */
static int make_url(struct cli *cli, char ret[LIBRARY_URL_BYTES], struct diag *diag)
{
    const char *server = cli->common.server, *text = cli->run_text;
    if (strstr(text, "://")) {
        snprintf(ret, LIBRARY_URL_BYTES, "%s", text);
        return 0;
    }
    struct run_name name;
    int status = run_name_parse(text, &name, diag);
    if (status != 0) {
        return status;
    }
    if (!server) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no server is named: give --server, or set CAIRN_SERVER");
    }
    if (strncmp(server, "unix:", 5) == 0) {
        snprintf(ret, LIBRARY_URL_BYTES, "cairn+unix://%s?run=%s", server + 5, text);
    } else {
        snprintf(ret, LIBRARY_URL_BYTES, "cairn://%s/%s", server, text);
    }
    return 0;
}

static void make_options(struct cli *cli, struct cairn_options *ret)
{
    *ret = (struct cairn_options)CAIRN_OPTIONS_INIT;
    ret->world_size = 1;
    ret->io_deadline_ms = (int64_t)cli->common.timeout_ms;
    ret->cert_file = cli->common.cert_file;
    ret->key_file = cli->common.key_file;
    ret->ca_file = cli->common.ca_file;
    ret->label = "cairn";
}

static int check_empty(const char *url, const struct cairn_options *options, struct diag *diag)
{
    struct cairn_options viewing = *options;
    struct cairn_error error = {0};
    cairn_t *viewer = NULL;
    cairn_list_t *list = NULL;
    viewing.read_only = 1;
    int status = cairn_open(url, &viewing, &viewer, &error);
    if (status == 0) {
        status = cairn_list(viewer, 0, &list, &error);
    }
    if (status != 0) {
        status = library_error(status, &error, diag);
    } else if (cairn_list_count(list) > 0) {
        status = diag_set(
            diag, CAIRN_E_EXISTS,
            "the run already has checkpoints, and a save would begin a new lineage beside them and "
            "fence a job that is training the run; choose another run, or give --new-lineage");
    }
    cairn_list_free(list);
    err_ignore(cairn_close(viewer, 0, NULL)); /* nothing was begun */
    return status;
}

int library_use(struct cli *cli, const struct library_use *use, struct diag *diag)
{
    char url[LIBRARY_URL_BYTES];
    struct cairn_options how;
    struct cairn_error error = {0};
    cairn_t *cairn = NULL;
    int status = make_url(cli, url, diag);
    make_options(cli, &how);
    if (status == 0 && !use->new_lineage) {
        status = check_empty(url, &how, diag);
    }
    if (status != 0) {
        return status;
    }
    how.arena_bytes = use->arena_bytes;
    how.save_deadline_ms = (int64_t)use->deadline_ms;
    status = cairn_open(url, &how, &cairn, &error);
    if (status != 0) {
        return library_error(status, &error, diag);
    }
    status = use->use(use->user, cairn, diag);
    int closed = cairn_close(cairn, status == 0 ? 10000 : 0, &error);
    return status != 0 ? status : closed != 0 ? library_error(closed, &error, diag) : 0;
}
