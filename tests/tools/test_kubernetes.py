"""contrib/kubernetes: what it asks of programs and of a cluster is what they take.

No cluster is at hand. The schemas of Kubernetes are held against it where `kubernetes-validate` is installed, kubectl
builds it where there is one, and the programs are the real ones.
"""

import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdash.backend.launch import free_port
from specdash.core.envfile import read_values
from specdash.proxy.settings import settings_from_env
from support.fault_server import FaultServer, says
from support.waiting import until

ROOT = Path(__file__).parents[2]
BASE = ROOT / "contrib" / "kubernetes" / "base"
HELP = ROOT / "tests" / "data" / "help" / "b11434.txt"
KUBERNETES = "1.31"
"""The version whose schemas are asked."""
OF_OTHERS = {"PodMonitor"}
"""Kinds of the Prometheus operator, which Kubernetes itself has no schema of."""


def objects() -> list[dict[str, Any]]:
    """All that the base makes but the ConfigMaps of its env files."""
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [item for name in names for item in yaml.safe_load_all((BASE / name).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [item for item in objects() if item["kind"] == kind]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container with its pod's spec."""
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield container, pod


def container(name: str) -> dict[str, Any]:
    return next(item for item, _ in containers() if item["name"] == name)


def values(name: str) -> dict[str, str]:
    """The settings of an env file."""
    return read_values((BASE / name).read_bytes(), name)


def test_every_file_is_part_of_the_base() -> None:
    made = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    env = [name for entry in made["configMapGenerator"] for name in entry["envs"]]
    assert {"kustomization.yaml", *made["resources"], *env} == {path.name for path in BASE.iterdir()}


def test_kubernetes_takes_every_object() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for item in objects():
        if item["kind"] not in OF_OTHERS:
            validate.validate(item, KUBERNETES, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_it_and_a_changed_setting_rolls_the_pods() -> None:
    command = ["kubectl", "kustomize", str(BASE)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    made = list(yaml.safe_load_all(built))
    assert {item["metadata"].get("namespace", "llama") for item in made} == {"llama"}
    maps = {item["metadata"]["name"] for item in made if item["kind"] == "ConfigMap"}
    assert all(re.fullmatch(r"(llama-server|specdash-proxy)-[0-9a-z]{10}", name) for name in maps)
    for item in made:
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            named = [
                source["configMapRef"]["name"]
                for part in pod["containers"]
                for source in part.get("envFrom", ())
                if "configMapRef" in source
            ]
            assert named
            assert set(named) <= maps


def test_llama_server_reads_every_setting() -> None:
    known = set(re.findall(r"\(env: (\w+)\)", HELP.read_text()))
    assert set(values("llama-server.env")) <= known
    assert "LLAMA_API_KEY" in known


def test_the_proxy_takes_its_settings_and_answers_by_the_names_of_its_service() -> None:
    settings = settings_from_env({**values("proxy.env"), "PROXY_API_KEY": "k"})
    (service,) = (item["metadata"]["name"] for item in of_kind("Service") if "proxy" in item["metadata"]["name"])
    allowed = (settings.allowed_hosts or "").split(",")
    namespace = yaml.safe_load((BASE / "kustomization.yaml").read_text())["namespace"]
    assert {service, f"{service}.{namespace}", f"{service}.{namespace}.svc"} <= set(allowed)
    assert values("proxy.env")["LLAMA_CPP_BASE"] in {
        f"http://{item['metadata']['name']}:{item['spec']['ports'][0]['port']}" for item in of_kind("Service")
    }


def test_the_pod_is_given_longer_than_the_proxy_drains() -> None:
    _, pod = next((item, pod) for item, pod in containers() if item["name"] == "proxy")
    assert pod["terminationGracePeriodSeconds"] > float(values("proxy.env")["PROXY_DRAIN_TIMEOUT"])


def test_ports_and_labels_fit_together() -> None:
    ports = {port["name"] for item, _ in containers() for port in item["ports"]}
    labels = [item["spec"]["template"]["metadata"]["labels"] for item in of_kind("Deployment")]
    for service in of_kind("Service"):
        assert service["spec"]["selector"] in labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for chosen in (*of_kind("PodMonitor"), *of_kind("PodDisruptionBudget")):
        assert chosen["spec"]["selector"]["matchLabels"] in labels
    for monitor in of_kind("PodMonitor"):
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert container("llama-server")["ports"][0]["containerPort"] == int(values("llama-server.env")["LLAMA_ARG_PORT"])
    assert container("proxy")["ports"][0]["containerPort"] == int(values("proxy.env")["PROXY_PORT"])


def test_no_container_may_more_than_it_needs() -> None:
    for item, pod in containers():
        rights = item["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"], item["name"]
        assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert pod["automountServiceAccountToken"] is False
        mounted = {mount["name"] for mount in item["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}


@contextlib.contextmanager
def running(home: Path, *words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """specdash with a container's arguments and environment."""
    variables = {"HOME": str(home), "PATH": os.environ["PATH"], **env}
    with subprocess.Popen([sys.executable, "-m", "specdash", *words], env=variables, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=40)


def status(address: str, port: int, path: str, **headers: str) -> int | None:
    """The status of an answer, None where nobody answers."""
    connection = http.client.HTTPConnection(address, port, timeout=10)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status
        except OSError:
            return None


def own_address() -> str | None:
    """An address of this machine that others reach it by, None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


@pytest.mark.skipif(own_address() is None, reason="this machine has no network")
def test_probes_and_clients_reach_the_proxy_and_web_pages_do_not(tmp_path: Path) -> None:
    port, address = free_port("127.0.0.1"), own_address() or ""
    env = {
        **values("proxy.env"),
        "PROXY_PORT": str(port),
        "PROXY_EVENTS_FILE": str(tmp_path / "events.jsonl"),
        "PROXY_API_KEY": "k",
    }
    with running(tmp_path, *container("proxy")["args"], **env):
        until(lambda: status(address, port, "/health") is not None)
        # The kubelet names the pod's address.
        assert status(address, port, container("proxy")["readinessProbe"]["httpGet"]["path"]) == 200
        assert status(address, port, "/metrics") == 401
        assert status(address, port, "/metrics", Authorization="Bearer k") == 200
        assert status(address, port, "/health", Host="specdash-proxy.llama.svc:4000") == 200
        assert status(address, port, "/health", Host="evil.example") == 403


def test_the_exporter_starts_with_its_arguments(tmp_path: Path) -> None:
    port, log = free_port("127.0.0.1"), tmp_path / "server.log"
    log.touch()
    routes = {"/health": says(200, '{"status":"ok"}')}
    with FaultServer(routes) as server:
        changed = {"--url": server.url, "--log": str(log), "--listen": f"0.0.0.0:{port}"}
        given = dict(word.split("=", 1) for word in container("exporter")["args"][1:])
        words = [f"{name}={value}" for name, value in (given | changed).items()]
        assert set(changed) <= set(given)
        with running(tmp_path, container("exporter")["args"][0], *words, LLAMA_API_KEY="k"):
            until(lambda: status("127.0.0.1", port, "/metrics") == 200)
