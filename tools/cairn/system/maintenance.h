/* SPDX-License-Identifier: Apache-2.0
 *
 * Shows a pass of scrub or of garbage collection, for `cairn status`, `cairn scrub` and `cairn gc`.
 */
#ifndef CAIRN_TOOLS_MAINTENANCE_H
#define CAIRN_TOOLS_MAINTENANCE_H

#include "cli.h"

void maintenance_show_scrub(const struct scrub_info *info);
/* Writes a line to stderr about a pass with findings. */
void maintenance_tell_damage(const struct scrub_info *info);
/* Prints garbage collection's state, and with `tells_why` the text of its last error. */
void maintenance_show_gc(const struct gc_info *info, bool tells_why);
/* Writes until when forgotten checkpoints wait to be reclaimed: "until TIME", or "the first until
 * TIME, the last until TIME". If last_wall_ns is 0, nobody counts cycles at
 * present. */
void maintenance_waits_text(int64_t first_wall_ns, int64_t last_wall_ns, size_t size, char *ret);
void maintenance_json_scrub(struct json *json, const char *name, const struct scrub_info *info);
void maintenance_json_gc(struct json *json, const char *name, const struct gc_info *info);
/* Sends a request of SCRUB or GC. If another daemon of the store has the duty, the connection goes
 * over to that daemon, stderr says so, and the request is sent again. Returns BUSY, with its name,
 * if that daemon cannot be reached. */
int MUST_USE maintenance_ask(struct cli *cli, const struct msg *msg, struct source_request *ret,
                             struct diag *diag);
/* Gives up a reply, and sleeps half a second in the source's loop before the next question.
 * CANCELLED by an interrupt. */
int MUST_USE maintenance_sleep(struct cli *cli, struct source_request *request, struct diag *diag);

#endif
