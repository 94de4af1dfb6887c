/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of MARK and MARKED. Pure.
 */
#include "codec_private.h"

enum { RECORD_BYTES = 40, VALUE_BYTES_MAX = 1024 };
static_assert(MSG_MARK_RECORDS_MAX * RECORD_BYTES + 4096 <= LIMIT_MESSAGE_BYTES,
              "an answer fits into a message");

struct selector_pb {
    Cairn__Selector selector;
    Cairn__CkptId id;
};

void mark_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_mark *mark = &msg->u.mark;
    Cairn__Mark pb = CAIRN__MARK__INIT;
    struct selector_pb *selectors = enc_array(enc, mark->selector_count, sizeof(*selectors));
    Cairn__MarkOption *options = enc_array(enc, mark->option_count, sizeof(*options));
    pb.selectors = enc_array(enc, mark->selector_count, sizeof(*pb.selectors));
    pb.options = enc_array(enc, mark->option_count, sizeof(*pb.options));
    for (uint32_t i = 0; enc->status == 0 && i < mark->selector_count; i++) {
        pb.selectors[i] =
            enc_selector(mark->selectors[i], &selectors[i].selector, &selectors[i].id);
        pb.n_selectors = i + 1;
    }
    for (uint32_t i = 0; enc->status == 0 && i < mark->option_count; i++) {
        cairn__mark_option__init(&options[i]);
        options[i].name = enc_name(mark->options[i].name);
        options[i].value = enc_name(mark->options[i].value);
        pb.options[i] = &options[i];
        pb.n_options = i + 1;
    }
    pb.kind = mark->kind;
    pb.dry_run = mark->dry_run;
    pb.keep_least = mark->keep_least;
    pb.actor = enc_text(enc, mark->actor);
    pb.reason = enc_text(enc, mark->reason);
    enc_pack(enc, &pb.base);
}

void mark_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Mark *pb = message;
    struct msg_mark mark = {.kind = pb->kind,
                            .dry_run = pb->dry_run,
                            .selector_count = (uint32_t)pb->n_selectors,
                            .option_count = (uint32_t)pb->n_options,
                            .keep_least = pb->keep_least,
                            .actor = dec_text(dec, "actor", pb->actor),
                            .reason = dec_text(dec, "reason", pb->reason)};
    dec_range(dec, "kind", pb->kind, MSG_MARK_FORGET, MSG_MARK_UNPIN);
    mark.selectors = dec_array(dec, "selectors", pb->n_selectors, sizeof(*mark.selectors),
                               MSG_MARK_SELECTORS_MAX);
    mark.options =
        dec_array(dec, "options", pb->n_options, sizeof(*mark.options), MSG_MARK_OPTIONS_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_selectors; i++) {
        mark.selectors[i] = dec_selector(dec, pb->selectors[i]);
    }
    for (size_t i = 0; dec->status == 0 && i < pb->n_options; i++) {
        mark.options[i].name =
            dec_name(dec, "options.name", pb->options[i]->name, 1, LABEL_BYTES_MAX);
        mark.options[i].value =
            dec_name(dec, "options.value", pb->options[i]->value, 0, VALUE_BYTES_MAX);
    }
    ret->u.mark = mark;
}

static void record_put(const struct msg_mark_record *record, uint8_t ret[RECORD_BYTES])
{
    store_u64(ret, record->id.term);
    store_u64(ret + 8, record->id.step);
    store_u64(ret + 16, (uint64_t)record->wall_ns);
    store_u64(ret + 24, record->reasons);
    store_u32(ret + 32, record->outcome);
    store_u32(ret + 36, 0);
}

void marked_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_marked *marked = &msg->u.marked;
    Cairn__Marked pb = CAIRN__MARKED__INIT;
    uint8_t *records = enc_array(enc, marked->record_count, RECORD_BYTES);
    for (uint32_t i = 0; enc->status == 0 && i < marked->record_count; i++) {
        record_put(&marked->records[i], records + (size_t)i * RECORD_BYTES);
    }
    if (enc->status == 0) {
        pb.records = enc_bytes((size_t)marked->record_count * RECORD_BYTES, records);
    }
    pb.head_seq = marked->head_seq;
    pb.done_count = marked->done_count;
    pb.refused_count = marked->refused_count;
    pb.total_count = marked->total_count;
    pb.bytes = marked->bytes;
    pb.forgotten = marked->forgotten;
    pb.forgotten_bytes = marked->forgotten_bytes;
    pb.first_wall_ns = marked->first_wall_ns;
    pb.last_wall_ns = marked->last_wall_ns;
    enc_pack(enc, &pb.base);
}

void marked_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Marked *pb = message;
    size_t count = pb->records.len / RECORD_BYTES;
    struct msg_marked marked = {.head_seq = pb->head_seq,
                                .done_count = pb->done_count,
                                .refused_count = pb->refused_count,
                                .total_count = pb->total_count,
                                .record_count = (uint32_t)count,
                                .bytes = pb->bytes,
                                .forgotten = pb->forgotten,
                                .forgotten_bytes = pb->forgotten_bytes,
                                .first_wall_ns = pb->first_wall_ns,
                                .last_wall_ns = pb->last_wall_ns};
    if (pb->records.len % RECORD_BYTES != 0) {
        dec_fail(dec, "records", "not a whole number of records");
        return;
    }
    marked.records =
        dec_array(dec, "records", count, sizeof(*marked.records), MSG_MARK_RECORDS_MAX);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        const uint8_t *at = pb->records.data + i * RECORD_BYTES;
        marked.records[i] = (struct msg_mark_record){.id = {load_u64(at), load_u64(at + 8)},
                                                     .wall_ns = (int64_t)load_u64(at + 16),
                                                     .reasons = load_u64(at + 24),
                                                     .outcome = load_u32(at + 32)};
    }
    ret->u.marked = marked;
}
