/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk: from plain bytes to an envelope, and back with everything checked. The client seals, the
 * server verifies before a part may refer to a chunk, the restoring client opens: the same code, so
 * that both ends agree on what "verified" means. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_CHUNK_H
#define CAIRN_PIPELINE_CHUNK_H

#include "pipeline/digest.h"

/* The envelope of plain bytes that are stored as they are (raw). 0 < bytes <= LIMIT_CHUNK_BYTES.
 * offset is the caller's to set. */
void chunk_seal_raw(size_t bytes, const void *plain, uint8_t element_bytes, struct envelope *ret);

/* Stored bytes (envelope->stored_bytes of them) against their envelope: crc, then the digest of the
 * plain bytes, in one pass for raw ones; encoded ones are decoded into memory of their own for it.
 * DIGEST_MISMATCH: the text says whether crc or digest differs. FORMAT: lengths or frames that
 * cannot be. UNSUPPORTED, NO_MEMORY. */
int MUST_USE chunk_verify(const struct envelope *envelope, const void *stored, struct diag *diag);
/* The same, and the plain bytes are in plain afterwards: plain_cap >= envelope->plain_bytes. What
 * is checked is what lies in plain; after a failure anything may be there. */
int MUST_USE chunk_open(const struct envelope *envelope, const void *stored, size_t plain_cap,
                        void *plain, struct diag *diag);

#endif
