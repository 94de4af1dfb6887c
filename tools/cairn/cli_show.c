/* SPDX-License-Identifier: Apache-2.0
 *
 * How things are shown: errors, sizes, times, names, tables, the progress line.
 */
#include "cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool cli_stdout_is_terminal(void) { return isatty(STDOUT_FILENO) == 1; }

bool cli_stderr_is_terminal(void)
{
    const char *term = getenv("TERM");
    return term && term[0] != '\0' && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO) == 1;
}

void cli_error(const struct cli *cli, int code, int status, const char *text)
{
    if (!cli->json) {
        struct shown room;
        fprintf(stderr, "cairn: %s: %s\n", err_name(code), shown(&room, text));
        return;
    }
    struct json json;
    json_begin(&json);
    json_str(&json, "message_type", "exit_error");
    json_u64(&json, "code", (uint64_t)status);
    json_str(&json, "error", err_name(code));
    json_str(&json, "message", text);
    json_close(&json, '}');
    fprintf(stderr, "%.*s\n", (int)json.buf.bytes, (const char *)json.buf.data);
    json_fini(&json);
}

struct text bytes_text(uint64_t bytes)
{
    struct text text;
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024.0 && unit + 1 < ARRAY_LEN(units)) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text.at, sizeof(text.at), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

struct text time_text(int64_t wall_ns)
{
    struct text text = {"-"};
    time_t seconds = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    if (wall_ns != 0 && gmtime_r(&seconds, &tm)) {
        strftime(text.at, sizeof(text.at), "%Y-%m-%dT%H:%M:%SZ", &tm);
    }
    return text;
}

bool names_ckpt(const char *text, struct ckpt_id id)
{
    char name[64];
    int bytes = snprintf(name, sizeof(name), "checkpoint %s", ckpt_id_text(id).at);
    return strncmp(text, name, (size_t)bytes) == 0 && !isdigit((unsigned char)text[bytes]);
}

void json_begin(struct json *json)
{
    json_init(json);
    json_open(json, NULL, '{');
    json_u64(json, "schema_version", JSON_SCHEMA_VERSION);
}

void json_lengths(struct json *json, const char *name, uint32_t ndim, const int64_t *lengths)
{
    json_open(json, name, '[');
    for (uint32_t i = 0; i < ndim; i++) {
        json_u64(json, NULL, (uint64_t)lengths[i]);
    }
    json_close(json, ']');
}

int json_end(struct json *json)
{
    json_close(json, '}');
    int status = json_print(json);
    json_fini(json);
    return status;
}

int json_print(struct json *json)
{
    int status = buf_status(&json->buf);
    if (status != 0) {
        return status;
    }
    printf("%.*s\n", (int)json->buf.bytes, (const char *)json->buf.data);
    return out_flush();
}

int cli_print_info(const struct ckpt_info *info)
{
    struct json json;
    json_begin(&json);
    json_info(&json, "checkpoint", info);
    return json_end(&json);
}

void format_standing(const struct ckpt_info *info, char ret[STANDING_BYTES])
{
    bool committed = info->state == CKPT_COMMITTED;
    snprintf(ret, STANDING_BYTES, "%s%s%s",
             committed ? health_name(info->health) : state_name(info->state),
             committed && !info->on_lineage ? ", superseded" : "", info->pinned ? ", pinned" : "");
}

const char *placement_name(uint32_t placement)
{
    static const char *const names[] = {"", "replicated", "sharded", "local"};
    return placement < ARRAY_LEN(names) ? names[placement] : "unknown";
}

/* --- tables --- */

struct table {
    size_t columns, rows, cap;
    char **cells; /* rows * columns; row 0: titles */
};

struct table *table_new(size_t columns, const char *const *titles)
{
    struct table *table = calloc(1, sizeof(*table));
    if (table) {
        table->columns = columns;
        table_row(table, titles);
    }
    return table;
}

void table_row(struct table *table, const char *const *cells)
{
    if (table->rows == table->cap) {
        size_t cap = table->cap == 0 ? 32 : table->cap * 2;
        char **grown = realloc(table->cells, cap * table->columns * sizeof(*grown));
        if (!grown) {
            return; /* a row less on the screen; results for programs are the JSON */
        }
        table->cells = grown;
        table->cap = cap;
    }
    for (size_t i = 0; i < table->columns; i++) {
        struct shown room;
        table->cells[table->rows * table->columns + i] = strdup(shown(&room, cells[i]));
    }
    table->rows++;
}

static const char *cell(const struct table *table, size_t row, size_t column)
{
    const char *text = table->cells[row * table->columns + column];
    return text ? (row == 0 && text[0] == '>' ? text + 1 : text) : "";
}

/* Characters, not bytes: continuation bytes of UTF-8 take no place. */
static size_t width_of(const char *text)
{
    size_t width = 0;
    for (; *text; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

static void print_cell(const struct table *table, size_t row, size_t column, size_t width,
                       FILE *out)
{
    const char *text = cell(table, row, column);
    int padding = (int)(width - width_of(text));
    bool right = table->cells[column] && table->cells[column][0] == '>';
    bool last = column + 1 == table->columns;
    fprintf(out, "%*s%s%*s%s", right ? padding : 0, "", text, right || last ? 0 : padding, "",
            last ? "\n" : "  ");
}

void table_print(struct table *table, FILE *out)
{
    if (table->rows == 0) {
        return;
    }
    size_t *widths = calloc(table->columns, sizeof(*widths));
    for (size_t row = 0; widths && row < table->rows; row++) {
        for (size_t column = 0; column < table->columns; column++) {
            size_t width = width_of(cell(table, row, column));
            widths[column] = width > widths[column] ? width : widths[column];
        }
    }
    for (size_t row = 0; widths && row < table->rows; row++) {
        for (size_t column = 0; column < table->columns; column++) {
            print_cell(table, row, column, widths[column], out);
        }
    }
    free(widths);
}

void table_free(struct table *table)
{
    if (table) {
        for (size_t i = 0; i < table->rows * table->columns; i++) {
            free(table->cells[i]);
        }
        free(table->cells);
        free(table);
    }
}

/* --- progress --- */

enum { PROGRESS_EVERY_MS = 100, BAR_WIDTH = 30 };

void progress_start(struct progress *progress, struct cli *cli, const char *what, uint64_t total)
{
    *progress =
        (struct progress){.what = what, .total = total, .loop = source_loop(cli->connection)};
    progress->active = !cli->quiet && !cli->json && cli_stderr_is_terminal();
}

static void draw(const struct progress *progress)
{
    char bar[BAR_WIDTH + 1];
    uint64_t filled = progress->total == 0
                          ? BAR_WIDTH
                          : min_u64(progress->done * BAR_WIDTH / progress->total, BAR_WIDTH);
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %s of %s", progress->what, bar, bytes_text(progress->done).at,
            bytes_text(progress->total).at);
}

void progress_set(struct progress *progress, uint64_t done)
{
    progress->done = done;
    if (progress->active && loop_now_ms(progress->loop) - progress->shown_ms >= PROGRESS_EVERY_MS) {
        progress->shown_ms = loop_now_ms(progress->loop);
        draw(progress);
    }
}

void progress_end(struct progress *progress)
{
    if (progress->active) {
        fprintf(stderr, "\r\033[K");
    }
    progress->active = false;
}
