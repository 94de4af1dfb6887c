/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that make samples share.
 */
#ifndef CAIRN_TESTS_WIRE_SAMPLE_PRIVATE_H
#define CAIRN_TESTS_WIRE_SAMPLE_PRIVATE_H

#include "sample.h"

uint32_t sample_below32(struct sample *s, uint64_t n);
bool sample_flip(struct sample *s);
uint64_t sample_number(struct sample *s);
void sample_fill(struct sample *s, size_t bytes, void *ret);
void *sample_take(struct sample *s, size_t count, size_t size);
const char *sample_text(struct sample *s, size_t least, size_t most);
struct ckpt_id sample_ckpt(struct sample *s);
struct run_name sample_run(struct sample *s);

/* sample_maintenance.c: scrub, gc, repair, the server itself, the log of a run. */
void sample_make_log(struct sample *s, uint32_t type, struct msg *ret);
void sample_make_maintenance(struct sample *s, uint32_t type, struct msg *ret);

#endif
