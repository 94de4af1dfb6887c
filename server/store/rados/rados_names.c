/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of RADOS objects and keys, and the meaning of librados' errors. Names of runs and projects
 * contain no '/', so each name can be read in one way only.
 */
#include "rados_private.h"
#include "rados_small.h"

#include "base/check.h"
#include "base/digits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void rados_space_of(const struct rados_store *store, const struct run_name *run,
                    char ret[CLUSTER_NAMESPACE_MAX])
{
    snprintf(ret, CLUSTER_NAMESPACE_MAX, "%.128s/%s", store->space, run->project);
}

void rados_name_index(const struct run_name *run, const struct object_id *id, unsigned shard,
                      char ret[CLUSTER_OBJECT_NAME_MAX])
{
    snprintf(ret, CLUSTER_OBJECT_NAME_MAX, "index/%s/%" PRIu64 "-%" PRIu64 "/%u", run->run,
             id->term, id->step, shard);
}

void rados_name_piece(const struct run_name *run, const struct object_id *id, uint64_t epoch,
                      uint32_t number, char ret[CLUSTER_OBJECT_NAME_MAX])
{
    snprintf(ret, CLUSTER_OBJECT_NAME_MAX,
             "piece/%s/%" PRIu64 "-%" PRIu64 "/%u-%016" PRIx64 "-%u/%" PRIu64 "-%u", run->run,
             id->term, id->step, id->rank, id->writer, id->sequence, epoch, number);
}

static const char *const kinds[] = {
    [STORE_MANIFEST] = "manifest", [STORE_PART] = "part", [STORE_PAGE] = "page"};

void rados_name_small(const struct store_name *name, char ret[CLUSTER_OBJECT_NAME_MAX])
{
    snprintf(ret, CLUSTER_OBJECT_NAME_MAX, "small/%s/%" PRIu64 "-%" PRIu64 "/%s-%u-%016" PRIx64,
             name->run.run, name->id.term, name->id.step, kinds[name->kind], name->number,
             name->tag);
}

void rados_key_object(char state, const struct object_id *id, char ret[RADOS_KEY_MAX])
{
    snprintf(ret, RADOS_KEY_MAX, "%c/%u-%016" PRIx64 "-%u", state, id->rank, id->writer,
             id->sequence);
}

void rados_key_begun(char state, const struct object_id *id, uint64_t epoch,
                     char ret[RADOS_KEY_MAX])
{
    snprintf(ret, RADOS_KEY_MAX, "%c/%u-%016" PRIx64 "-%u/%" PRIu64, state, id->rank, id->writer,
             id->sequence, epoch);
}

void rados_key_small(const struct store_name *name, char ret[RADOS_KEY_MAX])
{
    snprintf(ret, RADOS_KEY_MAX, "%s-%u-%016" PRIx64, kinds[name->kind], name->number, name->tag);
}

/* Parses a small thing's name. *io_at then points behind it. */
static bool parse_small(const char **io_at, struct store_name *io_name)
{
    for (size_t kind = STORE_MANIFEST; kind < ARRAY_LEN(kinds); kind++) {
        const char *at = *io_at;
        uint64_t number, tag;
        if (digits_skip(&at, kinds[kind]) && digits_skip(&at, "-") &&
            digits_read_decimal(&at, UINT32_MAX, &number) && digits_skip(&at, "-") &&
            digits_read_hex(&at, 16, &tag)) {
            io_name->kind = (enum store_kind)kind;
            io_name->number = (uint32_t)number;
            io_name->tag = tag;
            *io_at = at;
            return true;
        }
    }
    return false;
}

bool rados_key_parse_small(const char *key, struct store_name *io_name)
{
    return parse_small(&key, io_name) && *key == '\0';
}

void rados_key_tails(char state, const struct store_name *name, uint64_t tails,
                     char ret[RADOS_KEY_MAX])
{
    snprintf(ret, RADOS_KEY_MAX, "%c/%s-%u-%016" PRIx64 "/%016" PRIx64, state, kinds[name->kind],
             name->number, name->tag, tails);
}

