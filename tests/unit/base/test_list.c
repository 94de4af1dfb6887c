/* SPDX-License-Identifier: Apache-2.0
 *
 * The intrusive list keeps its order and survives removal while it is walked. Method: small lists
 * of items.
 */
#include "base/list.h"

#include "support/unit_test.h"

struct item {
    int value;
    struct list node;
};

TEST(test_order_and_pop)
{
    struct list head;
    struct item items[3] = {{.value = 0}, {.value = 1}, {.value = 2}};
    list_init(&head);
    assert_true(list_is_empty(&head));
    assert_null(list_pop(&head));
    for (size_t i = 0; i < 3; i++) {
        list_add_tail(&head, &items[i].node);
    }
    int next = 0;
    list_each (node, &head) {
        assert_int_equal(list_item(node, struct item, node)->value, next++);
    }
    assert_int_equal(next, 3);
    assert_ptr_equal(list_pop(&head), &items[0].node);
    assert_true(list_is_empty(&items[0].node));
    list_remove(&items[2].node);
    list_remove(&items[2].node); /* of a node in no list: no effect */
    assert_ptr_equal(list_pop(&head), &items[1].node);
    assert_true(list_is_empty(&head));
}

TEST(test_removal_while_walking)
{
    struct list head;
    struct item items[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    list_init(&head);
    for (size_t i = 0; i < 4; i++) {
        list_add_tail(&head, &items[i].node);
    }
    int seen = 0;
    list_each_safe (node, &head) {
        seen++;
        if (list_item(node, struct item, node)->value % 2 == 0) {
            list_remove(node);
        }
    }
    assert_int_equal(seen, 4);
    assert_ptr_equal(list_pop(&head), &items[1].node);
    assert_ptr_equal(list_pop(&head), &items[3].node);
    assert_true(list_is_empty(&head));
}
