/* SPDX-License-Identifier: Apache-2.0
 *
 * See policy.h. A stored policy is only ever added to: a change is an entry with a number, and the
 * highest number of a pattern holds. So who changed what stays to be read, and an entry that cannot
 * be read stops what it would decide, until its pattern is set again. Pure.
 */
#include "policy/policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/digits.h"
#include "base/glob.h"
#include "hash/hash.h"
#include "store/store_record.h"

/* In an entry of version 1 the crc does not cover the key. Such entries are read, never written. */
enum { POLICY_VERSION = 2, SCRATCH_BYTES = 64 << 10, CRC_BYTES = 4 };
static const char PREFIX[] = "policy/";
static const char COUNT_KEY[] = "policies"; /* the number of the last change */

_Static_assert(sizeof(PREFIX) - 1 + 16 + 1 + POLICY_PATTERN_MAX < ENTRY_KEY_MAX, "a key fits");

/* ---- rows ---- */

const struct policy_row *policy_row_of(const struct policy_table *table, const struct run_name *run)
{
    const struct policy_row *others = NULL;
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        const struct policy_row *row = &table->rows[i];
        if (row->pattern[0] == '\0') {
            others = row;
        } else if (glob_matches(row->pattern, run_name_text(run).at)) {
            return row;
        }
    }
    return others;
}

int policy_row_name(struct policy_row *row, const char *pattern, struct diag *diag)
{
    size_t bytes = strlen(pattern);
    bool plain = bytes > 0 && bytes <= POLICY_PATTERN_MAX;
    for (size_t i = 0; plain && i < bytes; i++) {
        plain = pattern[i] > ' ' && pattern[i] < 0x7f;
    }
    if (!plain) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the pattern \"%.110s\" cannot name runs: it must have 1 to %d printable "
                        "characters of ASCII, and no space",
                        pattern, POLICY_PATTERN_MAX);
    }
    if (strchr(pattern, '/') == NULL && strcmp(pattern, "*") != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%s\" is no pattern of project/run; did you mean \"%s/*\"? \"*\" means "
                        "all runs",
                        pattern, pattern);
    }
    memcpy(row->pattern, pattern, bytes + 1);
    return 0;
}

int policy_row_add(struct policy_row *row, const char *name, const char *value, struct diag *diag)
{
    struct retention_policy policy = {0};
    struct scratch scratch;
    if (row->option_count == POLICY_OPTIONS_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "a policy has at most %d options",
                        POLICY_OPTIONS_MAX);
    }
    for (unsigned i = 0; i < row->option_count; i++) {
        if (strcmp(row->options[i].name, name) == 0 && strcmp(name, "keep-tag") != 0) {
            return diag_set(diag, CAIRN_E_INVALID, "%s is set twice", name);
        }
    }
    scratch_init(&scratch, SCRATCH_BYTES);
    int status = retention_policy_set(&policy, name, value, &scratch, diag);
    scratch_fini(&scratch);
    struct policy_option *option = &row->options[row->option_count];
    if (status == 0 &&
        (strlen(name) >= sizeof(option->name) || strlen(value) >= sizeof(option->value))) {
        status = diag_set(diag, CAIRN_E_INVALID, "the value of %s is too long: %zu bytes of %d",
                          name, strlen(value), POLICY_VALUE_BYTES - 1);
    }
    if (status == 0) {
        snprintf(option->name, sizeof(option->name), "%s", name);
        snprintf(option->value, sizeof(option->value), "%s", value);
        row->option_count++;
    }
    return status;
}

int policy_make(const struct policy_row *row, struct scratch *scratch, struct retention_policy *ret,
                struct diag *diag)
{
    int status = 0;
    *ret = (struct retention_policy){.last = 0};
    for (unsigned i = 0; status == 0 && i < row->option_count; i++) {
        status =
            retention_policy_set(ret, row->options[i].name, row->options[i].value, scratch, diag);
    }
    return status != 0 ? status : retention_policy_check(ret, diag);
}

/* ---- the bytes of an entry ---- */

static void put_text(struct buf *buf, const char *text)
{
    buf_put_u16(buf, (uint16_t)strlen(text));
    buf_put(buf, strlen(text), text);
}

/* Reads a text that fits, with its NUL, into `size` bytes. */
static bool take_text(struct cur *cur, size_t size, char *ret)
{
    size_t bytes = cur_u16(cur);
    const uint8_t *text = cur_bytes(cur, bytes);
    if (text == NULL || bytes >= size ||
        (bytes > 0 && !text_is_valid(bytes, (const char *)text, bytes))) {
        return false;
    }
    memcpy(ret, text, bytes);
    ret[bytes] = '\0';
    return true;
}

