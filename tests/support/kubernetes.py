"""A Deployment of llama-server to change, as contrib/kubernetes makes it: on a scripted cluster, or a real one."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.launch import free_port
from specdash.control.apply.journal import journal_file
from support.foreign_service import ForeignService
from support.help_engine import SCRIPTED
from support.scripted_kubectl import Cluster
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.services.services import ServiceStatus

NAME, MAP = "llama-server", "llama-server-7f9mk2b4c5"
"""The Deployment, and its ConfigMap as Kustomize names it."""
SERVICE = f"kubectl:llama/{NAME}"
SECRET = "secret-of-the-cluster"
TESTS = Path(__file__).parents[1]


@dataclass
class KubernetesRig(ForeignService):
    """A namespace `llama` with one Deployment, which runs. `image` is what the pods of the scripted cluster run."""

    image: tuple[str, ...] = SCRIPTED

    def __post_init__(self) -> None:
        super().__post_init__()
        self.env["PATH"] = f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"

    @cached_property
    def cluster(self) -> Cluster:
        """What an operator would do with kubectl beside specdash; enter it."""
        return Cluster(self.home / "cluster")

    def objects(self, container: dict[str, Any] | None = None, **more: str) -> list[dict[str, Any]]:
        """ConfigMap, Secret and Deployment as the base makes them, with further settings."""
        values = {
            "LLAMA_ARG_MODEL": "/models/target.gguf",
            "LLAMA_ARG_HOST": "0.0.0.0",
            "LLAMA_ARG_PORT": str(self.port),
            "LLAMA_ARG_CTX_SIZE": "2048",
            "LLAMA_ARG_SPEC_TYPE": "ngram-mod",
            **more,
        }
        labels = {"app.kubernetes.io/name": NAME}
        sources = [{"configMapRef": {"name": MAP}}, {"secretRef": {"name": "llama-keys"}}]
        contained = container or {"envFrom": sources}
        pod = {"containers": [{"name": NAME, "image": "llama.cpp:server", **contained}]}
        spec = {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {**pod, "terminationGracePeriodSeconds": 5}},
        }
        key = base64.b64encode(SECRET.encode()).decode()
        made = {"name": NAME, "annotations": {"deployment.kubernetes.io/revision": "1"}}
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MAP}, "data": values},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "llama-keys"}, "data": {"LLAMA_API_KEY": key}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": made, "spec": spec},
        ]

    def make(self, container: dict[str, Any] | None = None, **more: str) -> None:
        """Make it as `kubectl apply -k` would; nothing of an apply is left."""
        journal_file(self.env).remove()
        with self.cluster as cluster:
            cluster.end()
            cluster.image = self.image
            for made in self.objects(container, **more):
                cluster.add(made)
        self.running()

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """What an operator's kubectl prints."""
        done = subprocess.run(
            [shutil.which("kubectl", path=self.env["PATH"]) or "kubectl", "--namespace=llama", *words],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, kind: str, name: str) -> dict[str, Any]:
        """One object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        """Every pod by name."""
        listed = self.kubectl("get", "pod", f"--selector=app.kubernetes.io/name={NAME}", "--output=json")
        return {pod["metadata"]["name"]: pod for pod in json.loads(listed)["items"]}

    def meanwhile(self) -> None:
        """Let somebody else change the Deployment just before the next patch."""
        with self.cluster as cluster:
            cluster.objects["meanwhile"] = {"minReadySeconds": 1}

    def running(self) -> None:
        """Wait for its pod."""

        def runs() -> bool:
            states = [pod["status"].get("containerStatuses", [{}])[0].get("state", {}) for pod in self.pods().values()]
            return len(states) == 1 and "running" in states[0]

        until(runs)

    def status(self) -> ServiceStatus:
        """How it stands."""
        return self.service().status()

    def command(self, *words: str, fault: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """See `ForeignService.command`; it must not print the secret."""
        done = super().command(*words, fault=fault, **env)
        assert SECRET not in done.stdout + done.stderr
        return done

    def killed(self, *words: str, at: str) -> None:
        """`specdash WORDS` that is killed at a point, which it must reach."""
        done = self.command(*words, fault=at)
        assert done.returncode == -signal.SIGKILL, f"{at} was not reached: {done.stdout}{done.stderr}"

    def calls(self) -> list[list[str]]:
        """The words of every call of kubectl."""
        return self.cluster.calls

    def config_map(self) -> tuple[str, dict[str, str]]:
        """The ConfigMap that the Deployment names, and what it says."""
        name = _source(self.read("deployment", NAME)["spec"]["template"]["spec"])
        data: dict[str, str] = self.read("configmap", name)["data"]
        return name, data

    def assert_settled(self, size: str) -> None:
        """One pod, which runs with that context; Deployment, working copy and pod agree, and no apply is under way."""
        assert journal_file(self.env).read() is None
        assert self.config_map()[1]["LLAMA_ARG_CTX_SIZE"] == size
        assert f"LLAMA_ARG_CTX_SIZE={size}\n" in self.service().env_file.read_text("utf-8")
        self.running()
        assert [_source(pod["spec"]) for pod in self.pods().values()] == [self.config_map()[0]]
        assert "specdash.dev/before" not in self.read("deployment", NAME)["metadata"]["annotations"]


def _source(pod: dict[str, Any]) -> str:
    """The ConfigMap that a pod's container has its settings from."""
    return str(pod["containers"][0]["envFrom"][0]["configMapRef"]["name"])


