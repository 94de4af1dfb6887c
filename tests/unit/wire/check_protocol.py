#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares PROTOCOL.md with msg.h (message numbers) and cairn.proto (field names and numbers)."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
HEADER = (ROOT / "proto/wire/msg.h").read_text()
PROTO = (ROOT / "proto/wire/cairn.proto").read_text()
DOC = (ROOT / "proto/PROTOCOL.md").read_text()


def header_numbers():
    body = re.search(r"enum msg_type \{(.*?)\};", HEADER, re.S).group(1)
    return {name: int(number) for name, number in re.findall(r"MSG_(\w+) = (\d+)", body)}


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def proto_fields():
    text = re.sub(r"//[^\n]*", "", PROTO)
    messages = {}
    for name, body in re.findall(r"message (\w+) \{(.*?)\}", text, re.S):
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
    numbers, messages, rows, parts = header_numbers(), proto_fields(), doc_rows(), doc_parts()
    if len(numbers) < 39 or len(rows) < 39:
        problems.append(f"found {len(numbers)} messages in msg.h and {len(rows)} in PROTOCOL.md")
    for name in sorted(numbers.keys() | rows.keys()):
        if name not in rows:
            problems.append(f"{name} is missing in PROTOCOL.md")
        elif name not in numbers:
            problems.append(f"{name} is in PROTOCOL.md, not in msg.h")
        elif rows[name][0] != numbers[name]:
            problems.append(f"{name} is {rows[name][0]} in PROTOCOL.md, {numbers[name]} in msg.h")
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
