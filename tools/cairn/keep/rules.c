/* SPDX-License-Identifier: Apache-2.0
 *
 * See rules.h.
 */
#include "rules.h"

#include "base/check.h"

uint32_t rules_take(const struct rule_texts *rules,
                    struct msg_mark_option ret[MSG_MARK_OPTIONS_MAX])
{
    const struct msg_mark_option all[] = {
#define RULE_ROW(of, member, option, value, help) {option, rules->member},
        RULES(RULE_ROW, )
#undef RULE_ROW
    };
    uint32_t count = 0;
    _Static_assert(ARRAY_LEN(all) + 32 <= MSG_MARK_OPTIONS_MAX,
                   "with as many tags as may be given");
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i].value != NULL) {
            ret[count++] = all[i];
        }
    }
    for (uint32_t i = 0; i < rules->tags.count; i++) {
        CHECK(count < MSG_MARK_OPTIONS_MAX);
        ret[count++] = (struct msg_mark_option){"keep-tag", rules->tags.items[i]};
    }
    return count;
}
