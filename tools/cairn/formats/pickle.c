/* SPDX-License-Identifier: Apache-2.0
 *
 * See pickle.h. The machine is a stack of values, a stack of marks and a memo; each opcode is one
 * function.
 */
#include "formats/pickle.h"

#include "base/buf.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum {
    STACK_MAX = 1 << 20,
    MARKS_MAX = 1000,
    MEMO_MAX = 1 << 24,
    TEXT_MAX = 64 << 20,
    PROTOCOL_MAX = 5
};

struct machine {
    const uint8_t *data;
    size_t bytes, at, opcode_at;
    const struct pickle_options *options;
    struct scratch *scratch;
    struct diag *diag;
    struct pickle_value **stack, **memo;
    size_t stack_count, stack_cap, memo_cap, memo_next;
    size_t marks[MARKS_MAX], mark_count;
    uint32_t values;
    bool stopped;
};

/* --- errors and memory --- */

static int broken(struct machine *machine, const char *what)
{
    return diag_set(machine->diag, CAIRN_E_FORMAT, "pickle: %s at byte %zu", what,
                    machine->opcode_at);
}

static int no_memory(struct machine *machine)
{
    return diag_set(machine->diag, CAIRN_E_NO_MEMORY, "no memory for a pickle");
}

static int new_value(struct machine *machine, enum pickle_kind kind, struct pickle_value **ret)
{
    if (machine->values++ == machine->options->values_max) {
        diag_set(machine->diag, CAIRN_E_TOO_LARGE, "pickle: more than %u values",
                 machine->options->values_max);
        return CAIRN_E_TOO_LARGE; /* said here: the static analyzer looks no deeper */
    }
    struct pickle_value *value = scratch_alloc(machine->scratch, sizeof(*value));
    if (!value) {
        err_ignore(no_memory(machine));
        return CAIRN_E_NO_MEMORY;
    }
    *value = (struct pickle_value){.kind = kind};
    *ret = value;
    return 0;
}

/* Room for one more pointer; the arrays are malloc'ed. */
static int grow(struct machine *machine, struct pickle_value ***io, size_t *io_cap, size_t need,
                size_t max)
{
    if (need <= *io_cap) {
        return 0;
    }
    if (need > max) {
        return diag_set(machine->diag, CAIRN_E_TOO_LARGE, "pickle: more than %zu things to keep",
                        max);
    }
    size_t cap = *io_cap * 2 > need ? *io_cap * 2 : need + 64;
    struct pickle_value **grown = realloc(*io, cap * sizeof(struct pickle_value *));
    if (!grown) {
        return no_memory(machine);
    }
    memset(grown + *io_cap, 0, (cap - *io_cap) * sizeof(struct pickle_value *));
    *io = grown;
    *io_cap = cap;
    return 0;
}

static int push(struct machine *machine, struct pickle_value *value)
{
    int status =
        grow(machine, &machine->stack, &machine->stack_cap, machine->stack_count + 1, STACK_MAX);
    if (status == 0) {
        machine->stack[machine->stack_count++] = value;
    }
    return status;
}

/* Nothing is taken from below the last mark. */
static int pop(struct machine *machine, struct pickle_value **ret)
{
    size_t floor = machine->mark_count > 0 ? machine->marks[machine->mark_count - 1] : 0;
    if (machine->stack_count <= floor) {
        err_ignore(broken(machine, "nothing on the stack"));
        return CAIRN_E_FORMAT;
    }
    *ret = machine->stack[--machine->stack_count];
    return 0;
}

/* What lies above the last mark, which is removed; borrowed until the next push. */
static int pop_mark(struct machine *machine, struct pickle_value ***ret, size_t *ret_count)
{
    if (machine->mark_count == 0) {
        err_ignore(broken(machine, "no mark"));
        return CAIRN_E_FORMAT;
    }
    size_t floor = machine->marks[--machine->mark_count];
    *ret = machine->stack + floor;
    *ret_count = machine->stack_count - floor;
    machine->stack_count = floor;
    return 0;
}

