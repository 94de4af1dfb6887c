# SPDX-License-Identifier: Apache-2.0
"""The pipelines are valid for what reads them, and what they all call, deploy/pipelines/evaluate, does it on a real run."""

import os
import re
import subprocess

import yaml
from harness import BIN, SOURCE, Case, Daemon, Group, cairn, cairn_json, main

PIPELINES = SOURCE / "deploy" / "pipelines"


class Pipelines(Case):
    def test_the_workflow_of_github_is_valid(self):
        subprocess.run(["actionlint", PIPELINES / "github.yml"], check=True)

    def test_a_mistake_is_found(self):
        broken = self.bed.path / "broken.yml"
        broken.write_text((PIPELINES / "github.yml").read_text().replace("secrets.CAIRN_CA }}", "secrets.CAIRN_CA }"))
        self.assertNotEqual(subprocess.run(["actionlint", broken], capture_output=True, check=False).returncode, 0)

    def test_all_call_the_same(self):
        words = ["evaluate", "lab/gpt", "accuracy", "python", "evaluate.py"]
        argo = yaml.safe_load((PIPELINES / "argo.yaml").read_text())
        self.assertEqual(argo["spec"]["workflowSpec"]["templates"][0]["container"]["command"], words)
        for name in ("github.yml", "Jenkinsfile"):
            self.assertIn("deploy/pipelines/" + " ".join(words), (PIPELINES / name).read_text())

    def evaluate(self, daemon, *words, status=0):
        done = subprocess.run([PIPELINES / "evaluate", *words], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "CAIRN_SERVER": f"unix:{daemon.socket}"})
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout

    def test_evaluate(self):
        daemon = Daemon(self.bed).start()
        self.evaluate(daemon, "demo/run", "size", "false", status=4)
        group = Group(self.bed, daemon.url())
        group.save(7)
        count = ("sh", "-c", 'stat -c %s "$0"/model.safetensors')
        self.assertRegex(self.evaluate(daemon, "demo/run", "size", *count), r"^evaluate: demo/run 7@1 size=\d+\n$")
        self.assertIn("has size already", self.evaluate(daemon, "demo/run", "size", *count))
        shown = cairn_json("show", "demo/run", "latest", "--server", f"unix:{daemon.socket}")["checkpoint"]
        self.assertIn("evaluated", shown["tags"])
        group.save(8)
        self.evaluate(daemon, "demo/run", "size", "false", status=1)  # an evaluation that fails leaves no metric
        self.assertNotIn("size", cairn_json("show", "demo/run", "latest", "--server", f"unix:{daemon.socket}")["checkpoint"]["metrics"])
        group.end()


if __name__ == "__main__":
    main()