CLUSTER = "SPECDASH_KUBERNETES"
"""Names the kubeconfig of a laboratory's cluster, as `tests/support/lab_kubelet/cluster.sh start` makes one."""
_CONFIG = os.environ.get(CLUSTER)
_WRAPPER = """#!/bin/sh
printf '%s\\0' "$@" >>{calls}
echo >>{calls}
case " $* " in
*" patch deployment "*) [ ! -e {meanwhile} ] || {{
    rm {meanwhile}
    {kubectl} -n llama patch deployment {name} --type=merge -p '{{"spec":{{"minReadySeconds":1}}}}'
  }} >&2 ;;
esac
exec {kubectl} "$@"
"""


@dataclass
class ClusterRig(KubernetesRig):
    """The same on a real API server with its controllers. The pods are processes, begun by the laboratory's kubelet."""

    def make(self, container: dict[str, Any] | None = None, **more: str) -> None:
        """Make it anew, with nothing of an earlier test left."""
        journal_file(self.env).remove()
        kinds = "deployments,replicasets,pods,configmaps,secrets"
        self.kubectl("delete", kinds, "--all", "--now", "--wait=true")
        for made in self.objects(container, **more):
            self.kubectl("create", "--filename=-", stdin=json.dumps(made))
        self.running()

    def meanwhile(self) -> None:
        """Let somebody else change the Deployment just before the next patch."""
        (self.home / "meanwhile").touch()

    def calls(self) -> list[list[str]]:
        """The words of every call of kubectl."""
        return [line.split("\0")[:-1] for line in (self.home / "calls").read_text("utf-8").splitlines()]


@contextlib.contextmanager
def cluster_rig(folder: Path) -> Iterator[ClusterRig]:
    """A rig in the laboratory's cluster; skips the test where there is none."""
    kubectl = shutil.which("kubectl")
    if _CONFIG is None or kubectl is None:
        pytest.skip(f"no cluster is here: {CLUSTER} names no kubeconfig (tests/support/lab_kubelet)")
    rig = ClusterRig(folder, free_port("127.0.0.1"), SERVICE)
    rig.env["KUBECONFIG"] = _CONFIG
    program = folder / "bin" / "kubectl"
    program.parent.mkdir()
    calls, meanwhile = folder / "calls", folder / "meanwhile"
    program.write_text(_WRAPPER.format(calls=calls, meanwhile=meanwhile, kubectl=kubectl, name=NAME), "utf-8")
    program.chmod(0o755)
    yield rig
    rig.kubectl("delete", "deployments,configmaps,secrets", "--all", "--now")


@contextlib.contextmanager
def kubernetes_rig(folder: Path) -> Iterator[KubernetesRig]:
    """A rig without its Deployment yet; its pods are killed afterwards."""
    rig = KubernetesRig(folder, free_port("127.0.0.1"), SERVICE)
    with rig.cluster.served(folder / "bin"):
        yield rig
