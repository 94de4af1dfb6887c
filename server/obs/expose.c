/* SPDX-License-Identifier: Apache-2.0
 *
 * expose: see expose.h. The formats differ in this: OpenMetrics names a counter's family without
 * _total, has UNIT lines, and ends with EOF.
 */
#include "obs/expose.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { EXPOSE_BYTES_MAX = 1 << 20 };

void expose_init(struct expose *expose, bool openmetrics)
{
    *expose = (struct expose){.openmetrics = openmetrics};
    buf_init(&expose->buf, EXPOSE_BYTES_MAX);
}

void expose_fini(struct expose *expose) { buf_fini(&expose->buf); }

const char *expose_content_type(bool openmetrics)
{
    return openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                       : "text/plain; version=0.0.4; charset=utf-8";
}

/* Returns what samples have behind the family's name. */
static const char *suffix_of(enum family_kind kind)
{
    switch (kind) {
    case FAMILY_COUNTER:
        return "_total";
    case FAMILY_INFO:
        return "_info";
    case FAMILY_GAUGE:
    case FAMILY_HISTOGRAM:
        break;
    }
    return "";
}

static const char *type_of(const struct expose *expose, enum family_kind kind)
{
    switch (kind) {
    case FAMILY_COUNTER:
        return "counter";
    case FAMILY_HISTOGRAM:
        return "histogram";
    case FAMILY_INFO:
        return expose->openmetrics ? "info" : "gauge";
    case FAMILY_GAUGE:
        break;
    }
    return "gauge";
}

static bool ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

void expose_family(struct expose *expose, const struct family *family)
{
    CHECK(expose->label_count == 0);
    CHECK(ends_with(family->name, family->unit));
    const char *suffix = expose->openmetrics ? "" : suffix_of(family->kind);
    CHECK(family->help != NULL);
    expose->family = *family;
    buf_printf(&expose->buf, "# HELP %s%s %s\n", family->name, suffix, family->help);
    buf_printf(&expose->buf, "# TYPE %s%s %s\n", family->name, suffix,
               type_of(expose, family->kind));
    if (expose->openmetrics && family->unit[0] != '\0') {
        buf_printf(&expose->buf, "# UNIT %s %s\n", family->name, family->unit);
    }
}

void expose_label(struct expose *expose, const char *name, const char *value)
{
    CHECK(name != NULL);
    CHECK(value != NULL);
    CHECK(expose->label_count < EXPOSE_LABELS_MAX);
    expose->labels[expose->label_count++] = (struct label){name, value};
}

/* Writes the text of a label or a help, with the characters escaped that would end it. */
static void put_escaped(struct buf *buf, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            buf_printf(buf, "\\n");
        } else if (*text == '"' || *text == '\\') {
            buf_printf(buf, "\\%c", *text);
        } else {
            buf_put_u8(buf, (uint8_t)*text);
        }
    }
}

/* Writes name and labels of a sample, as in `name{a="b"} `. `le` is one more label, or NULL. */
static void put_name(struct expose *expose, const char *suffix, const char *le)
{
    struct buf *buf = &expose->buf;
    const char *before = "{";
    CHECK(expose->family.name);
    buf_printf(buf, "%s%s", expose->family.name, suffix);
    for (size_t i = 0; i < expose->label_count; i++) {
        buf_printf(buf, "%s%s=\"", before, expose->labels[i].name);
        put_escaped(buf, expose->labels[i].value);
        buf_printf(buf, "\"");
        before = ",";
    }
    if (le) {
        buf_printf(buf, "%sle=\"%s\"", before, le);
        before = ",";
    }
    buf_printf(buf, before[0] == ',' ? "} " : " ");
}

void expose_u64(struct expose *expose, uint64_t value)
{
    put_name(expose, suffix_of(expose->family.kind), NULL);
    buf_printf(&expose->buf, "%" PRIu64 "\n", value);
    expose->label_count = 0;
}

void expose_ms(struct expose *expose, uint64_t value_ms)
{
    put_name(expose, suffix_of(expose->family.kind), NULL);
    buf_printf(&expose->buf, "%" PRIu64 ".%03u\n", value_ms / 1000, (unsigned)(value_ms % 1000));
    expose->label_count = 0;
}

void expose_wall(struct expose *expose, int64_t wall_ns)
{
    expose_ms(expose, wall_ns > 0 ? (uint64_t)wall_ns / 1000000 : 0);
}

/* Writes a bound such as "0.25" or "10.0": a number with a point, as OpenMetrics wants it, in both
 * formats. */
static void bound_text(uint64_t us, size_t bytes, char *ret)
{
    int used = snprintf(ret, bytes, "%" PRIu64 ".%06u", us / 1000000, (unsigned)(us % 1000000));
    CHECK(used > 2);
    CHECK((size_t)used < bytes);
    size_t at = (size_t)used;
    while (ret[at - 1] == '0' && ret[at - 2] != '.') {
        ret[--at] = '\0';
    }
}

void expose_histogram(struct expose *expose, const struct histogram *histogram)
{
    uint64_t sum = 0;
    char le[32];
    CHECK(expose->family.kind == FAMILY_HISTOGRAM);
    CHECK(histogram->bound_count > 0);
    for (size_t i = 0; i < histogram->bound_count; i++) {
        bound_text(histogram->bounds_us[i], sizeof(le), le);
        sum += histogram->counts[i];
        put_name(expose, "_bucket", le);
        buf_printf(&expose->buf, "%" PRIu64 "\n", sum);
    }
    sum += histogram->counts[histogram->bound_count];
    put_name(expose, "_bucket", "+Inf");
    buf_printf(&expose->buf, "%" PRIu64 "\n", sum);
    put_name(expose, "_count", NULL);
    buf_printf(&expose->buf, "%" PRIu64 "\n", sum);
    put_name(expose, "_sum", NULL);
    buf_printf(&expose->buf, "%" PRIu64 ".%06u\n", histogram->sum_us / 1000000,
               (unsigned)(histogram->sum_us % 1000000));
    expose->label_count = 0;
}

int expose_end(struct expose *expose)
{
    CHECK(expose->label_count == 0);
    if (expose->openmetrics) {
        buf_printf(&expose->buf, "# EOF\n");
    }
    return buf_status(&expose->buf);
}