static int top(struct machine *machine, struct pickle_value **ret)
{
    int status = pop(machine, ret);
    machine->stack_count += status == 0 ? 1 : 0;
    return status;
}

static int append(struct machine *machine, struct pickle_value *to, size_t count,
                  struct pickle_value *const *items)
{
    if (to->count + count > to->cap) {
        size_t cap = max_u64(to->cap * 2, to->count + count);
        struct pickle_value **grown =
            scratch_array(machine->scratch, cap + 1, sizeof(struct pickle_value *));
        if (!grown) {
            return no_memory(machine);
        }
        if (to->count > 0) {
            memcpy(grown, to->items, to->count * sizeof(struct pickle_value *));
        }
        to->items = grown;
        to->cap = cap;
    }
    if (count > 0) {
        memcpy(to->items + to->count, items, count * sizeof(struct pickle_value *));
    }
    to->count += count;
    return 0;
}

/* --- reading arguments of opcodes --- */

static int take(struct machine *machine, size_t bytes, const uint8_t **ret)
{
    if (bytes > machine->bytes - machine->at) {
        err_ignore(broken(machine, "cut off"));
        return CAIRN_E_FORMAT;
    }
    *ret = machine->data + machine->at;
    machine->at += bytes;
    return 0;
}

static int take_number(struct machine *machine, size_t bytes, uint64_t *ret)
{
    const uint8_t *data = NULL;
    int status = take(machine, bytes, &data);
    if (status == 0) {
        uint64_t value = 0;
        for (size_t i = 0; i < bytes; i++) {
            value |= (uint64_t)data[i] << (8 * i);
        }
        *ret = value;
    }
    return status;
}

/* Up to a newline, which is taken too. */
static int take_line(struct machine *machine, size_t *ret_bytes, const uint8_t **ret)
{
    const uint8_t *data = machine->data + machine->at;
    const uint8_t *end = memchr(data, '\n', machine->bytes - machine->at);
    if (!end) {
        return broken(machine, "a line without an end");
    }
    *ret = data;
    *ret_bytes = (size_t)(end - data);
    machine->at += *ret_bytes + 1;
    return 0;
}

static int push_text(struct machine *machine, enum pickle_kind kind, size_t bytes, const void *text)
{
    struct pickle_value *value = NULL;
    if (bytes > TEXT_MAX) {
        return diag_set(machine->diag, CAIRN_E_TOO_LARGE, "pickle: a text of %zu bytes", bytes);
    }
    int status = new_value(machine, kind, &value);
    if (status == 0) {
        value->text = scratch_string(machine->scratch, bytes, text);
        value->bytes = bytes;
        status = value->text ? push(machine, value) : no_memory(machine);
    }
    return status;
}

static int read_text(struct machine *machine, enum pickle_kind kind, size_t length_bytes)
{
    uint64_t bytes = 0;
    const uint8_t *data = NULL;
    int status = take_number(machine, length_bytes, &bytes);
    status = status != 0 ? status : take(machine, bytes, &data);
    return status != 0 ? status : push_text(machine, kind, bytes, data);
}

/* --- numbers --- */

static int push_int(struct machine *machine, int64_t number)
{
    struct pickle_value *value = NULL;
    int status = new_value(machine, PICKLE_INT, &value);
    if (status == 0) {
        value->u.number = number;
        status = push(machine, value);
    }
    return status;
}

static int read_int(struct machine *machine, size_t bytes)
{
    uint64_t number = 0;
    int status = take_number(machine, bytes, &number);
    return status != 0 ? status
                       : push_int(machine, bytes == 4 ? (int64_t)(int32_t)number : (int64_t)number);
}

static int read_long(struct machine *machine, size_t length_bytes)
{
    uint64_t bytes = 0, number = 0;
    const uint8_t *data = NULL;
    int status = take_number(machine, length_bytes, &bytes);
    status = status != 0 ? status : take(machine, bytes, &data);
    if (status != 0 || bytes > 8) {
        return status != 0 ? status : push_text(machine, PICKLE_LONG, bytes, data);
    }
    bool negative = bytes > 0 && (data[bytes - 1] & 0x80) != 0;
    for (size_t i = 0; i < 8; i++) {
        number |= (uint64_t)(i < bytes ? data[i] : negative ? 0xff : 0) << (8 * i);
    }
    return push_int(machine, (int64_t)number);
}

