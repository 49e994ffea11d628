"""Deployments of Kubernetes as a `ServiceManager`, and how one is rolled to another version of its settings.

A pod reads the ConfigMap of its settings when it begins, so each version has a ConfigMap of its own, as Kustomize
makes them: a change creates one and points the Deployment to it in one patch. The one before stays, so that going back
is the same patch the other way, and `kubectl rollout undo` works too. The settings are edited in a working copy on this
machine. Everything is asked of the cluster through `kubectl`, with the user's own rights.

Sources: Kubernetes' API reference (apps/v1 Deployment, v1 ConfigMap and Pod) and kubectl's reference.
docs/kubernetes.md says what was tried.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import weakref
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from specdash.backend.launch import free_port
from specdash.control.env_store import read_env
from specdash.control.services.service_command import ContainerView, ServiceCommand, is_ours, option_of
from specdash.control.services.services import ServiceState, ServiceStatus
from specdash.control.services.tool import ToolOutput, run_tool
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.envfile import name_problem, quote, read_values
from specdash.core.errors import ConflictError, InputError, ServiceError
from specdash.system import files
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdash.control.services.services import ContainerChange

DIGEST = "specdash.dev/env-digest"
"""On a ConfigMap that an apply made: SHA-256 of the version of the working copy that it holds."""
OF_DEPLOYMENT = "specdash.dev/deployment"
"""On the same: the Deployment it was made for."""
BEFORE = "specdash.dev/before"
"""On a Deployment during an apply: the ConfigMap to go back to, and the one that took its place."""
REPLICAS = "specdash.dev/replicas"
"""On a Deployment that was stopped from here: how many pods it had."""
_OURS = {"app.kubernetes.io/managed-by": "specdash"}
_REQUEST_S, _ASK_S = 10, 20.0
_ORDER_S = 60.0
_SLACK_S = 30.0
_GRACE_S = 30
"""How long Kubernetes lets a pod end by itself where it does not say."""
_FRESH_S = 0.25
_POLL_S = 0.3
_FORWARD_APART_S = 0.5
_KEPT_BY = {
    "kustomize.toolkit.fluxcd.io/name": "Flux keeps it as its repository says: change the setting there",
    "helm.toolkit.fluxcd.io/name": "Flux keeps it as its repository says: change the setting there",
    "argocd.argoproj.io/tracking-id": "Argo CD keeps it as its repository says: change the setting there",
    "argocd.argoproj.io/instance": "Argo CD keeps it as its repository says: change the setting there",
}
"""Labels and annotations of those who would undo a change at once, and what to do instead."""
_PORT_KEYS = ("LLAMA_ARG_PORT", "LLAMA_PORT", "PROXY_PORT")
_API_KEYS = ("LLAMA_API_KEY", "PROXY_API_KEY")
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})
_FORWARD = 'exec 3<&0; "$@" & c=$!; { read -r _ <&3; kill $c; } 2>/dev/null & wait $c'
"""Runs a command that ends when whoever started it closes the pipe to it, or is killed."""


@dataclass(frozen=True, slots=True)
class DeploymentName:
    """`NAMESPACE/DEPLOYMENT@CONTEXT`. Without a namespace it is that of the context; a context of None is the current
    one of kubectl, or the cluster that this runs in."""

    name: str
    namespace: str | None = None
    context: str | None = None

    @classmethod
    def parse(cls, text: str) -> DeploymentName:
        """Read it as a setting has it. Raises `ServiceError`."""
        place, _, context = text.partition("@")
        namespace, _, name = place.rpartition("/")
        if re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) is None or "/" in namespace:
            raise ServiceError(f"kubectl:{text}: write kubectl:NAMESPACE/DEPLOYMENT, and @CONTEXT behind it for one")
        return cls(name, namespace or None, context or None)

    def located(self, env: Mapping[str, str] = os.environ) -> DeploymentName:
        """The same with the context and the namespace that kubectl would take now, so that every later order goes to
        the same cluster. Raises `ServiceError`."""
        if self.context is None and env.get("KUBERNETES_SERVICE_HOST") and not env.get("KUBECONFIG"):
            return replace(self, namespace=self.namespace or _own_namespace())
        chosen = (f"--context={self.context}",) if self.context is not None else ()
        answer = Kubectl(env, chosen).run("config", "view", "--minify", "--output=json")
        config = _json(answer.out)
        if not answer.done or not config:
            raise ServiceError(
                f"kubectl has no context for {self.name} ({answer.reason}): see `kubectl config get-contexts`, and "
                f"name one with kubectl:NAMESPACE/{self.name}@CONTEXT"
            )
        context = next((item.get("context") or {} for item in config.get("contexts") or ()), {})
        namespace = self.namespace or context.get("namespace") or "default"
        return DeploymentName(self.name, namespace, self.context or config.get("current-context"))

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{place}@{self.context}" if self.context else place

    def working_copy(self, env: Mapping[str, str] = os.environ) -> Path:
        """The env file on this machine that stands for its settings."""
        folder = re.sub(r"[^\w.@-]", "_", self.context or "in-cluster")
        return paths.state_dir(env) / "kubernetes" / folder / str(self.namespace) / f"{self.name}.env"


def _own_namespace() -> str:
    with contextlib.suppress(OSError):
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text(encoding="utf-8").strip()
    return "default"


class Kubectl:
    """The command, with the words that say which cluster and namespace; each call bounded in time."""

    def __init__(self, env: Mapping[str, str], place: tuple[str, ...] = ()) -> None:
        self.place = place
        self._env = {**env, "LC_ALL": "C"}

    def run(self, *words: str, timeout: float = _ASK_S, stdin: bytes | None = None) -> ToolOutput:
        """`kubectl WORDS`. Raises `ServiceError` where it cannot be run. What is secret goes by `stdin`."""
        return run_tool(
            ["kubectl", f"--request-timeout={_REQUEST_S}s", *self.place, *words],
            self._env,
            timeout,
            name=f"kubectl {words[0]}",
            missing="kubectl is not installed (https://kubernetes.io/docs/tasks/tools)",
            stdin=stdin,
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a container has its settings from: the ConfigMap, and the place in the Deployment that names it. `key` is
    the entry that is mounted as an env file; None where every entry is a variable."""

    container: int
    config_map: str
    pointer: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class _ConfigMap:
    """One version of the settings. Holds secrets, where somebody put some into a ConfigMap."""

    raw: Mapping[str, Any] = field(repr=False)
    key: str | None = None

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    @property
    def data(self) -> dict[str, str]:
        return dict(self.raw.get("data") or {})

    @property
    def digest(self) -> str | None:
        return self.annotations.get(DIGEST)

    def values(self) -> dict[str, str]:
        """Raises `InputError` where a mounted env file cannot be read."""
        if self.key is None:
            return {key: value for key, value in self.data.items() if name_problem(key) is None}
        return read_values(self.data.get(self.key, "").encode(), f"ConfigMap {self.name}, {self.key}")

    def text(self) -> str:
        """As an env file."""
        if self.key is not None:
            return self.data.get(self.key, "")
        return "".join(f"{key}={quote(value)}\n" for key, value in sorted(self.values().items()))

    def successor(self, name: str, deployment: str, digest: str, text: bytes) -> dict[str, Any]:
        """The ConfigMap of another version, with whatever else is in this one."""
        if self.key is None:
            kept = {key: value for key, value in self.data.items() if name_problem(key) is not None}
            data = {**kept, **read_values(text, name)}
        else:
            data = {**self.data, self.key: text.decode("utf-8")}
        labels = {**(self.raw["metadata"].get("labels") or {}), **_OURS}
        made: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels, "annotations": {DIGEST: digest, OF_DEPLOYMENT: deployment}},
            "immutable": True,
            "data": data,
        }
        if self.raw.get("binaryData"):
            made["binaryData"] = self.raw["binaryData"]
        return made


