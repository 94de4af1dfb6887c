/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the messages by which ranks agree on lists and compare replicas. Keys and digests are
 * packed, 16 bytes each. Pure.
 */
#include "codec_private.h"

#include <string.h>

enum { SET_BYTES_MAX = (LIMIT_WORLD_SIZE + 7) / 8 };

static void agree_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_agree *agree = &msg->u.agree;
    Cairn__Agree pb = CAIRN__AGREE__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(agree->id, &id);
    pb.open_id = agree->open_id;
    pb.check = agree->check;
    Cairn__AgreeGroup *groups = enc_array(enc, agree->count, sizeof(*groups));
    pb.groups = enc_array(enc, agree->count, sizeof(*pb.groups));
    for (uint32_t i = 0; enc->status == 0 && i < agree->count; i++) {
        const struct msg_agree_group *from = &agree->groups[i];
        cairn__agree_group__init(&groups[i]);
        groups[i].group = enc_bytes(sizeof(from->group), &from->group);
        groups[i].list_hash = enc_bytes(sizeof(from->list_hash), &from->list_hash);
        groups[i].members = from->members;
        groups[i].member = from->member;
        groups[i].copied = from->copied;
        pb.groups[i] = &groups[i];
        pb.n_groups = i + 1;
    }
    enc_pack(enc, &pb.base);
}

static void agree_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Agree *pb = message;
    struct msg_agree agree = {.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                              .open_id = pb->open_id,
                              .check = pb->check,
                              .count = (uint32_t)pb->n_groups};
    dec_range(dec, "check", pb->check, CHECK_NONE, CHECK_FAIL);
    agree.groups = dec_array(dec, "groups", pb->n_groups, sizeof(*agree.groups), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_groups; i++) {
        const Cairn__AgreeGroup *from = pb->groups[i];
        struct msg_agree_group *to = &agree.groups[i];
        *to = (struct msg_agree_group){
            .members = from->members, .member = from->member, .copied = from->copied};
        dec_fixed(dec, "groups.group", from->group, sizeof(to->group), &to->group);
        dec_fixed(dec, "groups.list_hash", from->list_hash, sizeof(to->list_hash), &to->list_hash);
        dec_range(dec, "groups.members", from->members, 2, LIMIT_WORLD_SIZE);
        dec_range(dec, "groups.member", from->member, 0,
                  dec->status == 0 ? from->members - 1 : UINT32_MAX);
    }
    ret->u.agree = agree;
}

static void agreed_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Agreed pb = CAIRN__AGREED__INIT;
    pb.n_verdicts = msg->u.agreed.count;
    pb.verdicts = msg->u.agreed.verdicts;
    enc_pack(enc, &pb.base);
}

static void agreed_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Agreed *pb = message;
    struct msg_agreed agreed = {.count = (uint32_t)pb->n_verdicts};
    agreed.verdicts =
        dec_array(dec, "verdicts", pb->n_verdicts, sizeof(*agreed.verdicts), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_verdicts; i++) {
        dec_range(dec, "verdicts", pb->verdicts[i], AGREE_KEEP, AGREE_UNKNOWN);
        agreed.verdicts[i] = pb->verdicts[i];
    }
    ret->u.agreed = agreed;
}

/* Decodes `count` items of 16 bytes, one behind the other. */
static struct xxh128 *dec_hashes(struct dec *dec, const char *field, ProtobufCBinaryData data,
                                 size_t count)
{
    if (data.len != count * sizeof(struct xxh128)) {
        dec_fail(dec, field, "not 16 bytes for each key");
    }
    struct xxh128 *ret = dec_array(dec, field, count, sizeof(*ret), MSG_KEYS_MAX);
    if (ret != NULL && count > 0) {
        memcpy(ret, data.data, count * sizeof(*ret));
    }
    return ret;
}

/* Checks the place of a frame in its list. Returns the number of its keys. */
static uint32_t dec_place(struct dec *dec, uint32_t total, uint32_t first, size_t key_bytes)
{
    size_t count = key_bytes / sizeof(struct xxh128);
    dec_range(dec, "keys", count, 1, MSG_KEYS_MAX);
    dec_range(dec, "first", first, 0, total);
    dec_range(dec, "total", total, dec->status == 0 ? first + count : 0, UINT32_MAX / 2);
    return (uint32_t)count;
}

