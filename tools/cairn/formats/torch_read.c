/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a file of torch.save into a bundle: every tensor under the path of keys that leads to it,
 * joined by dots, and all else as one typed tree in which each tensor is a reference by name.
 */
#include "formats/torch_zip.h"

#include "format/tree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { STEPS_MAX = 16 << 20, TREE_BYTES_MAX = 1 << 30 };

struct frame { /* a container whose items are being walked */
    const struct pickle_value *value;
    size_t next, name_bytes; /* of the path that leads to it */
};

struct walking {
    struct bundle *bundle;
    const struct torch_zip *torch;
    struct tree_builder tree;
    struct buf buf;
    struct frame frames[LIMIT_TREE_DEPTH];
    size_t depth, steps;
    char name[LIMIT_NAME_BYTES + 1];
    size_t name_bytes;
    struct diag *diag;
};

static int bad(const struct walking *walking, int code, const char *what)
{
    return diag_set(walking->diag, code, "%s%s%s", walking->name, walking->name[0] ? ": " : "",
                    what);
}

/* --- names --- */

static int extend_name(struct walking *walking, const struct pickle_value *key, size_t idx)
{
    char number[24];
    const char *text = number;
    size_t bytes = 0;
    if (key && key->kind == PICKLE_STR) {
        text = key->text;
        bytes = key->bytes;
    } else {
        bytes = (size_t)snprintf(number, sizeof(number), "%" PRId64,
                                 key && key->kind == PICKLE_INT ? key->u.number : (int64_t)idx);
    }
    size_t dot = walking->name_bytes > 0;
    if (walking->name_bytes + dot + bytes > LIMIT_NAME_BYTES || memchr(text, '\0', bytes)) {
        return bad(walking, CAIRN_E_INVALID, "a key that makes no name");
    }
    walking->name[walking->name_bytes] = '.';
    memcpy(walking->name + walking->name_bytes + dot, text, bytes);
    walking->name_bytes += dot + bytes;
    walking->name[walking->name_bytes] = '\0';
    return 0;
}

static void cut_name(struct walking *walking, size_t bytes)
{
    walking->name_bytes = bytes;
    walking->name[bytes] = '\0';
}

/* --- leaves --- */

static void put_tag(struct walking *walking, const char *tag)
{
    tree_put(&walking->tree, TREE_TAGGED, 1, strlen(tag), tag);
}

/* The tensor goes into the bundle, a reference into the tree. */
static int take_tensor(struct walking *walking, const struct pickle_value *value)
{
    struct torch_tensor tensor;
    const char *name = walking->name[0] ? walking->name : "tensor";
    int status = torch_zip_tensor(walking->torch, value, &tensor, walking->diag);
    struct bundle_new added = {.name = name, .dtype = tensor.dtype, .shape = tensor.shape};
    status = status != 0 ? status : bundle_add(walking->bundle, &added, walking->diag);
    status = status != 0
                 ? status
                 : bundle_add_whole(walking->bundle, tensor.stride, &tensor.range, walking->diag);
    if (status != 0) {
        diag_add(walking->diag, "%s", name);
        return status;
    }
    put_tag(walking, "ref");
    tree_put(&walking->tree, TREE_TUPLE, 5, 0, NULL);
    tree_put_str(&walking->tree, name);
    tree_put_str(&walking->tree, "torch");
    tree_put_str(&walking->tree, dtype_name(tensor.dtype));
    tree_put(&walking->tree, TREE_TUPLE, tensor.shape.ndim, 0, NULL);
    for (uint32_t i = 0; i < tensor.shape.ndim; i++) {
        tree_put_int(&walking->tree, tensor.shape.length[i]);
    }
    tree_put_str(&walking->tree, "cpu");
    return 0;
}

