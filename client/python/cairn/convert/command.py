# SPDX-License-Identifier: Apache-2.0
"""The command line: its words, its exit statuses and what it prints are those of ``cairn import`` and ``cairn export``."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import warnings
from typing import Any, NoReturn, Optional, Sequence

from ..client import LATEST, Client
from ..errors import CairnError, ExistsError, InvalidError, UnsupportedError
from .bundle import Bundle, Mapped, View, os_error
from . import zips

#: Exit statuses that are not 1, by the names of errors; proto/base/err.def.
STATUSES = {name: status for status, names in {
    2: "INVALID UNSUPPORTED CONFIG", 4: "NOT_FOUND",
    5: "AGAIN TIMED_OUT MISSING_RANKS UNREACHABLE CONNECTION_LOST OUTCOME_UNKNOWN SHUTTING_DOWN",
    6: "DAMAGED DIGEST_MISMATCH FORMAT REPLICAS_DIFFER", 10: "NO_STORE STORE_FEATURES STORE_MISMATCH",
    11: "BUSY DUPLICATE_RANK STORE_LOCKED SKIPPED", 12: "AUTH DENIED"}.items() for name in names.split()}
INTERRUPTED = 130
FORMATS = {"torch": ("torch_file", "torch"), "dcp": ("dcp_directory", "torch"), "npz": ("npz_file", "numpy")}
_DURATIONS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZES = {"": 1, "B": 1, **{f"{letter}{tail}": 1 << 10 * power
                            for power, letter in enumerate("KMGT", 1) for tail in ("iB", "")}}
_EPILOG = """Files are mapped and go through the staging memory a piece at a time. Pickles are read by PyTorch with weights_only
and by a reader that knows the few classes of DCP: nothing in a file is ever executed. An option with a value can be said in the
environment, as CAIRN_NAME. For safetensors there are cairn import and cairn export."""


def _duration(text: str) -> float:
    parts = re.findall(r"(\d+)(ms|[smhdw])", text)
    if text.isdecimal():
        return float(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise argparse.ArgumentTypeError(f"'{text}': it must be a duration, for instance 90s, 15m or 1h30m")
    return sum(int(number) * _DURATIONS[unit] for number, unit in parts)


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    if found is None or found[2] not in _SIZES:
        raise argparse.ArgumentTypeError(f"'{text}': it must be a size, for instance 64MiB")
    return int(found[1]) * _SIZES[found[2]]


def _step(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and int(text) < 1 << 63):
        raise argparse.ArgumentTypeError(f"'{text}': it must be a number of at least 0")
    return int(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidError.of(f"{message}; see {self.prog} --help")


def _option(words: argparse.ArgumentParser, name: str, preset: Any = None, **how: Any) -> None:
    """An option with a value, whose environment's twin is CAIRN_NAME, as cairn's options have theirs."""
    said = os.environ.get("CAIRN_" + name.upper().replace("-", "_"))
    if how.get("action") == "append":
        how["default"] = [said] if said else []
    else:
        how["default"] = said or preset
        how["required"] = how.get("required", False) and not said
    words.add_argument(f"--{name}", **how)


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    _option(common, "server", metavar="HOST:PORT", help="the server, or unix:/path of its socket; not needed where RUN is a URL")
    common.add_argument("--store", help=argparse.SUPPRESS)  # known, so that the error can say what to do
    for name, what in (("ca", "of the authority that signed the server's certificate"), ("cert", "of this client"),
                       ("key", "of this client")):
        _option(common, f"{name}-file", metavar="FILE", help=f"PEM file {what}")
    _option(common, "timeout", "10s", metavar="DURATION", type=_duration, help="for one answer of the server (10s)")
    common.add_argument("--json", action="store_true", help="print one JSON document, errors too")
    common.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)  # there is no progress to leave out
    common.add_argument("-n", "--dry-run", action="store_true", help="read and check everything, write nothing")
    parser = _Parser(prog="cairn-convert", epilog=_EPILOG, allow_abbrev=False,
                     description="Makes checkpoints of files of torch.save, DCP directories and npz archives, and the other way round.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    words = commands.add_parser("import", parents=[common], epilog=_EPILOG, allow_abbrev=False,
                                help="make a checkpoint of another program's files")
    words.add_argument("run", metavar="RUN", help="project/run, or the URL of a run")
    words.add_argument("path", metavar="PATH", help="a file of torch.save, a directory of torch.distributed.checkpoint, an npz archive")
    _option(words, "format", "auto", choices=("auto", *FORMATS), help="what PATH is (auto)")
    _option(words, "step", "0", metavar="N", type=_step, help="the checkpoint's step (0)")
    _option(words, "tag", metavar="TEXT", action="append", help="a tag of the checkpoint; may be repeated")
    words.add_argument("--new-lineage", action="store_true",
                       help="also into a run that has checkpoints: they are superseded, and a job that trains it is fenced")
    _option(words, "deadline", "1h", metavar="DURATION", type=_duration, help="until it is durable (1h)")
    _option(words, "arena", "256MiB", metavar="SIZE", type=_size, help="staging memory (256MiB)")
    words = commands.add_parser("export", parents=[common], epilog=_EPILOG, allow_abbrev=False,
                                help="write a checkpoint as another program's files")
    words.add_argument("run", metavar="RUN", help="project/run, or the URL of a run")
    words.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?", default="latest", help="latest, STEP or STEP@TERM (latest)")
    _option(words, "to", metavar="DIR", required=True, help="where to write; absent or empty")
    _option(words, "format", choices=tuple(FORMATS), required=True, help="what to write")
    _option(words, "only", metavar="PATTERN", action="append", help="only tensors whose names match (* ? [a-z]); may be repeated")
    words.add_argument("--local", action="store_true", help="also tensors that belong to a rank, as NAME@COORDINATE")
    words.add_argument("--max-shard-size", help=argparse.SUPPRESS)  # of safetensors
    return parser


def run_url(server: Optional[str], run: str) -> str:
    """Returns the URL of a run as the library takes it. Raises InvalidError if the text names no run, or if no server is named."""
    if "://" in run:
        return run
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", run):
        raise InvalidError.of(f"{run!r} does not name a run; write project/run, with A-Z a-z 0-9 . _ -, or a URL")
    if not server:
        raise InvalidError.of("no server is named: give --server, or set CAIRN_SERVER")
    if server.startswith("unix:"):
        return f"cairn+unix://{server[len('unix:'):]}?run={run}"
    return f"cairn://{server}/{run}"


def client(args: argparse.Namespace, **how: Any) -> Client:
    """A client of the run that the command line names."""
    return Client(run_url(args.server, args.run), io_deadline=args.timeout, ca_file=args.ca_file, cert_file=args.cert_file,
                  key_file=args.key_file, label="cairn-convert", **how)


def module(kind: str) -> Any:
    """Returns the module that reads a format. Raises UnsupportedError if PyTorch or NumPy, which it needs, is not installed."""
    name, needs = FORMATS[kind]
    try:
        importlib.import_module(needs)
        return importlib.import_module(f".{name}", __package__)
    except ImportError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise UnsupportedError.of(f"the format {kind} needs {'PyTorch' if error.name == 'torch' else 'NumPy'}, which {sys.executable} "
                                  f"does not find: {sys.executable} -m pip install {error.name}") from None


def detect(path: str) -> str:
    """Returns the format of a file or folder. If it is of no known format, raises UnsupportedError (file) or InvalidError (folder)."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, ".metadata")):
            return "dcp"
        raise InvalidError.of(f"{path} holds no .metadata, so it is not a directory of torch.distributed.checkpoint; name a file, "
                              "or use cairn import for safetensors")
    view = View(Mapped(path))
    head = view.part(0, 4)
    if head[:1] == b"\x80" and head[1:2] <= b"\5" and len(head) > 2:
        return "torch"  # which says what is wrong with it
    if head != b"PK\3\4":
        raise UnsupportedError.of(f"{path} is neither a file of torch.save nor an npz archive; cairn import reads safetensors")
    with zips.open_archive(view) as archive:
        return "torch" if any(name.endswith("/data.pkl") for name in archive.namelist()) else "npz"


