/* SPDX-License-Identifier: Apache-2.0
 *
 * trace: the trace that a save belongs to, as W3C Trace Context names it. It is kept as a tag of
 * the checkpoint, "trace:" and the trace id, so that lists, manifests and logs can tell it. Pure.
 */
#ifndef CAIRN_BASE_TRACE_H
#define CAIRN_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define TRACE_TAG "trace:"
enum { TRACE_ID_BYTES = 33, TRACE_TAG_BYTES = sizeof(TRACE_TAG) - 1 + TRACE_ID_BYTES };

/* Writes the tag for the value of a `traceparent`. Returns false, and writes "", if the value is
 * not valid. */
bool trace_tag(const char *traceparent, char ret_tag[TRACE_TAG_BYTES]);
/* Returns the trace id of the first tag that holds one, as a pointer into it, or NULL. */
const char *trace_of(uint32_t tag_count, const char *const *tags);

#endif
