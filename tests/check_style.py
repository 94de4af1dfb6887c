#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what STYLE.md says in numbers and words, where clang-format and the compiler do not.

For the C files of the tree: length of functions, files and lines, number of parameters, modules in a
folder, unique file stems, own header first, include guards, forbidden words. For all sources: the
SPDX line. For tests: how their first comment begins. For Markdown, JavaScript, CSS and Python: length
of lines. For READMEs: that the files and functions exist which they name in back quotes.
tests/style_exceptions.txt lists what is tolerated, each with its present value; an entry that is no
longer needed, or more generous than needed, is a violation too, so the list only shrinks.
--self-test plants violations in a temporary tree and checks that each one is found.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

SIDES = ("proto", "server", "client", "tools", "tests")
EXCEPTIONS = "tests/style_exceptions.txt"
SPDX = "SPDX-License-Identifier: Apache-2.0"
SPDX_SUFFIXES = {".c", ".h", ".def", ".map", ".py", ".sh", ".proto", ".cmake", ".toml"}

FUNCTION_LINES = 70
PARAMETERS = 5
FILE_LINES = {".c": 800, ".h": 300}
LINE_COLUMNS = 100
MARKDOWN_COLUMNS = 120
PAGE_COLUMNS = 120  # of JavaScript and CSS
PYTHON_COLUMNS = 140
FOLDER_MODULES = 20
# A test's file opens with the promise that it checks: not with a label, its module's name, or that it holds tests.
NO_PROMISE = re.compile(r"(Goal|Method|[a-z][a-z_]*):|(Unit )?[Tt]ests? (of|for)\b|Cases (of|for)\b")
FUNCTION_START = re.compile(r"^[A-Za-z_]")

# What must not stand in code (comments and strings are cut out first), and what to do instead.
FORBIDDEN = [
    (r"\b(v?sprintf|strcpy|strcat|stpcpy|gets)\s*\(", "unbounded; use snprintf or struct buf"),
    (r"\balloca\s*\(", "memory on the stack by a run-time size; use scratch or a fixed buffer"),
    (r"\b(atoi|atol|atoll|atof)\s*\(", "cannot report errors; use strtoull and check"),
    (r"\b(strtok|gmtime|localtime|ctime|asctime|readdir_r|getpwnam|rand)\s*\(",
     "not thread-safe or not seeded; use the _r form"),
    (r"\b(tmpnam|tempnam|mktemp|system|popen)\s*\(", "unsafe by design"),
    (r"\b(sleep|usleep)\s*\(", "no sleeping; use the clock, a barrier or a named point"),
    (r"\btypedef\s+(struct|enum|union)\b(?!\s+cairn)", "no typedef of structs; write the tag"),
    (r"\bgoto\s+(?!out\s*;)", "goto jumps only to out:"),
]
FORBIDDEN_OUTSIDE_TESTS = [(r"\bassert\s*\(", "use CHECK: it stays on in release builds")]
FORBIDDEN_IN_COMMENTS = [
    (r"\b(TODO|FIXME|XXX)\b(?!\()", "write TODO(name): reason"),
    (r"/\* ---(?=[^\n]*-\n *\*/)", "the formatter broke this ruler: let it end in its line"),
]


class Report:
    """Collects violations; the exceptions take out the ones they cover and tell if they are stale."""

    def __init__(self, exceptions):
        self.exceptions = exceptions  # (path, name, rule) -> value
        self.used = {}
        self.lines = []
        self.suggestions = []  # exception entries that would accept what was found

    def say(self, path, line, text):
        self.lines.append(f"{path}:{line}: {text}")

    def limit(self, path, line, name, rule, value, limit):
        """A number that must not pass its limit, unless an exception gives it that very value."""
        if value <= limit:
            return
        allowed = self.exceptions.get((str(path), name, rule))
        if allowed is not None:
            self.used[(str(path), name, rule)] = value
        if allowed is None or value > allowed:
            self.say(path, line, f"{name}: {value} {rule}, at most {allowed or limit}")
            self.suggestions.append(f"{path} {name} {rule} {value}  # reason")

    def stale(self):
        for key, value in self.exceptions.items():
            if self.used.get(key) is None or self.used[key] < value:
                now = self.used.get(key, "no longer needed")
                self.say(EXCEPTIONS, 1, f"{' '.join(key)} {value}: shrink it ({now})")


def read_exceptions(text):
    """Lines: path name rule value; name is the function, or - for the whole file."""
    exceptions = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 4 or not words[3].isdigit():
            raise SystemExit(f"{EXCEPTIONS}:{number}: expected: path name rule value  # reason")
        exceptions[tuple(words[:3])] = int(words[3])
    return exceptions


