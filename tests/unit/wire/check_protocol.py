#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares PROTOCOL.md with messages.def: the numbers of messages, their replies, and the fields as cairn.proto has
them.

The argument is the C compiler, which makes cairn.proto of its rows.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS = "".join(path.read_text() for path in sorted((ROOT / "proto/wire").glob("msg_*.def")))
PROTO = subprocess.run([sys.argv[1], "-E", "-P", "-undef", "-nostdinc", "-x", "c", ROOT / "proto/wire/cairn.proto.in"],
                       check=True, capture_output=True, text=True).stdout


def one_row_each(text):
    """A row whose first cells are empty continues the row above it, because lines have at most 120 columns."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("| | "):
            lines.append(line)
            continue
        cells = zip(lines[-1].split("|"), line.split("|"))
        lines[-1] = "|".join(f"{above.rstrip()} {more.strip()} " if more.strip() else above for above, more in cells)
    return "\n".join(lines)


DOC = one_row_each((ROOT / "proto/PROTOCOL.md").read_text())


def message_numbers():
    return {name: int(number) for number, name in
            re.findall(r"^(?:MESSAGE|EMPTY|MESSAGE_BY_HAND)\((\d+), (\w+),", ROWS, re.M)}


def replies():
    return set(re.findall(r"^REPLY\((\w+), (\w+)\)", ROWS, re.M))


def doc_replies():
    """| 37 | COMPLETE | C>S | .. | HANDED, then SEALED |  ->  (COMPLETE, HANDED), (COMPLETE, SEALED)"""
    rows = re.findall(r"^\| \d+ \| (\w+) \| \S+ \| [^|]* \| ([^|]*) \|$", DOC, re.M)
    return {(name, reply) for name, text in rows for reply in re.findall(r"\b[A-Z_]{2,}\b", text)}


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def proto_fields():
    messages = {}
    for name, body in re.findall(r"message (\w+) \{(.*?)\}", PROTO, re.S):
        messages[name] = {field: int(number)
                          for field, number in re.findall(r"(\w+) = (\d+);", body)}
    return messages


def doc_rows():
    """| 22 | WANT | C>S | buffers 1 | - |  ->  {"WANT": (22, {"buffers": 1})}"""
    rows = {}
    for number, name, _, fields, _ in re.findall(
            r"^\| (\d+) \| (\w+) \| (\S+) \| ([^|]*) \| ([^|]*) \|$", DOC, re.M):
        rows[name] = (int(number), {f: int(n) for f, n in re.findall(r"(\w+) (\d+)", fields)})
    return rows


def doc_parts():
    """| `CkptId` | term 1, step 2 |"""
    return {name: {f: int(n) for f, n in re.findall(r"(\w+) (\d+)", fields)}
            for name, fields in re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", DOC, re.M)}


def main():
    problems = []
    numbers, messages, rows, parts = message_numbers(), proto_fields(), doc_rows(), doc_parts()
    if len(numbers) < 39 or len(rows) < 39:
        problems.append(f"found {len(numbers)} messages in messages.def and {len(rows)} in PROTOCOL.md")
    for name in sorted(numbers.keys() | rows.keys()):
        if name not in rows:
            problems.append(f"{name} is missing in PROTOCOL.md")
        elif name not in numbers:
            problems.append(f"{name} is in PROTOCOL.md, not in messages.def")
        elif rows[name][0] != numbers[name]:
            problems.append(f"{name} is {rows[name][0]} in PROTOCOL.md, {numbers[name]} in messages.def")
    for name, reply in sorted(replies() ^ doc_replies()):
        problems.append(f"{reply} answers {name} only in one of PROTOCOL.md and messages.def")
    described = {camel(name): fields for name, (_, fields) in rows.items()} | parts
    for name in sorted(messages.keys() | described.keys()):
        if messages.get(name) != described.get(name):
            problems.append(f"{name}: cairn.proto has {messages.get(name)}, "
                            f"PROTOCOL.md {described.get(name)}")
    frame = (ROOT / "tests/golden/wire-v1/WANT.bin").read_bytes()
    if frame.hex(" ") not in re.sub(r"\s+", " ", DOC):
        problems.append("the example of PROTOCOL.md 2 is not the golden frame WANT.bin")
    for problem in problems:
        print(f"check_protocol: {problem}")
    return 1 if problems else 0


sys.exit(main())
