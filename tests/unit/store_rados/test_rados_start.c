/* SPDX-License-Identifier: Apache-2.0
 *
 * A store says which pool its data is in, and a daemon that was told another one is refused with
 * the remedy before it has changed anything; stores that are older than that entry open.
 */
#include "store/store_bed.h"

static void setup(struct bed *bed) { bed_init(bed, BED_RADOS, "", 1); }

static void expect_refused(struct bed *bed, const char *data_pool, bool read_only,
                           const char *remedy)
{
    struct diag diag = DIAG_INIT;
    bed->data_pool = data_pool;
    assert_int_equal(bed_open(bed, true, read_only, &diag), CAIRN_E_STORE_MISMATCH);
    assert_non_null(strstr(diag.text, remedy));
    assert_null(bed->store);
}

static uint64_t epoch_of(struct bed *bed, const char *data_pool)
{
    bed->data_pool = data_pool;
    bed_open_ok(bed);
    uint64_t epoch = bed->store->caps.epoch;
    bed_close(bed);
    return epoch;
}

#define BED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

BED_TEST(another_data_pool_is_refused)
{
    uint64_t epoch = epoch_of(bed, "cairn-ec");
    expect_refused(bed, "cairn-ed", false, "data-pool=cairn-ec ");
    expect_refused(bed, "cairn-e", false, "data-pool=cairn-ec ");
    expect_refused(bed, "cairn-ec2", true, "data-pool=cairn-ec "); /* for reading, too */
    expect_refused(bed, NULL, false, "data-pool=cairn-ec ");
    assert_int_equal(epoch_of(bed, "cairn-ec"), epoch + 1); /* nothing was changed meanwhile */
}

BED_TEST(the_pool_of_the_records_is_one_too)
{
    uint64_t epoch = epoch_of(bed, NULL);
    expect_refused(bed, "cairn-ec", false, "leave data-pool out");
    assert_int_equal(epoch_of(bed, NULL), epoch + 1);
}

/* As stores were made before the entry was: they open with whatever they are told. */
BED_TEST(an_older_store_opens)
{
    struct record_change change = {.key = "data-pool", .remove = true};
    struct record_update update = {.change_count = 1, .changes = &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .update = &update};
    bed->data_pool = "cairn-ec";
    bed_open_ok(bed);
    assert_int_equal(bed_do(bed, &req), 0);
    bed_close(bed);
    uint64_t epoch = epoch_of(bed, "cairn-ec");
    assert_int_equal(epoch_of(bed, "another"), epoch + 1);
    assert_int_equal(epoch_of(bed, NULL), epoch + 2);
}
