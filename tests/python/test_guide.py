# SPDX-License-Identifier: Apache-2.0
"""Every code block of the guide (docs/) and of the READMEs that people start with runs as it stands there.

The blocks of a page run one after the other, as a reader would type them: shell blocks in one bash, Python blocks in one
interpreter with bash's folder and environment. The page's HOME is a fresh folder, and CAIRN_SERVER names a fresh server.
What stands behind the language of a block says how it runs:

    ```python file train.py     the block is written to this file
    ```sh exit 6                the last command that fails ends with this status, and no other command fails
    ```text output              what the block before printed: `...` is any text, a number any number
    ```sh no-run REASON         it does not run here, and why
    ```text                     no code: a drawing, a file's layout
"""

import concurrent.futures
import contextlib
import io
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import traceback

import pytest

from conftest import running_daemon

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [*sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")), "README.md", "deploy/README.md",
         "client/python/README.md", "client/python/cairn/dcp/README.md", "client/python/cairn/fs/README.md"]
FENCE = re.compile(r"^```(\w*)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.M | re.S)
LANGUAGES = ("sh", "python", "c", "ini", "text")
# What an example in a README takes for granted.
NAMES = """
import fsspec, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=0, world_size=1)
model = torch.nn.Linear(3, 2)
optim = optimizer = torch.optim.AdamW(model.parameters())
sched = scheduler = torch.optim.lr_scheduler.StepLR(optim, 1)
loss, n, state = 0.5, 3, model.state_dict()
state_dict = {"model": model.state_dict()}
def train(step):
    model(torch.ones(3)).sum().backward()
    optim.step()
"""


def blocks_of(page):
    """(line, language, words, text) of each block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start()) + 1, *match.groups()) for match in FENCE.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(re.findall(r"^\s*```", text, re.M)) == 2 * len(blocks_of(page)), "a fence is indented or not closed"
    if page.startswith("docs/"):
        assert not re.search(r"\n\n(?:    |\t)(?![ \t]*[-*\d])", FENCE.sub("", text)), "an indented block is not tested"
    assert all(len(line) <= 120 for line in text.splitlines())
    for line, language, words, _ in blocks_of(page):
        assert language in LANGUAGES, f"{page}:{line}: the language is {language!r}"
        assert re.fullmatch(r"|file \S+|exit \d+|output|no-run .{12,}", words), f"{page}:{line}: {words!r} is not known"
        assert language in ("sh", "python", "text") or words, f"{page}:{line}: a block of {language} is written to a file"


def outcome_of(context, page):
    """(exit status, output) of a page that runs in a process of its own, with a server of its own."""
    programs = pathlib.Path(os.environ["CAIRND"]).parent
    with running_daemon() as daemon:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}
        environment.update(HOME=str(daemon.folder), no_proxy="*", CAIRN_SERVER=f"unix:{daemon.socket}", TMPDIR=str(daemon.folder),
                           PATH=f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
        process = context.Process(target=run_page, args=(page, daemon.folder, environment))
        process.start()
        process.join(600)  # a busy machine takes 10 times longer than a quiet one
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and the servers that the page has started
        process.join()
        return process.exitcode, (daemon.folder / "page.out").read_text(encoding="utf-8", errors="replace")


def test_every_link_between_files_leads_somewhere():
    """Of all Markdown in the tree; docs/build checks the guide's anchors as well."""
    skipped = ("build", ".venv", ".git")
    pages = [page for page in ROOT.rglob("*.md") if page.relative_to(ROOT).parts[0] not in skipped]
    links = [(page, target) for page in pages
             for target in re.findall(r"\]\(([^)#\s]+)", FENCE.sub("", page.read_text(encoding="utf-8"))) if "://" not in target]
    assert len(links) > 100
    assert [(str(page), target) for page, target in links if not page.parent.joinpath(target).exists()] == []


def test_every_part_of_a_configuration_is_taken(tmp_path):
    parts = [(f"{page}:{line}", text) for page in PAGES for line, language, words, text in blocks_of(page)
             if language == "ini" and words.startswith("no-run a part of cairnd.conf")]
    assert len(parts) >= 5
    for number, (place, text) in enumerate(parts):
        path = tmp_path / f"{number}.conf"
        path.write_text(f"[store]\nurl = dir:/store\n\n[listen]\nunix = /sock\n\n{text}", encoding="utf-8")
        done = subprocess.run([os.environ["CAIRND"], "--config", path, "--check-config"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{place}: {done.stderr}"


def test_every_command_in_a_sentence_exists():
    """No block runs it, but the program knows it with each of its options."""
    programs, helps, wrong = pathlib.Path(os.environ["CAIRND"]).parent, {}, []
    said = [(page, " ".join(words.split())) for page in PAGES
            for words in re.findall(r"`(cairnd? [^`]+)`", FENCE.sub("", (ROOT / page).read_text(encoding="utf-8")))]
    for page, words in said:
        program, first, *_ = words.split()
        command = (programs / program, *([first] if program == "cairn" and first[0] != "-" else []), "--help")
        if command not in helps:
            helps[command] = subprocess.run(command, capture_output=True, text=True, check=False)
        options = re.findall(r"(?<!\S)--[a-z][a-z-]+", words.split(" -- ")[0])
        if helps[command].returncode != 0 or any(not re.search(rf"{option}(?![\w-])", helps[command].stdout) for option in options):
            wrong.append(f"{page}: {words}")
    assert len(said) > 100 and wrong == []


@pytest.fixture(scope="module")
def processes():
    """Processes in which PyTorch is imported already: for eight pages it would be half of the time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "fsspec", "cairn.torch", "cairn.dcp"])
    return context


@pytest.fixture(scope="module")
def outcomes(request, processes):
    """What becomes of the pages, two at a time."""
    pages = [item.callspec.params["page"] for item in request.session.items if item.originalname == "test_the_blocks_run"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield {page: pool.submit(outcome_of, processes, page) for page in pages}


@pytest.mark.parametrize("page", [page for page in PAGES if any(language != "text" for _, language, _, _ in blocks_of(page))])
def test_the_blocks_run(outcomes, page):
    status, said = outcomes[page].result()
    assert status == 0, said


@pytest.mark.parametrize("block, complaint", [
    ("```sh\nfalse\ntrue\n```\n", "ended with [1]"),
    ("```sh\nfalse | cat\n```\n", "ended with [1]"),
    ("```sh exit 4\ntrue\n```\n", "should end with [4]"),
    ("```sh\necho one 12\n```\n\n```text output\ntwo 12\n```\n", "and the page says"),
    ("```python\nprint(undefined)\n```\n", "NameError"),
    ("```python\nraise SystemExit(0)\n```\n", "this block failed")])
def test_a_block_that_does_not_do_as_the_page_says_fails(processes, tmp_path, block, complaint):
    page = tmp_path / "page.md"
    page.write_text(block, encoding="utf-8")
    status, said = outcome_of(processes, str(page))
    assert status == 1 and complaint in said and "this block failed" in said


def test_blocks_that_do_not_run_are_few():
    blocks = [(page, *block) for page in PAGES for block in blocks_of(page)
              if not re.search("^no-run tests/.* runs it", block[2])]  # run, but not here
    skipped = [f"{page}:{line}: {words}" for page, line, _, words, _ in blocks if words.startswith("no-run")]
    every = sum(language != "text" for _, _, language, _, _ in blocks)
    print(f"{len(skipped)} of {every} blocks do not run here:", *skipped, sep="\n")
    assert len(skipped) < every / 4


class Page:
    """Runs the blocks of one page."""

    def __init__(self, page, folder):
        self.page, self.folder = page, pathlib.Path(folder)
        self.names = {"__name__": "__main__"}
        self.said = ""
        os.chdir(self.folder)
        for name in ("deploy", "docs", "tools"):  # a page that begins in the source tree needs no more of it
            os.symlink(ROOT / name, name)
        self.bash = subprocess.Popen(["bash", "--norc", "-o", "pipefail"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if page.endswith("README.md") and not page.startswith(("deploy/", "docs/")):
            exec("import os\n" + NAMES, self.names)  # pylint: disable=exec-used

    def run(self, line, language, words, text):
        """Runs a block, and raises when it does not do what the page says."""
        if words.startswith("no-run") or (language == "text" and words != "output"):
            return
        if words.startswith("file "):
            pathlib.Path(words.split()[1]).write_text(text, encoding="utf-8")
        elif words == "output":
            self.compare(text)
        elif language == "sh":
            self.shell(text, [int(words.split()[1])] if words else [])
        else:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(text, f"{self.page} from line {line}", "exec"), self.names)  # pylint: disable=exec-used
            self.said = said.getvalue()

    def shell(self, text, statuses):
        build = pathlib.Path(os.environ["CAIRND"]).parents[1]
        block, output, state = (self.folder / name for name in ("block.sh", "block.out", "block.env"))
        block.write_text(text.replace("build/release", str(build)) + ":\n", encoding="utf-8")
        self.bash.stdin.write(f"failed=(); trap 'failed+=($?)' ERR; . {block} >{output} 2>&1 </dev/null; trap - ERR; "
                              f"env -0 >{state}; pwd; echo ${{failed[*]}}\n")
        self.bash.stdin.flush()
        folder, failed = self.bash.stdout.readline().rstrip("\n"), [int(word) for word in self.bash.stdout.readline().split()]
        self.said = output.read_text(encoding="utf-8", errors="replace")
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(entry.split("=", 1) for entry in state.read_text(encoding="utf-8").split("\0") if entry)
        if failed != statuses:
            raise AssertionError(f"ended with {failed} and should end with {statuses}:\n{self.said}")

    def compare(self, text):
        wild = {"...": ".*?"}
        parts = re.findall(r"\.\.\.|[0-9a-f]{8,}|\d+|\s+|\D", text.strip())
        pattern = "".join(r"\s*" if part.isspace() else r"\d+" if part.isdecimal() and len(part) < 8 else "[0-9a-f]+"
                          if re.fullmatch("[0-9a-f]{8,}", part) else wild.get(part, re.escape(part)) for part in parts)
        if not re.fullmatch(rf"\s*{pattern}\s*", self.said, re.S):
            raise AssertionError(f"printed:\n{self.said}\nand the page says:\n{text}")


def run_page(page, folder, environment):
    """Runs in a process of its own, and ends it."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with open(folder / "page.out", "w", encoding="utf-8") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    runner = Page(page, folder)
    for line, *block in blocks_of(page):
        try:
            runner.run(line, *block)
        except BaseException:  # SystemExit too
            traceback.print_exc()
            print(f"{page}:{line}: this block failed", flush=True)
            os._exit(1)
    os._exit(0)  # what the page's Python left open is not for this test
