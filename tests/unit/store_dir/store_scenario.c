/* SPDX-License-Identifier: Apache-2.0
 *
 * The scenario of the crash and fault tests: objects, small things, record updates across
 * snapshots, a deletion.
 */
#include "store_scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum fate fate_of(struct scenario *scenario, int status)
{
    if (status != 0) {
        scenario->worst = status;
    }
    /* Any failure may leave the thing there, whole: the process may have died after the rename. */
    return status == 0 ? FATE_DONE : FATE_MAYBE;
}

/* What the record holds now, where it can be read: an update whose outcome was unknown is in it or
 * will never be. */
static unsigned look(struct bed *bed, const struct scenario *scenario)
{
    char next[16];
    struct record *record;
    struct record_value value;
    if (bed_record(bed, &record) != 0) {
        return scenario->version;
    }
    snprintf(next, sizeof(next), "%u", scenario->version + 1);
    bool is_next = record_get(record, "v", &value) && value.bytes == strlen(next) &&
                   memcmp(value.data, next, value.bytes) == 0;
    record_free(record);
    return scenario->version + is_next;
}

static void update(struct bed *bed, struct scenario *scenario)
{
    char value[16], was[16];
    uint64_t version = 0;
    unsigned from = scenario->is_version_open ? look(bed, scenario) : scenario->version;
    snprintf(value, sizeof(value), "%u", from + 1);
    snprintf(was, sizeof(was), "%u", from);
    struct bed_change change = {"v", value, true, from > 0 ? was : NULL};
    int rc = bed_update(bed, &change, &version);
    if (rc == 0) {
        assert_true(version > from); /* settling an unknown outcome takes numbers of its own */
        scenario->version = from + 1;
        scenario->is_version_open = false;
    } else {
        scenario->worst = rc;
        if (rc == CAIRN_E_OUTCOME_UNKNOWN || sim_is_dead(bed->host)) {
            scenario->version = from;
            scenario->is_version_open = true;
        }
        /* An unknown outcome that the store itself shows: the guard says so. */
        assert_int_not_equal(rc, CAIRN_E_DAMAGED);
    }
}

/* Two objects, and two small things, of which the second takes the name of the first. */
static int put_pair(struct bed *bed)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < 2; i++) {
        rc = bed_put_object(bed, bed_object(9, 0, 1 + i), SCENARIO_BYTES, 50 + i);
        rc = rc ? rc : bed_publish(bed, bed_name(9, STORE_PART, 0, 1 + i), 5000, 50 + i);
    }
    return rc;
}

static void exchange(struct bed *bed, struct scenario *scenario)
{
    int rc = put_pair(bed);
    scenario->worst = rc ? rc : scenario->worst;
    scenario->is_paired = rc == 0;
    if (rc != 0) {
        return;
    }
    struct store_req req = {.op = STORE_EXCHANGE,
                            .run = bed_run(),
                            .object = bed_object(9, 0, 1),
                            .with_object = bed_object(9, 0, 2)};
    scenario->exchanged = fate_of(scenario, bed_do(bed, &req));
    req = (struct store_req){
        .op = STORE_EXCHANGE, .name = bed_name(9, STORE_PART, 0, 1), .with_tag = 2};
    scenario->exchanged_small = fate_of(scenario, bed_do(bed, &req));
}