static int take_call(struct walking *walking, const struct pickle_value *value)
{
    const struct pickle_value *arguments = value->items[0];
    struct shape size;
    if (pickle_is_call(value, "torch Size") && torch_lengths(value, &size.ndim, size.length)) {
        put_tag(walking, "torch.Size");
        tree_put(&walking->tree, TREE_TUPLE, size.ndim, 0, NULL);
        for (uint32_t i = 0; i < size.ndim; i++) {
            tree_put_int(&walking->tree, size.length[i]);
        }
        return 0;
    }
    if (pickle_is_call(value, "torch device") && arguments->count == 1 &&
        arguments->items[0]->kind == PICKLE_STR) {
        put_tag(walking, "torch.device");
        tree_put(&walking->tree, TREE_STR, 0, arguments->items[0]->bytes,
                 arguments->items[0]->text);
        return 0;
    }
    return bad(walking, CAIRN_E_UNSUPPORTED, "an object of a kind that is not read");
}

/* Bytes, as protocol 2 writes them: encode(text, "latin1"). */
static bool is_latin1(const struct pickle_value *value)
{
    return pickle_is_call(value, "_codecs encode") && value->items[0]->count == 2 &&
           value->items[0]->items[0]->kind == PICKLE_STR &&
           pickle_is_text(value->items[0]->items[1], "latin1");
}

static int take_latin1(struct walking *walking, const struct pickle_value *value)
{
    const struct pickle_value *text = value->items[0]->items[0];
    uint8_t *bytes = scratch_alloc(&walking->bundle->scratch, text->bytes + 1);
    size_t count = 0;
    if (!bytes) {
        return bad(walking, CAIRN_E_NO_MEMORY, "no memory for bytes");
    }
    for (size_t i = 0; i < text->bytes; i++) {
        uint8_t c = (uint8_t)text->text[i];
        if (c >= 0x80) { /* two bytes of UTF-8 for U+0080 to U+00FF, no others */
            uint8_t next = i + 1 < text->bytes ? (uint8_t)text->text[i + 1] : 0;
            if ((c != 0xc2 && c != 0xc3) || (next & 0xc0) != 0x80) {
                return bad(walking, CAIRN_E_FORMAT, "bytes that are none");
            }
            c = (uint8_t)(c << 6 | (next & 0x3f));
            i++;
        }
        bytes[count++] = c;
    }
    tree_put(&walking->tree, TREE_BYTES, 0, count, bytes);
    return 0;
}

static int take_leaf(struct walking *walking, const struct pickle_value *value)
{
    switch (value->kind) {
    case PICKLE_NONE:
        tree_put(&walking->tree, TREE_NULL, 0, 0, NULL);
        return 0;
    case PICKLE_BOOL:
        tree_put(&walking->tree, value->u.number ? TREE_TRUE : TREE_FALSE, 0, 0, NULL);
        return 0;
    case PICKLE_INT:
        tree_put_int(&walking->tree, value->u.number);
        return 0;
    case PICKLE_LONG:
        tree_put(&walking->tree, TREE_INT, 0, value->bytes, value->text);
        return 0;
    case PICKLE_FLOAT:
        tree_put_float(&walking->tree, value->u.real);
        return 0;
    case PICKLE_STR:
    case PICKLE_BYTES:
        tree_put(&walking->tree, value->kind == PICKLE_STR ? TREE_STR : TREE_BYTES, 0, value->bytes,
                 value->text);
        return 0;
    case PICKLE_GLOBAL:
        if (torch_dtype(value) == 0) {
            return bad(walking, CAIRN_E_UNSUPPORTED, "a name where a value is wanted");
        }
        put_tag(walking, "torch.dtype");
        tree_put_str(&walking->tree, dtype_name(torch_dtype(value)));
        return 0;
    case PICKLE_CALL:
        return is_latin1(value) ? take_latin1(walking, value) : take_call(walking, value);
    case PICKLE_LIST:
    case PICKLE_TUPLE:
    case PICKLE_DICT:
    case PICKLE_STORAGE:
        break;
    }
    return bad(walking, CAIRN_E_UNSUPPORTED, "a storage that is no tensor's");
}

