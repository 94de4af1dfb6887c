#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the four places where the public interface is written down: cairn.h, cairn.map, libcairn.so
and libcairn.a; and compiles cairn.h alone as C99 and as C++11 with pedantic warnings. Exit 1 when
something differs.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

USE_ALL = """#include "cairn.h"
int main(void)
{
    struct cairn_options a = CAIRN_OPTIONS_INIT;
    struct cairn_tensor b = CAIRN_TENSOR_INIT;
    struct cairn_blob c = CAIRN_BLOB_INIT;
    struct cairn_save_options d = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_restore_options e = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_progress f = CAIRN_PROGRESS_INIT;
    struct cairn_result g = CAIRN_RESULT_INIT;
    struct cairn_checkpoint h = CAIRN_CHECKPOINT_INIT;
    struct cairn_annotation i = CAIRN_ANNOTATION_INIT;
    struct cairn_local j = CAIRN_LOCAL_INIT;
    struct cairn_interval k = CAIRN_INTERVAL_INIT;
    return (int)(k.size + j.size + a.size + b.size + c.size + d.size + e.size + f.size + g.size + h.size + i.size +
                 (e.step == CAIRN_LATEST));
}
"""


def run(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True)


def output(*command):
    done = run(*command)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def defined(nm, library, *flags):
    lines = output(nm, *flags, "--defined-only", library).splitlines()
    words = [line.split() for line in lines]
    return [(w[-2], w[-1].split("@")[0]) for w in words if len(w) >= 2]


def compare(problems, what, found, wanted):
    for name in sorted(found - wanted):
        problems.append(f"{what} has {name}, cairn.h does not declare it")
    for name in sorted(wanted - found):
        problems.append(f"{what} lacks {name} of cairn.h")


def compile_header(problems, compiler, standard, suffix, header):
    if not compiler or compiler.endswith("NOTFOUND"):
        problems.append(f"no compiler for {standard}; run tools/install-packages")
        return
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / f"use{suffix}"
        source.write_text(USE_ALL)
        done = run(compiler, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Wstrict-prototypes"
                   if suffix == ".c" else "-Wconversion", "-Werror", "-fsyntax-only",
                   f"-I{Path(header).parent}", str(source))
    if done.returncode != 0:
        problems.append(f"cairn.h as {standard}:\n{done.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("header", "map", "shared", "static", "nm", "readelf", "cc", "cxx"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    problems = []

    text = Path(options.header).read_text(encoding="utf-8")
    declared = set(re.findall(r"^CAIRN_API [^;(]*?\b(cairn_\w+)\(", text, re.M))
    if len(declared) < 28:
        problems.append(f"only {len(declared)} functions found in cairn.h: does this script still understand it?")
    exported = set(re.findall(r"^    (cairn_\w+);", Path(options.map).read_text(encoding="utf-8"), re.M))
    compare(problems, "cairn.map", exported, declared)

    dynamic = {name for kind, name in defined(options.nm, options.shared, "-D") if kind != "A"}
    # What instrumented builds (sanitizers, coverage) export beside.
    dynamic = {name for name in dynamic if not name.startswith(("__asan", "__odr_asan", "__gcov", "__tsan"))}
    compare(problems, "libcairn.so", dynamic, declared)
    # In the archive: nothing of ours is global but the interface.
    archive = {name for kind, name in defined(options.nm, options.static, "-g")}
    archive = {name for name in archive if not name.startswith(("__asan", "__odr_asan", "__gcov", "__tsan"))}
    compare(problems, "libcairn.a", archive, declared)
    if "[libcairn.so.0]" not in output(options.readelf, "-d", options.shared):
        problems.append("libcairn.so: the SONAME is not libcairn.so.0")

    compile_header(problems, options.cc, "c99", ".c", options.header)
    compile_header(problems, options.cxx, "c++11", ".cc", options.header)
    for problem in problems:
        print(problem)
    print(f"abi: {len(declared)} functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
