"""A `kubectl` whose cluster is an object of the test: its answers have the real one's shapes, its pods are processes.

The controllers do their work whenever it is asked something. The real kubectl's answers, and an API server's, are in
tests/data/kubernetes; `test_kubernetes.py` holds this one to them. The program `kubectl` hands its words to the
test's own process, since an interpreter for each of the hundreds of calls would cost more than all the rest.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import os
import selectors
import socket
import socketserver
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """#!/bin/bash
for word; do
  [[ $word != port-forward ]] || exec {python} -SE {module} "$@"
done
[[ " $* " != *" create "* ]] || input=$(</dev/stdin)
exec 3<>/dev/tcp/127.0.0.1/{port}
printf '%s\\0' $# "$@" "$input" >&3
read -r code <&3
((code)) && cat <&3 >&2 || cat <&3
exit "$code"
"""
_QUICK_EXITS = 2
"""How often a container is started again at once."""
_SECONDS = 10


class Refused(Exception):  # noqa: N818 - the word of the API
    """What kubectl says on its standard error, with exit code 1."""


class Cluster:
    """The objects of one namespace by kind and name, and the processes of its pods. Locked while it is entered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image: tuple[str, ...] = ()
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[list[str]] = []
        self._pods: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def served(self, folder: Path) -> Iterator[None]:
        """Put the program into `folder`, which belongs first on a PATH, and answer it; its pods end with it."""
        with _Server(self) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            folder.mkdir(parents=True)
            program = folder / "kubectl"
            port = server.server_address[1]
            program.write_text(PROGRAM.format(python=sys.executable, module=__file__, port=port), "utf-8")
            program.chmod(0o755)
            try:
                yield
            finally:
                server.shutdown()
                self.end()

    def of(self, kind: str) -> dict[str, Any]:
        """The objects of a kind, by name."""
        return self.objects.setdefault(kind.lower(), {})

    def touch(self, made: dict[str, Any]) -> dict[str, Any]:
        """Give it another resource version."""
        version = self.objects.setdefault("counter", {"value": 100})
        version["value"] += 1
        made["metadata"]["resourceVersion"] = str(version["value"])
        return made

    def add(self, made: dict[str, Any]) -> dict[str, Any]:
        """A new object, with what an API server gives it."""
        made = json.loads(json.dumps(made))
        metadata = made["metadata"]
        metadata.setdefault("namespace", "llama")
        metadata.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        self.touch(made)
        metadata["uid"] = f"uid-{metadata['resourceVersion']}"
        if made["kind"] == "Deployment":
            metadata["generation"] = 1
        self.of(made["kind"])[metadata["name"]] = made
        return made

    def call(self, words: list[str], stdin: str) -> str:
        """What `kubectl WORDS` prints. Raises `Refused`."""
        given = dict(word.partition("=")[::2] for word in words if word.startswith("--") and "=" in word)
        verb, *rest = [word for word in words if not (word.startswith("--") and "=" in word)]
        with self:
            self.calls.append(words)
            self.reconcile()
            printed = self._answer(verb, rest, {**given, "stdin": stdin})
            self.reconcile()
        return printed

    def _answer(self, verb: str, words: list[str], given: dict[str, str]) -> str:
        """The object `refuses` has words of the API by verb, and by verb and
        kind; `meanwhile` is what somebody else does to the Deployment just before a patch."""
        refuses = self.of("refuses")
        refusal = refuses.get(verb) or refuses.get(f"{verb} {words[0]}")
        if refusal is not None:
            raise Refused(refusal)
        if verb == "patch" and "meanwhile" in self.objects:
            deployment = self.of("deployment")[words[1]]
            deployment["spec"] |= self.objects.pop("meanwhile")
            deployment["metadata"]["generation"] += 1
        return _VERBS[verb](self, words, given)

    # The controllers of Deployments and ReplicaSets, and a kubelet.

    def reconcile(self) -> None:
        """Bring what is there nearer to what is asked for."""
        for deployment in self.of("deployment").values():
            self._roll(deployment)
        for pod in list(self.of("pod").values()):
            self._run_pod(pod)

    def _roll(self, deployment: dict[str, Any]) -> None:
        spec, metadata = deployment["spec"], deployment["metadata"]
        text = json.dumps(spec["template"], sort_keys=True).encode()
        name = f"{metadata['name']}-{hashlib.sha256(text).hexdigest()[:9]}"
        if name not in self.of("replicaset"):
            template = copy.deepcopy(spec["template"])
            owner = {"kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
            own = {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
            self.add({"kind": "ReplicaSet", "metadata": own, "spec": {"template": template}})
        owned = [pod for pod in self.of("pod").values() if pod["metadata"]["deployment"] == metadata["name"]]
        wanted = spec.get("replicas", 1)
        for pod in owned:
            if wanted == 0 or pod["metadata"]["ownerReferences"][0]["name"] != name:
                self.end_pod(pod)
        if wanted and not owned:
            count = self.touch(deployment)["metadata"]["resourceVersion"]
            owner = {"kind": "ReplicaSet", "name": name, "controller": True}
            labels = spec["template"]["metadata"]["labels"]
            own = {"name": f"{name}-{count}", "labels": labels, "ownerReferences": [owner]}
            own["deployment"] = metadata["name"]
            self.add({"kind": "Pod", "metadata": own, "spec": copy.deepcopy(spec["template"]["spec"]), "status": {}})
        deployment["status"] = {"observedGeneration": metadata["generation"], "replicas": len(owned)}

    def end_pod(self, pod: dict[str, Any]) -> None:
        """Ask it to end."""
        if not pod["metadata"].get("deletionTimestamp"):
            pod["metadata"]["deletionTimestamp"] = "now"
            self._process(pod).terminate()

    def _process(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        return self._pods[pod["metadata"]["name"]]

    def _run_pod(self, pod: dict[str, Any]) -> None:
        metadata, process = pod["metadata"], self._pods.get(pod["metadata"]["name"])
        runs = process is not None and process.poll() is None
        if metadata.get("deletionTimestamp"):
            if not runs:
                del self.of("pod")[metadata["name"]]
            return
        container = pod["spec"]["containers"][0]
        if "unschedulable" in self.objects and "containerStatuses" not in pod["status"]:
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [{**said, "message": self.objects["unschedulable"]}]
            return
        statuses = pod["status"].setdefault("containerStatuses", [{"name": container["name"], "restartCount": 0}])
        status = statuses[0]
        if runs:
            return
        if process is not None:
            ended = process.returncode if process.returncode >= 0 else 128 - process.returncode
            last = {"terminated": {"exitCode": ended, "reason": "Error"}}
            if status["restartCount"] >= _QUICK_EXITS:
                reason = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
                status.update(state={"waiting": reason}, lastState=last)
                return
            status.update(restartCount=status["restartCount"] + 1, lastState=last)
        variables = self._variables(container)
        if isinstance(variables, str):
            status["state"] = {"waiting": {"reason": "CreateContainerConfigError", "message": variables}}
            return
        self._begin(metadata["name"], container, variables)
        status["state"] = {"running": {"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}

    def _variables(self, container: dict[str, Any]) -> dict[str, str] | str:
        found: dict[str, str] = {}
        for entry in container.get("envFrom", ()):
            kind = "configmap" if "configMapRef" in entry else "secret"
            name = next(iter(entry.values()))["name"]
            if name not in self.of(kind):
                return f'{kind} "{name}" not found'
            data = self.of(kind)[name]["data"]
            found |= (
                {key: base64.b64decode(value).decode() for key, value in data.items()} if kind == "secret" else data
            )
        return found | {entry["name"]: entry["value"] for entry in container.get("env", ())}

    def log(self, pod: str, ending: str = "") -> Path:
        """What the container of a pod writes; the one before, where the ending is `.previous`."""
        return self.folder / f"{pod}.log{ending}"

    def _begin(self, pod: str, container: dict[str, Any], variables: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.log(pod)
        if log.exists():
            log.replace(self.log(pod, ".previous"))
        words = [*container.get("command", self.image), *container.get("args", ())]
        with log.open("wb") as out:
            self._pods[pod] = subprocess.Popen(
                words,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kill whatever runs in the pods, and forget everything."""
        for process in self._pods.values():
            process.kill()
            process.wait()
        self._pods.clear()
        self.objects.clear()


# The command.


class _Server(socketserver.ThreadingTCPServer):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.cluster = cluster


class _Call(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Read the number of words, the words, and the input of one call; say its exit code and what it prints."""
        data = b""
        while not data or data.count(b"\0") < int(data.partition(b"\0")[0]) + 2:
            data += self.request.recv(65536)
        _, *words, stdin, _ = data.decode().split("\0")
        try:
            code, said = 0, self.server.cluster.call(words, stdin)
        except Refused as refused:
            code, said = 1, f"{refused}\n"
        self.wfile.write(f"{code}\n{said}".encode())


def _get(cluster: Cluster, words: list[str], given: dict[str, str]) -> str:
    kind, *names = [word for word in words if not word.startswith("--")]
    if names:
        found = cluster.of(kind).get(names[0])
        return json.dumps(found) if found is not None else ""
    selector = dict(part.partition("=")[::2] for part in given["--selector"].split(","))
    fitting = [
        item for item in cluster.of(kind).values() if selector.items() <= (item["metadata"].get("labels") or {}).items()
    ]
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": fitting})


def _create(cluster: Cluster, _: list[str], given: dict[str, str]) -> str:
    made = json.loads(given["stdin"])
    kind, name = made["kind"].lower(), made["metadata"]["name"]
    if name in cluster.of(kind):
        raise Refused(f'Error from server (AlreadyExists): error when creating "STDIN": {kind}s "{name}" exists')
    cluster.add(made)
    return f"{kind}/{name} created\n"


def _patch(cluster: Cluster, words: list[str], given: dict[str, str]) -> str:
    kind, name = words
    there = cluster.of(kind)[name]
    made = copy.deepcopy(there)
    for operation in json.loads(given["--patch"]):
        _operate(made, **operation)
    if made["spec"] != there["spec"]:
        made["metadata"]["generation"] += 1
    cluster.of(kind)[name] = cluster.touch(made)
    return f"deployment.apps/{name}\n"


def _operate(made: Any, op: str, path: str, value: Any = None) -> None:
    *way, last = (part.replace("~1", "/") for part in path.split("/")[1:])
    for part in way:
        made = made[int(part) if isinstance(made, list) else part]
    if op == "test" and made.get(last) != value:
        raise Refused("The request is invalid: the server rejected our request due to an error in our request")
    if op in ("add", "replace"):
        made[last] = value
    elif op == "remove":
        del made[last]


def _rollout(cluster: Cluster, words: list[str], _: dict[str, str]) -> str:
    name = words[1].partition("/")[2]
    deployment = cluster.of("deployment")[name]
    template = deployment["spec"]["template"]["metadata"]
    template.setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = str(time.time_ns())
    deployment["metadata"]["generation"] += 1
    cluster.touch(deployment)
    return f"deployment.apps/{name} restarted\n"


def _delete(cluster: Cluster, words: list[str], _: dict[str, str]) -> str:
    kind, name = words[:2]
    if kind == "pod":
        cluster.end_pod(cluster.of(kind)[name])
    else:
        cluster.of(kind).pop(name, None)
    return f'{kind} "{name}" deleted\n'


def _logs(cluster: Cluster, words: list[str], given: dict[str, str]) -> str:
    waiting = "waiting" in cluster.of("pod")[words[0]]["status"]["containerStatuses"][0]["state"]
    file = cluster.log(words[0], ".previous" if "--previous" in words and not waiting else "")
    lines = file.read_text("utf-8", "replace").splitlines() if file.exists() else []
    return "".join(f"{line}\n" for line in lines[-int(given["--tail"]) :])


def _config(cluster: Cluster, _: list[str], given: dict[str, str]) -> str:
    context = given.get("--context", "lab")
    if "contexts" in cluster.objects or context != "lab":
        raise Refused("error: current-context must exist in order to minify")
    known = {"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": "llama"}}
    return json.dumps({"kind": "Config", "contexts": [known], "current-context": "lab"})


_VERBS = {
    "get": _get,
    "create": _create,
    "patch": _patch,
    "rollout": _rollout,
    "delete": _delete,
    "logs": _logs,
    "config": _config,
}


def _forward(here: int, inside: int) -> None:
    """Hand on what comes, until the pod's port is closed: as kubectl does, this ends then."""
    with socket.create_server(("127.0.0.1", here)) as server:
        sys.stdout.write(f"Forwarding from 127.0.0.1:{here} -> {inside}\n")
        while True:
            client, _ = server.accept()
            try:
                pod = socket.create_connection(("127.0.0.1", inside), _SECONDS)
            except OSError:
                client.close()
                sys.stderr.write("error: lost connection to pod\n")
                sys.exit(1)
            with client, pod:
                _pipe(client, pod)


def _pipe(client: socket.socket, pod: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, pod)
        selector.register(pod, selectors.EVENT_READ, client)
        while True:
            for key, _ in selector.select(60):
                source: Any = key.fileobj
                try:
                    data = source.recv(65536)
                    if not data:
                        return
                    key.data.sendall(data)
                except OSError:
                    return


if __name__ == "__main__":
    _forward(*(int(port) for port in sys.argv[-1].split(":")))
