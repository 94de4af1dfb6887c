# SPDX-License-Identifier: Apache-2.0
"""The chart and the kustomizations are valid, say the same, and their pods work.

Schemas are those of Kubernetes itself (kubernetes-validate), of Kubeflow (kubeflow-trainer-api) and of the Prometheus operator
(cloudcoil). The commands of the pods run in network namespaces, as the user and with the volumes that the manifests name.
"""

import json
import os
import re
import shutil
import subprocess

import kubernetes_validate
import yaml
from harness import BIN, SOURCE, Case, Failure, main, wait_until
from pods import Cluster, Pod, own, secret_volume

KUBERNETES = SOURCE / "deploy" / "kubernetes"
OVERLAYS = ("directory", "ceph", "node")
MONITORED = ("serviceMonitor.enabled=true", "alerts.enabled=true", "dashboard.enabled=true")


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


def kustomize(overlay):
    return documents(subprocess.run(["kubectl", "kustomize", KUBERNETES / "kustomize" / "overlays" / overlay], check=True,
                                    capture_output=True, text=True).stdout)


def chart(mode, *values, folder=KUBERNETES / "chart", **trees):
    words = ["helm", "template", "cairn", folder, "--values", KUBERNETES / "chart" / "values" / f"{mode}.yaml"]
    for value in values:
        words += ["--set", value]
    for key, tree in trees.items():
        words += ["--set-json", f"{key}={json.dumps(tree)}"]
    return documents(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def only(found, kind):
    """The one document of a kind."""
    [one] = [one for one in found if one["kind"] == kind]
    return one


def read_as_published(document):
    """The document as the published model of its kind reads it and writes it again: what the model does not know is gone."""
    if document["kind"] in ("TrainJob", "JobSet"):
        import kubeflow_trainer_api.models as models

        kind = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}[document["kind"]]
        return kind.from_dict(document).to_dict()
    from cloudcoil.models.prometheus_operator import v1

    return getattr(v1, document["kind"]).model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)


