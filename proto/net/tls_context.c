/* SPDX-License-Identifier: Apache-2.0
 *
 * A TLS context: certificate, key and CA of one side. Invariants: TLS 1.3 only, no tickets, no
 * early data, no renegotiation; a private key that others could read is refused. Made on one
 * thread; streams of several loops may use it.
 */
#include "tls_private.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct tls_context {
    atomic_uint refs;
    SSL_CTX *ssl;
    BIO_METHOD *bio;
    bool server;
    char *ca_file;
};

static const char TLS_CIPHERS[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

static int load_identity(SSL_CTX *ssl, const struct tls_options *options, struct diag *diag);
static int load_key(SSL_CTX *ssl, const char *key_file, struct diag *diag);
static int load_ca(SSL_CTX *ssl, const struct tls_options *options, struct diag *diag);

/* Returns the oldest error of OpenSSL's queue in words, and empties the queue. */
static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_get_error());
    ERR_clear_error();
    return text != NULL ? text : "OpenSSL gives no reason";
}

/* Checks that the files fit each other and the side. */
static int check_options(const struct tls_options *options, struct diag *diag)
{
    if ((options->cert_file == NULL) != (options->key_file == NULL)) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "TLS needs both a certificate and its key, but only the %s is set",
                        options->cert_file != NULL ? "certificate" : "key");
    }
    if (options->server && options->cert_file == NULL) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "TLS on a server needs a certificate and a key (tools/make-test-pki makes "
                        "some for a trial)");
    }
    if (options->server && options->require_peer && options->ca_file == NULL) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "client certificates are required, but no CA file is set that says which "
                        "ones to trust");
    }
    return 0;
}

/* Sets TLS 1.3 only, without tickets, early data and renegotiation. */
static int set_policy(SSL_CTX *ssl, const struct tls_options *options, struct diag *diag)
{
    if (SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ssl, TLS_CIPHERS) != 1 || SSL_CTX_set_num_tickets(ssl, 0) != 1 ||
        SSL_CTX_set_max_early_data(ssl, 0) != 1 || SSL_CTX_set_recv_max_early_data(ssl, 0) != 1) {
        return diag_set(diag, CAIRN_E_CONFIG, "this OpenSSL cannot be limited to TLS 1.3: %s",
                        reason());
    }
    SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    int verify = SSL_VERIFY_NONE;
    if (!options->server || options->ca_file != NULL) {
        verify = SSL_VERIFY_PEER;
    }
    if (options->server && options->require_peer) {
        verify |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    }
    SSL_CTX_set_verify(ssl, verify, NULL);
    return 0;
}

int tls_context_new(const struct tls_options *options, struct tls_context **ret, struct diag *diag)
{
    int status = check_options(options, diag);
    if (status != 0) {
        return status;
    }
    ERR_clear_error();
    struct tls_context *context = calloc(1, sizeof(*context));
    if (context == NULL) {
        return diag_no_memory(diag, "a TLS context");
    }
    atomic_init(&context->refs, 1);
    context->server = options->server;
    context->ssl = SSL_CTX_new(options->server ? TLS_server_method() : TLS_client_method());
    context->bio = tls_bio_method_new();
    context->ca_file =
        strdup(options->ca_file != NULL ? options->ca_file : "the system's CA store");
    if (context->ssl == NULL || context->bio == NULL || context->ca_file == NULL) {
        status = diag_no_memory(diag, "a TLS context: %s", reason());
        goto out;
    }
    status = set_policy(context->ssl, options, diag);
    if (status == 0) {
        status = load_identity(context->ssl, options, diag);
    }
    if (status == 0) {
        status = load_ca(context->ssl, options, diag);
    }
out:
    if (status != 0) {
        tls_context_free(context);
        return status;
    }
    *ret = context;
    return 0;
}

void tls_context_free(struct tls_context *context)
{
    if (context == NULL || atomic_fetch_sub(&context->refs, 1) != 1) {
        return;
    }
    SSL_CTX_free(context->ssl);
    BIO_meth_free(context->bio);
    free(context->ca_file);
    free(context);
}

struct tls_context *tls_context_ref(struct tls_context *context)
{
    atomic_fetch_add(&context->refs, 1);
    return context;
}

struct ssl_ctx_st *tls_context_ssl(struct tls_context *context) { return context->ssl; }
struct bio_method_st *tls_context_bio(struct tls_context *context) { return context->bio; }
bool tls_context_is_server(const struct tls_context *context) { return context->server; }
const char *tls_context_ca(const struct tls_context *context) { return context->ca_file; }

