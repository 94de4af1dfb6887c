/* SPDX-License-Identifier: Apache-2.0
 *
 * archive: a zip archive in a file, whose large entries are tensors that somebody else writes at
 * the places that archive_layout() names. Then archive_finish() reads them once for their checksums
 * and writes what stands around them.
 */
#ifndef CAIRN_TOOLS_ARCHIVE_H
#define CAIRN_TOOLS_ARCHIVE_H

#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

struct archive_member {
    const char *name;
    const uint8_t *head; /* bytes in front of the tensor's, or all there is */
    size_t head_bytes;
    uint64_t tensor_bytes;
    uint64_t local, data; /* set by archive_layout: in the file; data: of the tensor */
};

struct archive {
    uint64_t at; /* where it begins in the file */
    unsigned align;
    size_t count;
    struct archive_member *members;
    uint64_t end; /* set by archive_layout: behind the last member's bytes; by archive_finish:
                     behind all */
};

int MUST_USE archive_layout(struct archive *archive, struct diag *diag);
/* How long archive_finish() makes it, from `at` on. */
int MUST_USE archive_bytes(const struct archive *archive, uint64_t *ret, struct diag *diag);
int MUST_USE archive_finish(struct archive *archive, int fd, const char *name, struct diag *diag);

#endif