void scenario_run(struct bed *bed, struct scenario *scenario)
{
    struct diag diag = DIAG_INIT;
    bed->snapshot_every = 2;
    int rc = bed_open(bed, true, false, &diag);
    if (rc != 0) {
        scenario->worst = rc;
        assert_true(diag.text[0] != 0);
        return;
    }
    scenario->is_opened = true;
    update(bed, scenario);
    sim_run_for(bed->sim, 300); /* copies are written beside what follows, and between */
    for (uint32_t i = 0; i < SCENARIO_OBJECTS; i++) {
        scenario->objects[i] =
            fate_of(scenario, bed_put_object(bed, bed_object(5 + i / 2, i, 1), SCENARIO_BYTES, i));
        update(bed, scenario);
    }
    sim_run_for(bed->sim, 3000);
    for (uint32_t i = 0; i < SCENARIO_SMALLS; i++) {
        struct store_name name = bed_name(5, STORE_PART, i, 1);
        scenario->smalls[i] = fate_of(scenario, bed_publish(bed, name, 5000, i));
    }
    if (scenario->objects[0] == FATE_DONE) {
        scenario->deleted = fate_of(scenario, bed_delete(bed, bed_object(5, 0, 1)));
    }
    exchange(bed, scenario);
    for (unsigned tries = 0; tries < 3 && scenario->version < SCENARIO_UPDATES;) {
        unsigned before = scenario->version;
        update(bed, scenario);
        tries += scenario->version == before;
    }
}

static int check_half(struct bed *bed, bool small, uint32_t number, unsigned seed)
{
    uint8_t *expected, *data;
    if (small) {
        return bed_check_small(bed, bed_name(9, STORE_PART, 0, number), 5000, seed);
    }
    expected = bed_bytes(SCENARIO_BYTES, seed);
    data = bed_bytes(SCENARIO_BYTES, seed + 2);
    int rc = bed_read(bed, bed_object(9, 0, number), 0, SCENARIO_BYTES, data);
    assert_int_equal(rc, 0);
    rc = memcmp(expected, data, SCENARIO_BYTES) == 0 ? 0 : CAIRN_E_DIGEST_MISMATCH;
    free(expected);
    free(data);
    return rc;
}

/* Which of the pair the first name has: 0 or 1; the second name has the other. */
static unsigned check_pair(struct bed *bed, bool small)
{
    for (unsigned swapped = 0; swapped < 2; swapped++) {
        int rc[2];
        for (unsigned i = 0; i < 2; i++) {
            rc[i] = check_half(bed, small, 1 + i, 50 + (i ^ swapped));
        }
        if (rc[0] == 0) {
            assert_int_equal(rc[1], 0);
            return swapped;
        }
    }
    fail_msg("the name has neither the one nor the other");
    return 0;
}

static void check_exchange(struct bed *bed, const struct scenario *scenario)
{
    if (!scenario->is_paired) {
        return;
    }
    unsigned object = check_pair(bed, false), small = check_pair(bed, true);
    assert_true(object == 1 || scenario->exchanged != FATE_DONE);
    assert_true(small == 1 || scenario->exchanged_small != FATE_DONE);
}

static void check_fate(enum fate fate, int found)
{
    switch (fate) {
    case FATE_NOT_TRIED:
    case FATE_REFUSED:
        assert_int_equal(found, CAIRN_E_NOT_FOUND);
        return;
    case FATE_DONE:
        assert_int_equal(found, 0);
        return;
    case FATE_MAYBE: /* whole (its content was compared) or not at all */
        assert_true(found == 0 || found == CAIRN_E_NOT_FOUND);
        return;
    }
}

void scenario_check(struct bed *bed, const struct scenario *scenario)
{
    char value[16];
    for (uint32_t i = 0; i < SCENARIO_OBJECTS; i++) {
        enum fate fate = scenario->objects[i];
        if (i == 0 && scenario->deleted != FATE_NOT_TRIED) {
            fate = FATE_MAYBE; /* a crash may bring back what was deleted: gc comes by again */
        }
        check_fate(fate, bed_check_object(bed, bed_object(5 + i / 2, i, 1), SCENARIO_BYTES, i));
    }
    for (uint32_t i = 0; i < SCENARIO_SMALLS; i++) {
        check_fate(scenario->smalls[i],
                   bed_check_small(bed, bed_name(5, STORE_PART, i, 1), 5000, i));
    }
    check_exchange(bed, scenario);
    snprintf(value, sizeof(value), "%u", scenario->version);
    bool is_as_told = bed_has(bed, "v", scenario->version > 0 ? value : NULL);
    snprintf(value, sizeof(value), "%u", scenario->version + 1);
    assert_true(is_as_told || (scenario->is_version_open && bed_has(bed, "v", value)));
}
