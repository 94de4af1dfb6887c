/* SPDX-License-Identifier: Apache-2.0
 *
 * page_files: the files of the page (server/web/page), which the build puts into the program.
 */
#ifndef CAIRN_WEB_PAGE_FILES_H
#define CAIRN_WEB_PAGE_FILES_H

#include "http/http.h"

extern const struct http_file page_files[];
extern const size_t page_file_count;

#endif