/* --- containers, on a stack of our own: a pickle may refer to itself --- */

static bool is_container(const struct pickle_value *value)
{
    return value->kind == PICKLE_LIST || value->kind == PICKLE_TUPLE || value->kind == PICKLE_DICT;
}

static int open_container(struct walking *walking, const struct pickle_value *value)
{
    bool ordered = value->kind == PICKLE_DICT && value->ordered;
    enum tree_kind kind = value->kind == PICKLE_DICT   ? TREE_DICT
                          : value->kind == PICKLE_LIST ? TREE_LIST
                                                       : TREE_TUPLE;
    if (walking->depth == LIMIT_TREE_DEPTH || value->count > UINT32_MAX) {
        return bad(walking, CAIRN_E_TOO_LARGE, "nested too deep");
    }
    if (ordered) {
        put_tag(walking, "OrderedDict");
    }
    tree_put(&walking->tree, kind, (uint32_t)value->count, 0, NULL);
    walking->frames[walking->depth++] =
        (struct frame){.value = value, .name_bytes = walking->name_bytes};
    return 0;
}

static int take_value(struct walking *walking, const struct pickle_value *value)
{
    if (walking->steps++ == STEPS_MAX || walking->buf.bytes > TREE_BYTES_MAX) {
        return bad(walking, CAIRN_E_TOO_LARGE, "more values than are read");
    }
    if (torch_is_tensor(value)) {
        return take_tensor(walking, value);
    }
    return is_container(value) ? open_container(walking, value) : take_leaf(walking, value);
}

static int next_item(struct walking *walking)
{
    struct frame *frame = &walking->frames[walking->depth - 1];
    const struct pickle_value *value = frame->value;
    cut_name(walking, frame->name_bytes);
    if (frame->next == value->count) {
        walking->depth--;
        return 0;
    }
    const struct pickle_value *item = value->items[frame->next];
    bool is_key = value->kind == PICKLE_DICT && frame->next % 2 == 0;
    size_t idx = frame->next++;
    if (is_key) {
        return is_container(item) && item->kind != PICKLE_TUPLE
                   ? bad(walking, CAIRN_E_UNSUPPORTED, "a key that is no plain value")
                   : take_value(walking, item);
    }
    int status = extend_name(walking, value->kind == PICKLE_DICT ? value->items[idx - 1] : NULL,
                             value->kind == PICKLE_DICT ? idx / 2 : idx);
    return status != 0 ? status : take_value(walking, item);
}

static int walk(struct walking *walking)
{
    int status = take_value(walking, walking->torch->root);
    while (status == 0 && walking->depth > 0) {
        status = next_item(walking);
    }
    tree_end(&walking->tree);
    return status != 0 ? status : buf_status(&walking->buf);
}

static int read_opened(struct bundle *bundle, const struct torch_zip *torch, struct diag *diag)
{
    struct walking walking = {.bundle = bundle, .torch = torch, .diag = diag};
    buf_init(&walking.buf, TREE_BYTES_MAX);
    tree_begin(&walking.tree, &walking.buf);
    int status = walk(&walking);
    status = status != 0 ? status : tree_check(walking.buf.bytes, walking.buf.data, diag);
    if (status == 0) {
        struct bundle_blob blob = {.name = "torch.state",
                                   .is_tree = true,
                                   .bytes = walking.buf.bytes,
                                   .data = walking.buf.data};
        status = bundle_add_blob(bundle, &blob, diag);
    }
    buf_fini(&walking.buf);
    return status;
}

int torch_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    struct bundle_file file;
    struct torch_zip torch;
    int status = bundle_map(bundle, path, &file, diag);
    status = status != 0 ? status
                         : torch_zip_open(file.bytes, file.data, &bundle->scratch, &torch, diag);
    status = status != 0 ? status : read_opened(bundle, &torch, diag);
    if (status != 0) {
        diag_add(diag, "%s", path);
    }
    return status;
}
