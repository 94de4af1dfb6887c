/* SPDX-License-Identifier: Apache-2.0
 *
 * papers: manifest, pages and parts ("documents") as the medium holds them. If one does not match
 * the hash above it, its bytes can only come from the mirror, because nothing else knows them. They
 * are published under a tag of their own, read back, and then take the name.
 */
#include "repair_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct paper { /* a document, and what it must be */
    bool mends;
    bool missing; /* it was not damaged, but gone */
    struct store_name name;
    struct sha256 sha256;
    uint64_t bytes;
};

static const char *const kinds[] = {
    [STORE_MANIFEST] = "manifest", [STORE_PART] = "part of rank", [STORE_PAGE] = "page"};

static void paper_text(const struct paper *paper, size_t bytes, char *ret)
{
    snprintf(ret, bytes, "the %s %u of checkpoint %llu@%llu", kinds[paper->name.kind],
             paper->name.number, (unsigned long long)paper->name.id.step,
             (unsigned long long)paper->name.id.term);
}

/* Reads a document from a store and checks its size and hash. Returns DAMAGED if it does not
 * match. */
static int fetch(struct repair *repair, struct store *store, const struct paper *paper,
                 struct record_value *ret, struct diag *diag)
{
    struct store_req req = {.op = STORE_FETCH, .name = paper->name, .from_medium = true};
    char text[96];
    int status = store == repair->store && repair->remade ? remake_fetch(repair, &req)
                                                          : ask_store(repair, store, &req);
    if (status != 0) {
        return repair_fail(diag, status, &req.diag);
    }
    repair_count_read(repair, req.ret_bytes);
    struct sha256 actual = sha256(req.ret_bytes, req.ret_data);
    if (req.ret_bytes != paper->bytes || memcmp(&actual, &paper->sha256, sizeof(actual)) != 0) {
        free(req.ret_data);
        paper_text(paper, sizeof(text), text);
        return diag_set(diag, CAIRN_E_DAMAGED, "%s does not match its hash", text);
    }
    *ret = (struct record_value){.bytes = req.ret_bytes, .data = req.ret_data};
    return 0;
}

/* Reads a document, and reads it again if the bytes are bad, because the transfer may have
 * failed. */
static int fetch_twice(struct repair *repair, const struct paper *paper, struct record_value *ret,
                       struct diag *diag)
{
    int status = fetch(repair, repair->store, paper, ret, NULL);
    return repair_is_damage(status) ? fetch(repair, repair->store, paper, ret, diag) : status;
}

static void drop(struct repair *repair, const struct store_name *name)
{
    struct store_req req = {.op = STORE_DELETE_SMALL, .name = *name};
    /* Otherwise garbage collection removes it. */
    err_ignore(ask_store(repair, repair->store, &req));
}

/* Puts good bytes in the place of a document. */
static int put_in_place(struct repair *repair, const struct paper *paper, struct record_value bytes,
                        struct diag *diag)
{
    struct paper fresh = *paper;
    struct record_value back = {0};
    char text[96];
    repair_random(repair, &fresh.name.tag);
    paper_text(paper, sizeof(text), text);
    struct store_req req = {.op = STORE_PUBLISH,
                            .name = fresh.name,
                            .bytes = bytes.bytes,
                            .data = (void *)(uintptr_t)bytes.data};
    int status = ask_store(repair, repair->store, &req);
    if (status != 0) {
        return repair_fail(diag, status, &req.diag);
    }
    status = fetch(repair, repair->store, &fresh, &back, diag);
    if (status == 0) {
        free((void *)(uintptr_t)back.data);
        status =
            paper->missing
                ? repair_audit(repair, paper->name.id, diag, "%s: was missing; taken from %s", text,
                               repair->options.mirror)
                : repair_audit(repair, paper->name.id, diag,
                               "%s: replaced from %s; the damaged bytes have the tag %016llx", text,
                               repair->options.mirror, (unsigned long long)fresh.name.tag);
    }
    if (status == 0) {
        req = (struct store_req){
            .op = STORE_EXCHANGE, .name = paper->name, .with_tag = fresh.name.tag};
        status = ask_store(repair, repair->store, &req);
        status = status == 0 ? 0 : repair_fail(diag, status, &req.diag);
    }
    if (status != 0 && status != CAIRN_E_OUTCOME_UNKNOWN) {
        drop(repair, &fresh.name);
    }
    return status;
}

/* Mends a document from the mirror and reports the result. Returns 0 if it is good now; *ret has
 * its bytes. */
