# SPDX-License-Identifier: Apache-2.0
"""An object that Ceph has given up, or that somebody removed, costs at most the checkpoint that it hits (cases of
test_ceph.py). After each fault the remedy that was printed is typed as it stands, with the store's URL for URL;
afterwards everything is as before. CAIRN_FULL=1 takes every object but the pieces of checkpoints, the short form one of
each kind."""

import re
import shlex
import shutil
import subprocess

from ceph_bed import OnCeph
from harness import FULL, Group, cairn

__all__ = ["Objects"]

RUNS = ("demo/a", "demo/b")
REMEDY = re.compile(r"`(cairn salvage --yes[^`]*)`")
NOTHING = re.compile(r"no checkpoint|nothing has been saved|there is no run", re.IGNORECASE)
SHORT = (("run.a", "deleted"), ("run.a", "key lost"), ("store", "deleted"), ("runs", "deleted"), ("stored/a", "deleted"))
STORE_SPACE = ("store", "store.copy", "runs", "runs.copy")


class Objects(OnCeph):
    def in_space(self, space, *words):
        done = subprocess.run(["rados", "-c", str(self.ceph.dir / "ceph.conf"), "--id", "admin", "-p", "cairn", "-N", space,
                               *words], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def saved(self):
        daemon = self.daemon()
        for run in RUNS:
            group = Group(self.bed, self.url(daemon).replace("demo/run", run), 1)
            for step in (1, 2):
                group.advance(step)
            group.end()
        self.assertEqual(daemon.stop(), 0)

    def faults(self):
        """(namespace, object, fault), on no checkpoint's own objects. Lists of what is stored come last: what they have lost stays
        lost, and a record that is lost after them would be a second fault."""
        space = f"{self.space}/demo"
        inside = self.in_space(space, "ls").split()
        names = [(space, name) for name in inside if name.startswith("run.")] + [(self.space, name) for name in STORE_SPACE]
        names += [(space, name) for name in inside if name.startswith("stored/")]
        names += [(space, name) for name in inside if name.startswith("smalls/")]
        for where, name in names:
            for fault in ("deleted", "emptied", "flipped", "key lost"):
                if FULL or (name, fault) in SHORT:
                    yield where, name, fault

    def damage(self, space, name, fault):
        if fault == "deleted":
            self.in_space(space, "rm", name)
        elif fault == "emptied":
            self.in_space(space, "clearomap", name)
        else:
            keys = [key for key in self.in_space(space, "listomapkeys", name).split() if not key.startswith("l/")]
            if fault == "flipped":
                self.in_space(space, "setomapval", name, keys[0], "other")
            else:
                self.in_space(space, "rmomapkey", name, keys[len(keys) // 2])

    def look(self):
        """What is wrong, and the remedies that are printed."""
        wrong, remedies = [], []
        for run in RUNS:
            out = self.bed.path / "out"
            status, _, err = cairn("restore", run, "--to", out, "--store", self.store)
            shutil.rmtree(out, ignore_errors=True)
            if status != 0:
                wrong.append(f"restore {run}: {err}")
            status, text, err = cairn("ls", run, "--json", "--store", self.store)
            if status != 0 or '"step":2' not in text.replace(" ", ""):
                wrong.append(f"ls {run}: {err}{text[-300:]}")
        status, out, err = cairn("verify", "--store", self.store)
        if status != 0:
            wrong.append(f"verify: {out}{err}")
        for text in wrong:
            remedies += [found for found in REMEDY.findall(text) if found not in remedies]
        return wrong, remedies

    def test_one_fault_costs_what_it_hits(self):
        self.saved()
        self.assertEqual(self.look(), ([], []))
        tried = beyond = failed = 0
        print(flush=True)
        for space, name, fault in list(self.faults()):
            tried += 1
            self.damage(space, name, fault)
            wrong, remedies = self.look()
            if any(NOTHING.search(text) for text in wrong) or (wrong and not remedies):
                beyond += 1
                print(f"{fault} {space} {name}: {wrong}", flush=True)
            if name == "store":
                status, _, err = cairn("store", "create", self.store)
                self.assertNotEqual(status, 0, err)
            for remedy in remedies[:1]:
                words = [self.store if word == "URL" else word for word in shlex.split(remedy)[1:]]
                status, out, err = cairn(*(word for word in words if word != "--yes"))  # says what it would do
                self.assertEqual(status, 0, out + err)
                self.assertIn("nothing was changed", err)
                status, out, err = cairn(*words)
                if status != 0:
                    failed += 1
                    print(f"{fault} {space} {name}: {remedy}: {status}: {out}{err}", flush=True)
            if name in STORE_SPACE:  # one fault at a time: a start makes the second object good
                self.assertEqual(self.daemon("heals").stop(), 0)
            wrong, _ = self.look()
            if wrong:
                beyond += 1
                print(f"{fault} {space} {name}: afterwards: {wrong}", flush=True)
                break
        print(f"{tried} cases: {beyond} beyond the checkpoint that was hit, {failed} remedies that fail", flush=True)
        self.assertEqual((beyond, failed), (0, 0))
        daemon = self.daemon("again")
        for run in RUNS:
            group = Group(self.bed, self.url(daemon).replace("demo/run", run), 1)
            self.assertEqual(group.restore()[0], 2)
            group.all("check", 2)
            group.advance(3)
            group.end()
        self.assertEqual(daemon.stop(), 0)
