/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of a run's record. Numbers in keys have a fixed width, so that the order of keys is the
 * order of numbers. A key of a family that this version does not know is kept and not touched.
 * Pure; any thread.
 */
#include "entries.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/digits.h"

static struct key_text key_printf(const char *fmt, ...) PRINTF(1, 2);

static struct key_text key_printf(const char *fmt, ...)
{
    struct key_text key;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(key.at, sizeof(key.at), fmt, args);
    va_end(args);
    CHECK(n > 0 && n < ENTRY_KEY_MAX);
    return key;
}

struct key_text key_info(void) { return key_printf("info"); }
struct key_text key_head(void) { return key_printf("head"); }
struct key_text key_gc(void) { return key_printf("gc"); }
struct key_text key_use(void) { return key_printf("use"); }
struct key_text key_chain(uint64_t seq) { return key_printf("chain/%016" PRIx64, seq); }
struct key_text key_term(uint64_t term) { return key_printf("term/%016" PRIx64, term); }
struct key_text key_health(uint64_t seq) { return key_printf("health/%016" PRIx64, seq); }
struct key_text key_note(uint64_t seq) { return key_printf("note/%016" PRIx64, seq); }
struct key_text key_day(uint64_t day) { return key_printf("day/%016" PRIx64, day); }
struct key_text key_owner(uint64_t term) { return key_printf("owner/%016" PRIx64, term); }
struct key_text key_left(uint64_t term) { return key_printf("left/%016" PRIx64, term); }
struct key_text key_ended(uint64_t number) { return key_printf("ended/%016" PRIx64, number); }

struct key_text key_open(struct ckpt_id id)
{
    return key_printf("open/%016" PRIx64 "/%016" PRIx64, id.term, id.step);
}

struct key_text key_seal(struct ckpt_id id, uint32_t rank)
{
    return key_printf("seal/%016" PRIx64 "/%016" PRIx64 "/%08" PRIx32, id.term, id.step, rank);
}

struct key_text key_dead(struct ckpt_id id)
{
    return key_printf("dead/%016" PRIx64 "/%016" PRIx64, id.term, id.step);
}

struct key_text key_past(struct ckpt_id id, uint64_t open_id)
{
    return key_printf("past/%016" PRIx64 "/%016" PRIx64 "/%016" PRIx64, id.term, id.step, open_id);
}

struct key_text key_restore(const struct token *token, uint32_t ordinal)
{
    char hex[2 * sizeof token->bytes + 1];
    hex_encode(sizeof token->bytes, token->bytes, hex);
    return key_printf("restore/%s/%08" PRIx32, hex, ordinal);
}

struct key_text key_report(const struct token *token, uint32_t ordinal, uint32_t rank)
{
    return key_printf("%s/%08" PRIx32, key_restore(token, ordinal).at, rank);
}

static bool key_u64(const char **at, uint64_t *ret)
{
    return digits_skip(at, "/") && digits_read_hex(at, 16, ret);
}

static bool key_u32(const char **at, uint32_t *ret)
{
    uint64_t value = 0;
    if (!digits_skip(at, "/") || !digits_read_hex(at, 8, &value)) {
        return false;
    }
    *ret = (uint32_t)value;
    return true;
}

static bool key_id(const char **at, struct ckpt_id *ret)
{
    return key_u64(at, &ret->term) && key_u64(at, &ret->step) && ret->term > 0;
}

static bool key_token(const char **at, struct token *ret)
{
    if (!digits_skip(at, "/")) {
        return false;
    }
    for (size_t i = 0; i < sizeof ret->bytes; i++) {
        uint64_t byte = 0;
        if (!digits_read_hex(at, 2, &byte)) {
            return false;
        }
        ret->bytes[i] = (uint8_t)byte;
    }
    return true;
}

struct key_family {
    const char *name;
    enum entry_kind kind;
};

static const struct key_family key_families[] = {
    {"info", ENTRY_INFO}, {"head", ENTRY_HEAD},     {"chain", ENTRY_CHAIN},
    {"term", ENTRY_TERM}, {"open", ENTRY_OPEN},     {"seal", ENTRY_SEAL},
    {"dead", ENTRY_DEAD}, {"health", ENTRY_HEALTH}, {"restore", ENTRY_RESTORE},
    {"note", ENTRY_NOTE}, {"day", ENTRY_DAY},       {"gc", ENTRY_GC},
    {"past", ENTRY_PAST}, {"ended", ENTRY_ENDED},   {"owner", ENTRY_OWNER},
    {"use", ENTRY_USE},   {"left", ENTRY_LEFT},
};

static enum entry_kind key_family_of(size_t bytes, const char *key)
{
    for (size_t i = 0; i < ARRAY_LEN(key_families); i++) {
        if (strlen(key_families[i].name) == bytes &&
            memcmp(key_families[i].name, key, bytes) == 0) {
            return key_families[i].kind;
        }
    }
    return ENTRY_UNKNOWN;
}

/* Reads what follows the name of the family. *at is at the end of the key if all is well. */
static bool key_rest(struct entry_key *key, const char **at)
{
    switch (key->kind) {
    case ENTRY_INFO:
    case ENTRY_HEAD:
    case ENTRY_GC:
    case ENTRY_USE:
        return true;
    case ENTRY_CHAIN:
    case ENTRY_HEALTH:
    case ENTRY_NOTE:
    case ENTRY_ENDED:
        return key_u64(at, &key->seq) && key->seq > 0;
    case ENTRY_DAY:
        return key_u64(at, &key->seq);
    case ENTRY_TERM:
    case ENTRY_OWNER:
    case ENTRY_LEFT:
        return key_u64(at, &key->id.term) && key->id.term > 0;
    case ENTRY_OPEN:
    case ENTRY_DEAD:
        return key_id(at, &key->id);
    case ENTRY_PAST:
        return key_id(at, &key->id) && key_u64(at, &key->seq);
    case ENTRY_SEAL:
        return key_id(at, &key->id) && key_u32(at, &key->rank);
    case ENTRY_RESTORE:
        if (!key_token(at, &key->token) || !key_u32(at, &key->ordinal)) {
            return false;
        }
        if (**at == '\0') {
            return true;
        }
        key->kind = ENTRY_REPORT;
        return key_u32(at, &key->rank);
    case ENTRY_REPORT:
    case ENTRY_UNKNOWN:
        break;
    }
    UNREACHABLE();
}

int entry_key_parse(const char *key, struct entry_key *ret, struct diag *diag)
{
    struct entry_key parsed;
    size_t family_bytes = strcspn(key, "/");
    const char *at = key + family_bytes;
    memset(&parsed, 0, sizeof parsed);
    parsed.kind = key_family_of(family_bytes, key);
    if (parsed.kind != ENTRY_UNKNOWN && (!key_rest(&parsed, &at) || *at != '\0')) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the record's key \"%.130s\" is broken at position %zu", key,
                        (size_t)(at - key) + 1);
    }
    *ret = parsed;
    return 0;
}
