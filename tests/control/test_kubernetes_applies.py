"""Applies to a Deployment of Kubernetes: rolled to another ConfigMap, verified, kept or gone back; cut off anywhere.

On a scripted cluster (`support.scripted_kubectl`), and on a real API server where one is named (`support.kubernetes`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.control.services.kubernetes import DIGEST
from specdash.control.services.services import ServiceState
from specdash.core.changes import ApplyKind, ApplyOutcome
from support.crash import KUBERNETES_POINTS
from support.kubernetes import MAP, NAME, SECRET, cluster_rig, kubernetes_rig
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.kubernetes import KubernetesRig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHANGE = "LLAMA_ARG_CTX_SIZE=1024"


@pytest.fixture(scope="module", params=[kubernetes_rig, cluster_rig], ids=["scripted", "cluster"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesRig]:
    with request.param(tmp_path_factory.mktemp("cluster")) as rig:
        yield rig


@pytest.fixture
def rig(made: KubernetesRig) -> KubernetesRig:
    made.make()
    return made


def test_an_apply_rolls_the_deployment_to_a_config_map_of_its_own_and_a_rollback_rolls_it_back(
    rig: KubernetesRig,
) -> None:
    done = rig.command("apply", "--yes", CHANGE)
    assert done.returncode == 0, done.stdout + done.stderr
    name, values = rig.config_map()
    assert name.startswith(f"{NAME}-specdash-")
    assert values["LLAMA_ARG_SPEC_TYPE"] == "ngram-mod"
    rig.assert_settled("1024")
    # `kubectl rollout undo` needs the one before.
    assert rig.read("configmap", MAP)["data"]["LLAMA_ARG_CTX_SIZE"] == "2048"
    assert rig.read("configmap", name)["immutable"] is True
    assert len(rig.read("configmap", name)["metadata"]["annotations"][DIGEST]) == 64
    again = rig.command("rollback", "--yes")
    assert again.returncode == 0, again.stdout + again.stderr
    rig.assert_settled("2048")
    ours = [words for words in rig.calls() if any(word.startswith("--request-timeout") for word in words)]
    assert all("--context=lab" in words for words in ours if "config" not in words)
    assert SECRET not in json.dumps(rig.calls())
    assert "LLAMA_ARG_CTX_SIZE" in rig.command("applies").stdout


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("exits", "failed to load the model of the test"),
        ("loading", "not healthy within 4 s (loading)"),
        ("dies-on-probe", "a first completion "),
    ],
)
def test_a_pod_that_does_not_stand_gives_its_place_back_to_the_version_before(
    rig: KubernetesRig, fault: str, why: str
) -> None:
    done = rig.command("apply", "--yes", "--health-timeout", "4", f"LLAMA_ARG_ALIAS={fault}")
    assert done.returncode == 11, done.stdout + done.stderr
    assert why in done.stdout + done.stderr
    assert rig.config_map()[0] == MAP
    assert rig.records()[-1].outcome is ApplyOutcome.ROLLED_BACK
    rig.assert_settled("2048")


@pytest.mark.parametrize(
    ("point", "way"),
    [
        *((point, way) for point in KUBERNETES_POINTS for way in ("--rollback", "--finish")),
        ("write:renamed", "--rollback"),
        ("health:after", "--finish"),
    ],
)
def test_an_apply_killed_after_any_order_is_rolled_back_or_finished(rig: KubernetesRig, point: str, way: str) -> None:
    rig.killed("apply", "--yes", CHANGE, at=point)
    assert rig.config_map()[1]["LLAMA_ARG_CTX_SIZE"] in ("1024", "2048")
    until(lambda: not forwards(rig))
    done = rig.command("recover", way, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    new = way == "--finish" or point == KUBERNETES_POINTS[-1]
    assert (rig.config_map()[0] == MAP) is not new
    last = rig.records()[-1]
    assert last.outcome is (ApplyOutcome.APPLIED if new else ApplyOutcome.ROLLED_BACK)
    assert last.kind is (ApplyKind.APPLY if new else ApplyKind.RECOVER)
    rig.assert_settled("1024" if new else "2048")


def forwards(rig: KubernetesRig) -> list[psutil.Process]:
    """The port-forwards of this rig that run."""
    port = f":{rig.port}"
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "port-forward" in (words := process.info["cmdline"] or [""]) and words[-1].endswith(port)
    ]


@pytest.mark.parametrize("point", ["container:patch", "rollback:written", "rollback:verified"])
def test_a_recovery_that_is_killed_can_be_run_again(rig: KubernetesRig, point: str) -> None:
    rig.killed("apply", "--yes", CHANGE, at="health:after")
    rig.killed("recover", "--rollback", "--yes", at=point)
    done = rig.command("recover", "--rollback", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rig.config_map()[0] == MAP
    rig.assert_settled("2048")


def test_a_deployment_that_was_stopped_is_stopped_again_when_the_change_fails(rig: KubernetesRig) -> None:
    rig.service().manager.stop("it")
    rig.killed("apply", "--yes", CHANGE, at="health:after")
    assert rig.command("recover", "--rollback", "--yes").returncode == 0
    assert rig.config_map()[0] == MAP
    until(lambda: rig.status().state is ServiceState.STOPPED)


def test_an_edit_of_somebody_else_in_the_middle_is_left_alone_and_no_pod_is_touched(rig: KubernetesRig) -> None:
    before = list(rig.pods())
    rig.meanwhile()
    done = rig.command("apply", "--yes", CHANGE)
    assert done.returncode == 11, done.stdout + done.stderr
    assert "was changed by somebody else meanwhile" in done.stderr
    assert rig.read("deployment", NAME)["spec"]["minReadySeconds"] == 1
    assert list(rig.pods()) == before
    rig.assert_settled("2048")
