/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of a context that tls.c uses. OpenSSL's own headers stay in the .c files.
 */
#ifndef CAIRN_NET_TLS_PRIVATE_H
#define CAIRN_NET_TLS_PRIVATE_H

#include "net/stream.h"

struct ssl_ctx_st;
struct bio_method_st;

/* Takes a reference. A stream keeps its context alive, so that certificates can be reloaded by
 * making a new context. */
struct tls_context *tls_context_ref(struct tls_context *context);
struct ssl_ctx_st *tls_context_ssl(struct tls_context *context);
struct bio_method_st *tls_context_bio(struct tls_context *context); /* made by tls_bio_method_new */
bool tls_context_is_server(const struct tls_context *context);
/* The name of the file, for remedies. */
const char *tls_context_ca(const struct tls_context *context);

/* In tls.c. Makes the BIO that reads and writes through a stream_tls. Returns NULL if memory is
 * short. */
struct bio_method_st *tls_bio_method_new(void);

/* --- tls_failure.c ------------------------------------------------------------------------ */

/* Return what helps against an alert of the peer, or against another failure of the handshake, by
 * OpenSSL's reason (SSL_R_*), or NULL. */
const char *tls_remedy_of_alert(int reason);
const char *tls_remedy_of_handshake(int reason);
/* Sets the text for a peer's certificate that was refused with `result` (X509_V_ERR_*), and returns
 * AUTH. `ca` names the file of the authorities that are believed. */
int tls_refuse_certificate(long result, const char *ca, struct diag *diag);

#endif