def human(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count /= 1024
    else:
        unit = "TiB"
    return f"{count} B" if unit == "B" else f"{count:.2f} {unit}"


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _save(args: argparse.Namespace, bundle: Bundle) -> Any:
    if not args.new_lineage:
        with client(args, read_only=True) as viewer:
            if viewer.list():
                raise ExistsError.of("the run already has checkpoints, and a save would begin a new lineage beside them and fence a job "
                                     "that is training the run; choose another run, or give --new-lineage")
    with client(args, arena_bytes=args.arena, save_deadline=args.deadline) as saver:
        saver.set_tensors(bundle.rows())
        saver.set_blobs(bundle.blob_rows())
        return saver.save(args.step, tags=args.tag).result()


def _import(args: argparse.Namespace) -> None:
    kind = detect(args.path) if args.format == "auto" else args.format
    bundle = module(kind).read(args.path)
    bundle.finish()
    result = None if args.dry_run else _save(args, bundle)
    show(args, {"format": kind, "dry_run": args.dry_run, "tensors": len(bundle.tensors), "blobs": len(bundle.blobs),
                "plain_bytes": bundle.plain_bytes, "step": args.step, "term": 0 if result is None else result.term},
         f"{'would import' if args.dry_run else 'imported'} {plural(len(bundle.tensors), 'tensor')} and "
         f"{plural(len(bundle.blobs), 'blob')}, {human(bundle.plain_bytes)}, from {args.path} ({kind})" +
         ("" if result is None else f" as {result.step}@{result.term}"))


def _export(args: argparse.Namespace) -> None:
    module(args.format)  # what is missing is said before anything is asked of a server
    from .export import export
    export(args)


def show(args: argparse.Namespace, document: dict, line: str) -> None:
    print(json.dumps({"schema_version": 1, **document}) if args.json else line, flush=True)


def selector(text: str) -> tuple:
    """Returns (step, term) of "latest", STEP or STEP@TERM. The term is 0 if the text has none. Raises InvalidError for any other text."""
    found = re.fullmatch(r"(\d+)(?:@([1-9]\d*))?", text, re.ASCII)
    if text == "latest":
        return LATEST, 0
    if found is None or int(found[1]) >= LATEST:
        raise InvalidError.of(f'"{text[:64]}" does not name a checkpoint; write latest, STEP or STEP@TERM (terms start at 1)')
    return int(found[1]), int(found[2] or 0)


def _say(words: Sequence[str], error: CairnError) -> int:
    status = STATUSES.get(error.name, 1)
    text = error.text.encode("utf-8", "backslashreplace").decode()
    if "--json" in words:
        print(json.dumps({"schema_version": 1, "message_type": "exit_error", "code": status, "error": error.name, "message": text}),
              file=sys.stderr)
    else:
        print(f"cairn-convert: {error.name}: {text}", file=sys.stderr)
    return status


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main(words: Optional[Sequence[str]] = None) -> int:
    """Runs a command line, by default the process's own, and returns its exit status."""
    words = sys.argv[1:] if words is None else words
    try:
        args = _parser().parse_args(words)
        if args.store:
            raise UnsupportedError.of("--store cannot be used, because cairn-convert asks a server; start cairnd over the store "
                                      "and give --server, or use safetensors (cairn export --store) without one")
        _import(args) if args.command == "import" else _export(args)
        return 0
    except CairnError as error:
        return _say(words, error)
    except OSError as error:
        return _say(words, os_error(f"{error.filename or 'a file'}", error))
    except KeyboardInterrupt:
        print("cairn-convert: interrupted; nothing was written" if "export" in words else "cairn-convert: interrupted", file=sys.stderr)
        return INTERRUPTED


def script() -> int:
    """The console script: main, and what a process of its own needs."""
    faulthandler.enable()  # a mapped file that becomes shorter is SIGBUS: nothing is committed, and the stack tells where
    warnings.simplefilter("ignore")  # of PyTorch, about what this program does on purpose
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    return main()