static int read_float(struct machine *machine)
{
    const uint8_t *data = NULL;
    struct pickle_value *value = NULL;
    int status = take(machine, 8, &data);
    status = status != 0 ? status : new_value(machine, PICKLE_FLOAT, &value);
    if (status == 0) {
        uint64_t bits = 0;
        for (size_t i = 0; i < 8; i++) { /* big-endian, alone among all */
            bits = bits << 8 | data[i];
        }
        memcpy(&value->u.real, &bits, sizeof(bits));
        status = push(machine, value);
    }
    return status;
}

static int push_kind(struct machine *machine, enum pickle_kind kind, bool truth)
{
    struct pickle_value *value = NULL;
    int status = new_value(machine, kind, &value);
    if (status == 0) {
        value->u.number = truth;
        status = push(machine, value);
    }
    return status;
}

/* --- containers --- */

static int make_from(struct machine *machine, enum pickle_kind kind, size_t count,
                     struct pickle_value *const *items)
{
    struct pickle_value *value = NULL;
    int status = new_value(machine, kind, &value);
    status = status != 0 ? status : append(machine, value, count, items);
    return status != 0 ? status : push(machine, value);
}

static int make_tuple(struct machine *machine, size_t count)
{
    size_t floor = machine->mark_count > 0 ? machine->marks[machine->mark_count - 1] : 0;
    if (machine->stack_count - floor < count) {
        return broken(machine, "nothing on the stack");
    }
    machine->stack_count -= count;
    return make_from(machine, PICKLE_TUPLE, count, machine->stack + machine->stack_count);
}

static int make_marked(struct machine *machine, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    size_t count = 0;
    int status = pop_mark(machine, &items, &count);
    if (status == 0 && kind == PICKLE_DICT && count % 2 != 0) {
        status = broken(machine, "a key without a value");
    }
    return status != 0 ? status : make_from(machine, kind, count, items);
}

static int extend(struct machine *machine, enum pickle_kind kind, size_t count,
                  struct pickle_value *const *items)
{
    struct pickle_value *to = NULL;
    int status = top(machine, &to);
    if (status == 0 && to->kind != kind) {
        status =
            broken(machine, kind == PICKLE_LIST ? "no list to append to" : "no dict to set in");
    }
    if (status == 0 && kind == PICKLE_DICT && count % 2 != 0) {
        status = broken(machine, "a key without a value");
    }
    return status != 0 ? status : append(machine, to, count, items);
}

static int extend_marked(struct machine *machine, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    size_t count = 0;
    int status = pop_mark(machine, &items, &count);
    return status != 0 ? status : extend(machine, kind, count, items);
}

static int extend_by(struct machine *machine, enum pickle_kind kind, size_t count)
{
    struct pickle_value *items[2] = {NULL, NULL};
    int status = 0;
    for (size_t i = count; status == 0 && i > 0; i--) {
        status = pop(machine, &items[i - 1]);
    }
    return status != 0 ? status : extend(machine, kind, count, items);
}

/* --- memo --- */

static int put(struct machine *machine, uint64_t at)
{
    struct pickle_value *value = NULL;
    int status = top(machine, &value);
    if (status == 0 && at >= MEMO_MAX) {
        status = diag_set(machine->diag, CAIRN_E_TOO_LARGE, "pickle: memo of more than %d entries",
                          MEMO_MAX);
    }
    status =
        status != 0 ? status : grow(machine, &machine->memo, &machine->memo_cap, at + 1, MEMO_MAX);
    if (status == 0) {
        machine->memo[at] = value;
    }
    return status;
}

static int get(struct machine *machine, uint64_t at)
{
    if (at >= machine->memo_cap || !machine->memo[at]) {
        return broken(machine, "nothing in the memo");
    }
    return push(machine, machine->memo[at]);
}

