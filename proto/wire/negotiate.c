/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of version and features at the start of a connection. Invariant: both ends have
 * offered what is chosen. Pure; any thread.
 */
#include "wire/negotiate.h"

int wire_negotiate(const struct msg_hello *hello, uint32_t *ret_version, uint64_t *ret_features,
                   struct diag *diag)
{
    if (hello->version_min > WIRE_VERSION_MAX) {
        return diag_set(
            diag, CAIRN_E_VERSION,
            "the client speaks protocol versions %u to %u, this server %u to %u: upgrade the "
            "server",
            hello->version_min, hello->version_max, (unsigned)WIRE_VERSION_MIN,
            (unsigned)WIRE_VERSION_MAX);
    }
    if (hello->version_max < WIRE_VERSION_MIN) {
        return diag_set(
            diag, CAIRN_E_VERSION,
            "the client speaks protocol versions %u to %u, this server %u to %u: upgrade the "
            "client",
            hello->version_min, hello->version_max, (unsigned)WIRE_VERSION_MIN,
            (unsigned)WIRE_VERSION_MAX);
    }
    *ret_version = hello->version_max < WIRE_VERSION_MAX ? hello->version_max : WIRE_VERSION_MAX;
    *ret_features = hello->features & WIRE_FEATURES_KNOWN;
    return 0;
}

int wire_check_welcome(const struct msg_hello *sent, const struct msg_welcome *welcome,
                       struct diag *diag)
{
    if (welcome->version < sent->version_min || welcome->version > sent->version_max) {
        return diag_set(diag, CAIRN_E_VERSION,
                        "the server chose protocol version %u, this client speaks %u to %u",
                        welcome->version, sent->version_min, sent->version_max);
    }
    if ((welcome->features & ~sent->features) != 0) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the server chose features %#llx that this client did not offer (%#llx)",
                        (unsigned long long)welcome->features, (unsigned long long)sent->features);
    }
    return 0;
}