def split_code(text):
    """(code, comments), both with the line structure of text; strings and characters are emptied."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    code, comments, at = [], [], 0
    for match in token.finditer(text):
        between, found = text[at:match.start()], match.group()
        is_comment = found.startswith("/")
        newlines = "\n" * found.count("\n")
        code += [between, newlines if is_comment else found[0] * 2]
        comments += ["\n" * between.count("\n"), found if is_comment else ""]
        at = match.end()
    code.append(text[at:])
    return "".join(code), "".join(comments)


def parameters_of(signature):
    """(name, number of parameters) of a function's head."""
    head = re.sub(r"__attribute__\s*\(\(.*?\)\)|\b(PRINTF|_Alignas)\s*\([^)]*\)", "", signature)
    test = re.match(r"[A-Z_]*TESTS?\((\w+)\)", head)  # tests/support/unit_test.h
    match = re.search(r"(\w+)\s*\(", head)
    if test or not match:
        return test and test.group(1), 0
    depth, count, inside = 0, 1, ""
    for char in head[match.end() - 1:]:
        depth += (char == "(") - (char == ")")
        if depth == 0:
            break
        count += char == "," and depth == 1
        inside += char
    return match.group(1), 0 if inside[1:].strip() in ("", "void") else count


def functions_of(code):
    """(name, first line, lines, parameters) of each function; relies on clang-format's layout."""
    lines = code.splitlines()
    start = None
    for index, line in enumerate(lines):
        if line.startswith("{") and start is not None:
            end = next((i for i in range(index, len(lines)) if lines[i].startswith("}")), len(lines))
            name, count = parameters_of(" ".join(lines[start:index]))
            if name:
                yield name, start + 1, end - start + 1, count
            start = None
        elif FUNCTION_START.match(line):
            if start is None or lines[index - 1].rstrip().endswith((";", "}")):
                start = index
            one_line = re.match(r"^[^{=;]*\)\s*\{.*\}\s*$", line)
            if one_line:
                name, count = parameters_of(line.split("{")[0])
                if name:
                    yield name, index + 1, 1, count
                start = None
        elif not line.strip() or line.startswith(("#", "}")):
            start = None


def check_words(report, path, code, comments):
    rules = FORBIDDEN + ([] if path.parts[0] == "tests" else FORBIDDEN_OUTSIDE_TESTS)
    for text, words in ((code, rules), (comments, FORBIDDEN_IN_COMMENTS)):
        for pattern, remedy in words:
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                word = match.group().strip(" (")
                key = (str(path), "-", word.replace(" ", "_"))
                if key in report.exceptions:
                    report.used[key] = report.used.get(key, 0) + 1
                    if report.used[key] <= report.exceptions[key]:
                        continue
                report.say(path, line, f"{word}: {remedy}")


def check_includes(report, root, path, code_lines):
    """Own header first (or the folder's private one, which includes it), a guard around headers."""
    if path.suffix == ".h":
        guard = re.sub(r"\W", "_", path.stem).upper() + "_H"
        if not any(re.match(rf"#ifndef \w*{guard}$", line) for line in code_lines):
            report.say(path, 1, f"no include guard that ends in {guard}")
    elif (root / path).with_suffix(".h").is_file():
        first = next((line for line in code_lines if line.startswith("#include")), "")
        if not re.search(rf'[</"]({re.escape(path.stem)}|\w+_private)\.h[">]', first):
            report.say(path, 1, f"its own header, {path.stem}.h, is not the first include")


def check_columns(report, path, lines, most):
    for number, line in enumerate(lines, 1):
        if len(line) > most:
            report.say(path, number, f"{len(line)} columns, at most {most}")


def check_c_file(report, root, path, text):
    lines = text.splitlines()
    report.limit(path, 1, "-", "lines-in-file", len(lines), FILE_LINES[path.suffix])
    check_columns(report, path, lines, LINE_COLUMNS)
    code, comments = split_code(text)
    for name, start, length, parameters in functions_of(code):
        report.limit(path, start, name, "lines", length, FUNCTION_LINES)
        report.limit(path, start, name, "parameters", parameters, PARAMETERS)
    check_words(report, path, code, comments)
    # Includes lose their names with the strings, so this one looks at the text.
    check_includes(report, root, path, lines)
    head = re.match(r"/\*(.*?)\*/", text, re.S)
    if not head or len([l for l in head.group(1).splitlines() if l.strip(" *")]) < 2:
        report.say(path, 1, "no comment on top that says what the file is for")


def check_folders(report, paths):
    """Unique stems over the tree, and not too many modules in one folder."""
    stems, modules = {}, {}
    for path in paths:
        stems.setdefault(path.stem, set()).add(str(path.parent))
        if path.suffix == ".c" and path.parts[0] != "tests":
            modules.setdefault(path.parent, set()).add(path.stem)
    for stem, folders in sorted(stems.items()):
        if len(folders) > 1:
            report.limit(sorted(folders)[0], 1, stem, "folders-with-the-stem", len(folders), 1)
    for folder, names in modules.items():
        report.limit(folder, 1, "-", "modules", len(names), FOLDER_MODULES)


