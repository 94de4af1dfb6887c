/* SPDX-License-Identifier: Apache-2.0
 *
 * The way from a struct loop to its uv_loop_t, for the libuv forms of env only.
 */
#ifndef CAIRN_ENV_LOOP_UV_H
#define CAIRN_ENV_LOOP_UV_H

#include "loop.h"

#include <uv.h>

uv_loop_t *loop_uv_handle(struct loop *loop);
/* Makes one turn: waits until something happens, then calls the callbacks and the posts. Not while
 * loop_uv_run() runs. */
void loop_uv_turn(struct loop *loop);

/* Turns a UV_* status into an errno value, which the diag functions take. */
static inline int uv_to_errno(int status) { return -status; }

#endif