/* Encodes numbers of 8 bytes, one behind the other. */
static ProtobufCBinaryData enc_numbers(struct enc *enc, size_t count, const uint64_t *numbers)
{
    uint8_t *bytes = enc_array(enc, count, sizeof(*numbers));
    for (size_t i = 0; bytes != NULL && i < count; i++) {
        for (size_t k = 0; k < sizeof(*numbers); k++) {
            bytes[i * sizeof(*numbers) + k] = (uint8_t)(numbers[i] >> (8 * k));
        }
    }
    return enc_bytes(bytes != NULL ? count * sizeof(*numbers) : 0, bytes);
}

/* Returns numbers that are sent as bytes, 8 little-endian each. Their count must be the one that is
 * given. */
static uint64_t *dec_numbers(struct dec *dec, const char *field, ProtobufCBinaryData data,
                             size_t count)
{
    if (data.len != count * sizeof(uint64_t)) {
        dec_fail(dec, field, "not 8 bytes for each key");
    }
    uint64_t *ret = dec_array(dec, field, count, sizeof(*ret), MSG_KEYS_MAX);
    for (size_t i = 0; ret != NULL && i < count; i++) {
        for (size_t k = 0; k < sizeof(*ret); k++) {
            ret[i] |= (uint64_t)data.data[i * sizeof(*ret) + k] << (8 * k);
        }
    }
    return ret;
}

static void lists_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_lists *lists = &msg->u.lists;
    Cairn__Lists pb = CAIRN__LISTS__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(lists->id, &id);
    pb.open_id = lists->open_id;
    pb.group = enc_bytes(sizeof(lists->group), &lists->group);
    pb.total = lists->total;
    pb.first = lists->first;
    pb.keys = enc_bytes(lists->count * sizeof(*lists->keys), lists->keys);
    pb.divisions = enc_numbers(enc, lists->count, lists->divisions);
    enc_pack(enc, &pb.base);
}

static void lists_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Lists *pb = message;
    struct msg_lists lists = {.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                              .open_id = pb->open_id,
                              .total = pb->total,
                              .first = pb->first};
    dec_fixed(dec, "group", pb->group, sizeof(lists.group), &lists.group);
    lists.count = dec_place(dec, pb->total, pb->first, pb->keys.len);
    lists.keys = dec_hashes(dec, "keys", pb->keys, lists.count);
    lists.divisions = dec_numbers(dec, "divisions", pb->divisions, lists.count);
    ret->u.lists = lists;
}

static void digests_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_digests *digests = &msg->u.digests;
    Cairn__Digests pb = CAIRN__DIGESTS__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(digests->id, &id);
    pb.open_id = digests->open_id;
    pb.group = enc_bytes(sizeof(digests->group), &digests->group);
    pb.total = digests->total;
    pb.first = digests->first;
    pb.keys = enc_bytes(digests->count * sizeof(*digests->keys), digests->keys);
    pb.digests = enc_bytes(digests->count * sizeof(*digests->digests), digests->digests);
    enc_pack(enc, &pb.base);
}

static void digests_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Digests *pb = message;
    struct msg_digests digests = {.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                  .open_id = pb->open_id,
                                  .total = pb->total,
                                  .first = pb->first};
    dec_fixed(dec, "group", pb->group, sizeof(digests.group), &digests.group);
    digests.count = dec_place(dec, pb->total, pb->first, pb->keys.len);
    digests.keys = dec_hashes(dec, "keys", pb->keys, digests.count);
    digests.digests = dec_hashes(dec, "digests", pb->digests, digests.count);
    ret->u.digests = digests;
}

/* HOLDERS and COMPARED are alike, so each of their fields is listed once, here. */
#define SETS_TO_PB(enc, from, pb)                                                      \
    do {                                                                               \
        struct xxh128 *keys_ = enc_array(enc, (from)->count, sizeof(*keys_));          \
        (pb)->sets = enc_array(enc, (from)->count, sizeof(*(pb)->sets));               \
        for (uint32_t i_ = 0; (enc)->status == 0 && i_ < (from)->count; i_++) {        \
            keys_[i_] = (from)->rows[i_].key;                                          \
            (pb)->sets[i_] = enc_bytes((from)->rows[i_].bytes, (from)->rows[i_].bits); \
            (pb)->n_sets = i_ + 1;                                                     \
        }                                                                              \
        (pb)->keys = enc_bytes((from)->count * sizeof(*keys_), keys_);                 \
        (pb)->last = (from)->last;                                                     \
        (pb)->code = (from)->code;                                                     \
        (pb)->text = enc_text(enc, (from)->text);                                      \
    } while (0)