static int read_memo(struct machine *machine, size_t bytes,
                     int (*use)(struct machine *machine, uint64_t at))
{
    uint64_t at = 0;
    int status = take_number(machine, bytes, &at);
    return status != 0 ? status : use(machine, at);
}

/* --- names and calls --- */

static bool is_listed(const char *const *list, const char *name, size_t bytes)
{
    for (const char *const *global = list; global && *global; global++) {
        size_t length = strlen(*global);
        bool all = length > 1 && (*global)[length - 1] == '*';
        if (all ? bytes >= length && memcmp(name, *global, length - 1) == 0
                : bytes == length && memcmp(name, *global, length) == 0) {
            return true;
        }
    }
    return false;
}

static int push_global(struct machine *machine, const struct pickle_value *module,
                       const struct pickle_value *name)
{
    char text[256];
    if (module->kind != PICKLE_STR || name->kind != PICKLE_STR || !module->text || !name->text ||
        module->bytes + name->bytes + 2 > sizeof(text)) {
        return broken(machine, "a name that is none");
    }
    memcpy(text, module->text, module->bytes);
    text[module->bytes] = ' ';
    memcpy(text + module->bytes + 1, name->text, name->bytes);
    size_t bytes = module->bytes + 1 + name->bytes;
    text[bytes] = '\0';
    if (!is_listed(machine->options->globals, text, bytes)) {
        for (size_t i = 0; i < bytes; i++) { /* it is shown */
            text[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
        }
        text[module->bytes] = '.';
        return diag_set(machine->diag, CAIRN_E_UNSUPPORTED,
                        "the pickle names %s, which is not among the few names that are read "
                        "(nothing is ever executed)",
                        text);
    }
    return push_text(machine, PICKLE_GLOBAL, bytes, text);
}

static int read_global(struct machine *machine)
{
    const uint8_t *module = NULL, *name = NULL;
    size_t module_bytes = 0, name_bytes = 0;
    int status = take_line(machine, &module_bytes, &module);
    status = status != 0 ? status : take_line(machine, &name_bytes, &name);
    struct pickle_value a = {
        .kind = PICKLE_STR, .text = (const char *)module, .bytes = module_bytes};
    struct pickle_value b = {.kind = PICKLE_STR, .text = (const char *)name, .bytes = name_bytes};
    return status != 0 ? status : push_global(machine, &a, &b);
}

static int stack_global(struct machine *machine)
{
    struct pickle_value *module = NULL, *name = NULL;
    int status = pop(machine, &name);
    status = status != 0 ? status : pop(machine, &module);
    return status != 0 ? status : push_global(machine, module, name);
}

/* Python 3.11.0 to 3.11.3 pickle a member of an enum as getattr(class, name). Of getattr only that
 * is read, for the members that the caller lists; the value keeps the names. */
static bool is_member(const struct machine *machine, const struct pickle_value *arguments)
{
    char text[256];
    if (arguments->count != 2 || arguments->items[0]->kind != PICKLE_GLOBAL ||
        arguments->items[1]->kind != PICKLE_STR) {
        return false;
    }
    const struct pickle_value *class = arguments->items[0], *name = arguments->items[1];
    size_t bytes = class->bytes + 1 + name->bytes;
    if (bytes > sizeof(text)) {
        return false;
    }
    memcpy(text, class->text, class->bytes);
    text[class->bytes] = ' ';
    memcpy(text + class->bytes + 1, name->text, name->bytes);
    return is_listed(machine->options->members, text, bytes);
}

static int call(struct machine *machine)
{
    struct pickle_value *arguments = NULL, *callable = NULL, *value = NULL;
    int status = pop(machine, &arguments);
    status = status != 0 ? status : pop(machine, &callable);
    if (status == 0 && (callable->kind != PICKLE_GLOBAL || arguments->kind != PICKLE_TUPLE)) {
        status = broken(machine, "a call of what cannot be called");
    }
    if (status == 0 && pickle_is_global(callable, "builtins getattr") &&
        !is_member(machine, arguments)) {
        status = diag_set(machine->diag, CAIRN_E_UNSUPPORTED,
                          "the pickle calls builtins.getattr at byte %zu for something other than "
                          "a known member of a known enum (nothing is ever executed)",
                          machine->opcode_at);
    }
    if (status == 0 && arguments->count == 0 &&
        pickle_is_global(callable, "collections OrderedDict")) {
        status = new_value(machine, PICKLE_DICT, &value);
        if (status == 0) {
            value->ordered = true;
            status = push(machine, value);
        }
        return status;
    }
    status = status != 0 ? status : new_value(machine, PICKLE_CALL, &value);
    if (status == 0) {
        value->callable = callable;
        status = append(machine, value, 1, &arguments);
    }
    return status != 0 ? status : push(machine, value);
}

/* State of an object; that of a dict (a module's _metadata) is nothing that is kept. */
static int build(struct machine *machine)
{
    struct pickle_value *state = NULL, *object = NULL;
    int status = pop(machine, &state);
    status = status != 0 ? status : top(machine, &object);
    if (status == 0 && object->kind != PICKLE_CALL && object->kind != PICKLE_DICT) {
        status = broken(machine, "state of what has none");
    }
    if (status == 0 && object->kind == PICKLE_CALL) {
        object->state = state;
    }
    return status;
}

static int storage(struct machine *machine)
{
    struct pickle_value *id = NULL;
    int status = pop(machine, &id);
    return status != 0 ? status : make_from(machine, PICKLE_STORAGE, 1, &id);
}

/* --- the machine --- */

static int mark(struct machine *machine)
{
    if (machine->mark_count == MARKS_MAX) {
        return diag_set(machine->diag, CAIRN_E_TOO_LARGE, "pickle: nested deeper than %d",
                        MARKS_MAX);
    }
    machine->marks[machine->mark_count++] = machine->stack_count;
    return 0;
}

static int protocol(struct machine *machine)
{
    uint64_t version = 0;
    int status = take_number(machine, 1, &version);
    return status == 0 && version > PROTOCOL_MAX ? diag_set(machine->diag, CAIRN_E_UNSUPPORTED,
                                                            "pickle protocol %u", (unsigned)version)
                                                 : status;
}

static int frame(struct machine *machine)
{
    uint64_t bytes = 0;
    int status = take_number(machine, 8, &bytes);
    return status == 0 && bytes > machine->bytes - machine->at ? broken(machine, "cut off")
                                                               : status;
}

static int drop(struct machine *machine)
{
    struct pickle_value *value = NULL;
    return pop(machine, &value);
}

/* Values of every day: numbers, texts. */
static int read_scalar(struct machine *machine, uint8_t opcode, bool *ret_known)
{
    switch (opcode) {
    case 'N':
        return push_kind(machine, PICKLE_NONE, false);
    case 0x88:
        return push_kind(machine, PICKLE_BOOL, true);
    case 0x89:
        return push_kind(machine, PICKLE_BOOL, false);
    case 'K':
        return read_int(machine, 1);
    case 'M':
        return read_int(machine, 2);
    case 'J':
        return read_int(machine, 4);
    case 0x8a:
        return read_long(machine, 1);
    case 0x8b:
        return read_long(machine, 4);
    case 'G':
        return read_float(machine);
    case 0x8c:
        return read_text(machine, PICKLE_STR, 1);
    case 'X':
        return read_text(machine, PICKLE_STR, 4);
    case 0x8d:
        return read_text(machine, PICKLE_STR, 8);
    case 'C':
        return read_text(machine, PICKLE_BYTES, 1);
    case 'B':
        return read_text(machine, PICKLE_BYTES, 4);
    case 0x8e:
        return read_text(machine, PICKLE_BYTES, 8);
    default:
        *ret_known = false;
        return 0;
    }
}

static int read_container(struct machine *machine, uint8_t opcode, bool *ret_known)
{
    switch (opcode) {
    case '}':
        return make_from(machine, PICKLE_DICT, 0, NULL);
    case ']':
        return make_from(machine, PICKLE_LIST, 0, NULL);
    case ')':
        return make_from(machine, PICKLE_TUPLE, 0, NULL);
    case 0x85:
    case 0x86:
    case 0x87:
        return make_tuple(machine, opcode - 0x84u);
    case 't':
        return make_marked(machine, PICKLE_TUPLE);
    case 'l':
        return make_marked(machine, PICKLE_LIST);
    case 'd':
        return make_marked(machine, PICKLE_DICT);
    case 'a':
        return extend_by(machine, PICKLE_LIST, 1);
    case 'e':
        return extend_marked(machine, PICKLE_LIST);
    case 's':
        return extend_by(machine, PICKLE_DICT, 2);
    case 'u':
        return extend_marked(machine, PICKLE_DICT);
    default:
        *ret_known = false;
        return 0;
    }
}

static int read_other(struct machine *machine, uint8_t opcode)
{
    switch (opcode) {
    case 0x80:
        return protocol(machine);
    case 0x95:
        return frame(machine);
    case '(':
        return mark(machine);
    case '0':
        return drop(machine);
    case 'q':
        return read_memo(machine, 1, put);
    case 'r':
        return read_memo(machine, 4, put);
    case 0x94:
        return put(machine, machine->memo_next++);
    case 'h':
        return read_memo(machine, 1, get);
    case 'j':
        return read_memo(machine, 4, get);
    case 'c':
        return read_global(machine);
    case 0x93:
        return stack_global(machine);
    case 'R':
    case 0x81:
        return call(machine);
    case 'b':
        return build(machine);
    case 'Q':
        return storage(machine);
    case '.':
        machine->stopped = true;
        return 0;
    default:
        return diag_set(machine->diag, CAIRN_E_UNSUPPORTED,
                        "pickle: opcode 0x%02x at byte %zu is not among those that are read",
                        opcode, machine->opcode_at);
    }
}

static int step(struct machine *machine)
{
    const uint8_t *opcode = NULL;
    bool known = true;
    machine->opcode_at = machine->at;
    int status = take(machine, 1, &opcode);
    status = status != 0 ? status : read_scalar(machine, *opcode, &known);
    if (status == 0 && !known) {
        known = true;
        status = read_container(machine, *opcode, &known);
    }
    return status != 0 || known ? status : read_other(machine, *opcode);
}

int pickle_read(const struct pickle_options *options, struct scratch *scratch,
                const struct pickle_value **ret, struct diag *diag)
{
    struct machine machine = {.data = options->data,
                              .bytes = options->bytes,
                              .options = options,
                              .scratch = scratch,
                              .diag = diag};
    struct pickle_value *value = NULL;
    int status = 0;
    while (status == 0 && !machine.stopped) {
        status = step(&machine);
    }
    status = status != 0 ? status : pop(&machine, &value);
    if (status == 0 && machine.mark_count + machine.stack_count > 0) {
        status = broken(&machine, "more than one object");
    }
    free(machine.stack);
    free(machine.memo);
    if (status == 0) {
        *ret = value;
    }
    return status;
}

/* --- looking at values --- */

static bool is_of(const struct pickle_value *value, enum pickle_kind kind, const char *text)
{
    size_t bytes = strlen(text);
    return value && value->kind == kind && value->bytes == bytes &&
           memcmp(value->text, text, bytes) == 0;
}

bool pickle_is_text(const struct pickle_value *value, const char *text)
{
    return is_of(value, PICKLE_STR, text);
}

bool pickle_is_global(const struct pickle_value *value, const char *global)
{
    return is_of(value, PICKLE_GLOBAL, global);
}

bool pickle_is_call(const struct pickle_value *value, const char *global)
{
    return value && value->kind == PICKLE_CALL && pickle_is_global(value->callable, global);
}

const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key)
{
    for (size_t i = 0; dict && dict->kind == PICKLE_DICT && i + 1 < dict->count; i += 2) {
        if (pickle_is_text(dict->items[i], key)) {
            return dict->items[i + 1];
        }
    }
    return NULL;
}
