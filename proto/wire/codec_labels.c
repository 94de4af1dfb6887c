/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of fields that several families of messages have: tags, metrics, selectors. Pure.
 */
#include "codec_private.h"

ProtobufCBinaryData *enc_tags(struct enc *enc, uint32_t count, const char *const *tags,
                              size_t *ret_count)
{
    ProtobufCBinaryData *ret = enc_array(enc, count, sizeof(*ret));
    for (uint32_t i = 0; ret != NULL && i < count; i++) {
        ret[i] = enc_name(tags[i]);
    }
    *ret_count = ret != NULL ? count : 0;
    return ret;
}

Cairn__Metric **enc_metrics(struct enc *enc, uint32_t count, const struct metric *metrics,
                            size_t *ret_count)
{
    Cairn__Metric *store = enc_array(enc, count, sizeof(*store));
    Cairn__Metric **ret = enc_array(enc, count, sizeof(*ret));
    *ret_count = 0;
    for (uint32_t i = 0; store != NULL && ret != NULL && i < count; i++) {
        cairn__metric__init(&store[i]);
        store[i].name = enc_name(metrics[i].name);
        store[i].value = metrics[i].value;
        ret[i] = &store[i];
        *ret_count = i + 1u;
    }
    return ret;
}

const char **dec_tags(struct dec *dec, const char *field, size_t count,
                      const ProtobufCBinaryData *tags, uint32_t *ret_count)
{
    const char **ret = dec_array(dec, field, count, sizeof(*ret), LIMIT_TAGS);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        ret[i] = dec_name(dec, field, tags[i], 1, LABEL_BYTES_MAX);
    }
    *ret_count = (uint32_t)count;
    return ret;
}

struct metric *dec_metrics(struct dec *dec, size_t count, Cairn__Metric *const *metrics,
                           uint32_t *ret_count)
{
    struct metric *ret = dec_array(dec, "metrics", count, sizeof(*ret), LIMIT_METRICS);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        ret[i].name = dec_name(dec, "metrics.name", metrics[i]->name, 1, LABEL_BYTES_MAX);
        ret[i].value = metrics[i]->value;
    }
    *ret_count = (uint32_t)count;
    return ret;
}

Cairn__Selector *enc_selector(struct selector selector, Cairn__Selector *store,
                              Cairn__CkptId *store_id)
{
    cairn__selector__init(store);
    store->kind = (uint32_t)selector.kind;
    store->id = enc_ckpt(selector.id, store_id);
    return store;
}

struct selector dec_selector(struct dec *dec, const Cairn__Selector *pb)
{
    static const enum select_kind KINDS[] = {SELECT_LATEST, SELECT_STEP, SELECT_EXACT};
    struct selector selector = {.kind = SELECT_LATEST};
    if (pb == NULL) {
        dec_fail(dec, "selector", "missing");
        return selector;
    }
    if (pb->kind >= ARRAY_LEN(KINDS)) {
        dec_range(dec, "selector.kind", pb->kind, 0, ARRAY_LEN(KINDS) - 1);
        return selector;
    }
    selector.kind = KINDS[pb->kind];
    selector.id = dec_ckpt(dec, "selector.id", pb->id,
                           selector.kind == SELECT_EXACT ? DEC_REQUIRED : DEC_OPTIONAL);
    if (selector.kind != SELECT_EXACT && selector.id.term != 0) {
        dec_fail(dec, "selector.id", "a term is named, but not by the kind STEP@TERM");
    }
    return selector;
}
