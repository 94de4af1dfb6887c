/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks whose URL names several servers: when they leave the one that they are at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine_world.h"

/* Another server of the URL, of which only matters that ranks come to it. */
struct other {
    struct sim_host *host;
    struct listener *listener;
    unsigned came;
};

static void on_accept(void *user, struct sock *sock)
{
    ((struct other *)user)->came++;
    sock_close(sock);
}

static void other_start(struct other *other, struct world *world)
{
    struct net_addr addr = {.family = NET_TCP, .host = "other", .port = WORLD_PORT};
    *other = (struct other){.host = sim_host_new(world->sim, "other", NULL)};
    struct net *net = sim_net(other->host);
    assert_int_equal(
        net->ops->listen(net, &addr, 0, on_accept, other, &other->listener, NULL, NULL), 0);
}

static bool somebody_came(void *user) { return ((struct other *)user)->came > 0; }

/* Goal: a save that a stopping server refuses goes to another one at once, not when the server has
 * gone at last. Method: rank 0's unfinished save keeps the server in its grace, with all
 * connections open; rank 1's next save is refused. */
static void a_save_leaves_a_server_that_stops(void **state)
{
    struct world world;
    struct other other;
    (void)state;
    world_init_with(&world, 41, 2,
                    &(struct world_options){.url = "cairn://server,other/demo/run1"});
    other_start(&other, &world);
    world_ranks_start(&world); /* rank 1 begins with the other one, which sends it away */
    other.came = 0;
    world_save(&world.ranks[0], 1, 300000);
    sim_run_for(world.sim, 1000);
    world_server_stop(&world, 200000);
    world_save(&world.ranks[1], 2, 300000);
    assert_true(sim_run_until(world.sim, somebody_came, &other, 10000));
    assert_int_equal(world.down, 0); /* the grace lasts on: the server did not cut anything */
    assert_false(world.ranks[0].save_done);
    engine_save_abort(&world.ranks[0].save);
    engine_save_abort(&world.ranks[1].save);
    world_await_saves(&world, 60000);
    world_ranks_stop(&world);
    listener_close(other.listener);
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_save_leaves_a_server_that_stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