def sources(root):
    for side in SIDES:
        for path in sorted((root / side).rglob("*")):
            relative = path.relative_to(root)
            if path.is_file() and not {"build", ".venv", "__pycache__"} & set(relative.parts):
                yield relative


def documents(root):
    """The Markdown files of the tree: those at its root, and those in its folders."""
    for top in sorted(root.iterdir()):
        if top.name.startswith(".") or top.name == "build":  # where folders of other tests come and go
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*.md")):
            relative = path.relative_to(root)
            if path.suffix == ".md" and not {"build", ".venv"} & set(relative.parts):
                yield relative


class Known:
    """The names of the tree's sources, those of the headers that they include, and their words."""

    def __init__(self):
        self.files, self.words = set(), set()

    def add(self, path, text):
        self.files.add(path.name)
        if path.suffix in {".c", ".h", ".py", ".def"}:
            self.files.update(re.findall(r'#include [<"](?:[^>"]*/)?([^/>"]+)[>"]', text))
            self.words.update(re.findall(r"\w+", text))

    def has_file(self, root, readme, name):
        """`name` is a path from the root or from the README's folder, or ends with a source's name."""
        return Path(name).name in self.files or any((base / name).is_file() for base in (root, (root / readme).parent))


def check_names(report, root, path, text, known):
    """A README's `file.c`, `file.[ch]` and `function()` exist. x stands for any word: `cmd_x.c`, `on_x()`."""
    for number, line in enumerate(text.splitlines(), 1):
        for name, _, ends, call in re.findall(r"`(?:(([\w-]+/)*[\w.-]+\.)(c|h|py|def|\[ch\])|(\w+)\(\))`", line):
            if re.search(r"(^|_)x$", call or name.rstrip(".")):
                continue
            files = [name + end for end in ("ch" if ends == "[ch]" else [ends])] if ends else []
            if not (all(known.has_file(root, path, file) for file in files) if files else call in known.words):
                report.say(path, number, f"{call or name + ends}: no such {'file' if files else 'function'} in the tree")


def needs_spdx(root, path):
    if path.suffix in SPDX_SUFFIXES or path.name == "CMakeLists.txt":
        return True
    if path.suffix:
        return False
    with open(root / path, "rb") as file:
        return file.read(2) == b"#!"


def check_promise(report, path, text):
    """A test's file, or one with cases of a test."""
    if path.parts[0] == "tests" and re.match(r"(test|cases)_.*\.(c|py)$", path.name):
        opening = re.search(rf"{SPDX}\n(?: \*\n)?(?:\"\"\"| \* )(.*)", text)
        if not opening or NO_PROMISE.match(opening.group(1)):
            report.say(path, 3, "its comment on top does not open with the promise that it checks")


def check_tree(root):
    """(number of C files, report)"""
    listed = root / EXCEPTIONS
    report = Report(read_exceptions(listed.read_text(encoding="utf-8") if listed.is_file() else ""))
    c_paths, known = [], Known()
    for path in sources(root):
        if path.suffix in {".js", ".css"}:
            check_columns(report, path, (root / path).read_text(encoding="utf-8").splitlines(), PAGE_COLUMNS)
        if not needs_spdx(root, path):
            continue
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        known.add(path, text)
        if text and SPDX not in "".join(text.splitlines(keepends=True)[:3]):
            report.say(path, 1, f"no line {SPDX}")
        check_promise(report, path, text)
        if path.suffix == ".py":
            check_columns(report, path, text.splitlines(), PYTHON_COLUMNS)
        if path.suffix in FILE_LINES:
            c_paths.append(path)
            check_c_file(report, root, path, text)
    for path in documents(root):
        text = (root / path).read_text(encoding="utf-8")
        check_columns(report, path, text.splitlines(), MARKDOWN_COLUMNS)
        if path.name in {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}:
            check_names(report, root, path, text, known)
    check_folders(report, c_paths)
    report.stale()
    return len(c_paths), report


