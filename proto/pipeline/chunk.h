/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk: from plain bytes to an envelope, and back with everything checked. The client seals, the
 * server verifies before a part may refer to a chunk, and the restoring client opens. All run the
 * same code, so both ends agree on what "verified" means. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_CHUNK_H
#define CAIRN_PIPELINE_CHUNK_H

#include "pipeline/digest.h"

/* Makes the envelope of plain bytes that are stored raw. 0 < bytes <= LIMIT_CHUNK_BYTES. The caller
 * sets offset. */
void chunk_seal_raw(size_t bytes, const void *plain, uint8_t element_bytes, struct envelope *ret);

/* Checks stored bytes (envelope->stored_bytes of them) against their envelope: the crc, then the
 * digest of the plain bytes, in one pass for raw ones; encoded ones are decoded into memory of
 * their own. DIGEST_MISMATCH says whether crc or digest differs. FORMAT means impossible lengths or
 * frames. UNSUPPORTED, NO_MEMORY. */
int MUST_USE chunk_verify(const struct envelope *envelope, const void *stored, struct diag *diag);
/* Checks in the same way, and leaves the plain bytes in `plain`, where plain_cap >=
 * envelope->plain_bytes. The bytes that were checked are those in `plain`; after a failure it may
 * hold anything. */
int MUST_USE chunk_open(const struct envelope *envelope, const void *stored, size_t plain_cap,
                        void *plain, struct diag *diag);

#endif