@dataclass(frozen=True, slots=True)
class _Deployment:
    """What the cluster says of one."""

    raw: Mapping[str, Any] = field(repr=False)
    source: _Source

    @property
    def generation(self) -> int:
        return int(self.raw["metadata"]["generation"])

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    @property
    def replicas(self) -> int:
        asked = self.raw["spec"].get("replicas")
        return 1 if asked is None else int(asked)

    @property
    def template(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.raw["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        container: dict[str, Any] = self.template["containers"][self.source.container]
        return container

    @property
    def selector(self) -> str:
        labels = self.raw["spec"]["selector"].get("matchLabels") or {}
        return ",".join(f"{key}={value}" for key, value in labels.items())

    @property
    def grace_s(self) -> float:
        given = self.template.get("terminationGracePeriodSeconds")
        return _GRACE_S if given is None else float(given)

    @property
    def before(self) -> str | None:
        """The ConfigMap to go back to from the one that is in force; None where no apply left one."""
        noted = _json(self.annotations.get(BEFORE))
        return str(noted["configMap"]) if noted.get("instead") == self.source.config_map else None

    def condition(self, kind: str, status: str) -> str | None:
        """What a condition says while it has that status."""
        for item in (self.raw.get("status") or {}).get("conditions") or ():
            if item.get("type") == kind and item.get("status") == status:
                return str(item.get("message") or item.get("reason") or kind)
        return None


def _json(text: str | None) -> dict[str, Any]:
    """The object that a text says; an empty one where it says none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sources(template: Mapping[str, Any]) -> Iterator[_Source]:
    """Every place where a container may have its settings from, the one that counts most first."""
    mounted = {
        volume["name"]: (at, volume["configMap"])
        for at, volume in enumerate(template.get("volumes") or ())
        if "configMap" in volume
    }
    for index, container in enumerate(template["containers"]):
        given = option_of(_words(container), "--env-file")
        for mount in container.get("volumeMounts") or () if given is not None else ():
            if mount["name"] not in mounted:
                continue
            at, volume = mounted[mount["name"]]
            key = _mounted_key(str(given), mount, volume)
            if key is not None:
                yield _Source(index, volume["name"], f"/spec/template/spec/volumes/{at}/configMap/name", key)
        entries = list(enumerate(container.get("envFrom") or ()))
        for at, entry in reversed(entries):
            named = (entry.get("configMapRef") or {}).get("name")
            if named and not entry.get("prefix"):
                where = f"/spec/template/spec/containers/{index}/envFrom/{at}/configMapRef/name"
                yield _Source(index, named, where)


def _mounted_key(path: str, mount: Mapping[str, Any], volume: Mapping[str, Any]) -> str | None:
    """The entry of a ConfigMap that is at that path in the container."""
    place = PurePosixPath(mount["mountPath"])
    wanted = PurePosixPath(path)
    if mount.get("subPath"):
        inside = mount["subPath"] if wanted == place else None
    else:
        inside = str(wanted.relative_to(place)) if wanted.is_relative_to(place) else None
    if inside is None or not volume.get("items"):
        return inside
    return next((str(item["key"]) for item in volume["items"] if item.get("path") == inside), None)


def _words(container: Mapping[str, Any]) -> list[str]:
    """What it runs. A command that is the image's own is not to be seen: it is taken for that of the official image of
    llama-server, or of specdash by its arguments."""
    command, args = (list(map(str, container.get(key) or ())) for key in ("command", "args"))
    if command:
        return [*command, *args]
    ours = any(is_ours(["specdash", *args], role) for role in Role)
    return ["specdash" if ours else "llama-server", *args]


def _why_kept(raw: Mapping[str, Any]) -> str | None:
    """Why it cannot be changed from here, and what to do; None where it can."""
    metadata, spec = raw["metadata"], raw["spec"]
    marks = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    keeper = next((words for mark, words in _KEPT_BY.items() if mark in marks), None)
    if keeper is not None:
        return keeper
    owner = next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None)
    if owner is not None:
        return f"{owner['kind']} {owner['name']} made it and keeps it: change the setting there"
    if not spec["selector"].get("matchLabels"):
        return "its selector has no matchLabels, by which its pods are found"
    if spec.get("paused"):
        return "its rollouts are paused: `kubectl rollout resume` it first"
    if int(spec.get("replicas") or 0) > 1:
        return f"it has {spec['replicas']} replicas, and what is verified after a change is one pod: scale it to 1"
    return None


@dataclass(frozen=True, slots=True)
class PodView(ContainerView):
    """How a command in a pod is seen from another machine."""

    @property
    def elsewhere(self) -> bool:
        """Always."""
        return True

    def why_given(self, key: str, place: str) -> tuple[str, str]:
        """See `ContainerView.why_given`."""
        return f"{place} sets {key} by itself, which wins over its ConfigMap", f"take {key} out of its `env`"

    def line(self, place: str) -> str:
        """See `ContainerView.line`."""
        return f"the `args` of {place}"


@dataclass(frozen=True, slots=True)
class _Pod:
    raw: Mapping[str, Any] = field(repr=False)
    container: str

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def ending(self) -> bool:
        return bool(self.raw["metadata"].get("deletionTimestamp"))

    @property
    def born(self) -> str:
        return str(self.raw["metadata"].get("creationTimestamp") or "")

    @property
    def _status(self) -> Mapping[str, Any]:
        statuses = (self.raw.get("status") or {}).get("containerStatuses") or ()
        return next((item for item in statuses if item.get("name") == self.container), {})

    @property
    def restarts(self) -> int:
        return int(self._status.get("restartCount") or 0)

    @property
    def state(self) -> Mapping[str, Any]:
        return self._status.get("state") or {}

    @property
    def crashed(self) -> bool:
        """Whether its log is that of a process that has ended, and a new one is not there yet."""
        return "running" not in self.state and bool((self._status.get("lastState") or {}).get("terminated"))

    @property
    def instance(self) -> str:
        return f"pod {self.name}" + (f" (restart {self.restarts})" if self.restarts else "")

    def trouble(self) -> str:
        """Why it is not running, by the cluster's word."""
        waiting = self.state.get("waiting") or {}
        if waiting.get("reason") not in (None, *_ON_ITS_WAY):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
        for item in (self.raw.get("status") or {}).get("conditions") or ():
            if item.get("type") == "PodScheduled" and item.get("status") == "False":
                return f"cannot be scheduled: {item.get('message') or item.get('reason')}"
        return str((self.raw.get("status") or {}).get("message") or "")

    def status(self, name: str) -> ServiceStatus:
        """The same as a service has it."""
        if self.ending:
            return ServiceStatus(name, ServiceState.STOPPING, restarts=self.restarts)
        running, ended = self.state.get("running"), self.state.get("terminated")
        reason = str((self.state.get("waiting") or {}).get("reason") or "")
        if running is not None:
            since = _moment(running.get("startedAt"))
            return ServiceStatus(name, ServiceState.RUNNING, None, self.restarts, since=since, instance=self.instance)
        ended = ended or (
            (self._status.get("lastState") or {}).get("terminated") if reason == "CrashLoopBackOff" else None
        )
        if ended is not None:
            code = int(ended.get("exitCode") or 0)
            detail = "out of memory" if ended.get("reason") == "OOMKilled" else f"exit code {code}"
            return ServiceStatus(name, ServiceState.WAITING, None, self.restarts, code, detail)
        phase = (self.raw.get("status") or {}).get("phase")
        hopeless = reason not in _ON_ITS_WAY or phase == "Failed"
        state = ServiceState.FAILED if hopeless else ServiceState.STARTING
        return ServiceStatus(name, state, None, self.restarts, detail=self.trouble())


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


class _PortForward:
    """A port of this machine that leads to one pod, by `kubectl port-forward`. It ends with this process, however that
    ends."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._pod = ""
        self._tried = float("-inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], Any] = lambda: None

    def lead_to(self, pod: str, words: list[str]) -> None:
        """Go on where it leads to that pod already, else begin."""
        process = self._process
        if process is not None and pod == self._pod and process.poll() is None:
            return
        now = time.monotonic()
        shell, kubectl = (shutil.which(tool, path=self._env.get("PATH")) for tool in ("sh", "kubectl"))
        if shell is None or kubectl is None or (pod == self._pod and now - self._tried < _FORWARD_APART_S):
            return
        self._end()
        self._pod, self._tried = pod, now
        self._process = subprocess.Popen(
            [shell, "-c", _FORWARD, shell, kubectl, *words],
            env=dict(self._env),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None  # noqa: S101 - asked for
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)


class KubernetesManager:
    """One Deployment, with the env file on this machine that stands for its settings. `env_file` None: a working copy
    that `refresh` keeps like the cluster."""

    def __init__(
        self,
        deployment: DeploymentName,
        env: Mapping[str, str] = os.environ,
        env_file: Path | None = None,
    ) -> None:
        self.name = deployment.located(env)
        self.env_file = env_file if env_file is not None else self.name.working_copy(env)
        self._copy = env_file is None
        self._env = env
        context = (f"--context={self.name.context}",) if self.name.context is not None else ()
        self._kubectl = Kubectl(env, (*context, f"--namespace={self.name.namespace}"))
        self._seen: _ConfigMap | None = None
        self._touched = False
        self._looked: tuple[float, _Deployment, list[_Pod]] | None = None
        self._forward: _PortForward | None = None
        self._ports: dict[int, int] = {}
        self._versions: dict[str, _ConfigMap] = {}

    @property
    def kind(self) -> str:
        """`kubectl`."""
        return "kubectl"

    # What is there.

    def refresh(self) -> None:
        """Let the working copy say what the ConfigMap says. An apply that is under way, or was cut short, has its own
        version in it, which stays. Raises `ServiceError` for a Deployment that cannot be changed from here, saying why,
        and for an env file of the user's that says something else."""
        deployment = self._deployment()
        kept = _why_kept(deployment.raw)
        if kept is not None:
            raise ServiceError(kept)
        config_map = self._config_map(deployment)
        self._seen = config_map
        container = deployment.container
        ports = [int(port["containerPort"]) for port in container.get("ports") or ()]
        asked = [value for key, value in config_map.values().items() if key in _PORT_KEYS and value.isdigit()]
        usual = 4000 if is_ours(_words(container), Role.PROXY) else 8080
        self._ports = {next(iter([*map(int, asked), *ports, usual])): free_port("127.0.0.1")}
        if paths.apply_journal_file(self._env).exists():
            return
        try:
            same = self.env_file.exists() and read_env(self.env_file).values == config_map.values()
        except InputError as error:
            raise ServiceError(str(error)) from None
        if not same and not self._copy:
            raise ServiceError(
                f"{self.env_file} is not what its ConfigMap {config_map.name} says: bring them together "
                "(`kubectl apply -k`), or leave the setting of the env file out"
            )
        if not same:
            try:
                files.make_directories(self.env_file.parent)
                files.replace(self.env_file, config_map.text().encode())
            except OSError as error:
                raise ServiceError(files.not_written(self.env_file, error)) from None

    def command(self) -> ServiceCommand:
        """What it runs, as `services.ManagedService` has it."""
        deployment = self._deployment()
        before, after = self._variables(deployment)
        return ServiceCommand(
            tuple(_words(deployment.container)),
            f"Deployment {self.name}",
            env_files=(self.env_file,),
            environment=before,
            replaces=False,
            container=PodView(after, (), self._ports),
        )

    def status(self, name: str) -> ServiceStatus:
        """See `ServiceManager.status`."""
        seen = self._look()
        if seen is None:
            return ServiceStatus(name, ServiceState.MISSING, detail=f"there is no Deployment {self.name}")
        deployment, pods = seen
        pod = self._current(deployment, pods)
        self._lead(deployment, pod)
        if pod is not None:
            return pod.status(name)
        if deployment.replicas == 0:
            return ServiceStatus(name, ServiceState.STOPPING if pods else ServiceState.STOPPED)
        refused = deployment.condition("ReplicaFailure", "True")
        if refused is not None:
            return ServiceStatus(name, ServiceState.FAILED, detail=refused)
        return ServiceStatus(name, ServiceState.STARTING)

    def version(self, name: str) -> str | None:
        """See `ReplacingManager.version`. Of a ConfigMap that no apply made, that of the env file where it says the
        same."""
        seen = self._look()
        if seen is None:
            return None
        name = seen[0].source.config_map
        if name not in self._versions:
            self._versions[name] = self._config_map(seen[0])
        config_map = self._versions[name]
        if config_map.digest is not None:
            return config_map.digest
        snapshot = read_env(self.env_file)
        return snapshot.digest if snapshot.values == config_map.values() else None

    def started_with(self, name: str) -> tuple[list[str], dict[str, str]] | None:
        """What the pod was started with, by the cluster's word; None where `specdash backend run` turns that into the
        server's arguments. Holds secrets."""
        del name
        deployment = self._deployment()
        words = _words(deployment.container)
        if is_ours(words, Role.BACKEND):
            return None
        before, after = self._variables(deployment)
        return words, {**before, **self._config_map(deployment).values(), **after}

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """The last lines of the pod; of the process before, where it says nothing yet; where there is none, why."""
        del name
        deployment = self._deployment()
        pod = self._current(deployment, self._pods(deployment))
        if pod is None or lines <= 0:
            return ()
        for before in ("--previous",) if pod.crashed else ("--previous=false", "--previous"):
            answer = self._kubectl.run("logs", pod.name, "--container", pod.container, before, f"--tail={lines}")
            written = [line.rstrip() for line in answer.out.splitlines() if line.strip()] if answer.done else []
            if written:
                return tuple(written[-lines:])
        return tuple(filter(None, [pod.trouble()]))

    def follow(self, lines: int) -> list[str]:
        """The command that prints the last lines and goes on with what comes."""
        container = self._deployment().container["name"]
        where = f"deployment/{self.name.name}"
        return ["kubectl", *self._kubectl.place, "logs", "--follow", f"--tail={lines}", where, "--container", container]

    # What is done.

    def bring_up(self) -> None:
        """Lead a port of this machine to the pod from now on, and make sure that nobody changed the settings since they
        were read. Raises `ConflictError`."""
        self._forward = self._forward or _PortForward(self._env)
        seen = self._seen
        if self._touched or seen is None:
            return
        now = self._config_map(self._deployment())
        if (now.name, now.data) != (seen.name, seen.data):
            raise ConflictError(f"ConfigMap {now.name} of {self.name} was changed since it was read; run it again")

    def start(self, name: str) -> None:
        """Let it have its pods again. Returns when the cluster has taken the order."""
        del name
        deployment = self._deployment()
        if deployment.replicas == 0:
            self._patch(deployment, self._scaled(deployment, run=True), "start it")

    def stop(self, name: str) -> None:
        """Take its pods away, and remember how many there were."""
        del name
        deployment = self._deployment()
        if deployment.replicas:
            self._patch(deployment, self._scaled(deployment, run=False), "stop it")
        self._until_gone(deployment, {pod.name for pod in self._pods(deployment)})

    def restart(self, name: str) -> None:
        """Let the pod be made again by its Deployment, with the settings it has."""
        deployment = self._deployment()
        if deployment.replicas == 0:
            self.start(name)
            return
        before = {pod.name for pod in self._pods(deployment)}
        self._done(self._kubectl.run("rollout", "restart", f"deployment/{self.name.name}"), "restart it")
        self._until_gone(deployment, before)

    def reload(self, name: str) -> None:
        """A pod gets its settings when it begins."""
        raise ServiceError(f"{name}: a pod knows no reload; restart it instead")

    def replace(self, name: str, change: ContainerChange) -> None:
        """See `ReplacingManager.replace`. Raises `ConflictError` where the settings are not those from before."""
        self._touched = True
        deployment = self._deployment()
        now = self._config_map(deployment)
        if now.digest != change.digest:
            if now.values() != dict(change.before):
                raise ConflictError(
                    f"ConfigMap {now.name} of {self.name} was changed by somebody else meanwhile; it was left as it is"
                )
            made = self._created(now, change)
            noted = json.dumps({"configMap": now.name, "instead": made})
            self._point(deployment, made, {BEFORE: noted}, run=True)
            return
        self._run_again(name, deployment)

    def put_back(self, name: str, change: ContainerChange, *, run: bool) -> None:
        """See `ReplacingManager.put_back`."""
        self._touched = True
        deployment = self._deployment()
        now = self._config_map(deployment)
        if now.digest != change.instead_of:
            # Not replaced yet, or put back already: its pods have the settings they began with.
            if run:
                self._run_again(name, deployment)
            return
        before = deployment.before
        if before is None or self._read("configmap", before) is None:
            # Somebody removed it: made again, with the settings from before.
            before = self._created(now, change)
        self._point(deployment, before, {BEFORE: None}, run=run)

    def forget_before(self, name: str) -> None:
        """The change stands. A ConfigMap of an apply stays as long as `kubectl rollout undo` may need it."""
        del name
        deployment = self._deployment()
        if BEFORE in deployment.annotations:
            self._patch(deployment, self._annotated(deployment, {BEFORE: None}), "tidy it up")
        old = json.dumps([item["spec"]["template"]["spec"] for item in self._list("replicaset", deployment.selector)])
        selector = ",".join(f"{key}={value}" for key, value in _OURS.items())
        for raw in self._list("configmap", selector):
            config_map = _ConfigMap(raw)
            mine = config_map.annotations.get(OF_DEPLOYMENT) == self.name.name
            if mine and config_map.name != deployment.source.config_map and f'"{config_map.name}"' not in old:
                self._kubectl.run("delete", "configmap", config_map.name, "--ignore-not-found", "--wait=false")

    # One order each.

    def _run_again(self, name: str, deployment: _Deployment) -> None:
        """What it has is what it should have: a pod that does not run is given a new start."""
        pod = self._current(deployment, self._pods(deployment))
        if deployment.replicas == 0:
            self.start(name)
        elif pod is not None and pod.status(name).state in (ServiceState.WAITING, ServiceState.FAILED):
            self._done(self._kubectl.run("delete", "pod", pod.name, "--ignore-not-found", "--wait=false"), "restart it")
            self._until_gone(deployment, {pod.name})

    def _created(self, like: _ConfigMap, change: ContainerChange) -> str:
        """The ConfigMap that holds the env file as it is now; the same one where that was made before."""
        try:
            text = self.env_file.read_bytes()
        except OSError as error:
            raise ServiceError(f"{self.env_file}: {error.strerror or error}") from None
        if hashlib.sha256(text).hexdigest() != change.digest:
            raise ConflictError(f"{self.env_file} was changed by somebody else meanwhile")
        name = f"{self.name.name[:200]}-specdash-{change.digest[:10]}"
        made = like.successor(name, self.name.name, change.digest, text)
        answer = self._kubectl.run("create", "--filename", "-", stdin=json.dumps(made).encode())
        if not answer.done:
            there = self._read("configmap", name)
            if there is None:
                raise self._refusal(answer, f"make the ConfigMap {name}")
            if (there.get("data") or {}) != made["data"]:
                raise ConflictError(f"there is another ConfigMap {name}, which is left as it is: remove or rename it")
        return name

    def _point(
        self, deployment: _Deployment, config_map: str, annotations: Mapping[str, str | None], *, run: bool
    ) -> None:
        """In one step: the ConfigMap, the note of the one before, and whether it has pods."""
        pointer = deployment.source.pointer
        operations = [
            {"op": "test", "path": pointer, "value": deployment.source.config_map},
            {"op": "replace", "path": pointer, "value": config_map},
            *self._scaled(deployment, annotations, run=run),
        ]
        self._patch(deployment, operations, f"roll it to {config_map}")

    def _scaled(
        self, deployment: _Deployment, annotations: Mapping[str, str | None] | None = None, *, run: bool
    ) -> list[dict[str, Any]]:
        now = deployment.replicas
        remembered = deployment.annotations.get(REPLICAS, "1")
        wanted = (now or (int(remembered) if remembered.isdigit() else 1)) if run else 0
        noted = None if run or not now else str(now)
        kept = {} if not run and not now else {REPLICAS: noted}
        operations: list[dict[str, Any]] = self._annotated(deployment, {**(annotations or {}), **kept})
        return [*operations, *([{"op": "add", "path": "/spec/replicas", "value": wanted}] if wanted != now else [])]

    def _annotated(self, deployment: _Deployment, changes: Mapping[str, str | None]) -> list[dict[str, Any]]:
        operations: list[dict[str, Any]] = []
        if not deployment.annotations:
            operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
        for key, value in changes.items():
            path = f"/metadata/annotations/{key.replace('/', '~1')}"
            if value is not None:
                operations.append({"op": "add", "path": path, "value": value})
            elif key in deployment.annotations:
                operations.append({"op": "remove", "path": path})
        return operations

    def _patch(self, deployment: _Deployment, operations: list[dict[str, Any]], what: str) -> None:
        """Change the Deployment where nobody changed it since it was read. Raises `ConflictError`."""
        if not operations:
            return
        unchanged = {"op": "test", "path": "/metadata/generation", "value": deployment.generation}
        words = ("--type=json", f"--patch={json.dumps([unchanged, *operations])}", "--output=name")
        answer = self._kubectl.run("patch", "deployment", self.name.name, *words, timeout=_ORDER_S)
        self._looked = None
        if answer.done:
            return
        raw = self._read("deployment", self.name.name)
        if raw is not None and raw["metadata"]["generation"] != deployment.generation:
            raise ConflictError(f"{self.name} was changed by somebody else meanwhile; their version was left as it is")
        raise self._refusal(answer, what)

    def _until_gone(self, deployment: _Deployment, pods: set[str]) -> None:
        limit = deployment.grace_s + _SLACK_S
        deadline = time.monotonic() + limit
        while left := pods.intersection(pod.name for pod in self._pods(deployment)):
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name}: pod {min(left)} did not end within {limit:g} s")
            time.sleep(_POLL_S)
        self._looked = None

    # What is asked.

    def _look(self) -> tuple[_Deployment, list[_Pod]] | None:
        """The Deployment and its pods, a moment old at most: whoever waits looks often."""
        if self._looked is None or time.monotonic() - self._looked[0] > _FRESH_S:
            raw = self._read("deployment", self.name.name)
            if raw is None:
                return None
            deployment = self._told(raw)
            self._looked = (time.monotonic(), deployment, self._pods(deployment))
        return self._looked[1:]

    def _deployment(self) -> _Deployment:
        raw = self._read("deployment", self.name.name)
        if raw is None:
            raise ServiceError(f"there is no Deployment {self.name}")
        return self._told(raw)

    def _told(self, raw: Mapping[str, Any]) -> _Deployment:
        source = next(_sources(raw["spec"]["template"]["spec"]), None)
        if source is None:
            raise ServiceError(
                f"{self.name} has no ConfigMap as its settings: give its container `envFrom: configMapRef`, or mount "
                "one with an env file that `specdash ... run --env-file` names"
            )
        return _Deployment(raw, source)

    def _config_map(self, deployment: _Deployment) -> _ConfigMap:
        raw = self._read("configmap", deployment.source.config_map)
        if raw is None:
            raise ServiceError(f"{self.name}: its ConfigMap {deployment.source.config_map} is not there")
        return _ConfigMap(raw, deployment.source.key)

    def _pods(self, deployment: _Deployment) -> list[_Pod]:
        name = str(deployment.container["name"])
        owned = [
            raw
            for raw in self._list("pod", deployment.selector)
            if any(owner.get("kind") == "ReplicaSet" for owner in raw["metadata"].get("ownerReferences") or ())
        ]
        return [_Pod(raw, name) for raw in owned]

    def _current(self, deployment: _Deployment, pods: list[_Pod]) -> _Pod | None:
        """The pod of the version that the Deployment asks for, the youngest that is not ending first."""
        # Its place in the pod may be another one: containers and volumes are put in beside.
        wanted = (deployment.source.config_map, deployment.source.key)
        fitting = [
            pod
            for pod in pods
            if any((source.config_map, source.key) == wanted for source in _sources(pod.raw["spec"]))
        ]
        return max(fitting, key=lambda pod: (not pod.ending, pod.born), default=None)

    def _lead(self, deployment: _Deployment, pod: _Pod | None) -> None:
        if self._forward is None or pod is None or "running" not in pod.state:
            return
        ports = [f"{here}:{inside}" for inside, here in self._ports.items()]
        words = [*self._kubectl.place, "port-forward", "--address=127.0.0.1", f"pod/{pod.name}", *ports]
        self._forward.lead_to(f"{pod.name} {pod.restarts} {deployment.source.config_map}", words)

    def _variables(self, deployment: _Deployment) -> tuple[dict[str, str], dict[str, str]]:
        """Variables of the container that its ConfigMap wins over, and those that win over it. Hold secrets."""
        container = deployment.container
        entries = container.get("envFrom") or ()
        at = int(deployment.source.pointer.split("/")[-3]) if deployment.source.key is None else len(entries)
        after = self._of_entries(entries[at + 1 :])
        for entry in container.get("env") or ():
            value = entry.get("value")
            ref = (entry.get("valueFrom") or {}).get("secretKeyRef")
            if value is None and ref is not None:
                value = self._secret(str(ref["name"])).get(str(ref["key"]))
            if value is not None:
                after[entry["name"]] = value
        return self._of_entries(entries[:at]), after

    def _of_entries(self, entries: Any) -> dict[str, str]:
        variables: dict[str, str] = {}
        for entry in entries:
            secret, config_map = entry.get("secretRef") or {}, entry.get("configMapRef") or {}
            if secret.get("name"):
                variables |= self._secret(str(secret["name"]))
            elif config_map.get("name"):
                variables |= (self._read("configmap", str(config_map["name"])) or {}).get("data") or {}
        return variables

    def _secret(self, name: str) -> dict[str, str]:
        """What a Secret says; of the server's key where it may not be read, what this machine's environment says."""
        answer = self._kubectl.run("get", "secret", name, "--ignore-not-found", "--output=json")
        data = _json(answer.out).get("data") or {}
        values = {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in data.items()}
        own = {key: self._env[key] for key in _API_KEYS if self._env.get(key)} if not answer.done else {}
        return {**own, **values}

    def _read(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object; None where there is none. Raises `ServiceError`."""
        answer = self._kubectl.run("get", kind, name, "--ignore-not-found", "--output=json")
        self._done(answer, f"read {kind} {name}")
        return _json(answer.out) or None

    def _list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        answer = self._kubectl.run("get", kind, f"--selector={selector}", "--output=json")
        self._done(answer, f"list its {kind}s")
        return list(_json(answer.out).get("items") or ())

    def _done(self, answer: ToolOutput, what: str) -> None:
        if not answer.done:
            raise self._refusal(answer, what)

    def _refusal(self, answer: ToolOutput, what: str) -> ServiceError:
        return ServiceError(f"{self.name}: kubectl cannot {what}: {answer.reason}")
