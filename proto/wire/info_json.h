/* SPDX-License-Identifier: Apache-2.0
 *
 * info_json: the entry of a checkpoint as JSON, as the command line's --json and the daemon's
 * /api/v1 give it. Fields may be added within a version of their documents. Pure.
 */
#ifndef CAIRN_WIRE_INFO_JSON_H
#define CAIRN_WIRE_INFO_JSON_H

#include "base/json.h"
#include "msg.h"

enum { JSON_SCHEMA_VERSION = 1 }; /* of every document that holds such entries */

void json_ckpt_id(struct json *json, struct ckpt_id id); /* step, term */
/* The fields tags and metrics. */
void json_notes(struct json *json, uint32_t tag_count, const char *const *tags,
                uint32_t metric_count, const struct metric *metrics);
void json_info(struct json *json, const char *name, const struct ckpt_info *info);
const char *state_name(uint32_t state); /* enum ckpt_state */
const char *health_name(uint32_t health);
/* One entry of a run's log. */
void json_log_row(struct json *json, const char *run, const char *action,
                  const struct msg_log_row *row);
const char *log_action_name(uint32_t kind); /* of struct msg_log_row; "other" if it is not known */

#endif
