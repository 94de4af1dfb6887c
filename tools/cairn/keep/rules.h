/* SPDX-License-Identifier: Apache-2.0
 *
 * rules: the options of a retention policy on the command line, which forget and policy share. The
 * server understands them; here they are texts. One thread.
 */
#ifndef CAIRN_TOOLS_RULES_H
#define CAIRN_TOOLS_RULES_H

#include "cli.h"

/* X(of, member, option, value, help), of each rule that is given once. */
#define RULES(X, of)                                                                               \
    X(of, last, "keep-last", "N", "keep the newest N")                                             \
    X(of, hourly, "keep-hourly", "N", "keep the newest of each of N hours")                        \
    X(of, daily, "keep-daily", "N", "keep the newest of each of N days")                           \
    X(of, weekly, "keep-weekly", "N", "keep the newest of each of N weeks, from Monday")           \
    X(of, monthly, "keep-monthly", "N", "keep the newest of each of N months")                     \
    X(of, yearly, "keep-yearly", "N", "keep the newest of each of N years")                        \
    X(of, within, "keep-within", "SPAN", "keep all that are within SPAN (2y5m7d3h) of the newest") \
    X(of, within_hourly, "keep-within-hourly", "SPAN", "keep one for each hour within SPAN")       \
    X(of, within_daily, "keep-within-daily", "SPAN", "keep one for each day within SPAN")          \
    X(of, within_weekly, "keep-within-weekly", "SPAN", "keep one for each week within SPAN")       \
    X(of, within_monthly, "keep-within-monthly", "SPAN", "keep one for each month within SPAN")    \
    X(of, within_yearly, "keep-within-yearly", "SPAN", "keep one for each year within SPAN")       \
    X(of, every_steps, "keep-every-steps", "N", "keep those whose step is a multiple of N")        \
    X(of, every, "keep-every", "DURATION", "keep one for each DURATION that has passed")           \
    X(of, best, "keep-best", "N", "keep the N best by --metric")                                   \
    X(of, metric, "metric", "NAME", "the metric of --keep-best")                                   \
    X(of, mode, "mode", "min|max", "whether --keep-best prefers low or high values")               \
    X(of, superseded, "keep-superseded", "DURATION",                                               \
      "keep the end of a superseded branch for DURATION (7d)")                                     \
    X(of, zone, "time-zone", "NAME",                                                               \
      "the zone of hours, days, weeks, months and years (Europe/Berlin); UTC if not given")        \
    X(of, least, "keep-least", "N",                                                                \
      "number of good checkpoints that stay whatever the rules say "                               \
      "(2)")                                                                                       \
    X(of, remove_idle, "remove-idle", "DURATION",                                                  \
      "remove the whole run if nobody has saved, restored, tagged or pinned for DURATION")

struct rule_texts {
#define RULE_MEMBER(of, member, option, value, help) const char *member;
    RULES(RULE_MEMBER, )
#undef RULE_MEMBER
    struct option_texts tags;
};

/* The rows of a command's table of options, whose struct `of` has a member `rules`. What destroys
 * something has no twin in the environment. */
#define RULE_OPTION(of, member, option, value, help) \
    {option, value, help, OPTION_AT_TEXT(of, rules.member), .alone = true},
#define RULE_OPTIONS(of)                                                                     \
    RULES(RULE_OPTION, of)                                                                   \
    {                                                                                        \
        "keep-tag", "TAG[,TAG]",                                                             \
            "keep checkpoints that have all of these tags ('': those without tags; a comma " \
            "within a "                                                                      \
            "tag has a backslash in front)",                                                 \
            OPTION_AT_TEXTS(of, rules.tags), .max = 32, .alone = true                        \
    }

/* Gives the rules as a message has them. Returns their number. */
uint32_t rules_take(const struct rule_texts *rules,
                    struct msg_mark_option ret[MSG_MARK_OPTIONS_MAX]);

#endif