void policy_entry_key(const struct policy_entry *entry, char ret[ENTRY_KEY_MAX])
{
    CHECK(entry->row.pattern[0] != '\0');
    CHECK(entry->number > 0);
    snprintf(ret, ENTRY_KEY_MAX, "%s%016" PRIx64 "/%s", PREFIX, entry->number, entry->row.pattern);
}

/* Returns the crc of an entry, which covers its key too: the key holds the number and the pattern,
 * so an entry that lies under another key would be another policy. */
static uint32_t crc_of(uint8_t version, const char *key, size_t bytes, const uint8_t *data)
{
    return crc32c(version == 1 ? 0 : crc32c(0, strlen(key), key), bytes, data);
}

void policy_entry_encode(const struct policy_entry *entry, struct buf *buf)
{
    size_t start = buf->bytes;
    char key[ENTRY_KEY_MAX];
    policy_entry_key(entry, key);
    CHECK(entry->change == POLICY_SET || entry->row.option_count == 0);
    buf_put_u8(buf, POLICY_VERSION);
    buf_put_u32(buf, entry->change);
    buf_put_u64(buf, (uint64_t)entry->wall_ns);
    put_text(buf, entry->actor);
    buf_put_u32(buf, entry->row.option_count);
    for (unsigned i = 0; i < entry->row.option_count; i++) {
        put_text(buf, entry->row.options[i].name);
        put_text(buf, entry->row.options[i].value);
    }
    if (buf_status(buf) == 0) {
        buf_put_u32(buf, crc_of(POLICY_VERSION, key, buf->bytes - start, buf->data + start));
    }
}

/* Returns the pattern of a key, and gives its number; NULL for a key that is none. */
static const char *key_pattern(const char *key, uint64_t *ret_number)
{
    const char *at = key;
    struct policy_row row;
    bool good = digits_skip(&at, PREFIX) && digits_read_hex(&at, 16, ret_number) &&
                digits_skip(&at, "/") && *ret_number > 0 && policy_row_name(&row, at, NULL) == 0;
    return good ? at : NULL;
}

/* Reads what follows the version. */
static bool take_entry(struct cur *cur, struct policy_entry *ret)
{
    ret->change = cur_u32(cur);
    ret->wall_ns = (int64_t)cur_u64(cur);
    bool good = take_text(cur, sizeof(ret->actor), ret->actor);
    uint32_t count = cur_u32(cur);
    good = good && count <= POLICY_OPTIONS_MAX;
    for (uint32_t i = 0; good && i < count; i++) {
        struct policy_option *option = &ret->row.options[ret->row.option_count++];
        good = take_text(cur, sizeof(option->name), option->name) &&
               take_text(cur, sizeof(option->value), option->value);
    }
    return good && (ret->change == POLICY_SET || (ret->change == POLICY_REMOVE && count == 0));
}

int policy_entry_decode(const char *key, struct record_value value, struct policy_entry *ret,
                        struct diag *diag)
{
    struct cur cur;
    memset(ret, 0, sizeof(*ret));
    const char *pattern = key_pattern(key, &ret->number);
    if (pattern == NULL) {
        return diag_set(diag, CAIRN_E_FORMAT, "the key %s names no pattern", key);
    }
    int status = policy_row_name(&ret->row, pattern, diag);
    CHECK(status == 0); /* key_pattern() has looked */
    cur_init(&cur, value.bytes >= CRC_BYTES ? value.bytes - CRC_BYTES : 0, value.data);
    uint8_t version = cur_u8(&cur);
    if (cur.status != 0 ||
        crc_of(version, key, cur.bytes, value.data) != load_u32(value.data + cur.bytes)) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "its %zu bytes contradict their crc, or it lies under a wrong key",
                        value.bytes);
    }
    if (version < 1 || version > POLICY_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "it has version %u; this program reads %d",
                        version, POLICY_VERSION);
    }
    bool good = take_entry(&cur, ret);
    return good && cur_finish(&cur) == 0
               ? 0
               : diag_set(diag, CAIRN_E_FORMAT, "it is broken at offset %zu of %zu", cur.at,
                          value.bytes);
}

/* ---- the entries of the store's record ---- */

const char *policy_source_name(uint32_t source)
{
    static const char *const names[] = {"none", "stored", "configured"};
    return source < ARRAY_LEN(names) ? names[source] : "unknown";
}

const char *policy_next(const struct record *record, size_t *io_at, struct record_value *ret)
{
    size_t at = *io_at > 0 ? *io_at : record_lower_bound(record, PREFIX);
    const char *key = record_at(record, at, ret);
    *io_at = at + 1;
    return key != NULL && strncmp(key, PREFIX, sizeof(PREFIX) - 1) == 0 ? key : NULL;
}

