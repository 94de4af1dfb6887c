/* SPDX-License-Identifier: Apache-2.0
 *
 * How a repair reads: from the store on the loop, at the repair's pace. A manifest, page or part
 * that is lost can come from the mirror only, because nothing else knows its bytes. They are
 * published under a tag of their own, read back, and then take the name. On the repair's thread.
 */
#include "repair_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the source of the reader ----------------------------------------------------------------- */

static struct repair *repair_of(struct store_source *source)
{
    return container_of(source, struct repair_source, store)->repair;
}

static int check(struct store_source *source, struct diag *diag)
{
    return repair_check(repair_of(source), diag);
}

static void tried(struct store_source *source, int status, uint64_t bytes)
{
    (void)status;
    repair_count_read(repair_of(source), bytes);
}

/* Gives a document that is made again and not stored yet, or asks the store. */
static int fetch(struct reader_source *base, const struct doc_key *document,
                 struct reader_bytes *ret, struct diag *diag)
{
    struct repair *repair = repair_of(container_of(base, struct store_source, reader));
    struct record_value made = repair->held;
    bool is_held = made.data && document->name.kind == repair->held_name->kind &&
                   ckpt_id_equal(document->name.id, repair->held_name->id) &&
                   document->name.tag == repair->held_name->tag;
    if (!is_held && (!repair->remade || !remake_find(repair->remade, &document->name, &made))) {
        return store_source_fetch(base, document, ret, diag);
    }
    *ret = (struct reader_bytes){malloc(made.bytes), made.bytes};
    if (!ret->data) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a document that is made again");
    }
    memcpy(ret->data, made.data, made.bytes);
    return 0;
}

/* --- a lost document -------------------------------------------------------------------------- */

static void document_text(const struct doc_key *document, size_t bytes, char *ret)
{
    static const char *const kinds[] = {
        [STORE_MANIFEST] = "manifest", [STORE_PART] = "part of rank", [STORE_PAGE] = "page"};
    snprintf(ret, bytes, "the %s %u of checkpoint %s", kinds[document->name.kind],
             document->name.number, ckpt_id_text(document->name.id).at);
}

/* Says which document does not match, in a repair's words. */
static int name_lost(struct reader_source *base, const struct doc_key *document, int status,
                     struct reader_bytes *ret, struct diag *why)
{
    char text[96];
    (void)base;
    (void)ret;
    CHECK(reader_is_damage(status));
    if (reader_finding_of(status) == READER_DAMAGED) {
        document_text(document, sizeof(text), text);
        diag_clear(why);
        err_ignore(diag_set(why, status, "%s does not match its hash", text)); /* returned below */
    }
    return status;
}

/* Reads a document from a store, and checks it. */
static int fetch_checked(struct repair *repair, struct store *store, const struct doc_key *document,
                         struct reader_bytes *ret, struct diag *diag)
{
    struct store_req req = {.op = STORE_FETCH, .name = document->name, .from_medium = true};
    int status = ask_store(&repair->ask, store, &req, diag);
    if (status != 0) {
        return status;
    }
    repair_count_read(repair, req.ret_bytes);
    *ret = (struct reader_bytes){req.ret_data, req.ret_bytes};
    status = doc_check(document, ret->count, ret->data, diag);
    if (status != 0) {
        free(ret->data);
    }
    return status;
}

/* Puts good bytes in the place of a document. */
static int put_in_place(struct repair *repair, const struct doc_key *document, bool is_missing,
                        const struct reader_bytes *bytes, struct diag *diag)
{
    struct doc_key fresh = *document;
    struct reader_bytes back = {0};
    char text[96];
    repair_random(repair, &fresh.name.tag);
    document_text(document, sizeof(text), text);
    struct store_req req = {
        .op = STORE_PUBLISH, .name = fresh.name, .bytes = bytes->count, .data = bytes->data};
    if (ask_store(&repair->ask, repair->store, &req, diag) != 0) {
        return req.status;
    }
    int status = fetch_checked(repair, repair->store, &fresh, &back, diag);
    if (status == 0) {
        free(back.data);
        status =
            is_missing
                ? repair_audit(repair, document->name.id, diag, "%s: was missing; taken from %s",
                               text, repair->options.mirror)
                : repair_audit(repair, document->name.id, diag,
                               "%s: replaced from %s; the damaged bytes have the tag %016llx", text,
                               repair->options.mirror, (unsigned long long)fresh.name.tag);
    }
    if (status == 0) {
        req = (struct store_req){
            .op = STORE_EXCHANGE, .name = document->name, .with_tag = fresh.name.tag};
        status = ask_store(&repair->ask, repair->store, &req, diag);
    }
    if (status != 0 && status != CAIRN_E_OUTCOME_UNKNOWN) {
        struct store_req drop = {.op = STORE_DELETE_SMALL, .name = fresh.name};
        /* Otherwise garbage collection removes it. */
        err_ignore(ask_store(&repair->ask, repair->store, &drop, NULL));
    }
    return status;
}

/* Mends a lost document from the mirror, and says what became of it. */
static int mend(struct reader_source *base, const struct doc_key *document, int lost,
                struct reader_bytes *ret, struct diag *why)
{
    struct repair *repair = repair_of(container_of(base, struct store_source, reader));
    struct diag diag = DIAG_INIT;
    char text[96];
    document_text(document, sizeof(text), text);
    lost = name_lost(base, document, lost, ret, why);
    if (!repair->options.open_mirror || !repair->store->caps.exchanges) {
        repair_add_line(repair, false, "%.280s; %s", diag_text(why, CAIRN_E_DAMAGED),
                        repair->store->caps.exchanges
                            ? "only another store that has the same checkpoint has a copy (--from)"
                            : "a Ceph cluster repairs its own copies: `ceph pg repair PG`");
        return CAIRN_E_DAMAGED;
    }
    int status = mirror_open(repair, &diag);
    if (status == 0) {
        status = fetch_checked(repair, repair->mirror, document, ret, &diag);
        mirror_failed(repair, status, &diag);
    }
    if (status != 0) {
        repair_add_line(repair, false, "%s: no good copy in %s either: %.200s", text,
                        repair->options.mirror, diag_text(&diag, status));
        return CAIRN_E_DAMAGED;
    }
    bool is_missing = reader_finding_of(lost) == READER_MISSING;
    status = put_in_place(repair, document, is_missing, ret, &diag);
    if (status != 0) {
        free(ret->data);
        repair_add_line(repair, false, "%s: %s has it, but it cannot be put in place: %.200s", text,
                        repair->options.mirror, diag_text(&diag, status));
        return CAIRN_E_DAMAGED;
    }
    repair_add_line(repair, true,
                    is_missing ? "%s: was missing; taken from %s" : "%s: replaced from %s", text,
                    repair->options.mirror);
    return 0;
}

void reading_begin(struct repair *repair)
{
    CHECK(repair->store);
    repair->plain = (struct repair_source){.store = {.ask = &repair->ask,
                                                     .store = repair->store,
                                                     .run = repair->name,
                                                     .tries = 2,
                                                     .check = check,
                                                     .tried = tried},
                                           .repair = repair};
    store_source_init(&repair->plain.store);
    repair->plain.store.reader.fetch = fetch;
    repair->plain.store.reader.lost = name_lost;
    repair->mending = repair->plain;
    repair->mending.store.reader.lost = mend;
}

void reading_end(struct repair *repair) { reader_source_fini(&repair->plain.store.reader); }
