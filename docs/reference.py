# SPDX-License-Identifier: Apache-2.0
"""Makes the reference pages of the guide, and cairnd.conf(5), from the tables in the sources.

mkdocs loads this file as a hook. A line `<!-- generated: NAME -->` of a page is replaced by what the function NAME of
GENERATED returns; a link to a file outside docs/ becomes the file's name; and what stands behind the language of a code
block, which is for tests/python/test_guide.py, is taken away. A mistake raises, which ends the build.

As a program: `docs/reference.py cairnd.conf.5 VERSION` prints the manual page. Needs Python's own library only.
"""

import ast
import re
import sys
from collections import namedtuple
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
KINDS = {"TEXT": "text", "BYTES": "bytes", "DURATION": "duration", "COUNT": "count, 1 or more",
         "COUNT_OR_0": "count", "BOOL": "`yes` or `no`"}
RETRY = {"NEVER": "never: the same call fails again", "RETRY": "yes: try the same call again",
         "LATER": "later: after something else has changed",
         "RESOLVE": "ask first: the outcome is unknown, and `cairn status RUN STEP@TERM` tells it"}

Key = namedtuple("Key", "section name kind field default help live")
Error = namedtuple("Error", "name value text retry status")


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def c_string(text):
    """The value of C string literals that stand next to each other."""
    return "".join(ast.literal_eval(literal) for literal in re.findall(r'"(?:[^"\\]|\\.)*"', text))


