/* SPDX-License-Identifier: Apache-2.0
 *
 * Only parts that together hold every element once pass; each error names the thing and the ranks.
 * Method: the two fixture parts with one thing spoiled at a time; random splits of a tensor over
 * ranks.
 */
#include "base/check.h"
#include "fixtures.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

static int check(struct part parts[FIXTURE_WORLD], struct diag *diag)
{
    struct scratch scratch;
    scratch_init(&scratch, MIB(1));
    int rc = parts_check_coverage(FIXTURE_WORLD, parts, &scratch, diag);
    scratch_fini(&scratch);
    return rc;
}

static void get_parts(struct part parts[FIXTURE_WORLD])
{
    parts[0] = *fixture_part(0);
    parts[1] = *fixture_part(1);
}

TEST(test_complete_parts_pass)
{
    struct part parts[FIXTURE_WORLD];
    struct diag diag = DIAG_INIT;
    get_parts(parts);
    assert_int_equal(check(parts, &diag), 0);
    assert_string_equal(diag.text, "");
}

struct spoil {
    int code;
    void (*spoil)(struct part *parts);
    const char *text[3]; /* all must stand in the message */
};

static void spoil_gap(struct part *parts)
{
    parts[1].boxes[3].box.length[0] = 35;
    parts[1].chunks[2].plain_bytes = 70;
}
static void spoil_overlap(struct part *parts) { parts[1].boxes[3].box.offset[0] = 63; }
static void spoil_missing_cell(struct part *parts) { parts[1].boxes[2].chunk_count = 0; }
static void spoil_missing_first(struct part *parts)
{
    parts[0].chunks[1].cell = 2;
    parts[0].boxes[2].chunk_count = 1;
}
static void spoil_double_cell(struct part *parts) { parts[1].chunks[1].cell = 1; }
static void spoil_dtype(struct part *parts) { parts[1].tensors[2].dtype = CAIRN_BF16; }
static void spoil_shape(struct part *parts) { parts[1].tensors[2].shape.length[0] = 3001; }
static void spoil_placement(struct part *parts)
{
    parts[1].tensors[2].placement = PLACEMENT_SHARDED;
}
static void spoil_local_twice(struct part *parts) { parts[1].tensors[1].coordinate = "dp=0"; }
static void spoil_local_blob_twice(struct part *parts) { parts[1].blobs[1].coordinate = "dp=0"; }
static void spoil_local_part(struct part *parts) { parts[1].tensors[1].shape.length[0] = 6; }
static void spoil_blob_missing(struct part *parts) { parts[1].blobs[0].chunk_count = 1; }
static void spoil_blob_double(struct part *parts)
{
    parts[0].blobs[0].chunk_first = 0;
    parts[0].blobs[0].chunk_count = 1;
}
static void spoil_blob_bytes(struct part *parts) { parts[0].blobs[0].plain_bytes = 5001; }
static void spoil_absent(struct part *parts) { parts[1].tensor_count = 3; }
static void spoil_rank(struct part *parts) { parts[1].rank = 0; }
static void spoil_world(struct part *parts) { parts[1].world_size = 3; }
static void spoil_step(struct part *parts) { parts[1].id.step++; }