bool rados_key_parse_tails(const char *key, struct store_name *io_name, uint64_t *ret_tails)
{
    const char *at = key + 2;
    return parse_small(&at, io_name) && digits_skip(&at, "/") &&
           digits_read_hex(&at, 16, ret_tails) && *at == '\0';
}

/* Parses an object's name. *io_at then points behind it. */
static bool parse_object(const char **io_at, struct ckpt_id ckpt, struct object_id *ret)
{
    uint64_t rank, sequence, writer;
    if (!digits_read_decimal(io_at, UINT32_MAX, &rank) || !digits_skip(io_at, "-") ||
        !digits_read_hex(io_at, 16, &writer) || !digits_skip(io_at, "-") ||
        !digits_read_decimal(io_at, UINT32_MAX, &sequence)) {
        return false;
    }
    *ret = (struct object_id){.term = ckpt.term,
                              .step = ckpt.step,
                              .writer = writer,
                              .rank = (uint32_t)rank,
                              .sequence = (uint32_t)sequence};
    return true;
}

bool rados_key_parse(const char *key, struct ckpt_id ckpt, struct object_id *ret)
{
    const char *at = key + 2;
    return parse_object(&at, ckpt, ret) && *at == '\0';
}

bool rados_key_parse_begun(const char *key, struct ckpt_id ckpt, struct object_id *ret,
                           uint64_t *ret_epoch)
{
    const char *at = key + 2;
    return parse_object(&at, ckpt, ret) && digits_skip(&at, "/") &&
           digits_parse_decimal(at, UINT64_MAX, ret_epoch);
}

#undef rados_error
int rados_error(int rc, bool change, const char *what, struct diag *diag)
{
    switch (-rc) {
    case ETIMEDOUT:
        return diag_set(diag, change ? CAIRN_E_OUTCOME_UNKNOWN : CAIRN_E_TIMED_OUT,
                        "%s: the Ceph cluster did not answer in time; look at `ceph health detail`",
                        what);
    case ENOENT:
        return diag_set(diag, CAIRN_E_NOT_FOUND, "%s: the object is not in the store", what);
    case EEXIST:
        return diag_set(diag, CAIRN_E_EXISTS, "%s: the object already exists", what);
    case ECANCELED:
        return diag_set(diag, CAIRN_E_CONFLICT, "%s: another process changed the object in between",
                        what);
    case EDQUOT:
        return diag_set(diag, CAIRN_E_QUOTA,
                        "%s: the pool's quota is used up; `cairn gc --now` frees forgotten "
                        "checkpoints, or raise the quota with `ceph osd pool set-quota`",
                        what);
    case ENOSPC:
        return diag_set(
            diag, CAIRN_E_NO_SPACE,
            "%s: the Ceph cluster is full; `cairn gc --now` frees forgotten checkpoints, `cairn "
            "forget RUN --keep-last 2 --now` older ones; or add OSDs",
            what);
    case EPERM:
    case EACCES:
        return diag_set(diag, CAIRN_E_DENIED,
                        "%s: the cephx user has no permission; deploy/ceph/make-user gives it the "
                        "permissions that it needs",
                        what);
    case ESHUTDOWN: /* EBLOCKLISTED */
        return diag_set(diag, CAIRN_E_DENIED,
                        "%s: the cluster has put this client on its blocklist; look at `ceph osd "
                        "blocklist ls`, then restart the daemon",
                        what);
    case EOPNOTSUPP:
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "%s: the pool supports no keys (omap): metadata needs a replicated pool, "
                        "and only data may be erasure-coded",
                        what);
    case ENOMEM:
        return diag_no_memory(diag, "a request to the Ceph cluster (%s)", what);
    default:
        return diag_set(diag, CAIRN_E_IO, "%s: %s", what, strerror(-rc));
    }
}
