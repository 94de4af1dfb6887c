/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the golden files of fixtures that have none yet: make_golden DIRECTORY. A file that exists
 * is left alone, never overwritten: golden files are only ever added. Not run by any test.
 */
#include <stdio.h>

#include "support/golden_file.h"
#include "unit/format/fixtures.h"

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: make_golden DIRECTORY\n");
        return 2;
    }
    for (size_t i = 0; i < fixture_count; i++) {
        char name[256];
        struct buf bytes = fixture_bytes(&fixtures[i]);
        snprintf(name, sizeof name, "%s.bin", fixtures[i].name);
        failed |= golden_write(argv[1], name, &bytes);
        buf_fini(&bytes);
    }
    return failed;
}
