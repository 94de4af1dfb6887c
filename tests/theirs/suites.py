# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of other projects with Cairn underneath, and prints what passed, failed and was skipped, with a reason for each
case that has not passed.

    tests/theirs/run build/release SUITE [SOURCE] [MODULE...]

SOURCE is the other project's source tree. Nothing in it is changed: the modules are copied, and the shim of the suite puts Cairn
in the place of the project's own files on disk. A case that cannot pass is in a list here, with the reason. The exit status is 1 if
another case fails, or if one of the list passes.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parent / "python"
DEADLINE_S = 1800

_IN_PLACE = "saves in place from another process: nothing says when such a checkpoint is complete, so it is never committed"
_ON_DISK = "counts the folders of states on disk; the server's retention removes what has lost its tag"


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of one project.

    Attributes:
        folder: Where its modules are, in its source; "" where they come with Cairn's own tests, from tests/python.
        modules: Their names.
        shim: The module beside this one that must be imported first; "" where none is needed.
        head: What is put in front of each module, also for the processes that it starts.
        tail: What is put behind each module.
        is_imported: Whether the project's package is imported from its source, and not as it is installed.
        cannot: Reasons by pattern of the case's name.
    """

    folder: str
    modules: tuple
    shim: str = ""
    head: str = ""
    tail: str = ""
    is_imported: bool = False
    cannot: dict = dataclasses.field(default_factory=dict)


_NEWER = {"test_dtype_mismatch_casting": "needs DefaultLoadPlanner(allow_unsafe_types=...), which PyTorch 2.13 has not got"}
_DCP = ("test/distributed/checkpoint", ("test_file_system_checkpoint_cpu.py", "test_file_system_checkpoint.py"))
SUITES = {
    "fsspec": Suite("", ("test_fs_suite.py",)),
    "dlio": Suite("", ("../theirs/test_dlio.py",), is_imported=True),
    "pytorch-writer": Suite(*_DCP, head="import dcp_cpu, dcp_writer  # noqa\n", cannot=_NEWER),
    "pytorch-path": Suite(*_DCP, head="import dcp_cpu, dcp_paths  # noqa\n", cannot=_NEWER),
    "accelerate": Suite("tests", ("test_state_checkpointing.py",), head="import accelerate_runs  # noqa\n", cannot={
        "test_with_save_limit": _ON_DISK, "test_checkpoint_deletion": _ON_DISK}),
    "torch-checkpointing": Suite(
        "tests", ("test_local_filesystem.py", "test_checkpoint_writer.py", "test_checkpoint_manager.py", "test_checkpoint_loader.py",
                  "test_builder.py"),
        shim="torch_checkpointing_folders", tail="\nimport torch_checkpointing_folders\nos, open = torch_checkpointing_folders.look()\n",
        is_imported=True, cannot={
            "test_write_fails_if_parent_dir_not_created": "demands an error where a folder was not made; Cairn's folders need no mkdir",
            "test_pre_finalize_callback_runs_before_atomic_rename": "looks into the temporary folder with pathlib, on disk",
            "test_async_save_prewarms_staging_and_writes_checkpoint": _IN_PLACE,
            "test_async_save_then_load_round_trip": _IN_PLACE,
            "test_make_async_checkpoint_saver$": _IN_PLACE,
        }),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: its name, how it ended ("passed", "failed", "skipped"), and why."""

    name: str
    end: str
    why: str


def _reason(node):
    """Returns why a case has not passed, in one line: of an error of pytest itself the last line of its traceback."""
    lines = [line[2:] for line in (node.text or "").splitlines() if line.startswith("E ")] if node.tag == "error" else []
    return " ".join((lines[-1] if lines else node.get("message") or node.text or "no reason given").split())[:200]


def _cases(report):
    """Returns the cases of pytest's report."""
    for case in xml.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".removeprefix("::")
        told = [node for node in case if node.tag in ("failure", "error", "skipped")]
        end = "passed" if not told else "skipped" if told[0].tag == "skipped" else "failed"
        yield Case(name, end, _reason(told[0]) if told else "")


def run(name, source, url, modules=(), folder=None):
    """Runs a suite against a server.

    Args:
        name: The name in SUITES.
        source: The source tree of the project; None for a suite that needs none.
        url: The beginning of the URLs of the runs that the tests make.
        modules: Modules in place of the suite's own.
        folder: An empty folder for the copies.

    Returns:
        The cases. A process that ends before its report is a case that failed.
    """
    suite, cases = SUITES[name], []
    paths = [str(HERE), str(PYTHON), str(folder), os.environ.get("PYTHONPATH", "")]
    if suite.is_imported:
        paths.insert(0, str(source))
    env = {**os.environ, "CAIRN_THEIRS_URL": url, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for module in modules or suite.modules:
        origin = (PYTHON if not suite.folder else source / suite.folder) / module
        target = PYTHON if not suite.folder else folder
        if suite.folder:
            (folder / module).parent.mkdir(exist_ok=True)
            (folder / module).write_text(suite.head + origin.read_text(encoding="utf-8") + suite.tail, encoding="utf-8")
        report = folder / f"{origin.name}.xml"
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["-p", suite.shim] if suite.shim else []),
                               "--rootdir", str(target), "--junitxml", str(report), module], cwd=target, env=env, capture_output=True,
                              text=True, timeout=DEADLINE_S, check=False)
        if report.exists() and done.returncode in (0, 1, 2):
            cases.extend(_cases(report))
        else:
            cases.append(Case(module, "failed", f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:].strip()}"))
    return cases


def tell(name, cases):
    """Prints what became of the cases. Returns whether all is as the list of the suite says."""
    suite, is_well, known = SUITES[name], True, set()
    for case in cases:
        reason = next((why for pattern, why in suite.cannot.items() if re.search(pattern, case.name)), None)
        if case.end == "passed":
            if reason is not None:
                is_well = False
                print(f"PASSED   {case.name}: the list says that it cannot; take it from there")
            continue
        if case.end == "failed" and reason is not None:
            known.add(case.name)
        is_well = is_well and (case.end == "skipped" or reason is not None)
        print(f"{case.end if reason is None or case.end == 'skipped' else 'cannot'}".ljust(9) + f"{case.name}: {reason or case.why}")
    ends = collections.Counter(case.end for case in cases)
    failed = f"{ends['failed']} failed" + (f" ({len(known)} of them cannot pass)" if known else "")
    print(f"{name}: {ends['passed']} passed, {failed}, {ends['skipped']} skipped", flush=True)
    return is_well and bool(ends["passed"])


def main():
    parser = argparse.ArgumentParser(description="Runs the tests of another project with Cairn underneath.")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("source", nargs="?", type=lambda text: pathlib.Path(text).expanduser().resolve(), help="the project's source tree")
    parser.add_argument("modules", nargs="*", help="in place of the suite's own")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    if (suite.folder or suite.is_imported) and (arguments.source is None or not (arguments.source / suite.folder).is_dir()):
        parser.error(f"{arguments.suite} needs the project's source tree, with a folder {suite.folder or arguments.suite} in it")
    sys.path.insert(0, str(PYTHON))
    from conftest import running_daemon

    with running_daemon() as daemon, tempfile.TemporaryDirectory() as copies:
        cases = run(arguments.suite, arguments.source, daemon.url("theirs-"), arguments.modules, pathlib.Path(copies))
    return 0 if tell(arguments.suite, cases) else 1


if __name__ == "__main__":
    sys.exit(main())