/* Returns why changes of policies may be lost of the record, or NULL if it has all of them. */
static const char *doubt_of(const struct record *record)
{
    struct record_value value;
    size_t at = 0;
    if (record_get(record, STORE_RECORD_LOST, &value)) {
        return "the store's own record was damaged, and its newest entries are lost";
    }
    if (!record_get(record, COUNT_KEY, &value)) {
        return policy_next(record, &at, &value) == NULL ? NULL : "their count is missing";
    }
    if (value.bytes != sizeof(uint64_t)) {
        return "their count is broken";
    }
    char last[sizeof(PREFIX) + 17];
    int bytes = snprintf(last, sizeof(last), "%s%016" PRIx64 "/", PREFIX, load_u64(value.data));
    const char *key = record_at(record, record_lower_bound(record, last), &value);
    CHECK(bytes == sizeof(last) - 1);
    return key != NULL && strncmp(key, last, sizeof(last) - 1) == 0 ? NULL
                                                                    : "the last one is missing";
}

int policy_check_whole(const struct record *record, struct diag *diag)
{
    const char *doubt = doubt_of(record);
    return doubt == NULL ? 0
                         : diag_set(diag, CAIRN_E_DAMAGED,
                                    "changes of the stored policies may be lost: %s; look at "
                                    "`cairn policy show`, and set what is missing with `cairn "
                                    "policy set` (or remove what is too much with `cairn policy "
                                    "remove`): the first such change confirms all the others",
                                    doubt);
}

bool policy_is_last(const struct record *record, const char *key)
{
    struct record_value value;
    uint64_t number = 0, other_number = 0;
    const char *pattern = key_pattern(key, &number), *other;
    size_t at = record_lower_bound(record, key) + 1;
    while (pattern != NULL && (other = policy_next(record, &at, &value)) != NULL) {
        const char *name = key_pattern(other, &other_number);
        if (name != NULL && strcmp(name, pattern) == 0) {
            return false;
        }
    }
    return pattern != NULL;
}

/* Returns whether the pattern of `a` goes before that of `b` for a run that matches both. */
static bool goes_before(const char *a, const char *b, const char *run)
{
    static const char wild[] = "*?[";
    bool a_is_run = strcmp(a, run) == 0, b_is_run = strcmp(b, run) == 0;
    size_t a_plain = strcspn(a, wild), b_plain = strcspn(b, wild);
    size_t a_bytes = strlen(a), b_bytes = strlen(b);
    return a_is_run != b_is_run ? a_is_run
           : a_plain != b_plain ? a_plain > b_plain
           : a_bytes != b_bytes ? a_bytes > b_bytes
                                : strcmp(a, b) < 0;
}

/* Returns the text for a stored policy that cannot be read. */
static int unreadable(const char *name, const struct policy_entry *entry, struct diag *diag)
{
    const char *pattern = entry->row.pattern;
    if (pattern[0] == '\0') {
        diag_add(diag,
                 "a stored policy cannot be read, and it is not known of which runs, so nothing is "
                 "forgotten in %s; look at `cairn policy show`, and set what is missing again with "
                 "`cairn policy set`, which drops the broken entry",
                 name);
    } else {
        diag_add(diag,
                 "the stored policy '%s' cannot be read, so nothing is forgotten in %s; set it "
                 "again with `cairn policy set '%s' ...`, or `cairn policy remove '%s'`",
                 pattern, name, pattern, pattern);
    }
    return diag != NULL ? diag->code : CAIRN_E_DAMAGED;
}

int policy_choose(const struct record *record, const struct policy_table *table,
                  const struct run_name *run, struct policy_choice *ret, struct diag *diag)
{
    struct record_value value, chosen_value = {0};
    const char *key, *chosen = NULL, *chosen_pattern = NULL;
    char name[RUN_NAME_TEXT_MAX];
    size_t at = 0;
    run_name_format(run, name);
    memset(ret, 0, sizeof(*ret));
    int whole = policy_check_whole(record, diag);
    if (whole != 0) {
        diag_add(diag, "nothing is forgotten in %s", name);
        return whole;
    }
    while ((key = policy_next(record, &at, &value)) != NULL) {
        uint64_t number = 0;
        const char *pattern = key_pattern(key, &number);
        if (pattern == NULL) {
            err_ignore(policy_entry_decode(key, value, &ret->entry, diag)); /* FORMAT: for diag */
            return unreadable(name, &ret->entry, diag);
        }
        if (!glob_matches(pattern, name) || !policy_is_last(record, key) ||
            (chosen != NULL && !goes_before(pattern, chosen_pattern, name))) {
            continue;
        }
        int status = policy_entry_decode(key, value, &ret->entry, NULL);
        if (status == 0 && ret->entry.change == POLICY_REMOVE) {
            continue;
        }
        chosen = key;
        chosen_pattern = pattern;
        chosen_value = value;
    }
    if (chosen != NULL) {
        int status = policy_entry_decode(chosen, chosen_value, &ret->entry, diag);
        ret->source = POLICY_STORED;
        return status == 0 ? 0 : unreadable(name, &ret->entry, diag);
    }
    const struct policy_row *row = policy_row_of(table, run);
    memset(ret, 0, sizeof(*ret));
    if (row != NULL) {
        ret->source = POLICY_CONFIGURED;
        ret->entry.row = *row;
    }
    return 0;
}

