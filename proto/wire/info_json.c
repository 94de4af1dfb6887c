/* SPDX-License-Identifier: Apache-2.0
 *
 * info_json: see info_json.h. Pure.
 */
#include "info_json.h"

#include "base/check.h"
#include "format/ids.h"

const char *state_name(uint32_t state)
{
    static const char *const names[] = {"none", "open", "committed", "aborted", "forgotten"};
    return state < ARRAY_LEN(names) ? names[state] : "unknown";
}

const char *health_name(uint32_t health)
{
    static const char *const names[] = {"verified", "suspect", "damaged"};
    return health < ARRAY_LEN(names) ? names[health] : "unknown";
}

void json_ckpt_id(struct json *json, struct ckpt_id id)
{
    json_u64(json, "step", id.step);
    json_u64(json, "term", id.term);
}

void json_notes(struct json *json, uint32_t tag_count, const char *const *tags,
                uint32_t metric_count, const struct metric *metrics)
{
    json_open(json, "tags", '[');
    for (uint32_t i = 0; i < tag_count; i++) {
        json_str(json, NULL, tags[i]);
    }
    json_close(json, ']');
    json_open(json, "metrics", '{');
    for (uint32_t i = 0; i < metric_count; i++) {
        json_f64(json, metrics[i].name, metrics[i].value);
    }
    json_close(json, '}');
}

void json_info(struct json *json, const char *name, const struct ckpt_info *info)
{
    char sha[65];
    hex_encode(sizeof(info->manifest_sha256), &info->manifest_sha256, sha);
    json_open(json, name, '{');
    json_ckpt_id(json, info->id);
    json_str(json, "state", state_name(info->state));
    json_str(json, "health", info->state == CKPT_COMMITTED ? health_name(info->health) : NULL);
    json_u64(json, "sequence", info->seq);
    json_wall(json, "committed_at", info->state == CKPT_COMMITTED ? info->wall_ns : 0);
    json_u64(json, "world_size", info->world_size);
    json_u64(json, "plain_bytes", info->plain_bytes);
    json_u64(json, "stored_bytes", info->stored_bytes);
    json_bool(json, "latest", info->is_latest);
    json_bool(json, "on_lineage", info->on_lineage);
    json_bool(json, "pinned", info->pinned);
    json_u64(json, "parent_term", info->parent.term);
    json_u64(json, "parent_step", info->parent.step);
    json_u64(json, "base_term", info->base.term);
    json_u64(json, "base_step", info->base.step);
    json_u64(json, "base_sequence", info->base_seq);
    json_u64(json, "sealed_ranks", info->sealed_count);
    json_str(json, "manifest_sha256", info->state == CKPT_COMMITTED ? sha : NULL);
    json_str(json, "text", info->text && info->text[0] ? info->text : NULL);
    json_u64(json, "note_version", info->note_version);
    json_notes(json, info->tag_count, info->tags, info->metric_count, info->metrics);
    json_close(json, '}');
}

const char *log_action_name(uint32_t kind)
{
    static const char *const names[] = {
        [CHAIN_COMMIT] = "commit",   [CHAIN_FORGET] = "forget", [CHAIN_UNDELETE] = "undelete",
        [CHAIN_RECLAIM] = "reclaim", [CHAIN_PIN] = "pin",       [CHAIN_UNPIN] = "unpin",
        [CHAIN_REPAIR] = "repair",   [CHAIN_REMOVE] = "remove"};
    if (kind == LOG_RESTORE) {
        return "restore";
    }
    return kind < ARRAY_LEN(names) && names[kind] ? names[kind] : "other";
}

void json_log_row(struct json *json, const char *run, const char *action,
                  const struct msg_log_row *row)
{
    json_open(json, NULL, '{');
    json_str(json, "run", run);
    json_str(json, "action", action);
    json_u64(json, "sequence", row->seq);
    json_wall(json, "at", row->wall_ns);
    json_str(json, "actor", row->actor[0] != '\0' ? row->actor : NULL);
    json_str(json, "reason", row->reason[0] != '\0' ? row->reason : NULL);
    json_open(json, "checkpoints", '[');
    for (uint32_t i = 0; i < row->id_count; i++) {
        json_open(json, NULL, '{');
        json_ckpt_id(json, row->ids[i]);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_u64(json, "world_size", row->world_size);
    json_u64(json, "plain_bytes", row->plain_bytes);
    json_u64(json, "stored_bytes", row->stored_bytes);
    json_u64(json, "asked_step", row->asked.step);
    json_u64(json, "asked_term", row->asked.term);
    json_str(json, "error", row->code != 0 ? err_name(row->code) : NULL);
    json_close(json, '}');
}