def self_test():
    """Each planted file has, beside its text, a word of each violation that must be found in it."""
    top = f"/* {SPDX}\n *\n * What it is for.\n */\n"
    body = "    x();\n" * 67
    planted = {
        "proto/base/fine.c": (top + "int f(int a, int b)\n{\n" + body + "}\n", []),
        "proto/base/long.c": (top + "int f(int a)\n{\n    x();\n" + body + "}\n", ["71 lines"]),
        "proto/base/six.c": (
            top + "int f(int a, int b, int c,\n      int d, int e, int g)\n{\n}\n"
            "static inline int h(int a, int b, int c, int d, int e, int g) { return 1; }\n"
            "int five(int (*f)(int, int), int b, int c, int d, int e) PRINTF(1, 2)\n{\n}\n",
            ["f: 6 parameters", "h: 6 parameters"]),
        "proto/base/big.c": (top + "\n" * 800, ["lines-in-file"]),
        "proto/base/wide.c": (top + "int x; /* " + "-" * 100 + " */\n", ["columns"]),
        "proto/base/words.c": (
            top + 'void f(void)\n{\n    strcpy(a, "sprintf(");\n    goto fail;\n    assert(x);\n'
            "    alloca(3); /* TODO later */\n    goto out; /* strcpy( is fine here */\n}\n"
            "typedef struct a b;\n",
            ["strcpy", "goto", "assert", "alloca", "TODO", "typedef struct"]),
        "proto/base/ruler.c": (top + "/* --- whole --- */\n/* --- broken ---\n */\n", ["6: /* ---: the formatter"]),
        "proto/base/bare.c": ("int x;\n", ["SPDX", "no comment on top"]),
        "proto/base/pair.h": (top + "#ifndef WRONG_H\n#endif\n", ["guard"]),
        "proto/base/pair.c": (top + '#include <stdio.h>\n#include "base/pair.h"\n', ["own header"]),
        "server/store/twin.c": (top, []),
        "proto/env/twin.c": (top, []),
        "tools/run": ("#!/bin/sh\n", ["SPDX"]),
        "README.md": ("# x\n" + "x" * 120 + "\n| " + "x" * 119 + "\n", ["121 columns"]),
        "deploy/ceph/README.md": ("```\n" + "x" * 121 + "\n```\n", ["columns"]),
        "server/web/page/page.js": ("x" * 120 + "\n" + "x" * 121 + "\n", ["page.js:2: 121 columns"]),
        "server/web/page/page.css": ("x" * 121 + "\n", ["121 columns"]),
        "client/wide.py": (f"# {SPDX}\n" + "x" * 140 + "\n" + "x" * 141 + "\n", ["wide.py:3: 141 columns"]),
        "build/README.md": ("x" * 200, []),
        "proto/base/README.md": (
            "`fine.c`, `pair.[ch]`, `x()`, `cmd_x.c`, `on_x()`, `base/big.c`, `stdio.h`, `docs/site.py`, `f(a)`, `*.c`\n"
            "`gone.c`, `fine.[ch]`, `gone()`, `base/gone.def`\n", ["2: gone.c", "fine.[ch]", "2: gone: no", "gone.def"]),
        "docs/site.py": (f"# {SPDX}\n", []),
        "tests/unit/core/test_fine.c": (top, []),
        "tests/unit/core/test_goal.c": (top.replace("What it is for.", "Goal: nothing."), ["promise"]),
        "tests/unit/core/test_name.c": (top.replace("What it is for.", "name: does."), ["promise"]),
        "tests/e2e/test_of.py": (f"# {SPDX}\n\"\"\"Tests of it.\"\"\"\n", ["promise"]),
        "tests/e2e/cases_none.py": (f"# {SPDX}\nimport re\n", ["promise"]),
        "tests/e2e/test_well.py": (f"# {SPDX}\n\"\"\"It holds.\"\"\"\n", []),
        "tests/old.c": (top + "int g(int a)\n{\n    x();\n    x();\n" + body + "}\n", []),
        EXCEPTIONS: ("tests/old.c g lines 72\ntests/old.c g parameters 9 # gone\n", ["shrink it"]),
    }
    for count in range(21):
        planted[f"server/core/m{count}.c"] = (top, [])
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name, (text, _) in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = check_tree(root)[1].lines
    expected = [(name, word) for name, (_, words) in planted.items() for word in words]
    expected += [("proto/env", "twin: 2 folders"), ("server/core", "21 modules")]
    missed = [e for e in expected if not any(f.startswith(e[0] + ":") and e[1] in f for f in found)]
    for miss in missed:
        print("self-test: not found:", *miss)
    if len(found) != len(expected):
        print(f"self-test: {len(found)} found, {len(expected)} planted:", *found, sep="\n    ")
    print(f"self-test: {len(expected)} planted, {len(missed)} missed")
    return 1 if missed or len(found) != len(expected) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true", help="check the checker")
    parser.add_argument("--suggest", action="store_true",
                        help="print exception entries for the numbers that are over their limits")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    count, report = check_tree(options.root)
    found = report.suggestions if options.suggest else report.lines
    for line in found:
        print(line)
    if options.suggest:
        return 0
    print(f"style: {count} C files, {len(found)} violations")
    if count == 0:
        print("style: no file was found; is this the root of the tree?")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
