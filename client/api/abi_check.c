/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn.h repeats, for its readers, numbers that live in internal tables. Here the compiler
 * compares them. Nothing runs.
 */
#include "cairn.h"

#include "base/limits.h"
#include "engine/engine.h"
#include "format/entries.h"
#include "format/part.h"
#include "snapshot/watch.h"
#include "wire/msg.h"

/* Compares each row of err.def and dtype.def with the enums of cairn.h. A row that cairn.h lacks
 * does not compile; a value that only cairn.h has is found by the count. */
#define CAIRN_ERR(name, value, text, retry, status) \
    _Static_assert(CAIRN_E_##name == (value), "cairn.h and err.def differ in " #name);
#include "base/err.def"
#undef CAIRN_ERR
#define CAIRN_DTYPE(name, value, bits, text, st) \
    _Static_assert(CAIRN_##name == (value), "cairn.h and dtype.def differ in " #name);
#include "format/dtype.def"
#undef CAIRN_DTYPE

enum {
    ABI_ERR_COUNT = 0
#define CAIRN_ERR(name, value, text, retry, status) +1
#include "base/err.def"
#undef CAIRN_ERR
    ,
    ABI_DTYPE_COUNT = 0
#define CAIRN_DTYPE(name, value, bits, text, st) +1
#include "format/dtype.def"
#undef CAIRN_DTYPE
};
_Static_assert((int)CAIRN_E_REPLICAS_DIFFER == -(int)ABI_ERR_COUNT,
               "cairn.h ends with err.def's last row");
_Static_assert((int)CAIRN_F4_E2M1FN_X2 == (int)ABI_DTYPE_COUNT,
               "cairn.h ends with dtype.def's last row");

#define ABI_SAME(public, ours) _Static_assert((int)(public) == (int)(ours), #public " is " #ours)
ABI_SAME(CAIRN_REPLICATED, PLACEMENT_REPLICATED);
ABI_SAME(CAIRN_SHARDED, PLACEMENT_SHARDED);
ABI_SAME(CAIRN_LOCAL, PLACEMENT_LOCAL);
ABI_SAME(CAIRN_BYTES, BLOB_BYTES);
ABI_SAME(CAIRN_TREE, BLOB_TREE);
ABI_SAME(CAIRN_NONE, CKPT_NONE);
ABI_SAME(CAIRN_OPEN, CKPT_OPEN);
ABI_SAME(CAIRN_COMMITTED, CKPT_COMMITTED);
ABI_SAME(CAIRN_ABORTED, CKPT_ABORTED);
ABI_SAME(CAIRN_FORGOTTEN, CKPT_FORGOTTEN);
ABI_SAME(CAIRN_VERIFIED, HEALTH_VERIFIED);
ABI_SAME(CAIRN_SUSPECT, HEALTH_SUSPECT);
ABI_SAME(CAIRN_DAMAGED, HEALTH_DAMAGED);
ABI_SAME(CAIRN_DOWN_WAIT, 1 + WHEN_DOWN_WAIT);
ABI_SAME(CAIRN_DOWN_SKIP, 1 + WHEN_DOWN_SKIP);
ABI_SAME(CAIRN_DOWN_TRAIN, 1 + WHEN_DOWN_TRAIN);
ABI_SAME(CAIRN_VERIFY_SAMPLED, WATCH_SAMPLED);
ABI_SAME(CAIRN_VERIFY_FULL, WATCH_FULL);
ABI_SAME(CAIRN_CHECK_WARN, CHECK_WARN);
ABI_SAME(CAIRN_CHECK_FAIL, CHECK_FAIL);
ABI_SAME(8, LIMIT_NDIM);                  /* cairn_tensor.ndim */
ABI_SAME(16 << 10, LIMIT_METADATA_BYTES); /* cairn_save_options.metadata */

/* On the platforms that are shipped, every struct has exactly these bytes (args_first_bytes has
 * those of the first version). */
#if defined(__LP64__)
_Static_assert(sizeof(struct cairn_error) == 512, "cairn_error");
_Static_assert(sizeof(struct cairn_options) == 136, "cairn_options");
_Static_assert(sizeof(struct cairn_box) == 32, "cairn_box");
_Static_assert(sizeof(struct cairn_tensor) == 88, "cairn_tensor");
_Static_assert(sizeof(struct cairn_blob) == 48, "cairn_blob");
_Static_assert(sizeof(struct cairn_save_options) == 112, "cairn_save_options");
_Static_assert(sizeof(struct cairn_restore_options) == 64, "cairn_restore_options");
_Static_assert(sizeof(struct cairn_progress) == 40, "cairn_progress");
_Static_assert(sizeof(struct cairn_result) == 56, "cairn_result");
_Static_assert(sizeof(struct cairn_checkpoint) == 96, "cairn_checkpoint");
_Static_assert(sizeof(struct cairn_annotation) == 72, "cairn_annotation");
_Static_assert(sizeof(struct cairn_local) == 112, "cairn_local");
_Static_assert(sizeof(struct cairn_interval) == 752, "cairn_interval");
#endif
