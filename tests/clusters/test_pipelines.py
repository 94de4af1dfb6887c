# SPDX-License-Identifier: Apache-2.0
"""The pipelines are valid for what reads them, and what they all call, deploy/pipelines/evaluate, does it on a real run."""

import json
import os
import shutil
import subprocess

import yaml
from harness import BIN, SOURCE, Case, Daemon, Group, cairn_json, main

PIPELINES = SOURCE / "deploy" / "pipelines"


class Pipelines(Case):
    def test_the_workflow_of_github_is_valid(self):
        subprocess.run(["actionlint", PIPELINES / "github.yml"], check=True)

    def test_a_mistake_is_found(self):
        broken = self.bed.path / "broken.yml"
        broken.write_text((PIPELINES / "github.yml").read_text().replace("secrets.CAIRN_CA }}", "secrets.CAIRN_CA }"))
        self.assertNotEqual(subprocess.run(["actionlint", broken], capture_output=True, check=False).returncode, 0)

    def damaged(self, name, *edits):
        """Copies of a pipeline that differ from it in one place each."""
        text = (PIPELINES / name).read_text()
        for number, (old, new) in enumerate(edits):
            self.assertIn(old, text)
            folder = self.bed.path / f"damaged-{number}"
            folder.mkdir()
            (folder / name).write_text(text.replace(old, new))
            yield folder / name

    def test_the_pipeline_of_jenkins_is_groovy(self):
        if not shutil.which("java"):
            self.skipTest("npm-groovy-lint needs Java (tools/install-packages --clusters)")
        files = [PIPELINES / "Jenkinsfile", *self.damaged("Jenkinsfile", ("stage('Evaluate')", "stage('Evaluate'"),
                                                          ("    stages {", "    def unused = 1\n    stages {"))]
        done = subprocess.run(["npm-groovy-lint", "--noserver", "--config", "recommended-jenkinsfile", "--output", "json", *files],
                              check=False, capture_output=True, text=True, cwd=self.bed.path)
        self.assertTrue(done.stdout.startswith("{"), done.stdout + done.stderr)
        found = json.loads(done.stdout)["files"]
        self.assertEqual([[error["rule"] for error in found[str(path)]["errors"]] for path in files],
                         [[], ["NglParseError"], ["UnusedVariable"]])

    def test_the_workflow_of_argo_is_what_argo_reads(self):
        from hera.workflows.models import CronWorkflow

        def check(path):
            document = yaml.safe_load(path.read_text())
            spec = CronWorkflow.model_validate(document).spec.workflow_spec
            read = CronWorkflow.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
            self.assertEqual(read, document)  # what the model does not know is gone
            self.assertIn(spec.entrypoint, [template.name for template in spec.templates])

        check(PIPELINES / "argo.yaml")
        for path in self.damaged("argo.yaml", ("entrypoint: evaluate", "entrypoint: another"), ("podMetadata:", "podMeta:"),
                                 ("concurrencyPolicy: Forbid", "concurrencyPolicy: [Forbid]"), ("mountPath: /tls,", "")):
            with self.subTest(path=path.parent.name), self.assertRaises((AssertionError, ValueError)):
                check(path)

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
