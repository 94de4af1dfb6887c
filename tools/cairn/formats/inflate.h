/* SPDX-License-Identifier: Apache-2.0
 *
 * inflate: compressed entries of an archive, as files of a bundle: what comes out goes piece by
 * piece into a file without a name, in $TMPDIR or /var/tmp, so that memory stays bounded whatever
 * its size; that file is then read like any other.
 */
#ifndef CAIRN_TOOLS_INFLATE_H
#define CAIRN_TOOLS_INFLATE_H

#include "formats/bundle.h"
#include "formats/zip.h"

/* archive: the file that the entry lies in; path: its name, for texts. FORMAT: the stream is
 * broken, or is not of the length and crc that the directory says. NO_SPACE, IO. */
int MUST_USE inflate_entry(struct bundle *bundle, const struct bundle_file *archive,
                           const struct zip_entry *entry, struct bundle_file *ret,
                           struct diag *diag);

#endif
