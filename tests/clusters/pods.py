# SPDX-License-Identifier: Apache-2.0
"""What a kubelet does with a pod, on this machine: a network namespace with an address of its own, a root folder that cannot be
written, the volumes of the manifest, the user and the capabilities of its security context, probes, preStop and the grace period.

The commands are those of the manifests, and the programs are those of the build; only the image is missing.
"""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from harness import BIN, BUILD, Failure, wait_until

USER = 64000
ROOT = r"""
set -eu
mount -t tmpfs -o mode=755 tmpfs "$ROOT"
mkdir -p "$ROOT"/usr "$ROOT"/proc "$ROOT"/dev "$ROOT"/etc "$ROOT$BUILD"
ln -s usr/bin usr/lib usr/lib64 usr/sbin "$ROOT"/
mount --rbind /usr "$ROOT"/usr
mount --rbind /proc "$ROOT"/proc
mount --rbind /dev "$ROOT"/dev
mount --bind "$BUILD" "$ROOT$BUILD"
touch "$ROOT"/etc/hosts
mount --bind "$HOSTS" "$ROOT"/etc/hosts
cp -r /etc/ld.so.cache /etc/nsswitch.conf /etc/ssl "$ROOT"/etc/ 2>/dev/null || true
while read -r from to mode; do
    mkdir -p "$ROOT$to"
    mount --bind "$from" "$ROOT$to"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$ROOT$to"
done <"$VOLUMES"
mount -o remount,ro "$ROOT"
exec chroot "$ROOT" setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --no-new-privs --bounding-set=-all \
    env -i "$@"
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Cluster:
    """A bridge between namespaces, and the names that the pods know. Nothing leaves it: no namespace has a way out."""

    def __init__(self, bed):
        self.bed = bed
        self.name = f"cairn-{secrets.token_hex(3)}"
        self.namespaces = []
        self.addresses = 0
        self.hosts = bed.path / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.add_namespace(self.name)
        self.inside(self.name, "link", "add", "bridge", "type", "bridge")
        self.inside(self.name, "link", "set", "bridge", "up")

    def inside(self, namespace, *words):
        ip("-n", namespace, *words)

    def add_namespace(self, name):
        ip("netns", "add", name)
        self.namespaces.append(name)
        self.inside(name, "link", "set", "lo", "up")

    def join(self):
        """A new namespace on the bridge: its name and its address."""
        self.addresses += 1
        namespace, address = f"{self.name}-{self.addresses}", f"10.77.0.{self.addresses}"
        self.add_namespace(namespace)
        ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", f"pod{self.addresses}", "netns", self.name)
        self.inside(self.name, "link", "set", f"pod{self.addresses}", "master", "bridge", "up")
        self.inside(namespace, "address", "add", f"{address}/24", "dev", "eth0")
        self.inside(namespace, "link", "set", "eth0", "up")
        return namespace, address

    def resolve(self, name, address):
        """Lets all pods find the service at this address, from their next look on."""
        self.hosts.write_text(f"127.0.0.1 localhost\n{address} {name}\n")

    def close(self):
        for namespace in reversed(self.namespaces):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)


class Pod:
    """A pod of a manifest's pod spec. sources: for each volume its folder on this machine."""

    def __init__(self, cluster, spec, sources, namespace=None):
        self.cluster = cluster
        self.spec = spec
        self.sources = sources
        self.namespace, self.address = (namespace, "127.0.0.1") if namespace else cluster.join()
        self.process = None
        self.log = cluster.bed.path / f"{self.namespace}.log"
        security = spec["securityContext"]
        if security["runAsUser"] != USER or security["fsGroup"] != USER:
            raise Failure(f"the pod is to run as {USER}: {security}")

    def launch(self, container, command=None):
        """Starts a container's command, or another one with what that container has."""
        secure = container["securityContext"]
        if not secure["readOnlyRootFilesystem"] or secure["capabilities"]["drop"] != ["ALL"] or secure["allowPrivilegeEscalation"]:
            raise Failure(f"this is not how Pod starts it: {secure}")
        folder = self.cluster.bed.path / f"root-{secrets.token_hex(3)}"
        folder.mkdir()
        volumes = self.cluster.bed.path / f"{folder.name}.volumes"
        volumes.write_text("".join(f"{self.sources[mount['name']]} {mount['mountPath']} {'ro' if mount.get('readOnly') else 'rw'}\n"
                                   for mount in container.get("volumeMounts", [])))
        values = {"POD_IP": self.address}
        env = [f"{one['name']}={one.get('value', values.get(one['name']))}" for one in container.get("env", [])]
        words = [word.replace("$(POD_IP)", self.address) for word in command or container["command"] + container.get("args", [])]
        with open(self.log, "ab") as log:
            return self.cluster.bed.start(
                ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--propagation", "private", "bash", "-c", ROOT, "pod",
                 f"PATH={BIN}:/usr/bin:/bin", *env, *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if command else log, stderr=log,
                env={**os.environ, "ROOT": str(folder), "BUILD": str(BUILD), "HOSTS": str(self.cluster.hosts),
                     "VOLUMES": str(volumes), "USER_ID": str(USER)})

    def run(self, container, command=None, timeout_s=120):
        """The exit status and the output of a command that ends."""
        process = self.launch(container, command)
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, (output or b"").decode()

    def start(self):
        """Init containers, then the container, until its startup probe is content."""
        for container in self.spec.get("initContainers", []):
            status, _ = self.run(container)
            if status != 0:
                raise Failure(f"{container['name']} ended with {status}: {self.text()}")
        self.process = self.launch(self.spec["containers"][0])
        wait_until(f"the pod is ready: {self.log}", self.is_ready)
        return self

    def probe(self, name):
        """The status of an httpGet probe; 0 where nothing answers."""
        container = self.spec["containers"][0]
        get = container[name]["httpGet"]
        port = next(one["containerPort"] for one in container["ports"] if one["name"] == get["port"])
        # A kubelet does not check the certificate.
        return self.get(f"{get.get('scheme', 'HTTP').lower()}://{self.address}:{port}{get['path']}", "--insecure")[0]

    def get(self, url, *words):
        """What a GET from the pod's namespace answers: the status and the text; 0 where nothing answers."""
        got = subprocess.run(["ip", "netns", "exec", self.namespace, "curl", "-s", "-w", "\n%{http_code}", "--max-time", "2", *words, url],
                             capture_output=True, text=True, check=False)
        text, _, status = got.stdout.rpartition("\n")
        return int(status or 0), text

    def is_ready(self):
        if self.process.poll() is not None:
            raise Failure(f"the pod ended with {self.process.returncode}: {self.text()}")
        return self.probe("startupProbe") == 200 and self.probe("readinessProbe") == 200

    def stop(self):
        """preStop, SIGTERM, and what is left of the grace period: the exit status, or a failure where the kubelet would kill."""
        begin = time.monotonic()
        time.sleep(self.spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"])
        self.process.terminate()
        try:
            return self.process.wait(self.spec["terminationGracePeriodSeconds"] - (time.monotonic() - begin))
        except subprocess.TimeoutExpired:
            raise Failure("the pod would have been killed") from None

    def text(self):
        return self.log.read_text(errors="replace")[-2000:]


def own(path):
    """Gives a volume to the pods, as fsGroup does."""
    for one in [path, *path.rglob("*")]:
        os.chown(one, USER, USER)


def secret_volume(folder, files):
    """A secret as a kubelet writes it: the files belong to root, and the pod's group may read them."""
    folder.mkdir()
    for name, source in files.items():
        shutil.copy(source, folder / name)
        os.chown(folder / name, 0, USER)
        os.chmod(folder / name, 0o440)
    return folder
