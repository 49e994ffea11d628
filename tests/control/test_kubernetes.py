"""A Deployment of Kubernetes as a service: found or refused, replaced, put back, stopped and started.

The cluster is a scripted one (`support.scripted_kubectl`), its pods are processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.control.env_store import read_env
from specdash.control.services.kubernetes import BEFORE, DeploymentName, KubernetesManager
from specdash.control.services.services import ContainerChange, ServiceState
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, ServiceError
from support.kubernetes import MAP, NAME, kubernetes_rig
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.kubernetes import KubernetesRig

pytestmark = pytest.mark.timeout(300)

CHANGE = "LLAMA_ARG_CTX_SIZE=1024"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesRig]:
    with kubernetes_rig(tmp_path_factory.mktemp("cluster")) as rig:
        yield rig


@pytest.fixture
def rig(made: KubernetesRig) -> KubernetesRig:
    made.make()
    return made


@pytest.fixture
def idle(made: KubernetesRig, monkeypatch: pytest.MonkeyPatch) -> KubernetesRig:
    """The same with a pod that does nothing: it only has to be there."""
    monkeypatch.setattr(made, "image", ("sleep", "600"))
    made.make()
    return made


def manager_of(rig: KubernetesRig) -> KubernetesManager:
    manager = rig.service().manager
    assert isinstance(manager, KubernetesManager)
    return manager


# The manager.


def change(rig: KubernetesRig, manager: KubernetesManager) -> ContainerChange:
    """Another context, written into the working copy."""
    old, before = manager.version("it"), rig.config_map()[1]
    assert old is not None
    file = manager.env_file
    file.write_text(file.read_text("utf-8").replace("CTX_SIZE=2048", "CTX_SIZE=1024"), "utf-8")
    return ContainerChange(read_env(file).digest, old, {}, before)


def test_replacing_and_putting_back_are_one_patch_each_and_may_be_repeated(rig: KubernetesRig) -> None:
    manager = manager_of(rig)
    forward = change(rig, manager)
    back = ContainerChange(forward.instead_of, forward.digest, {})
    patches = sum("patch" in words for words in rig.calls())
    for _ in range(2):
        manager.replace("it", forward)
        assert manager.version("it") == forward.digest
    with rig.cluster as cluster:
        noted = json.loads(cluster.of("deployment")[NAME]["metadata"]["annotations"][BEFORE])
        assert noted == {"configMap": MAP, "instead": f"{NAME}-specdash-{forward.digest[:10]}"}
    for _ in range(2):
        manager.put_back("it", back, run=True)
        assert rig.config_map()[0] == MAP
    manager.forget_before("it")
    assert sum("patch" in words for words in rig.calls()) - patches == 2
    rig.running()


def test_a_version_that_somebody_removed_is_made_again(rig: KubernetesRig) -> None:
    manager = manager_of(rig)
    text = manager.env_file.read_bytes()
    forward = change(rig, manager)
    manager.replace("it", forward)
    with rig.cluster as cluster:
        del cluster.of("configmap")[MAP]
    manager.env_file.write_bytes(text)
    manager.put_back("it", ContainerChange(forward.instead_of, forward.digest, {}), run=True)
    name, values = rig.config_map()
    assert (name, values["LLAMA_ARG_CTX_SIZE"]) == (f"{NAME}-specdash-{forward.instead_of[:10]}", "2048")


def test_settings_that_somebody_changed_meanwhile_are_not_overwritten(idle: KubernetesRig) -> None:
    manager = manager_of(idle)
    forward = change(idle, manager)
    with idle.cluster as cluster:
        cluster.of("configmap")[MAP]["data"]["LLAMA_ARG_THREADS"] = "3"
    with pytest.raises(ConflictError, match="was changed since it was read"):
        manager.bring_up()
    with pytest.raises(ConflictError, match="was changed by somebody else meanwhile"):
        manager.replace("it", forward)
    assert idle.config_map()[0] == MAP
    with idle.cluster as cluster:
        assert list(cluster.of("configmap")) == [MAP]
    # A new look takes it over, and an edit of the working copy alone is none.
    assert "LLAMA_ARG_THREADS=3" in idle.service().env_file.read_text("utf-8")
    assert "CTX_SIZE=2048" in idle.service().env_file.read_text("utf-8")


def test_a_config_map_of_the_same_name_that_says_something_else_is_left_as_it_is(idle: KubernetesRig) -> None:
    manager = manager_of(idle)
    forward = change(idle, manager)
    name = f"{NAME}-specdash-{forward.digest[:10]}"
    with idle.cluster as cluster:
        cluster.add({"kind": "ConfigMap", "metadata": {"name": name}, "data": {"MINE": "1"}})
    with pytest.raises(ConflictError, match="another ConfigMap"):
        manager.replace("it", forward)
    assert idle.config_map()[0] == MAP


def test_it_stops_starts_and_restarts(rig: KubernetesRig) -> None:
    manager = manager_of(rig)
    first = manager.status("it")
    assert (first.state, first.pid, first.restarts) == (ServiceState.RUNNING, None, 0)
    assert first.instance is not None
    until(lambda: "main: loading model" in manager.log_tail("it", 5))
    manager.restart("it")
    until(lambda: manager.status("it").state is ServiceState.RUNNING)
    assert manager.status("it").instance != first.instance
    manager.stop("it")
    assert manager.status("it").state is ServiceState.STOPPED
    assert manager.log_tail("it") == ()
    manager.start("it")
    until(lambda: manager.status("it").state is ServiceState.RUNNING)
    with pytest.raises(ServiceError, match="knows no reload"):
        manager.reload("it")
    assert manager.follow(7)[-5:] == ["--follow", "--tail=7", f"deployment/{NAME}", "--container", NAME]


@pytest.mark.parametrize(
    ("settings", "objects", "state", "words"),
    [
        ({"LLAMA_ARG_ALIAS": "exits"}, {}, ServiceState.WAITING, "exit code 1"),
        ({}, {"unschedulable": "0/1 nodes are available"}, ServiceState.STARTING, "0/1 nodes are available"),
    ],
)
def test_what_keeps_a_pod_from_running_is_told(
    rig: KubernetesRig, settings: dict[str, str], objects: dict[str, Any], state: ServiceState, words: str
) -> None:
    manager = manager_of(rig)
    with rig.cluster as cluster:
        cluster.objects |= objects
        cluster.of("configmap")[MAP]["data"] |= settings
    manager.restart("it")
    until(lambda: manager.status("it").state is state)
    assert words in manager.status("it").detail


def test_a_pod_that_cannot_be_made_has_failed(rig: KubernetesRig) -> None:
    manager = manager_of(rig)
    with rig.cluster as cluster:
        cluster.of("secret").clear()
    manager.restart("it")
    until(lambda: manager.status("it").state is ServiceState.FAILED)
    assert manager.status("it").detail == 'CreateContainerConfigError: secret "llama-keys" not found'
    assert manager.log_tail("it") == ('CreateContainerConfigError: secret "llama-keys" not found',)
    with rig.cluster as cluster:
        cluster.of("deployment").clear()
    until(lambda: manager.status("it").state is ServiceState.MISSING)
    for order in (manager.start, manager.stop, manager.restart, manager.log_tail):
        with pytest.raises(ServiceError, match=f"there is no Deployment llama/{NAME}@lab"):
            order("it")


# What is found, and what is refused.


@pytest.mark.parametrize(
    ("metadata", "spec", "why"),
    [
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}, {}, "Flux keeps it"),
        ({"annotations": {"argocd.argoproj.io/tracking-id": "apps:x"}}, {}, "Argo CD keeps it"),
        ({"ownerReferences": [{"kind": "Llama", "name": "big", "controller": True}]}, {}, "Llama big made it"),
        ({}, {"paused": True}, "kubectl rollout resume"),
        ({}, {"replicas": 2}, "it has 2 replicas"),
        ({}, {"selector": {"matchExpressions": []}}, "no matchLabels"),
    ],
)
def test_a_deployment_whose_settings_are_not_ours_to_change_says_what_to_do(
    idle: KubernetesRig, metadata: dict[str, Any], spec: dict[str, Any], why: str
) -> None:
    with idle.cluster as cluster:
        deployment = cluster.of("deployment")[NAME]
        deployment["metadata"] |= metadata
        deployment["spec"] |= spec
    assert why in "; ".join(idle.deployment().problems)


@pytest.mark.parametrize(
    ("service", "refuses", "why"),
    [
        ("kubectl:llama/Llama_Server", {}, "write kubectl:NAMESPACE/DEPLOYMENT"),
        ("kubectl:llama/nobody", {}, "there is no Deployment llama/nobody@lab"),
        (f"kubectl:llama/{NAME}@elsewhere", {}, "kubectl has no context for"),
        (f"kubectl:{NAME}", {"get": "Error from server (Forbidden): deployments is forbidden"}, "(Forbidden)"),
        (f"kubectl:{NAME}", {"get configmap": "Error from server (Forbidden): no"}, "cannot read configmap"),
        (f"kubectl:{NAME}", {"get": "Unable to connect to the server: dial tcp: i/o timeout"}, "i/o timeout"),
    ],
)
def test_a_cluster_that_does_not_answer_is_told_in_its_words(
    idle: KubernetesRig, service: str, refuses: dict[str, str], why: str
) -> None:
    with idle.cluster as cluster:
        cluster.objects["refuses"] = refuses
    deployment = idle.deployment(service)
    assert deployment.backend is None
    assert why in "; ".join(deployment.about(Role.BACKEND))


def test_kubectl_that_is_not_installed_is_said(idle: KubernetesRig) -> None:
    idle.env["PATH"], path = str(idle.home), idle.env["PATH"]
    try:
        assert "kubectl is not installed" in "; ".join(idle.deployment().problems)
    finally:
        idle.env["PATH"] = path


def test_a_container_without_a_config_map_is_refused(idle: KubernetesRig) -> None:
    with idle.cluster as cluster:
        del cluster.of("deployment")[NAME]["spec"]["template"]["spec"]["containers"][0]["envFrom"]
    assert "has no ConfigMap as its settings" in "; ".join(idle.deployment().problems)


def test_a_mounted_env_file_is_changed_as_a_whole(idle: KubernetesRig) -> None:
    text = "# how it runs\nPROXY_PORT=4000\n"
    container = {
        "args": ["proxy", "run", "--env-file", "/etc/specdash/proxy.env"],
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/specdash"}],
    }
    with idle.cluster as cluster:
        pod = cluster.of("deployment")[NAME]["spec"]["template"]["spec"]
        pod["containers"] = [{"name": NAME, **container}]
        pod["volumes"] = [{"name": "settings", "configMap": {"name": MAP}}]
        cluster.of("configmap")[MAP]["data"] = {"proxy.env": text, "other": "kept"}
    proxy = idle.deployment(proxy_service=f"kubectl:llama/{NAME}", backend_service="kubectl:llama/nobody").proxy
    assert proxy is not None
    assert proxy.env_file.read_text("utf-8") == text
    assert set(proxy.ports or ()) == {4000}
    assert isinstance(proxy.manager, KubernetesManager)
    old = proxy.manager.version("it")
    assert old is not None
    proxy.env_file.write_text(text.replace("4000", "4001"), "utf-8")
    changed = ContainerChange(read_env(proxy.env_file).digest, old, {}, {"PROXY_PORT": "4000"})
    proxy.manager.replace("it", changed)
    with idle.cluster as cluster:
        name = cluster.of("deployment")[NAME]["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
        assert cluster.of("configmap")[name]["data"] == {"proxy.env": text.replace("4000", "4001"), "other": "kept"}


def test_an_env_file_of_the_user_must_say_what_the_config_map_says(idle: KubernetesRig) -> None:
    file = idle.home / "llama-server.env"
    values = idle.config_map()[1]
    file.write_text("# ours\n" + "".join(f"{key}={value}\n" for key, value in values.items()), "utf-8")
    found = idle.deployment(backend_env_file=str(file)).backend
    assert found is not None
    assert found.env_file == file
    file.write_text("LLAMA_ARG_CTX_SIZE=1\n", "utf-8")
    assert "bring them together" in "; ".join(idle.deployment(backend_env_file=str(file)).problems)


def test_a_variable_that_wins_over_the_config_map_refuses_its_change(rig: KubernetesRig) -> None:
    with rig.cluster as cluster:
        container = cluster.of("deployment")[NAME]["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "LLAMA_ARG_CTX_SIZE", "value": "512"}]
    rig.running()
    refused = rig.command("preflight", CHANGE)
    assert refused.returncode == 7, refused.stdout + refused.stderr
    assert "sets LLAMA_ARG_CTX_SIZE by itself" in refused.stdout
    assert "take LLAMA_ARG_CTX_SIZE out of its `env`" in refused.stdout


def test_services_shows_the_deployment_and_its_log(rig: KubernetesRig) -> None:
    shown = rig.command("services", "status", "--json")
    assert f"llama/{NAME}@lab" in shown.stdout
    assert '"kubectl"' in shown.stdout
    until(lambda: "main: loading model" in rig.service().manager.log_tail("it", 5))
    assert "main: loading model" in rig.command("services", "logs", "backend").stdout
    refused = rig.command("services", "install", SPECDASH_MANAGER="kubectl")
    assert "kubectl apply" in refused.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama", DeploymentName("llama")),
        ("ns/llama", DeploymentName("llama", "ns")),
        ("ns/llama@arn:aws:eks:eu:1:cluster/a", DeploymentName("llama", "ns", "arn:aws:eks:eu:1:cluster/a")),
    ],
)
def test_a_deployment_is_named_by_namespace_name_and_context(text: str, name: DeploymentName) -> None:
    assert DeploymentName.parse(text) == name
    assert str(name) == text


def test_a_pod_without_a_kubeconfig_asks_the_cluster_that_it_is_in() -> None:
    found = DeploymentName("llama").located({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (found.namespace, found.context) == ("default", None)


# What the scripted cluster says, beside what kubectl 1.32 printed on an API server of 1.20 (tests/data/kubernetes).

RECORDED = Path(__file__).parents[1] / "data" / "kubernetes"


def ways(value: Any, way: str = "") -> set[str]:
    """The ways to every value of an object; those of a list are those of its first entry."""
    if isinstance(value, list):
        return ways(value[0], f"{way}[]") if value else {way}
    if not isinstance(value, dict) or way.endswith((".labels", ".annotations", ".matchLabels", ".data")):
        return {way}
    return {found for key, inner in value.items() for found in ways(inner, f"{way}.{key}")}


@pytest.mark.parametrize("kind", ["deployment", "replicaset", "pod", "configmap"])
def test_the_scripted_objects_have_the_shape_of_the_real_ones(idle: KubernetesRig, kind: str) -> None:
    real = json.loads((RECORDED / f"{kind}.json").read_text("utf-8"))
    words = (MAP,) if kind == "configmap" else ("--selector=app.kubernetes.io/name=llama-server",)
    scripted = json.loads(idle.kubectl("get", kind, *words, "--output=json"))
    if kind == "deployment":
        scripted = idle.read("deployment", NAME)
    assert ways(scripted) - {".items[].metadata.deployment"} <= ways(real)


def test_the_scripted_refusals_are_the_real_ones(idle: KubernetesRig) -> None:
    known = [json.loads(line) for line in (RECORDED / "refusals.jsonl").read_text("utf-8").splitlines()]
    real = {" ".join(item["words"]): (item["code"], item["err"]) for item in known}
    missing = next(answer for words, answer in real.items() if "get deployment nobody" in words)
    assert (missing, idle.kubectl("get", "deployment", "nobody", "--ignore-not-found")) == ((0, ""), "")
    code, refusal = next(answer for words, answer in real.items() if "metadata/generation" in words)
    patch = json.dumps([{"op": "test", "path": "/metadata/generation", "value": 99}])
    with pytest.raises(AssertionError, match=refusal.strip()):
        idle.kubectl("patch", "deployment", NAME, f"--patch={patch}")
    assert code == 1