/* ---- a change ---- */

struct census {
    uint64_t last_number;
    size_t in_force, past, broken;
    bool has_pattern; /* the change's pattern has a policy */
};

/* Returns whether the entry holds no more: a later one has replaced it, or it removes a policy. */
static bool is_past(const struct record *record, const char *key, struct record_value value)
{
    struct policy_entry entry;
    return !policy_is_last(record, key) ||
           (policy_entry_decode(key, value, &entry, NULL) == 0 && entry.change == POLICY_REMOVE);
}

static struct census count_entries(const struct record *record, const char *wanted)
{
    struct census census = {0};
    struct record_value value;
    const char *key;
    size_t at = 0;
    if (record_get(record, COUNT_KEY, &value) && value.bytes == sizeof(uint64_t)) {
        census.last_number = load_u64(value.data);
    }
    while ((key = policy_next(record, &at, &value)) != NULL) {
        uint64_t number = 0;
        const char *pattern = key_pattern(key, &number);
        bool past = pattern != NULL && is_past(record, key, value);
        census.broken += pattern == NULL;
        census.past += past;
        census.in_force += pattern != NULL && !past;
        census.has_pattern =
            census.has_pattern || (pattern != NULL && !past && strcmp(pattern, wanted) == 0);
        if (pattern != NULL && number > census.last_number) {
            census.last_number = number;
        }
    }
    return census;
}

/* Adds the removal of broken entries, and of the oldest that hold no more. The oldest go first, so
 * what removed a policy is never gone before what set it. */
static void drop_old(const struct record *record, const struct census *census,
                     struct policy_update *ret)
{
    size_t surplus = census->past > POLICY_PAST_MAX ? census->past - POLICY_PAST_MAX : 0;
    struct record_value value;
    const char *key;
    size_t at = 0;
    while ((key = policy_next(record, &at, &value)) != NULL &&
           ret->update.change_count < POLICY_CHANGES_MAX) {
        uint64_t number = 0;
        bool broken = key_pattern(key, &number) == NULL;
        bool drops = broken || (surplus > 0 && is_past(record, key, value));
        surplus -= drops && !broken;
        if (drops) {
            ret->changes[ret->update.change_count++] =
                (struct record_change){.key = key, .remove = true};
        }
    }
}

int policy_update_make(const struct record *record, struct policy_entry *io,
                       struct policy_update *ret, struct diag *diag)
{
    struct census census = count_entries(record, io->row.pattern);
    struct record_value count = {0};
    memset(ret, 0, sizeof(*ret));
    buf_init(&ret->buf, LIMIT_RECORD_VALUE_BYTES);
    bool certain = census.broken == 0 && policy_check_whole(record, NULL) == 0;
    if (io->change == POLICY_REMOVE && !census.has_pattern && certain) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "no policy is stored for '%s'; `cairn policy show` lists those that are",
                        io->row.pattern);
    }
    if (io->change == POLICY_SET && !census.has_pattern && census.in_force >= POLICY_STORED_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the store has %zu policies, as many as it takes; remove one, or use a "
                        "pattern for several runs",
                        census.in_force);
    }
    io->number = census.last_number + 1;
    policy_entry_key(io, ret->key);
    policy_entry_encode(io, &ret->buf);
    if (buf_status(&ret->buf) != 0) {
        return diag_no_memory(diag, "a policy");
    }
    store_u64(ret->count, io->number);
    bool has_count = record_get(record, COUNT_KEY, &count);
    ret->guards[0] = (struct record_guard){.key = COUNT_KEY, .absent = !has_count, .value = count};
    ret->guards[1] = (struct record_guard){.key = ret->key, .absent = true};
    ret->changes[0] = (struct record_change){.key = COUNT_KEY, .value = {8, ret->count}};
    ret->changes[1] =
        (struct record_change){.key = ret->key, .value = {ret->buf.bytes, ret->buf.data}};
    ret->update = (struct record_update){
        .guard_count = 2, .guards = ret->guards, .change_count = 2, .changes = ret->changes};
    drop_old(record, &census, ret);
    return 0;
}
