/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_feature STORE KEY VALUE: one more update of a directory's store record, as a newer Cairn
 * would write it: with a feature bit (KEY compat, ro-compat, incompat) that is not known today.
 */
#include "base/buf.h"
#include "format/record.h"
#include "hash/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 65536, VERSIONS_MAX = 1000 };

static size_t read_update(const char *store, uint64_t version, uint8_t *ret)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/store/%016" PRIx64 ".update", store, version);
    FILE *file = fopen(path, "rb");
    if (!file) {
        return 0;
    }
    size_t bytes = fread(ret, 1, FILE_MAX, file);
    fclose(file);
    return bytes;
}

int main(int argc, char **argv)
{
    static uint8_t last[FILE_MAX];
    struct buf value;
    char path[4096];
    uint64_t version = 0;
    size_t last_bytes = 0, bytes;
    if (argc != 4) {
        fprintf(stderr, "usage: e2e_feature STORE KEY VALUE\n");
        return 2;
    }
    while (version < VERSIONS_MAX && (bytes = read_update(argv[1], version + 1, last)) > 0) {
        last_bytes = bytes;
        version++;
    }
    buf_init(&value, FILE_MAX);
    buf_put_u64(&value, strtoull(argv[3], NULL, 10));
    struct record_change change = {.key = argv[2],
                                   .value = {.bytes = value.bytes, .data = value.data}};
    struct record_update update = {.change_count = 1, .changes = &change};
    if (version > 0) { /* the loop's last read left the newest */
        last_bytes = read_update(argv[1], version, last);
    }
    struct sha256 previous = sha256(last_bytes, last);
    struct buf buf;
    buf_init(&buf, FILE_MAX);
    record_update_encode(&update, version + 1, previous.bytes, &buf);
    snprintf(path, sizeof(path), "%s/store/%016" PRIx64 ".update", argv[1], version + 1);
    FILE *file = buf_status(&buf) == 0 && version > 0 ? fopen(path, "wb") : NULL;
    bool good = file && fwrite(buf.data, 1, buf.bytes, file) == buf.bytes;
    good = file && fclose(file) == 0 && good;
    buf_fini(&buf);
    buf_fini(&value);
    if (!good) {
        fprintf(stderr, "e2e_feature: %s could not be written\n", path);
    }
    return good ? 0 : 1;
}
