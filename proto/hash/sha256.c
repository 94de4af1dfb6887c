/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 by OpenSSL's EVP interface. The library can refuse SHA-256 only if it is broken, or out
 * of memory at its first use; that is a broken CHECK, not an error that callers could handle. Any
 * thread.
 */
#include "hash/hash.h"

#include "base/check.h"

#include <openssl/evp.h>
#include <pthread.h>

/* Looked up once and kept until the process ends. EVP_sha256() is looked up again for each digest,
 * which takes as long as the digest of a short entry, and a record has thousands of entries. */
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
