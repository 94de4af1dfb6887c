/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusive doubly linked list. A list head and a node have the same type; a node that is in no
 * list is linked to itself after list_init(). A list owns nothing.
 */
#ifndef CAIRN_BASE_LIST_H
#define CAIRN_BASE_LIST_H

#include "check.h"

#include <stdbool.h>

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *list) { list->next = list->prev = list; }
static inline bool list_is_empty(const struct list *list) { return list->next == list; }

static inline void list_add_tail(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* Takes the first node out of the list and returns it, or NULL if the list is empty. */
static inline struct list *list_pop(struct list *head)
{
    struct list *node = head->next;
    if (node == head) {
        return NULL;
    }
    head->next = node->next;
    head->next->prev = head;
    list_init(node);
    return node;
}

/* Visits each node. The body must not remove any. */
#define list_each(node, head) \
    for (struct list *node = (head)->next; node != (head); node = node->next)
/* Visits each node; the body may remove `node`. */
#define list_each_safe(node, head)                                                    \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head); \
         node = node##_next, node##_next = node->next)
#define list_item(node, type, member) container_of(node, type, member)

#endif