class Manifests(Case):
    def check(self, document):
        if document["apiVersion"].split("/")[0] in ("v1", "apps", "batch", "policy", "networking.k8s.io"):
            kubernetes_validate.validate(document, "1.34", strict=True)
        else:
            self.assertEqual(read_as_published(document), document)

    def test_everything_is_valid(self):
        for mode in OVERLAYS:
            for document in kustomize(mode) + chart(mode, *MONITORED, "store.create=true", "jobs.gc=1 * * * *",
                                                    "jobs.scrub=2 * * * *") + chart(mode, *MONITORED, "http.tls=false"):
                with self.subTest(mode=mode, kind=document["kind"]):
                    self.check(document)
        for path in sorted((KUBERNETES / "examples").glob("*.yaml")):
            for document in documents(path.read_text()):
                with self.subTest(path=path.name, kind=document["kind"]):
                    if document["apiVersion"].startswith("batch.volcano.sh"):  # nobody publishes Volcano's schema as a package
                        for task in document["spec"]["tasks"]:
                            self.check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "task"}, "spec": task["template"]["spec"]})
                    else:
                        self.check(document)

    def test_a_mistake_is_found(self):
        broken = only(chart("directory"), "StatefulSet")
        broken["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
        with self.assertRaises(kubernetes_validate.ValidationError):
            self.check(broken)

    def test_the_chart_is_clean_and_says_what_kustomize_says(self):
        subprocess.run(["helm", "lint", "--strict", "--quiet", KUBERNETES / "chart"], check=True, capture_output=True)
        subprocess.run([KUBERNETES / "render", "--check"], check=True)

    def test_the_runtime_of_the_trainjob_is_there(self):
        """The runtime that Kubeflow Trainer brings, and the names of its job and its container, which the patch is for."""
        from kubeflow.trainer.constants import constants

        spec = only(documents((KUBERNETES / "examples" / "trainjob.yaml").read_text()), "TrainJob")["spec"]
        [job] = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        [container] = job["template"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual((spec["runtimeRef"], job["name"], container["name"]),
                         ({"name": constants.DEFAULT_TRAINING_RUNTIME}, constants.NODE, constants.NODE))

    def test_wrong_values_are_refused(self):
        for value, told in (
                ("mode=disk", "'/mode': value must be one of 'directory', 'ceph', 'node'"), ("http.tls=ja", "'/http/tls': got string"),
                ("store.creat=true", "'/store': additional properties 'creat' not allowed"), ("replicas=0", "'/replicas': minimum"),
                ("jobs.gc=hourly", "'/jobs/gc': 'hourly' does not match"), ("grace=30", "'/grace': got number, want string")):
            with self.subTest(value=value), self.assertRaises(subprocess.CalledProcessError) as caught:
                chart("directory", value)
            self.assertIn(told, caught.exception.stderr)
        said = subprocess.run([BIN / "cairn", "store", "create", f"dir:{self.bed.path}/store"],
                              check=True, capture_output=True, text=True).stdout
        uuid = re.search("uuid = ([^ ]+)", said).group(1)
        self.assertIn(f"uuid = {uuid}", only(chart("directory", f"store.uuid={uuid}"), "ConfigMap")["data"]["cairnd.conf"])

    def test_the_schema_has_the_values(self):
        schema = json.loads((KUBERNETES / "chart" / "values.schema.json").read_text())

        def compare(spec, value, where):
            spec = schema["definitions"][spec["$ref"].rsplit("/", 1)[1]] if "$ref" in spec else spec
            if "properties" in spec and where != "resources":
                self.assertEqual(set(spec["properties"]) - {"global"}, set(value), where)
                for key in value:
                    compare(spec["properties"][key], value[key], f"{where}.{key}".strip("."))

        compare(schema, yaml.safe_load((KUBERNETES / "chart" / "values.yaml").read_text()), "")

    def test_an_archive_brings_alerts_dashboard_and_notes(self):
        subprocess.run(["helm", "package", KUBERNETES / "chart", "--destination", self.bed.path], check=True, capture_output=True)
        [archive] = self.bed.path.glob("cairn-*.tgz")
        found = chart("directory", *MONITORED, folder=archive)
        rules = yaml.safe_load((SOURCE / "deploy" / "prometheus" / "cairn.rules.yml").read_text())
        self.assertEqual(only(found, "PrometheusRule")["spec"], rules)
        [dashboard] = [one for one in found if one["metadata"]["name"] == "cairn-dashboard"]
        self.assertEqual(json.loads(dashboard["data"]["cairn.json"]),
                         json.loads((SOURCE / "deploy" / "grafana" / "cairn.json").read_text()))
        self.assertEqual(dashboard["metadata"]["labels"]["grafana_dashboard"], "1")
        # The alerts look for "cairn" in the name of the job, whatever the release is called.
        job = only(found, "ServiceMonitor")["spec"]["jobLabel"]
        self.assertEqual([one["metadata"]["labels"][job] for one in found if one["kind"] == "Service"], ["cairn"])
        for mode, told in (("directory", "CAIRN_SERVER=keep.default.svc:7421"), ("node", "CAIRN_SERVER=unix:/run/cairn/cairnd.sock")):
            words = ["helm", "install", "--dry-run=client", "keep", archive, "--set", f"mode={mode},store.create=true"]
            notes = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("NOTES:")[1]
            for text in (told, "store.create=false", "port-forward", "alerts.enabled"):
                self.assertIn(text, notes)

    def test_the_pool_of_the_data_is_named(self):
        for found, wanted in ((chart("ceph"), False), (chart("ceph", "store.ceph.dataPool=cairn-ec", "store.create=true"), True)):
            [url] = [line for line in only(found, "ConfigMap")["data"]["cairnd.conf"].splitlines() if line.startswith("url = ")]
            self.assertEqual(url.endswith("&data-pool=cairn-ec"), wanted)
            if wanted:
                create = only(found, "Deployment")["spec"]["template"]["spec"]["initContainers"][0]["command"]
                self.assertEqual(create[-1], url.removeprefix("url = "))

    def test_jobs_run_where_the_daemon_runs(self):
        where = {"imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"pool": "storage"},
                 "tolerations": [{"key": "storage", "operator": "Exists", "effect": "NoSchedule"}],
                 "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                     {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]}}}}
        found = chart("ceph", "jobs.gc=1 * * * *", "jobs.scrub=2 * * * *", **where)
        specs = [one["spec"]["template"]["spec"] for one in found if one["kind"] == "Deployment"]
        specs += [one["spec"]["jobTemplate"]["spec"]["template"]["spec"] for one in found if one["kind"] == "CronJob"]
        self.assertEqual([{key: spec.get(key) for key in where} for spec in specs], [where] * 4)
        for document in found:
            self.check(document)

    def test_the_grace_fits(self):
        for mode in OVERLAYS:
            with self.subTest(mode=mode):
                found = kustomize(mode)
                config = only(found, "ConfigMap")["data"]["cairnd.conf"]
                workload = next(one for one in found if one["metadata"]["name"] == "cairn" and "template" in one.get("spec", {}))
                spec = workload["spec"]["template"]["spec"]
                grace = int(next(line for line in config.splitlines() if line.startswith("grace")).split("=")[1].strip(" s"))
                self.assertGreater(spec["terminationGracePeriodSeconds"],
                                   grace + spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"])


class Pods(Case):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
            self.skipTest("needs root and network namespaces")
        os.chmod(self.bed.path, 0o755)
        self.cluster = Cluster(self.bed)
        self.addCleanup(self.cluster.close)
        pki = self.bed.path / "pki"
        subprocess.run([SOURCE / "tools" / "make-test-pki", "--host", "cairn", pki], check=True, capture_output=True)
        self.secrets = {who: secret_volume(self.bed.path / f"{who}-tls", {"ca.crt": pki / "ca.crt", "tls.crt": pki / f"{who}.crt",
                                                                         "tls.key": pki / f"{who}.key"}) for who in ("server", "client")}
        (self.bed.path / "token").write_text("a-token-of-these-tests")
        self.secrets["http"] = secret_volume(self.bed.path / "http", {"token": self.bed.path / "token"})

    def folder(self, name):
        path = self.bed.path / name
        path.mkdir(exist_ok=True)
        own(path)
        return path

    def config(self, found):
        folder = self.bed.path / "config"
        folder.mkdir(exist_ok=True)
        (folder / "cairnd.conf").write_text(only(found, "ConfigMap")["data"]["cairnd.conf"])
        return folder

    def server(self, found, kind, sources, **keys):
        return Pod(self.cluster, only(found, kind)["spec"]["template"]["spec"],
                   {"config": self.config(found), "tls": self.secrets["server"], "http": self.secrets["http"], **sources}, **keys)

    def job(self, found, **keys):
        """A pod of the CronJob, which has what any client of the cluster has."""
        return Pod(self.cluster, only(found, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"],
                   {"tls": self.secrets["client"]}, **keys)

    def bench(self, pod, run, size="8MiB", rounds=2):
        status, output = pod.run(pod.spec["containers"][0], ["cairn", "bench", run, "--size", size, "--rounds", str(rounds), "--json"])
        self.assertEqual(status, 0, pod.text())
        return json.loads(output.splitlines()[-1])

    def test_a_directory_is_made_once_saved_to_and_moved(self):
        found = chart("directory")
        store = self.folder("volume")
        (store / "lost+found").mkdir()  # as a new volume has it
        with self.assertRaises(Failure) as caught:  # a disk that lost its store is an error, never an empty store
            self.server(found, "StatefulSet", {"store": store}).start()
        self.assertIn("ended with 10", str(caught.exception))
        creating = chart("directory", "store.create=true")
        self.assertEqual(self.server(creating, "StatefulSet", {"store": store}).start().stop(), 0)
        first = self.server(creating, "StatefulSet", {"store": store}).start()  # a pod that moves before the value is taken away
        self.cluster.resolve("cairn", first.address)
        client = self.job(found)
        container = client.spec["containers"][0]
        self.bench(client, "lab/one")
        self.assertEqual(client.run(container, ["cairn", "policy", "set", "*", "--keep-last", "2"])[0], 0, client.text())
        self.assertEqual(client.run(container)[0], 0, client.text())
        running = client.launch(container, ["cairn", "bench", "lab/two", "--size", "64MiB", "--rounds", "4", "--json"])
        wait_until("a save is open", lambda: "open" in client.run(container, ["cairn", "status", "--json"])[1])
        self.assertEqual(first.stop(), 0, first.text())
        moved = self.server(found, "StatefulSet", {"store": store}).start()  # the volume and the name come along, the address does not
        self.cluster.resolve("cairn", moved.address)
        self.assertEqual(running.wait(120), 0, client.text())
        self.assertEqual(client.run(container, ["cairn", "verify"])[0], 0, client.text())
        self.assertEqual(moved.stop(), 0, moved.text())

    def test_a_pod_without_a_certificate_is_refused(self):
        found = chart("directory", "store.create=true")
        server = self.server(found, "StatefulSet", {"store": self.folder("volume")}).start()
        self.cluster.resolve("cairn", server.address)
        client = self.job(found)
        status, _ = client.run(client.spec["containers"][0], ["env", "-u", "CAIRN_CERT_FILE", "-u", "CAIRN_KEY_FILE", "cairn", "ls"])
        self.assertNotEqual(status, 0)
        self.assertIn("certificate", client.text())

    def test_the_page_opens_with_the_token(self):
        """As through `kubectl port-forward`, which connects inside the pod; and the metrics as the ServiceMonitor has them read."""
        for mode, kind, monitor, endpoints in (("directory", "StatefulSet", "ServiceMonitor", "endpoints"),
                                               ("node", "DaemonSet", "PodMonitor", "podMetricsEndpoints")):
            with self.subTest(mode=mode):
                found = chart(mode, "store.create=true", "serviceMonitor.enabled=true")
                server = self.server(found, kind, {"store": self.folder(f"volume-{mode}"), "socket": self.folder("run")}).start()
                ca = ("--cacert", self.secrets["server"] / "ca.crt")
                token = ("--header", "Authorization: Bearer " + (self.secrets["http"] / "token").read_text())
                here = "https://localhost:7422"
                self.assertIn("<script", server.get(f"{here}/", *ca)[1])
                self.assertEqual([server.get(f"{here}{path}", *ca)[0] for path in ("/readyz", "/api/v1/runs", "/metrics")], [200, 401, 401])
                status, text = server.get(f"{here}/api/v1/runs", *ca, *token)
                self.assertEqual((status, json.loads(text)["runs"]), (200, []))
                [endpoint] = only(found, monitor)["spec"][endpoints]
                self.assertEqual((endpoint["authorization"]["credentials"], endpoint["tlsConfig"]["ca"]["secret"]),
                                 ({"name": "cairn-http", "key": "token"}, {"name": "cairn-server-tls", "key": "ca.crt"}))
                name = endpoint["tlsConfig"]["serverName"]
                status, text = server.get(f"{endpoint['scheme']}://{name}:7422{endpoint['path']}",
                                          "--resolve", f"{name}:7422:{server.address}", *ca, *token)
                self.assertEqual((status, "cairn_checkpoints" in text), (200, True))
                self.assertEqual(server.stop(), 0, server.text())

    def test_without_https_there_is_no_page(self):
        found = chart("directory", "store.create=true", "http.tls=false")
        server = self.server(found, "StatefulSet", {"store": self.folder("volume")}).start()
        here = f"http://{server.address}:7422"
        self.assertEqual([server.get(f"{here}{path}")[0] for path in ("/readyz", "/metrics", "/api/v1/runs")], [200, 200, 401])
        self.assertEqual(server.stop(), 0, server.text())

    def test_each_node_has_its_own(self):
        found = chart("node", "store.create=true")
        run = self.folder("run")
        server = self.server(found, "DaemonSet", {"store": self.folder("nvme"), "socket": run}).start()
        job = documents((KUBERNETES / "examples" / "node-local.yaml").read_text())[0]["spec"]["template"]["spec"]
        client = Pod(self.cluster, job, {"cairn": run, "work": self.folder("work")})
        self.bench(client, "lab/node")
        self.assertEqual(server.stop(), 0, server.text())

    def test_servers_of_a_pool(self):
        if not shutil.which("ceph-mon"):
            self.skipTest("needs Ceph (tools/install-packages --ceph)")
        namespace, _ = self.cluster.join()
        ceph = self.bed.path / "ceph"
        inside = ["ip", "netns", "exec", namespace, SOURCE / "deploy" / "ceph" / "test-cluster"]
        self.addCleanup(subprocess.run, [*inside, "destroy", ceph], check=False, capture_output=True)
        subprocess.run([*inside, "start", ceph], check=True, capture_output=True, timeout=300)
        key = next(path for path in ceph.rglob("*cairn*keyring*"))
        sources = {"ceph": self.bed.path / "ceph-conf", "ceph-key": secret_volume(self.bed.path / "ceph-key", {"keyring": key})}
        sources["ceph"].mkdir()
        shutil.copy(next(ceph.rglob("ceph.conf")), sources["ceph"])
        found = chart("ceph", "store.create=true")
        server = self.server(found, "Deployment", sources, namespace=namespace).start()
        self.cluster.resolve("cairn", "127.0.0.1")
        self.bench(self.job(found, namespace=namespace), "lab/pool")
        self.assertEqual(server.stop(), 0, server.text())


if __name__ == "__main__":
    main()
