/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses parse as documented, what is printed parses to the same, everything else is refused.
 * Method: tables.
 */
#include "env/net.h"

#include "support/unit_test.h"

TEST(test_good_addresses)
{
    static const struct {
        const char *text, *host, *printed;
        uint16_t port;
        enum net_family family;
        bool is_local;
    } rows[] = {
        {"tcp:node-1:7000", "node-1", "tcp:node-1:7000", 7000, NET_TCP, false},
        {"node-1", "node-1", "tcp:node-1:4242", 4242, NET_TCP, false},
        {"10.0.0.1:0", "10.0.0.1", "tcp:10.0.0.1:0", 0, NET_TCP, false},
        {"127.9.9.9:1", "127.9.9.9", "tcp:127.9.9.9:1", 1, NET_TCP, true},
        {"localhost:65535", "localhost", "tcp:localhost:65535", 65535, NET_TCP, true},
        {"[::1]:80", "::1", "tcp:[::1]:80", 80, NET_TCP, true},
        {"[fe80::2]", "fe80::2", "tcp:[fe80::2]:4242", 4242, NET_TCP, false},
        {"[::ffff:127.0.0.1]:5", "::ffff:127.0.0.1", "tcp:[::ffff:127.0.0.1]:5", 5, NET_TCP, true},
        {":9", "", "tcp::9", 9, NET_TCP, false},
        {"127.evil.example:9", "127.evil.example", "tcp:127.evil.example:9", 9, NET_TCP, false},
        {"unix:/run/a.sock", "/run/a.sock", "unix:/run/a.sock", 0, NET_UNIX, true},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct net_addr addr = {0}, again = {0};
        char text[300];

        assert_int_equal(net_addr_parse(rows[i].text, 4242, &addr, NULL), 0);
        assert_int_equal(addr.family, rows[i].family);
        assert_string_equal(addr.host, rows[i].host);
        assert_int_equal(addr.port, rows[i].port);
        assert_int_equal(net_addr_is_local(&addr), rows[i].is_local);
        net_addr_format(&addr, sizeof text, text);
        assert_string_equal(text, rows[i].printed);
        assert_int_equal(net_addr_parse(text, 1, &again, NULL), 0);
        assert_memory_equal(&again, &addr, sizeof addr);
    }
}

TEST(test_bad_addresses)
{
    static const char *const rows[] = {
        "node:65536", "node:",           "node:x",        "node:-1",     "node:123456",
        "::1:80",     "[::1:80",         "[::1]80",       "a b:1",       "/run/a.sock",
        "unix:",      "unix:run/a.sock", "http://node:1", "user@node:1",
    };
    char longest[400];

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct net_addr addr = {.port = 7};
        struct diag diag = DIAG_INIT;

        assert_int_equal(net_addr_parse(rows[i], 1, &addr, &diag), CAIRN_E_INVALID);
        assert_non_null(strstr(diag.text, "address"));
        assert_int_equal(addr.port, 7); /* untouched */
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(net_addr_parse(longest, 1, &(struct net_addr){0}, NULL), CAIRN_E_INVALID);
    memcpy(longest, "unix:/", 6);
    longest[5 + 108] = 0;
    assert_int_equal(net_addr_parse(longest, 1, &(struct net_addr){0}, NULL), CAIRN_E_INVALID);
    longest[5 + 107] = 0;
    assert_int_equal(net_addr_parse(longest, 1, &(struct net_addr){0}, NULL), 0);
}
