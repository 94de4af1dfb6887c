/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint's entry as JSON, as `ls`, `show`, `restore` and others print it.
 */
#include "cli.h"

void json_info(struct json *json, const char *name, const struct ckpt_info *info)
{
    char sha[65];
    hex_encode(sizeof(info->manifest_sha256), &info->manifest_sha256, sha);
    json_open(json, name, '{');
    json_u64(json, "step", info->id.step);
    json_u64(json, "term", info->id.term);
    json_str(json, "state", state_name(info->state));
    json_str(json, "health", info->state == CKPT_COMMITTED ? health_name(info->health) : NULL);
    json_u64(json, "sequence", info->seq);
    json_str(json, "committed_at",
             info->state == CKPT_COMMITTED ? time_text(info->wall_ns).at : NULL);
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
    json_open(json, "tags", '[');
    for (uint32_t i = 0; i < info->tag_count; i++) {
        json_str(json, NULL, info->tags[i]);
    }
    json_close(json, ']');
    json_open(json, "metrics", '{');
    for (uint32_t i = 0; i < info->metric_count; i++) {
        json_f64(json, info->metrics[i].name, info->metrics[i].value);
    }
    json_close(json, '}');
    json_close(json, '}');
}

int cli_print_info(const struct ckpt_info *info)
{
    struct json json;
    json_begin(&json);
    json_info(&json, "checkpoint", info);
    return json_end(&json);
}