static int mend(struct repair *repair, const struct paper *paper, struct record_value *ret,
                struct diag *why)
{
    struct diag diag = DIAG_INIT;
    char text[96];
    paper_text(paper, sizeof(text), text);
    if (!repair->mirror || !repair->store->caps.exchanges) {
        repair_add_line(repair, false, "%.280s; %s", diag_text(why, CAIRN_E_DAMAGED),
                        repair->store->caps.exchanges
                            ? "only another store that has the same checkpoint has a copy (--from)"
                            : "a Ceph cluster repairs its own copies: `ceph pg repair PG`");
        return CAIRN_E_DAMAGED;
    }
    int status = fetch(repair, repair->mirror, paper, ret, &diag);
    if (status != 0) {
        repair_add_line(repair, false, "%s: no good copy in %s either: %.200s", text,
                        repair->options.mirror, diag_text(&diag, status));
        return CAIRN_E_DAMAGED;
    }
    status = put_in_place(repair, paper, *ret, &diag);
    if (status != 0) {
        free((void *)(uintptr_t)ret->data);
        repair_add_line(repair, false, "%s: %s has it, but it cannot be put in place: %.200s", text,
                        repair->options.mirror, diag_text(&diag, status));
        return CAIRN_E_DAMAGED;
    }
    repair_add_line(repair, true,
                    paper->missing ? "%s: was missing; taken from %s" : "%s: replaced from %s",
                    text, repair->options.mirror);
    return 0;
}

/* Reads a document into the scratch, and mends it first if that is asked for. */
static int get(struct repair *repair, const struct paper *paper, struct scratch *scratch,
               struct record_value *ret, struct diag *diag)
{
    struct record_value value = {0};
    struct diag why = DIAG_INIT;
    *ret = value;
    int status = repair_check(repair, diag);
    if (status != 0) {
        return status;
    }
    status = fetch_twice(repair, paper, &value, &why);
    if (status != 0 && repair_is_damage(status) && paper->mends) {
        struct paper found = *paper;
        found.missing = status == CAIRN_E_NOT_FOUND;
        status = mend(repair, &found, &value, &why);
    }
    if (status != 0) {
        return repair_fail(diag, status, &why);
    }
    uint8_t *data = scratch_copy(scratch, value.bytes, value.data);
    free((void *)(uintptr_t)value.data);
    if (!data) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %llu bytes",
                        (unsigned long long)value.bytes);
    }
    *ret = (struct record_value){.bytes = value.bytes, .data = data};
    return 0;
}

static struct paper paper_of(const struct repair *repair, const struct papers *papers,
                             enum store_kind kind, uint32_t number)
{
    return (struct paper){.mends = papers->mends,
                          .name = {.run = repair->name,
                                   .id = papers->fact->id,
                                   .kind = kind,
                                   .number = number,
                                   .tag = papers->fact->open_id}};
}

/* Adds the entries of a page of parts to the table of all parts. */
static int add_page(struct papers *papers, const struct page *page, struct diag *diag)
{
    if (page->kind != PAGE_PARTS) {
        return 0;
    }
    struct part_ref *grown =
        scratch_array(&papers->scratch, papers->part_count + page->entry_count + 1, sizeof(*grown));
    if (!grown) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the table of parts");
    }
    if (papers->part_count > 0) {
        memcpy(grown, papers->parts, papers->part_count * sizeof(*grown));
    }
    memcpy(grown + papers->part_count, page->parts, page->entry_count * sizeof(*grown));
    papers->parts = grown;
    papers->part_count += page->entry_count;
    return 0;
}

int papers_open(struct repair *repair, const struct commit_fact *fact, bool mends,
                struct papers *ret, struct diag *diag)
{
    struct record_value bytes = {0};
    memset(ret, 0, sizeof(*ret));
    ret->fact = fact;
    ret->mends = mends;
    scratch_init(&ret->scratch, REPAIR_SCRATCH_MAX);
    struct paper paper = paper_of(repair, ret, STORE_MANIFEST, 0);
    paper.bytes = fact->manifest_bytes;
    paper.sha256 = fact->manifest_sha256;
    int status = get(repair, &paper, &ret->scratch, &bytes, diag);
    status = status != 0
                 ? status
                 : manifest_decode(bytes.bytes, bytes.data, &ret->scratch, &ret->manifest, diag);
    int worst = status;
    for (uint32_t i = 0; status == 0 && i < ret->manifest.page_count; i++) {
        struct page page;
        paper = paper_of(repair, ret, STORE_PAGE, i);
        paper.bytes = ret->manifest.pages[i].bytes;
        paper.sha256 = ret->manifest.pages[i].sha256;
        status = get(repair, &paper, &ret->scratch, &bytes, diag);
        if (status == CAIRN_E_DAMAGED && mends) {
            worst = status;
            status = 0; /* the next page may be mended */
            continue;
        }
        status =
            status != 0 ? status : page_decode(bytes.bytes, bytes.data, &ret->scratch, &page, diag);
        status = status != 0 ? status : add_page(ret, &page, diag);
    }
    return status != 0 ? status : worst;
}

int papers_part(struct repair *repair, struct papers *papers, size_t number, struct paper_part *ret,
                struct diag *diag)
{
    const struct part_ref *ref = &papers->parts[number];
    struct record_value bytes = {0};
    struct paper paper = paper_of(repair, papers, STORE_PART, ref->rank);
    paper.bytes = ref->bytes;
    paper.sha256 = ref->sha256;
    scratch_init(&ret->scratch, REPAIR_SCRATCH_MAX);
    int status = get(repair, &paper, &ret->scratch, &bytes, diag);
    return status != 0 ? status
                       : part_decode(bytes.bytes, bytes.data, &ret->scratch, &ret->part, diag);
}

void paper_part_fini(struct paper_part *part) { scratch_fini(&part->scratch); }

void papers_fini(struct papers *papers) { scratch_fini(&papers->scratch); }