/* Loads certificate and key, and checks that they belong together. */
static int load_identity(SSL_CTX *ssl, const struct tls_options *options, struct diag *diag)
{
    if (options->cert_file == NULL) {
        return 0;
    }
    if (access(options->cert_file, R_OK) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "cannot use the TLS certificate %s: %s",
                        options->cert_file, strerror(errno));
    }
    if (SSL_CTX_use_certificate_chain_file(ssl, options->cert_file) != 1) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "cannot read the TLS certificate %s: %s (it must be a PEM file with the "
                        "certificate first)",
                        options->cert_file, reason());
    }
    int status = load_key(ssl, options->key_file, diag);
    if (status == 0 && SSL_CTX_check_private_key(ssl) != 1) {
        status = diag_set(diag, CAIRN_E_CONFIG,
                          "the TLS key %s does not belong to the certificate %s: %s",
                          options->key_file, options->cert_file, reason());
    }
    return status;
}

/* Checks PostgreSQL's rule for key files: only the owner may read it, and the group too if root
 * owns it. */
static int check_key_mode(int fd, const char *key_file, struct diag *diag)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "cannot use the TLS key %s: %s", key_file,
                        strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return diag_set(diag, CAIRN_E_CONFIG, "the TLS key %s is not a regular file", key_file);
    }
    mode_t allowed = st.st_uid == 0 ? 0740 : 0700;
    if ((st.st_mode & 0777 & ~allowed) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "other users can read the TLS key %s (mode %04o): run `chmod 600` on it, "
                        "and make a new key if others had access to this machine",
                        key_file, (unsigned)(st.st_mode & 0777));
    }
    return 0;
}

/* Refuses to give a pass phrase: a daemon reads the key, so there is no person to ask. */
static int no_pass_phrase(char *buffer, int bytes, int writing, void *user)
{
    (void)buffer;
    (void)bytes;
    (void)writing;
    *(bool *)user = true;
    return -1;
}

/* Loads the private key, if only its owner can read it. */
static int load_key(SSL_CTX *ssl, const char *key_file, struct diag *diag)
{
    int fd = open(key_file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "cannot use the TLS key %s: %s", key_file,
                        strerror(errno));
    }
    int status = check_key_mode(fd, key_file, diag);
    FILE *file = status == 0 ? fdopen(fd, "r") : NULL;
    if (file == NULL) {
        close(fd);
        return status != 0 ? status : diag_no_memory(diag, "reading the TLS key %s", key_file);
    }
    bool is_encrypted = false;
    setvbuf(file, NULL, _IONBF, 0); /* leaves no copy of the key in stdio's buffer */
    EVP_PKEY *key = PEM_read_PrivateKey(file, NULL, no_pass_phrase, &is_encrypted);
    fclose(file);
    if (key == NULL && is_encrypted) {
        ERR_clear_error();
        status =
            diag_set(diag, CAIRN_E_CONFIG,
                     "the TLS key %s is encrypted: store it without a pass phrase, with mode 0600",
                     key_file);
    } else if (key == NULL) {
        status = diag_set(diag, CAIRN_E_CONFIG,
                          "cannot read the TLS key %s: %s (it must be a private key in PEM format)",
                          key_file, reason());
    } else if (SSL_CTX_use_PrivateKey(ssl, key) != 1) {
        status =
            diag_set(diag, CAIRN_E_CONFIG, "the TLS key %s does not belong to the certificate: %s",
                     key_file, reason());
    }
    EVP_PKEY_free(key);
    return status;
}

/* Loads the CA of the peer's certificates, or the system's CAs on a client. */
static int load_ca(SSL_CTX *ssl, const struct tls_options *options, struct diag *diag)
{
    if (options->ca_file == NULL) {
        if (!options->server && SSL_CTX_set_default_verify_paths(ssl) != 1) {
            return diag_set(diag, CAIRN_E_CONFIG, "the system's CA store cannot be used: %s",
                            reason());
        }
        return 0;
    }
    if (access(options->ca_file, R_OK) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "cannot use the TLS CA file %s: %s", options->ca_file,
                        strerror(errno));
    }
    if (SSL_CTX_load_verify_file(ssl, options->ca_file) != 1) {
        return diag_set(
            diag, CAIRN_E_CONFIG,
            "cannot read the TLS CA file %s: %s (it must hold certificates in PEM format)",
            options->ca_file, reason());
    }
    if (options->server) {
        STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(options->ca_file);
        if (names == NULL) {
            return diag_set(diag, CAIRN_E_CONFIG, "cannot use the TLS CA file %s: %s",
                            options->ca_file, reason());
        }
        SSL_CTX_set_client_CA_list(ssl, names);
    }
    return 0;
}

int tls_certificate_ends(const char *file, int64_t *ret_s, struct diag *diag)
{
    FILE *opened = fopen(file, "re");
    X509 *certificate = opened ? PEM_read_X509(opened, NULL, NULL, NULL) : NULL;
    struct tm tm;
    bool is_read = certificate && ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &tm) == 1;
    int status = is_read ? 0
                         : diag_set(diag, CAIRN_E_CONFIG, "cannot read the certificate %s: %s",
                                    file, opened ? reason() : strerror(errno));
    if (is_read) {
        *ret_s = timegm(&tm);
    }
    if (opened) {
        fclose(opened);
    }
    X509_free(certificate);
    return status;
}