TEST(test_each_fault_is_named)
{
    static const struct spoil spoils[] = {
        {CAIRN_E_COVERAGE, spoil_gap, {"tensor \"z\"", "[99:100]", "ranks from 0 to 1"}},
        {CAIRN_E_COVERAGE,
         spoil_overlap,
         {"tensor \"z\"", "[0:64] of rank 0", "[63:99] of rank 1"}},
        {CAIRN_E_COVERAGE, spoil_missing_cell, {"tensor \"w.\xc3\xa9\"", "cell 2 of 3", "rank 0"}},
        {CAIRN_E_COVERAGE,
         spoil_missing_first,
         {"tensor \"w.\xc3\xa9\"", "cell 0 of 3", "no rank"}},
        {CAIRN_E_COVERAGE,
         spoil_double_cell,
         {"tensor \"w.\xc3\xa9\"", "cell 1 of 3", "from rank 0 and from rank 1"}},
        {CAIRN_E_DTYPE_MISMATCH,
         spoil_dtype,
         {"tensor \"w.\xc3\xa9\"", "float32 on rank 0", "bfloat16 on rank 1"}},
        {CAIRN_E_SHAPE_MISMATCH,
         spoil_shape,
         {"tensor \"w.\xc3\xa9\"", "[3000] on rank 0", "[3001] on rank 1"}},
        {CAIRN_E_COVERAGE,
         spoil_placement,
         {"tensor \"w.\xc3\xa9\"", "placement 1 on rank 0", "but 2 on rank 1"}},
        {CAIRN_E_COVERAGE,
         spoil_local_twice,
         {"tensor \"rng\" at dp=0", "ranks 0 and 1", "coordinate"}},
        {CAIRN_E_COVERAGE, spoil_local_blob_twice, {"blob \"state\" at dp=0", "ranks 0 and 1", ""}},
        {CAIRN_E_COVERAGE, spoil_local_part, {"tensor \"rng\" at dp=1", "[5:6]", "from 1 to 1"}},
        {CAIRN_E_COVERAGE, spoil_blob_missing, {"blob \"extra\"", "cell 1 of 2", "no rank"}},
        {CAIRN_E_COVERAGE,
         spoil_blob_double,
         {"blob \"extra\"", "cell 0 of 2", "from rank 0 and from rank 1"}},
        {CAIRN_E_COVERAGE,
         spoil_blob_bytes,
         {"blob \"extra\"", "5001 bytes on rank 0", "5000 bytes on rank 1"}},
        {CAIRN_E_COVERAGE, spoil_absent, {"tensor \"z\"", "[64:65]", "from 0 to 0"}},
        {CAIRN_E_COVERAGE, spoil_rank, {"part 1 of 2", "rank 0", ""}},
        {CAIRN_E_COVERAGE, spoil_world, {"part 1 of 2", "3 ranks", ""}},
        {CAIRN_E_COVERAGE, spoil_step, {"rank 0 and rank 1", "different", ""}}};
    for (size_t i = 0; i < ARRAY_LEN(spoils); i++) {
        struct part parts[FIXTURE_WORLD];
        struct diag diag = DIAG_INIT;
        get_parts(parts);
        spoils[i].spoil(parts);
        int rc = check(parts, &diag);
        bool named = rc == spoils[i].code && diag.code == rc;
        for (size_t t = 0; t < 3; t++) {
            named = named && strstr(diag.text, spoils[i].text[t]) != NULL;
        }
        if (!named) {
            fail_msg("fault %zu: %d, not %d: %s", i, rc, spoils[i].code, diag.text);
        }
    }
}

TEST(test_failed_allocations_are_errors)
{
    struct part parts[FIXTURE_WORLD];
    int rc = CAIRN_E_NO_MEMORY;
    get_parts(parts);
    for (unsigned n = 1; rc != 0; n++) {
        alloc_fault_at(n);
        rc = check(parts, NULL);
        assert_int_equal(rc, alloc_fault_hit() ? CAIRN_E_NO_MEMORY : 0);
    }
}

enum { RANKS = 7, CELLS = 40 };

/* One replicated tensor of CELLS cells whose writing is dealt out at random; sometimes one is dealt
 * wrongly. */
TEST(test_random_deals_of_cells)
{
    struct prng prng = prng_init("coverage", 1234);
    for (unsigned round = 0; round < 500; round++) {
        static struct part_chunk chunks[RANKS][CELLS];
        static struct part_box boxes[RANKS];
        static struct part_tensor tensors[RANKS];
        struct part parts[RANKS];
        bool good = prng_below(&prng, 2) == 0;
        uint32_t victim = (uint32_t)prng_below(&prng, CELLS);
        bool twice = prng_below(&prng, 2) == 0;
        memset(parts, 0, sizeof parts);
        for (uint32_t r = 0; r < RANKS; r++) {
            tensors[r] = (struct part_tensor){
                "t", "", CAIRN_U8, PLACEMENT_REPLICATED, {1, {CELLS * 4096}}, 0, 1};
            boxes[r] = (struct part_box){0, {1, {0}, {CELLS * 4096}}, 0, 0};
            parts[r] = (struct part){.id = {1, 1},
                                     .rank = r,
                                     .world_size = RANKS,
                                     .chunk_bytes = 4096,
                                     .tensor_count = 1,
                                     .box_count = 1,
                                     .tensors = &tensors[r],
                                     .boxes = &boxes[r],
                                     .chunks = chunks[r]};
        }
        for (uint32_t c = 0; c < CELLS; c++) {
            uint32_t owner = (uint32_t)prng_below(&prng, RANKS);
            bool wrong = !good && c == victim;
            for (uint32_t r = 0; r < RANKS; r++) {
                if ((r == owner && !(wrong && !twice)) ||
                    (wrong && twice && r == (owner + 1) % RANKS)) {
                    chunks[r][boxes[r].chunk_count++] =
                        (struct part_chunk){.cell = c, .plain_bytes = 4096};
                    parts[r].chunk_count++;
                }
            }
        }
        struct scratch scratch;
        struct diag diag = DIAG_INIT;
        scratch_init(&scratch, MIB(1));
        int rc = parts_check_coverage(RANKS, parts, &scratch, &diag);
        if (rc != (good ? 0 : CAIRN_E_COVERAGE)) {
            fail_msg("round %u: %d %s", round, rc, diag.text);
        }
        scratch_fini(&scratch);
    }
}
