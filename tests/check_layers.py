#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the include law of proto/layers.txt over the C files of the tree.

Two rules: a file may include, of our headers, only those of its own folder and of the folders in its
row; a foreign header that has a fence may be included only behind it. Prints one line for each
violation: file:line: what, and the remedy. --self-test plants violations in a temporary tree and
checks that each one is found.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

TABLE = "proto/layers.txt"
SIDES = ("proto", "server", "client", "tools", "tests")
ROOTS = ("proto", "server", "client", "client/include", "tests")  # as the build sets them
# The places that know another folder's inside: one plants bugs inside a pass of gc and looks over its shoulder, one sees in
# which order a restore is about to read.
INSIDERS = {("tests/sim/sim_plant.c", "server/gc/gc_private.h"),
            ("tests/sim/sim_plant.c", "server/run/run_private.h"),
            ("tests/unit/engine/test_restore_plan.c", "client/engine/restore_private.h"),
            ("tests/unit/engine/test_save_send.c", "client/save/save_private.h"),
            ("tests/unit/store_dir/test_store_start.c", "server/store/dir/dir_private.h")}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class Table:
    """The parsed table: rows (folder -> allowed folders, None for all) and fences."""

    def __init__(self, text):
        self.rows = {}
        self.fences = []
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            if line.startswith("!"):
                header, *places = line[1:].split()
                if not places:
                    raise SystemExit(f"{TABLE}:{number}: a fence without a place")
                self.fences.append((header, places))
                continue
            folder, colon, allowed = line.partition(":")
            if not colon or folder.strip() in self.rows:
                raise SystemExit(f"{TABLE}:{number}: not a row, or a second row of one folder")
            words = allowed.split()
            self.rows[folder.strip()] = None if words == ["*"] else set(words)

    def folder_of(self, path):
        """The most specific row that covers a path, or None."""
        folders = [str(parent) for parent in path.parents]
        return next((folder for folder in folders if folder in self.rows), None)

    def fence_of(self, header):
        return next((f for f in self.fences if fence_matches(f[0], header)), None)


def fence_matches(fence, header):
    """A fence is a whole header, the beginning of one, or its end after a dot or a slash."""
    return header.startswith(fence) or re.search(r"(^|[./])" + re.escape(fence) + "$", header)


def is_behind(path, places):
    return any(str(path) == place or str(path).startswith(place + "/") for place in places)


def resolve(root, path, header):
    """The file of the tree that an include names, as a path relative to root; None for foreign ones."""
    for base in [str(path.parent), *ROOTS]:
        candidate = Path(base) / header
        if (root / candidate).is_file():
            return Path(*[part for part in candidate.parts if part != "."])
    return None


def check_include(table, root, path, header):
    """What is wrong with one include, or None."""
    target = resolve(root, path, header)
    if target is None or header.endswith(".pb-c.h"):
        fence = table.fence_of(header)
        if fence and not is_behind(path, fence[1]):
            return f"<{header}> is fenced; only {', '.join(fence[1])} may include it"
        return None
    if ".." in target.parts:
        return f'"{header}": name the header from an include root, not by ".."'
    mine, theirs = table.folder_of(path), table.folder_of(target)
    if theirs is None:
        return f'"{header}" lies in {target.parent}, which has no row in {TABLE}'
    is_insider = (str(path), str(target)) in INSIDERS
    if target.stem.endswith("_private") and target.parent != path.parent and not is_insider:
        return f'"{header}" is private to {target.parent}'
    allowed = table.rows[mine]
    if mine != theirs and allowed is not None and theirs not in allowed:
        return f'"{header}": {mine} may not include {theirs} ({TABLE})'
    return None


def check_file(table, root, path):
    if table.folder_of(path) is None:
        yield f"{path}:1: the folder {path.parent} has no row in {TABLE}"
        return
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            wrong = check_include(table, root, path, match.group(2))
            if wrong:
                yield f"{path}:{number}: {wrong}"


def c_files(root):
    for side in SIDES:
        for path in sorted((root / side).rglob("*.[ch]")):
            relative = path.relative_to(root)
            if not {"build", ".venv"} & set(relative.parts):
                yield relative


def check_tree(root):
    """(number of files, list of violations)"""
    table = Table((root / TABLE).read_text(encoding="utf-8"))
    files = list(c_files(root))
    found = [line for path in files for line in check_file(table, root, path)]
    return len(files), found


def self_test():
    """Each planted file has the number of violations given beside it."""
    table = (
        "proto/base:\nproto/env: proto/base\nserver/core: proto/base\nserver/store: proto/env\n"
        "server/store/dir: server/store\nclient/engine: proto/base\ntests: *\n"
        "!uv.h proto/env\n!openssl/ proto/env/tls.c\n!xxh proto/env\n!pb-c.h proto/env\n"
    )
    files = {
        "proto/base/err.h": ("", 0),
        "proto/base/up.c": ('#include "env/loop.h"\n', 1),
        "proto/base/sideways.c": ('#include "../env/loop.h"\n', 1),
        "proto/base/foreign.c": ("#include <uv.h>\n  #  include <openssl/ssl.h>\n", 2),
        "proto/base/fine.c": ('#include "err.h"\n#include "base/err.h"\n#include <stdio.h>\n', 0),
        "proto/env/loop.h": ('#include "base/err.h"\n#include <uv.h>\n#include <uv/unix.h>\n', 0),
        "proto/env/loop_private.h": ("", 0),
        "proto/env/tls.c": ("#include <openssl/ssl.h>\n#include <xxhash.h>\n", 0),
        "proto/env/other.c": ('#include <openssl/ssl.h>\n#include "x.pb-c.h"\n', 1),
        "server/core/commit.c": ('#include "env/loop.h"\n#include "cairn.pb-c.h"\n', 2),
        "server/core/cross.c": ('#include "engine/engine.h"\n', 1),
        "server/store/store.h": ('#include "env/loop_private.h"\n', 1),
        "server/store/dir/dir.c": ('#include "store/store.h"\n#include "base/err.h"\n', 1),
        "server/unknown/a.c": ("", 1),
        "client/engine/engine.h": ('#include <xxh_x86dispatch.h>\n#include <recuv.h>\n', 1),
        "tests/t.c": ('#include "engine/engine.h"\n#include "core/commit.c"\n', 0),
        "tests/t2.c": ("#include <uv.h>\n", 1),
    }
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name, (text, _) in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / TABLE).write_text(table)
        _, found = check_tree(root)
    failures = 0
    for name, (_, expected) in files.items():
        hits = [line for line in found if line.startswith(name + ":")]
        if len(hits) != expected:
            failures += 1
            print(f"self-test: {name}: {len(hits)} found, {expected} planted: {hits}")
    print(f"self-test: {len(files)} files, {failures} wrong")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true", help="check the checker")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    count, found = check_tree(options.root)
    for line in found:
        print(line)
    print(f"layers: {count} files, {len(found)} violations")
    if count == 0:
        print("layers: no file was found; is this the root of the tree?")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
