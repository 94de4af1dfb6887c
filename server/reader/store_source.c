/* SPDX-License-Identifier: Apache-2.0
 *
 * store_source: see store_source.h. Invariant: whole documents and objects are read from the
 * medium, past the caches. Ranges of documents are not: who asks for them wants to know what they
 * say, and not whether the medium still holds it.
 */
#include "reader/store_source.h"

#include "base/check.h"

static bool may_pass(int status)
{
    enum reader_finding finding = reader_finding_of(status);
    return status != CAIRN_E_CANCELLED &&
           (finding == READER_UNREADABLE || finding == READER_NOT_GIVEN);
}

static int ask(struct store_source *source, struct store_req *io, struct diag *diag)
{
    const struct store_req asked = *io;
    unsigned tries = 0;
    int status;
    CHECK(source->tries >= 1);
    do {
        status = tries > 0 ? ask_sleep(source->ask, source->pause_ms) : 0;
        if (status == 0 && source->check) {
            status = source->check(source, diag);
        }
        if (status != 0) {
            return status;
        }
        *io = asked;
        status = ask_store(source->ask, source->store, io, NULL);
        uint64_t bytes = io->op == STORE_FETCH ? io->ret_bytes : io->bytes;
        source->tried(source, status, status == 0 ? bytes : 0);
    } while (may_pass(status) && ++tries < source->tries);
    if (source->blames && may_pass(status) && err_retry(status) == ERR_RETRY_NEVER) {
        status = CAIRN_E_DAMAGED;
    }
    return status == 0 ? 0 : diag_set(diag, status, "%s", diag_text(&io->diag, status));
}

int store_source_fetch(struct reader_source *base, const struct doc_key *document,
                       struct reader_bytes *ret, struct diag *diag)
{
    struct store_source *source = container_of(base, struct store_source, reader);
    struct store_req req = {.op = STORE_FETCH, .name = document->name, .from_medium = true};
    struct diag why = DIAG_INIT;
    char text[256];
    int status = ask(source, &req, &why);
    if (status == 0) {
        *ret = (struct reader_bytes){req.ret_data, req.ret_bytes};
        return 0;
    }
    doc_name_text(&document->name, sizeof(text), text);
    return reader_finding_of(status) == READER_MISSING
               ? diag_set(diag, status, "%s is missing from the store", text)
               : diag_set(diag, status, "read %s: %s", text, diag_text(&why, status));
}

static int fetch_range(struct reader_source *base, const struct store_name *document,
                       const struct reader_span *span, struct reader_bytes *ret, struct diag *diag)
{
    struct store_source *source = container_of(base, struct store_source, reader);
    struct store_req req = {
        .op = STORE_FETCH, .name = *document, .offset = span->offset, .bytes = span->bytes};
    int status = ask(source, &req, diag);
    if (status == 0) {
        *ret = (struct reader_bytes){req.ret_data, req.ret_bytes};
    }
    return status;
}

static int read_range(struct reader_source *base, const struct reader_range *range,
                      struct diag *diag)
{
    struct store_source *source = container_of(base, struct store_source, reader);
    struct store_req req = {.op = STORE_READ,
                            .run = source->run,
                            .object = *range->object,
                            .offset = range->from,
                            .bytes = range->bytes,
                            .data = range->memory,
                            .to_end = range->to_end,
                            .from_medium = true};
    return ask(source, &req, diag);
}

void store_source_init(struct store_source *source)
{
    CHECK(source->ask && source->store);
    source->reader.fetch = store_source_fetch;
    source->reader.fetch_range = fetch_range;
    source->reader.read = read_range;
    source->reader.short_index = true;
}
