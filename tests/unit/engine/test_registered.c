/* SPDX-License-Identifier: Apache-2.0
 *
 * What is wrong with a list of tensors is said by name; a right one is copied, sorted and
 * normalised.
 */
#include "share/registered.h"

#include "support/made_set.h"
#include "support/unit_test.h"

static uint8_t memory[4096];

static struct registered_box good_box(void) { return made_matrix(4, 6, memory); }

static struct registered_tensor good_tensor(struct registered_box *box)
{
    return made_tensor("w", CAIRN_F32, PLACEMENT_SHARDED, box);
}

static struct registered_blob blob_of(const char *bytes)
{
    return (struct registered_blob){.name = "b",
                                    .coordinate = "",
                                    .kind = BLOB_BYTES,
                                    .placement = PLACEMENT_REPLICATED,
                                    .bytes = strlen(bytes),
                                    .data = (const uint8_t *)bytes};
}

/* The list of rank 1 of 4: so many tensors, and one blob unless it is NULL. */
static int make(size_t count, const struct registered_tensor *tensors,
                const struct registered_blob *blob, struct registered **ret, struct diag *diag)
{
    const struct registered_list list = {.rank = 1,
                                         .world_size = 4,
                                         .tensor_count = count,
                                         .tensors = tensors,
                                         .blob_count = blob != NULL,
                                         .blobs = blob};
    return registered_new(&list, ret, diag);
}

static void expect_invalid(const struct registered_tensor *tensor, const char *word)
{
    struct registered *set = NULL;
    struct diag diag = DIAG_INIT;
    assert_int_equal(make(1, tensor, NULL, &set, &diag), CAIRN_E_INVALID);
    assert_null(set);
    if (!strstr(diag.text, word)) {
        fail_msg("'%s' lacks '%s'", diag.text, word);
    }
}

TEST(broken_tensors_are_refused_by_name)
{
    struct registered_box box = good_box();
    struct registered_tensor tensor = good_tensor(&box), bad = tensor;
    uint32_t unsorted[] = {2, 1}, without[] = {0, 2}, beyond[] = {1, 4};
    bad.name = "";
    expect_invalid(&bad, "name");
    bad = tensor, bad.name = "\xff";
    expect_invalid(&bad, "UTF-8");
    bad = tensor, bad.dtype = 99;
    expect_invalid(&bad, "dtype 99");
    bad = tensor, bad.placement = 7;
    expect_invalid(&bad, "placement 7");
    bad = tensor, bad.placement = PLACEMENT_LOCAL;
    expect_invalid(&bad, "coordinate");
    bad = tensor, bad.coordinate = "dp=1";
    expect_invalid(&bad, "not local");
    bad = tensor, bad.shape.length[0] = -1;
    expect_invalid(&bad, "'w'");
    bad = tensor, bad.shape.length[0] = 3;
    expect_invalid(&bad, "'w'");
    bad = tensor, bad.group = unsorted, bad.group_count = 2;
    expect_invalid(&bad, "ascending");
    bad = tensor, bad.group = without, bad.group_count = 2;
    expect_invalid(&bad, "lacks this rank");
    bad = tensor, bad.group = beyond, bad.group_count = 2;
    expect_invalid(&bad, "below 4");
    box.data = NULL;
    expect_invalid(&tensor, "NULL");
}

TEST(memory_that_overlaps_itself_is_refused)
{
    struct registered_box box = good_box();
    struct registered_tensor tensor = good_tensor(&box);
    box.contiguous = false;
    box.stride[0] = 5, box.stride[1] = 1; /* rows of 6 every 5 */
    expect_invalid(&tensor, "share memory");
    box.stride[0] = 0, box.stride[1] = 1;
    expect_invalid(&tensor, "share memory");
    box.stride[0] = INT64_MAX, box.stride[1] = 1;
    expect_invalid(&tensor, "too large");
}

TEST(strides_without_holes_are_contiguous)
{
    struct registered_box box = good_box();
    struct registered_tensor tensor = good_tensor(&box);
    struct registered *set;
    box.contiguous = false;
    box.stride[0] = 6, box.stride[1] = 1;
    assert_int_equal(make(1, &tensor, NULL, &set, NULL), 0);
    assert_true(set->tensors[0].boxes[0].contiguous);
    registered_unref(set);
    box.stride[0] = 1, box.stride[1] = 4;
    assert_int_equal(make(1, &tensor, NULL, &set, NULL), 0);
    assert_false(set->tensors[0].boxes[0].contiguous);
    registered_unref(set);
}

TEST(lists_are_sorted_and_copied)
{
    struct registered_box box = good_box();
    struct registered_tensor tensors[3] = {good_tensor(&box), good_tensor(&box), good_tensor(&box)};
    char name[] = "a", bytes[] = "bytes";
    uint32_t group[] = {0, 1, 3};
    struct registered_blob blob = blob_of(bytes);
    struct registered *set;
    struct diag diag = DIAG_INIT;
    tensors[0].name = "c";
    tensors[2].name = name;
    tensors[1].group = tensors[2].group = group;
    tensors[1].group_count = tensors[2].group_count = 3;
    assert_int_equal(make(3, tensors, &blob, &set, NULL), 0);
    name[0] = 'z', bytes[0] = 'x';
    assert_string_equal(set->tensors[0].name, "a");
    assert_string_equal(set->tensors[1].name, "c");
    assert_string_equal(set->tensors[2].name, "w");
    assert_memory_equal(set->blobs[0].data, "bytes", 5);
    assert_int_equal(set->tensors[0].group_member, 1);
    assert_ptr_equal(set->tensors[0].group, set->tensors[2].group); /* interned */
    assert_int_equal(set->tensors[1].group_count, 1);
    registered_unref(registered_ref(set));
    registered_unref(set);
    registered_unref(NULL);
    tensors[0].name = "w";
    assert_int_equal(make(2, tensors, NULL, &set, &diag), CAIRN_E_INVALID);
    assert_non_null(strstr(diag.text, "registered twice"));
}

/* Goal: a set with other blobs has the tensors of the one before, also when that one is gone, and
 * does not keep every set that ever was. */
TEST(other_blobs_keep_the_tensors)
{
    struct registered_box box = good_box();
    struct registered_tensor tensor = good_tensor(&box);
    struct registered_blob blob = blob_of("bytes");
    struct registered *first = NULL, *set = NULL;
    assert_int_equal(make(1, &tensor, &blob, &first, NULL), 0);
    set = registered_ref(first);
    for (unsigned i = 0; i < 3; i++) {
        const struct registered_list list = {
            .rank = 1, .world_size = 4, .same = set, .blob_count = 1, .blobs = &blob};
        struct registered *next = NULL;
        blob.name = i == 1 ? "c" : "d";
        assert_int_equal(registered_new(&list, &next, NULL), 0);
        registered_unref(set);
        set = next;
        assert_ptr_equal(set->same, first);
    }
    assert_int_equal(set->tensor_count, 1);
    assert_ptr_equal(set->tensors, first->tensors);
    assert_memory_equal(&set->list_hash, &first->list_hash, sizeof set->list_hash);
    assert_string_equal(set->blobs[0].name, "d");
    registered_unref(first);
    assert_string_equal(set->tensors[0].name, "w");
    registered_unref(set);
}
