/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the golden files of chunk fixtures that have none yet: make_golden_chunk DIRECTORY. A file
 * that exists is left alone, never overwritten. Not run by any test.
 */
#include <stdio.h>

#include "support/golden_file.h"
#include "unit/pipeline/chunk_fixtures.h"

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: make_golden_chunk DIRECTORY\n");
        return 2;
    }
    for (size_t i = 0; i < chunk_fixture_count; i++) {
        char name[256];
        struct buf bytes = chunk_fixture_bytes(&chunk_fixtures[i]);
        snprintf(name, sizeof name, "%s.bin", chunk_fixtures[i].name);
        failed |= golden_write(argv[1], name, &bytes);
        buf_fini(&bytes);
    }
    return failed;
}
