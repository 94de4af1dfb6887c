/* SPDX-License-Identifier: Apache-2.0
 *
 * Both ends end up with a version that both offered, or with an error that says whom to upgrade.
 */
#include "wire/negotiate.h"

#include "support/unit_test.h"

TEST(test_the_newest_common_version_is_chosen)
{
    struct msg_hello hello = {.version_min = 1, .version_max = 9, .features = UINT64_MAX};
    uint32_t version = 0;
    uint64_t features = 1;
    assert_int_equal(wire_negotiate(&hello, &version, &features, NULL), 0);
    assert_int_equal(version, WIRE_VERSION_MAX);
    assert_int_equal(features, WIRE_FEATURES_KNOWN);
}

TEST(test_no_common_version_names_the_old_end)
{
    struct msg_hello hello = {.version_min = WIRE_VERSION_MAX + 1,
                              .version_max = WIRE_VERSION_MAX + 3};
    uint32_t version = 77;
    uint64_t features = 77;
    struct diag diag = DIAG_INIT;
    assert_int_equal(wire_negotiate(&hello, &version, &features, &diag), CAIRN_E_VERSION);
    assert_non_null(strstr(diag.text, "upgrade the server"));
    assert_int_equal(version, 77);
    hello = (struct msg_hello){.version_min = 0, .version_max = 0};
    diag_clear(&diag);
    assert_int_equal(wire_negotiate(&hello, &version, &features, &diag), CAIRN_E_VERSION);
    assert_non_null(strstr(diag.text, "upgrade the client"));
}

TEST(test_a_welcome_outside_the_offer_is_refused)
{
    struct msg_hello hello = {.version_min = 2, .version_max = 3, .features = 6};
    struct msg_welcome welcome = {.version = 3, .features = 4};
    assert_int_equal(wire_check_welcome(&hello, &welcome, NULL), 0);
    welcome.version = 4;
    assert_int_equal(wire_check_welcome(&hello, &welcome, NULL), CAIRN_E_VERSION);
    welcome = (struct msg_welcome){.version = 2, .features = 1};
    assert_int_equal(wire_check_welcome(&hello, &welcome, NULL), CAIRN_E_PROTOCOL);
}
