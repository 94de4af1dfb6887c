/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 by OpenSSL's EVP interface. The library can refuse SHA-256 only when it is broken or out
 * of memory at its first use; that is a broken check, not an error that callers could handle. Any
 * thread; a stream belongs to one thread.
 */
#include "hash/hash.h"

#include "base/check.h"

#include <openssl/evp.h>
#include <pthread.h>

struct sha256_stream {
    EVP_MD_CTX *context;
};

/* Looked up once, kept until the process ends: EVP_sha256() is looked up by each digest, which
 * takes as long as the digest of a short entry, and a record has thousands of them. */
static EVP_MD *fetched;
static pthread_once_t fetch_once = PTHREAD_ONCE_INIT;

static void fetch(void) { fetched = EVP_MD_fetch(NULL, "SHA256", NULL); }

static const EVP_MD *algorithm(void)
{
    CHECK(pthread_once(&fetch_once, fetch) == 0);
    return fetched;
}

struct sha256 sha256(size_t bytes, const void *data)
{
    struct sha256 digest;
    unsigned length = 0;
    CHECK(EVP_Digest(bytes > 0 ? data : "", bytes, digest.bytes, &length, algorithm(), NULL) == 1);
    CHECK(length == sizeof(digest.bytes));
    return digest;
}

struct sha256_stream *sha256_stream_new(void)
{
    struct sha256_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return NULL;
    }
    stream->context = EVP_MD_CTX_new();
    if (stream->context == NULL || EVP_DigestInit_ex(stream->context, algorithm(), NULL) != 1) {
        sha256_stream_free(stream);
        return NULL;
    }
    return stream;
}

void sha256_stream_add(struct sha256_stream *stream, size_t bytes, const void *data)
{
    if (bytes > 0) {
        CHECK(EVP_DigestUpdate(stream->context, data, bytes) == 1);
    }
}

struct sha256 sha256_stream_digest(struct sha256_stream *stream)
{
    struct sha256 digest;
    unsigned length = 0;
    CHECK(EVP_DigestFinal_ex(stream->context, digest.bytes, &length) == 1);
    CHECK(length == sizeof(digest.bytes));
    return digest;
}

void sha256_stream_free(struct sha256_stream *stream)
{
    if (stream != NULL) {
        EVP_MD_CTX_free(stream->context);
        free(stream);
    }
}
