"""A Deployment of llama-server for a test to change, as contrib/kubernetes makes it; the cluster is a scripted one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.backend.launch import free_port
from specdash.control.apply.journal import journal_file, read_records
from specdash.control.services.deployment import find_deployment
from specdash.core.config import resolve
from specdash.core.paths import applies_file
from support import pod_server, scripted_kubectl
from support.scripted_kubectl import Cluster
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.services.services import Deployment, ManagedService, ServiceStatus
    from specdash.core.changes import ApplyRecord

NAME, MAP = "llama-server", "llama-server-7f9mk2b4c5"
"""The Deployment, and its ConfigMap as Kustomize names it."""
SECRET = "secret-of-the-cluster"
TESTS = Path(__file__).parents[1]


@dataclass
class KubernetesRig:
    """A namespace `llama` with one Deployment, which runs."""

    home: Path
    port: int
    env: dict[str, str] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        """What an operator would do with kubectl beside specdash; enter it."""
        return Cluster(self.home / "cluster")

    def make(self, container: dict[str, Any] | None = None, **more: str) -> None:
        """Make it as `kubectl apply -k` would, with further settings; nothing of an apply is left."""
        journal_file(self.env).remove()
        scripted_kubectl.end(self.home / "cluster")
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
        with self.cluster as cluster:
            cluster.objects.clear()
            (cluster.folder / "image").write_text(json.dumps([sys.executable, "-SE", pod_server.__file__]), "utf-8")
            cluster.add({"kind": "ConfigMap", "metadata": {"name": MAP}, "data": values})
            key = "c2VjcmV0LW9mLXRoZS1jbHVzdGVy"
            secret = {"kind": "Secret", "metadata": {"name": "llama-keys"}, "data": {"LLAMA_API_KEY": key}}
            cluster.add({**secret, "text": {"LLAMA_API_KEY": SECRET}})
            made = {"name": NAME, "annotations": {"deployment.kubernetes.io/revision": "1"}}
            cluster.add({"kind": "Deployment", "metadata": made, "spec": spec})
        self.running()

    def running(self) -> None:
        """Wait for its pod."""

        def runs() -> bool:
            with self.cluster as cluster:
                cluster.reconcile()
                return len(cluster.of("pod")) == 1 and self.variables(cluster) is not None

        until(runs)

    def deployment(self, backend_service: str = f"kubectl:llama/{NAME}", **settings: str) -> Deployment:
        """What specdash finds."""
        return find_deployment(resolve({"backend_service": backend_service, **settings}, {}, None), self.env)

    def service(self) -> ManagedService:
        """The Deployment as a service."""
        deployment = self.deployment()
        assert deployment.backend is not None, deployment.problems
        return deployment.backend

    def status(self) -> ServiceStatus:
        """How it stands."""
        return self.service().status()

    def command(self, *words: str, fault: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """`specdash WORDS`; `fault` is the point at which it is killed (`support.crash`)."""
        program = ("specdash",) if fault is None else ("support.crash", fault)
        done = subprocess.run(
            [sys.executable, "-m", *program, *words],
            env={**self.env, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src"))), **env},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert SECRET not in done.stdout + done.stderr
        return done

    def killed(self, *words: str, at: str) -> None:
        """`specdash WORDS` that is killed at a point, which it must reach."""
        done = self.command(*words, fault=at)
        assert done.returncode == -signal.SIGKILL, f"{at} was not reached: {done.stdout}{done.stderr}"

    def calls(self) -> list[list[str]]:
        """The words of every call of kubectl."""
        return [json.loads(line) for line in (self.home / "cluster" / "calls").read_text("utf-8").splitlines()]

    def variables(self, cluster: Cluster) -> dict[str, str] | None:
        """What the process of the pod was started with; None where none runs."""
        for name in cluster.of("pod"):
            place = cluster.folder / "pods" / name
            with contextlib.suppress(OSError, ValueError):
                parts = Path(f"/proc/{int((place / 'pid').read_text())}/environ").read_bytes().split(b"\0")
                if not (place / "exit").exists():
                    return dict(part.decode().partition("=")[::2] for part in parts if part)
        return None

    def config_map(self) -> tuple[str, dict[str, str]]:
        """The ConfigMap that the Deployment names, and what it says."""
        with self.cluster as cluster:
            entry = cluster.of("deployment")[NAME]["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]
            name = entry["configMapRef"]["name"]
            return name, cluster.of("configmap")[name]["data"]

    def records(self) -> tuple[ApplyRecord, ...]:
        """Every apply so far."""
        return read_records(applies_file(self.env))

    def assert_settled(self, size: str) -> None:
        """One pod, which runs with that context; Deployment, working copy and pod agree, and no apply is under way."""
        assert journal_file(self.env).read() is None
        assert self.config_map()[1]["LLAMA_ARG_CTX_SIZE"] == size
        assert f"LLAMA_ARG_CTX_SIZE={size}\n" in self.service().env_file.read_text("utf-8")
        self.running()
        with self.cluster as cluster:
            variables = self.variables(cluster)
            annotations = cluster.of("deployment")[NAME]["metadata"]["annotations"]
        assert variables is not None
        assert variables["LLAMA_ARG_CTX_SIZE"] == size
        assert "specdash.dev/before" not in annotations


@contextlib.contextmanager
def kubernetes_rig(folder: Path) -> Iterator[KubernetesRig]:
    """A rig without its Deployment yet; its pods are killed afterwards."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SPECDASH_", "LLAMA_"))}
    rig = KubernetesRig(folder, free_port("127.0.0.1"))
    program = scripted_kubectl.install(folder / "bin", folder / "cluster")
    rig.env = {**kept, "HOME": str(folder / "home"), "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    rig.env |= {"SPECDASH_SETTLE_TIME": "0", "SPECDASH_BACKEND_SERVICE": f"kubectl:llama/{NAME}"}
    (folder / "home").mkdir(exist_ok=True)
    try:
        yield rig
    finally:
        scripted_kubectl.end(folder / "cluster")
