/* SPDX-License-Identifier: Apache-2.0
 *
 * Every limit in one place. Reaching one is a named error, never a crash or a silent cut.
 */
#ifndef CAIRN_BASE_LIMITS_H
#define CAIRN_BASE_LIMITS_H

#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)

enum {
    LIMIT_NDIM = 8,            /* dimensions of a tensor */
    LIMIT_NAME_BYTES = 1024,   /* tensor and blob names, UTF-8, no NUL */
    LIMIT_RUN_NAME_BYTES = 64, /* each of project and run: [A-Za-z0-9._-], no leading dot or dash */
    LIMIT_COORDINATE_BYTES = 128,
    LIMIT_WORLD_SIZE = 1 << 16,
    LIMIT_METADATA_BYTES = 16 << 10,
    LIMIT_TAGS = 32,
    LIMIT_METRICS = 64,
    LIMIT_TREE_DEPTH = 64,
    /* Most plain bytes of a chunk, and most bytes of the payload of a frame. */
    LIMIT_CHUNK_BYTES = 4 << 20,
    LIMIT_CHUNK_BYTES_MIN = 4 << 10,   /* least chunk size of a run (the simulator uses it) */
    LIMIT_PACK_PIECE_BYTES = 64 << 10, /* smaller chunks are packed together */
    LIMIT_ALIGN_BYTES = 4096,          /* stored bytes start at a multiple of this in an object */
    LIMIT_OBJECT_BYTES = 1 << 30,      /* most bytes of one object, with its footer */
    LIMIT_OBJECT_ENVELOPES = 1 << 16,
    LIMIT_MESSAGE_BYTES = 1 << 20, /* of the message of a frame, without its payload */
    LIMIT_MESSAGE_BEFORE_LOGIN_BYTES = 32 << 10,
    LIMIT_PART_BYTES = 1 << 30,
    LIMIT_PAGE_BYTES = 4 << 20,
    LIMIT_MANIFEST_BYTES = 64 << 10,
    LIMIT_RECORD_KEY_BYTES = 128,
    LIMIT_RECORD_VALUE_BYTES = 64 << 10,
    LIMIT_RECORD_UPDATE_BYTES = 4 << 20,
    LIMIT_RECORD_BYTES = 256 << 20,
};

#endif
