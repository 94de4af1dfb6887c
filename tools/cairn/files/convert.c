/* SPDX-License-Identifier: Apache-2.0
 *
 * See convert.h. The words of the command line are quoted as a shell reads them, so that the line
 * can be run as it stands.
 */
#include "files/convert.h"

#include "base/buf.h"
#include "base/check.h"

#include <string.h>

enum { LINE_MAX_BYTES = 1 << 20 };

/* Appends a space and the word, in single quotes where a shell would read more than the word. */
static void put_word(struct buf *buf, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_@%+=:,./-";
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        buf_printf(buf, " %s", word);
        return;
    }
    buf_put(buf, 2, " '");
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            buf_put(buf, 4, "'\\''");
        } else {
            buf_put_u8(buf, (uint8_t)*word);
        }
    }
    buf_put_u8(buf, '\'');
}

int convert_refuse(struct cli *cli, const char *what, struct diag *diag)
{
    struct buf buf;
    CHECK(cli->command);
    CHECK(cli->command_at > 0 && cli->command_at < cli->word_count);
    buf_init(&buf, LINE_MAX_BYTES);
    buf_printf(
        &buf,
        "cairn itself reads and writes only safetensors; %s are converted by cairn-convert, which "
        "is installed with the Python package (see docs/install.md); run: cairn-convert %s",
        what, cli->command->name);
    for (int i = 1; i < cli->word_count; i++) {
        if (i != cli->command_at) {
            put_word(&buf, cli->words[i]);
        }
    }
    buf_put_u8(&buf, 0);
    if (buf_status(&buf) == 0) {
        cli->whole_text =
            strdup((const char *)buf.data); /* without memory, as much as diag holds */
    }
    int status = diag_set(diag, CAIRN_E_UNSUPPORTED, "%s are converted by cairn-convert", what);
    buf_fini(&buf);
    return status;
}
