/* SPDX-License-Identifier: Apache-2.0
 *
 * What tls.c needs of a context. OpenSSL's own headers stay in the two .c files.
 */
#ifndef CAIRN_NET_TLS_PRIVATE_H
#define CAIRN_NET_TLS_PRIVATE_H

#include "net/stream.h"

struct ssl_ctx_st;
struct bio_method_st;

/* A stream keeps its context alive, so that certificates can be reloaded by making a new one. */
struct tls_context *tls_context_ref(struct tls_context *context);
struct ssl_ctx_st *tls_context_ssl(struct tls_context *context);
struct bio_method_st *tls_context_bio(struct tls_context *context); /* made by the maker below */
bool tls_context_is_server(const struct tls_context *context);
const char *tls_context_ca(const struct tls_context *context); /* the file's name, for remedies */

/* tls.c's: the BIO that reads and writes through a stream_tls. NULL: out of memory. */
struct bio_method_st *tls_bio_method_new(void);

#endif