def rows_of(path, macro):
    """The arguments of each use of the macro in a .def file, as texts."""
    text = re.sub(r"/\*.*?\*/", "", read(path), flags=re.S)
    found = re.findall(rf'^{macro}\(((?:[^"()]|"(?:[^"\\]|\\.)*")*)\)', text, re.M)
    rows = [[part.strip() for part in re.findall(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+', row)] for row in found]
    if not rows or len(rows) != len(re.findall(rf"^{macro}\(", text, re.M)):
        raise ValueError(f"{path}: {len(rows)} rows of {macro} could be read")
    return rows


def keys():
    live = re.findall(r"offsetof\(struct config, (\w+)\)",
                      re.search(r"size_t live\[\] = \{(.*?)\};", read("server/daemon/config.c"), re.S).group(1))
    return [Key(section, c_string(name), kind, field, c_string(default), c_string(text), field in live)
            for section, name, kind, field, default, text in rows_of("server/daemon/config.def", "CONF")]


def error_rows():
    return [Error(name, int(value), c_string(text), retry, int(status))
            for name, value, text, retry, status in rows_of("proto/base/err.def", "CAIRN_ERR")]


def sentence(text):
    text = text[0].upper() + text[1:]
    return text if text.endswith(".") else text + "."


# --- pages -----------------------------------------------------------------------------------------


def configuration():
    """A section of the page for each section of the file."""
    lines, section = [], ""
    for key in keys():
        if key.section != section:
            section = key.section
            lines += ["", f"## [{section}]", "", "| key | value | default | SIGHUP | meaning |", "|---|---|---|---|---|"]
        text = sentence(key.help).replace("|", "\\|").replace("[", "\\[").replace("*", "\\*")
        lines.append(f"| `{key.name}` | {KINDS[key.kind]} | {f'`{key.default}`' if key.default else 'empty'} "
                     f"| {'yes' if key.live else 'no'} | {text} |")
    return "\n".join(lines)


def exit_statuses():
    table = re.search(r"exit_statuses\[\] = \{(.*?)\{0, NULL", read("tools/cairn/exit_status.c"), re.S).group(1)
    rows = re.findall(r'\{(\d+), ("[^"]*"),\s*((?:"[^"]*"\s*)+)\}', table)
    codes = {}
    for error in error_rows():
        codes.setdefault(error.status, []).append(f"[{error.name}](errors.md#{error.name.lower()})")
    lines = ["| status | word | meaning | errors that end with it |", "|---|---|---|---|"]
    lines += [f"| {status} | {c_string(word)} | {sentence(c_string(text))} | {', '.join(codes.pop(int(status), []))} |"
              for status, word, text in rows]
    if codes:
        raise ValueError(f"err.def has exit statuses that exit_status.c does not explain: {sorted(codes)}")
    return "\n".join(lines)


def metrics():
    """The families in the order in which the daemon tells them. A counter's name ends in _total when it is told."""
    text = read("server/obs/metrics.c")
    families = {}
    pattern = (r'\b(?:begin\(\s*expose, FAMILY_(\w+)|(gauge|counter|moment|durations|errors)\(\s*expose), ("cairn_\w+"),\s*'
               r'((?:"(?:[^"\\]|\\.)*"\s*)+)|expose_label\(expose, ("\w+")|labelled\(expose, ("\w+")')
    kinds = {"moment": "gauge", "durations": "histogram", "errors": "counter"}
    name = None
    for kind, call, quoted, help_text, label, other in re.findall(pattern, text):
        if not quoted:
            if name:
                families[name][2].add(c_string(label or other))
            continue
        kind = kinds.get(call, call or kind.lower())
        name = c_string(quoted) + ("_total" if kind == "counter" else "")
        families[name] = (kind, sentence(c_string(help_text)), {"error"} if call == "errors" else set())
    missing = set(re.findall(r'"(cairn_\w+)"', text)) - {name.removesuffix("_total") for name in families} - set(families)
    if missing:
        raise ValueError(f"metrics.c has families that could not be read: {sorted(missing)}")
    lines = ["| family | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {', '.join(sorted(f'`{label}`' for label in labels))} | {text} |"
              for name, (kind, text, labels) in families.items()]
    return "\n".join(lines)


def c_api():
    """cairn.h as a page: its rules, then what it declares, each with its comment in front."""
    text = read("client/include/cairn.h")
    rules = uncommented(re.search(r"/\*(.*?)\*/", text, re.S).group(0)).split("Rules\n", 1)[1]
    lines = ["## Rules", "", re.sub(r"^ *- ", "\n- ", rules, flags=re.M).strip(), ""]
    body = text[text.index("/* --- errors"):text.rindex("#ifdef __cplusplus")]
    for title, part in re.findall(r"/\* --- (.*?) -+ \*/\n(.*?)(?=/\* --- |\Z)", body, re.S):
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for item in re.split(r"\n(?=\n|/\*)", part.strip()):
            comment, code = re.fullmatch(r"\n*(/\*.*?\*/\n)?(.*)", item, re.S).groups()
            names = re.findall(r"^(?:CAIRN_API.*?\b(cairn_\w+)\(|(?:struct|enum) (cairn_\w+) \{|typedef .*?(\w+);|"
                               r"#define (?!\w+_INIT\b)(\w+))", code, re.M)
            names = ", ".join(f"`{name}`" for found in names for name in found if name)
            lines += [f"### {names}", ""] if names else []
            lines += [uncommented(comment), ""] if comment else []
            lines += ["```c", plain_c(code), "```", ""] if code.strip() else []
    return "\n".join(lines)


def plain_c(code):
    """Declarations without what only the compiler wants: attributes, and the zeros of an initialiser."""
    code = re.sub(r"(#define \w+_INIT)\s*\\\n(?:.*\\\n)*.*", r"\1 {sizeof(struct ...), ...}", code)
    if "CAIRN_API" in code:
        code = re.sub(r"\n {12,}(?=\S)", "\n        ", code)
    return re.sub(r"CAIRN_API |CAIRN_MUST_USE ", "", code).strip()


def uncommented(comment):
    """The text of a C comment, as Markdown."""
    text = re.sub(r"^ ?\* ?", "", comment.strip()[2:-2], flags=re.M).strip()
    return "".join(part if part.startswith("`") else part.replace("*", "\\*") for part in re.split(r"(`[^`]*`)", text))


GENERATED = {function.__name__: function for function in (configuration, exit_statuses, metrics, c_api)}


def with_error_facts(page):
    """Puts the row of err.def under each heading of errors.md; the page must have every code, in the table's order."""
    rows = {error.name: error for error in error_rows()}
    headings = re.findall(r"^## ([A-Z_]+)$", page, re.M)
    if headings != list(rows):
        raise ValueError(f"errors.md: missing {sorted(set(rows) - set(headings))}, "
                         f"not in err.def {sorted(set(headings) - set(rows))}, or in another order")

    def facts(match):
        row = rows[match.group(1)]
        python = "".join(word.capitalize() for word in row.name.split("_")) + "Error"
        return (f"## {row.name}\n\n“{row.text}” · `CAIRN_E_{row.name}` {row.value} · `cairn.{python}` · "
                f"exit status {row.status} · try again? {RETRY[row.retry]}\n")

    return re.sub(r"^## ([A-Z_]+)$", facts, page, flags=re.M)


def definition(module, name):
    """The node of a class or function, which a module may have from one beside it."""
    for node in ast.parse(read("client/python/" + module.replace(".", "/") + ".py")).body:
        if getattr(node, "name", "") == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.level == 1 and name in [item.asname or item.name for item in node.names]:
            return definition(f"{module.rpartition('.')[0]}.{node.module}", name)
    raise ValueError(f"python-api.md: there is no {module}.{name}")


def check_docstrings(page):
    """Raises unless the docstrings of python-api.md are of Google's style as far as that each argument is explained."""
    wrong = []
    for module, name, options in re.findall(r"^::: (cairn(?:\.\w+)*)\.(\w+)\n((?:    .*\n)*)", page, re.M):
        node = definition(module, name)
        members = re.search(r"members: \[(.*)\]", options)
        explained = [] if isinstance(node, ast.ClassDef) else [(node, node)]
        for one in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(one, ast.FunctionDef):
                continue
            if one.name == "__init__" and "merge_init" not in options:
                explained.append((one, node))
            if one.name[0] != "_" and (members is None or one.name in members.group(1).split(", ")):
                explained.append((one, one))
        for function, where in explained:
            names = [one.arg for one in function.args.args + function.args.kwonlyargs if one.arg not in ("self", "cls")]
            text = ast.get_docstring(where) or ""
            wrong += [f"{module}.{name}: {function.name}({one})" for one in names if not re.search(rf"^ +{one}: ", text, re.M)]
    if wrong:
        raise ValueError("arguments that no docstring explains: " + ", ".join(wrong))


def check_names(page):
    """Raises unless python-api.md has each public name of the modules that its headings name: those of ``__all__``, or the
    classes and functions. The names of errors are on their own page."""
    missing, has = [], set(re.findall(r"^::: \S+\.(\w+)$|`cairn\.(\w+)`|^## (?:.*, )?cairn\.(\w+)", page, re.M))
    has = {name for found in has for name in found} | {"errors", "tree"}
    for module in re.findall(r"\bcairn[\w.]*", " ".join(re.findall(r"^## (.*)$", page, re.M))):
        path = ROOT / "client/python" / module.replace(".", "/")
        nodes = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")).body
        faces = [node.value.elts for node in nodes if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"]
        names = [name.value for name in faces[0] if isinstance(name, ast.Constant)] if faces else [
            node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_"]
        missing += [f"{module}.{name}" for name in names if name not in has]
    if missing:
        raise ValueError("python-api.md: missing " + ", ".join(missing))


def without_test_words(text):
    """Fences as Markdown knows them. A block that the test writes to a file is preceded by the file's name."""
    text = re.sub(r"^```(\w+) file (\S+).*$", r"`\2`:\n\n```\1", text, flags=re.M)
    return re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.M)


def with_local_links(text, folder):
    """A link to a file of the source tree that is not part of the site becomes its name; it must exist."""
    def link(match):
        label, target = match.groups()
        path = (folder / target.split("#")[0]).resolve()
        if "://" in target or path.is_relative_to(DOCS) or target.startswith("#"):
            return match.group(0)
        if not path.exists():
            raise ValueError(f"a link to {target}, which does not exist")
        name = str(path.relative_to(ROOT))
        return f"`{name}`" if label.strip("`") == name else f"{label} (`{name}` in the source tree)"
    return re.sub(r"\[([^\]\n]*)\]\(([^)\s]+)\)", link, text)


def on_page_markdown(markdown, page, **_):
    """mkdocs calls this for every page."""
    if page.file.src_uri == "errors.md":
        markdown = with_error_facts(markdown)
    if page.file.src_uri == "python-api.md":
        check_docstrings(markdown)
        check_names(markdown)
    markdown = with_local_links(without_test_words(markdown), DOCS)
    return re.sub(r"^<!-- generated: (\w+) -->$", lambda match: GENERATED[match.group(1)](), markdown, flags=re.M)


# --- cairnd.conf(5) --------------------------------------------------------------------------------

CONF_HEAD = """\
.\\" SPDX-License-Identifier: Apache-2.0
.TH CAIRND.CONF 5 "" "cairn {version}" "Cairn"
.SH NAME
cairnd.conf \\- the configuration of cairnd, Cairn's checkpoint server
.SH DESCRIPTION
.BR cairnd (8)
reads this file when it is started with
.BR \\-\\-config ,
and again when it receives SIGHUP.
A line is
.IR "key = value" ;
the lines of a section follow the line with the section's name in square brackets, and a line that begins with ; is a
comment.
Each key is also a flag, \\-\\-SECTION\\-KEY VALUE, and a flag comes before the file.
A mistake is named with its line or flag, and the daemon does not start, or goes on with what it had.
.PP
Sizes are written as 512, 64KiB, 128MiB or 1GiB; durations as 250ms, 10s, 5m or 1h, never without their unit.
Keys marked \\(lqSIGHUP\\(rq hold from the next SIGHUP on; the others wait for a restart.
"""

CONF_TAIL = """\
.SH SECTIONS WITH ROWS OF THEIR OWN
.TP
.B [retention]
.TQ
.B [retention \\(dqproject/pattern\\(dq]
The options of
.BR cairn\\-forget (1)
without the leading dashes, as in
.IR "keep\\-last = 5" ;
what the daemon keeps of all runs, or of those that the pattern matches.
.TP
.B [quota]
Rows like
.IR "project = 2TiB, 1000 checkpoints" .
.SH FILES
.I /etc/cairn/cairnd.conf
is what the shipped systemd unit reads.
.SH SEE ALSO
.BR cairnd (8),
.BR cairn (1)
"""


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "\\&" + text if text.startswith((".", "'")) else text


def conf_manual(version):
    lines, section = [CONF_HEAD.format(version=version)], ""
    for key in keys():
        if key.section != section:
            section = key.section
            lines.append(f".SH [{section}]\n")
        default = f" The default is {roff(key.default)}." if key.default else " Empty by default."
        lines.append(f".TP\n.B {roff(key.name)}\n{roff(sentence(key.help))}{default}{' SIGHUP.' if key.live else ''}\n")
    return "".join(lines) + CONF_TAIL


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "cairnd.conf.5":
        sys.exit("usage: docs/reference.py cairnd.conf.5 VERSION")
    print(conf_manual(sys.argv[2]), end="")