/* Decodes the rows of HOLDERS and COMPARED. */
static struct msg_sets sets_decode(struct dec *dec, ProtobufCBinaryData keys, size_t count,
                                   const ProtobufCBinaryData *sets)
{
    struct msg_sets ret = {.count = (uint32_t)count};
    const struct xxh128 *hashes = dec_hashes(dec, "keys", keys, count);
    ret.rows = dec_array(dec, "sets", count, sizeof(*ret.rows), MSG_KEYS_MAX);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        uint8_t *bits = dec_array(dec, "sets", sets[i].len, 1, SET_BYTES_MAX);
        if (bits != NULL && sets[i].len > 0) {
            memcpy(bits, sets[i].data, sets[i].len);
        }
        ret.rows[i] =
            (struct msg_set){.key = hashes[i], .bytes = (uint32_t)sets[i].len, .bits = bits};
    }
    return ret;
}

static void holders_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_sets *holders = &msg->u.holders;
    Cairn__Holders pb = CAIRN__HOLDERS__INIT;
    uint64_t *divisions = enc_array(enc, holders->count, sizeof(*divisions));
    for (uint32_t i = 0; divisions != NULL && i < holders->count; i++) {
        divisions[i] = holders->rows[i].division;
    }
    pb.divisions = enc_numbers(enc, divisions != NULL ? holders->count : 0, divisions);
    SETS_TO_PB(enc, holders, &pb);
    enc_pack(enc, &pb.base);
}

static void holders_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Holders *pb = message;
    ret->u.holders = sets_decode(dec, pb->keys, pb->n_sets, pb->sets);
    const uint64_t *divisions = dec_numbers(dec, "divisions", pb->divisions, pb->n_sets);
    for (size_t i = 0; dec->status == 0 && i < pb->n_sets; i++) {
        ret->u.holders.rows[i].division = divisions[i];
    }
    ret->u.holders.last = pb->last;
    ret->u.holders.code = dec_code(dec, pb->code, DEC_OPTIONAL);
    ret->u.holders.text = dec_text(dec, "text", pb->text);
}

static void compared_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_sets *compared = &msg->u.compared;
    Cairn__Compared pb = CAIRN__COMPARED__INIT;
    SETS_TO_PB(enc, compared, &pb);
    enc_pack(enc, &pb.base);
}

static void compared_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Compared *pb = message;
    ret->u.compared = sets_decode(dec, pb->keys, pb->n_sets, pb->sets);
    ret->u.compared.last = pb->last;
    ret->u.compared.code = dec_code(dec, pb->code, DEC_OPTIONAL);
    ret->u.compared.text = dec_text(dec, "text", pb->text);
}

static const struct msg_codec CODECS[] = {
    {MSG_AGREE, "AGREE", false, &cairn__agree__descriptor, agree_encode, agree_decode},
    {MSG_AGREED, "AGREED", false, &cairn__agreed__descriptor, agreed_encode, agreed_decode},
    {MSG_LISTS, "LISTS", false, &cairn__lists__descriptor, lists_encode, lists_decode},
    {MSG_HOLDERS, "HOLDERS", false, &cairn__holders__descriptor, holders_encode, holders_decode},
    {MSG_DIGESTS, "DIGESTS", false, &cairn__digests__descriptor, digests_encode, digests_decode},
    {MSG_COMPARED, "COMPARED", false, &cairn__compared__descriptor, compared_encode,
     compared_decode},
    {MSG_MARK, "MARK", false, &cairn__mark__descriptor, mark_encode, mark_decode},
    {MSG_MARKED, "MARKED", false, &cairn__marked__descriptor, marked_encode, marked_decode},
};
const struct msg_family msg_family_agree = {CODECS, ARRAY_LEN(CODECS)};
