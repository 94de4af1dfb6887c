/* SPDX-License-Identifier: Apache-2.0
 *
 * convert: files of torch.save, DCP directories and npz archives belong to cairn-convert, which
 * comes with the Python package. It takes the words of `cairn import` and `cairn export`.
 */
#ifndef CAIRN_TOOLS_CONVERT_H
#define CAIRN_TOOLS_CONVERT_H

#include "cli.h"

/* Returns UNSUPPORTED with the whole command line that does what this one asks for; `what` names
 * the files, in the plural. */
int MUST_USE convert_refuse(struct cli *cli, const char *what, struct diag *diag);

#endif
