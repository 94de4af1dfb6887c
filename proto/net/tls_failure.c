/* SPDX-License-Identifier: Apache-2.0
 *
 * What a person can do about a TLS handshake that failed, by OpenSSL's reason or by the alert that
 * the peer sent. Pure.
 */
#include "tls_private.h"

#include "base/check.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct remedy {
    int code; /* SSL_R_* or X509_V_ERR_* */
    const char *text;
};

static const struct remedy ALERT_REMEDIES[] = {
    {SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED,
     "the server requires a client certificate: set one and its key (cert and key files)"},
    {SSL_R_TLSV1_ALERT_UNKNOWN_CA, "the peer does not know the CA of our certificate: use a "
                                   "certificate of a CA that the peer trusts"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, "our certificate has expired: renew it"},
    {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,
     "the peer refused our certificate: compare its CA, dates and host names"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, "the peer refused our certificate"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED, "our certificate was revoked: renew it"},
    {SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE,
     "our certificate may not be used for this: its extended key usage must allow it"},
    {SSL_R_TLSV1_ALERT_DECRYPT_ERROR,
     "the peer refused our signature: the key does not belong to the certificate"},
    {SSL_R_TLSV1_ALERT_ACCESS_DENIED, "the peer denied access"},
};

static const struct remedy HANDSHAKE_REMEDIES[] = {
    {SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE,
     "the client showed no certificate, and this server requires one: set its cert and key files"},
    {SSL_R_WRONG_VERSION_NUMBER,
     "the peer does not speak TLS here: check whether TLS is on at only one end"},
    {SSL_R_HTTP_REQUEST, "the peer speaks HTTP here: check the address"},
    {SSL_R_PACKET_LENGTH_TOO_LONG,
     "the peer does not speak TLS here: check whether TLS is on at only one end"},
    {SSL_R_UNSUPPORTED_PROTOCOL, "the peer does not support TLS 1.3: upgrade the peer"},
    {SSL_R_TLSV1_ALERT_PROTOCOL_VERSION, "the peer does not support TLS 1.3: upgrade the peer"},
};

static const struct remedy VERIFY_REMEDIES[] = {
    {X509_V_ERR_CERT_HAS_EXPIRED, "renew it, and compare the clocks of both machines"},
    {X509_V_ERR_CERT_NOT_YET_VALID, "compare the clocks of both machines"},
    {X509_V_ERR_HOSTNAME_MISMATCH, "connect by a name that the certificate has, or issue it with "
                                   "this name (subject alternative name)"},
    {X509_V_ERR_IP_ADDRESS_MISMATCH, "connect by a name that the certificate has, or issue it with "
                                     "this address (subject alternative name)"},
    {X509_V_ERR_INVALID_PURPOSE, "its extended key usage must allow this use"},
};

static const char *remedy_of(size_t count, const struct remedy *remedies, long code)
{
    for (size_t i = 0; i < count; i++) {
        if (remedies[i].code == code) {
            return remedies[i].text;
        }
    }
    return NULL;
}

const char *tls_remedy_of_alert(int reason)
{
    return remedy_of(ARRAY_LEN(ALERT_REMEDIES), ALERT_REMEDIES, reason);
}

const char *tls_remedy_of_handshake(int reason)
{
    return remedy_of(ARRAY_LEN(HANDSHAKE_REMEDIES), HANDSHAKE_REMEDIES, reason);
}

int tls_refuse_certificate(long result, const char *ca, struct diag *diag)
{
    const char *remedy = remedy_of(ARRAY_LEN(VERIFY_REMEDIES), VERIFY_REMEDIES, result);
    const char *why = X509_verify_cert_error_string(result);
    if (remedy != NULL) {
        return diag_set(diag, CAIRN_E_AUTH, "the peer's certificate is refused: %s: %s", why,
                        remedy);
    }
    return diag_set(diag, CAIRN_E_AUTH,
                    "the peer's certificate is refused: %s: it must be issued by a CA of %s", why,
                    ca);
}
