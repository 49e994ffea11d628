"""Applies to a llama-server in a container of podman: made anew, verified, kept or gone back, and cut off anywhere."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.control.apply.journal import journal_file
from specdash.control.services.containers import DIGEST_LABEL, ContainerEngine, ContainerTool, container_of
from specdash.control.services.services import ServiceState
from specdash.core.changes import ApplyKind, ApplyOutcome
from specdash.core.envfile import parse
from specdash.core.errors import ServiceError
from support.crash import CONTAINER_POINTS
from support.podman import container_rig, podman
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.podman import ContainerRig

pytestmark = [pytest.mark.podman, pytest.mark.llama_server, pytest.mark.timeout(300)]

CHANGE = "LLAMA_ARG_CTX_SIZE=1024"
ENDS = "LLAMA_ARG_DEVICE=NoSuchDevice"
"""What the engine refuses, and preflight cannot know of a binary in a container."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerRig]:
    with container_rig(tmp_path_factory.mktemp("container")) as rig:
        yield rig


@pytest.fixture
def rig(made: ContainerRig) -> ContainerRig:
    made.reset()
    return made


def test_an_apply_makes_the_container_anew_and_removes_the_one_before(rig: ContainerRig) -> None:
    before = rig.identity()
    done = rig.command("apply", "--yes", CHANGE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rig.identity() != before
    assert rig.runs_with()["LLAMA_ARG_CTX_SIZE"] == "1024"
    rig.assert_settled()
    assert "secret-of-the-container" not in done.stdout + done.stderr
    again = rig.command("rollback", "--yes")
    assert again.returncode == 0, again.stdout + again.stderr
    assert rig.runs_with()["LLAMA_ARG_CTX_SIZE"] == "2048"
    rig.assert_settled()


def test_a_server_behind_a_published_port_is_changed_like_any(rig: ContainerRig) -> None:
    podman("rm", "--force", "--time", "2", rig.name)
    published = ("-p", f"127.0.0.1:{rig.port}:8080")
    try:
        rig.make(network=published, LLAMA_ARG_PORT="8080", LLAMA_ARG_HOST="0.0.0.0")
    except AssertionError as error:
        pytest.skip(f"no container network here: {error}")
    done = rig.command("apply", "--yes", CHANGE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rig.runs_with()["LLAMA_ARG_CTX_SIZE"] == "1024"
    rig.assert_settled()


def test_a_container_that_fails_gives_its_place_back_to_the_same_one(rig: ContainerRig) -> None:
    before, old = rig.identity(), rig.file.read_bytes()
    done = rig.command("apply", "--yes", "--health-timeout", "20", ENDS)
    assert done.returncode == 11, done.stdout + done.stderr
    assert "invalid device" in done.stdout + done.stderr
    assert rig.identity() == before
    assert rig.file.read_bytes() == old
    rig.assert_settled()


@pytest.mark.parametrize(
    ("point", "way"),
    [
        *((point, way) for point in CONTAINER_POINTS for way in ("--rollback", "--finish")),
        *((point, "--rollback") for point in ("write:renamed", "health:after")),
    ],
)
def test_an_apply_killed_after_any_order_is_rolled_back_or_finished(rig: ContainerRig, point: str, way: str) -> None:
    before, old = rig.identity(), rig.file.read_bytes()
    killed = rig.command("apply", "--yes", CHANGE, fault=point)
    assert killed.returncode == -signal.SIGKILL, f"{point} was not reached: {killed.stdout}{killed.stderr}"
    done = rig.command("recover", way, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    new = way == "--finish" or point == "container:rm"
    assert rig.runs_with()["LLAMA_ARG_CTX_SIZE"] == ("1024" if new else "2048")
    assert (rig.identity() == before) is not new
    assert (rig.file.read_bytes() == old) is not new
    last = rig.records()[-1]
    assert last.outcome is (ApplyOutcome.APPLIED if new else ApplyOutcome.ROLLED_BACK)
    assert last.kind is (ApplyKind.APPLY if new else ApplyKind.RECOVER)
    rig.assert_settled()


@pytest.mark.parametrize("point", ["container:stop", "container:rm", "container:rename", "container:start"])
def test_a_recovery_that_is_killed_can_be_run_again(rig: ContainerRig, point: str) -> None:
    before = rig.identity()
    assert rig.command("apply", "--yes", CHANGE, fault="health:after").returncode == -signal.SIGKILL
    assert rig.command("recover", "--rollback", "--yes", fault=point).returncode == -signal.SIGKILL
    done = rig.command("recover", "--rollback", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rig.identity() == before
    rig.assert_settled()
    assert journal_file(rig.env).read() is None


def test_a_container_that_did_not_run_is_stopped_again_when_the_change_fails(rig: ContainerRig) -> None:
    before = rig.identity()
    rig.service().manager.stop(rig.name)
    killed = rig.command("apply", "--yes", CHANGE, fault="health:after")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rig.command("recover", "--rollback", "--yes").returncode == 0
    assert (rig.identity(), rig.containers()) == (before, {"": "exited"})


def test_it_starts_stops_and_says_what_became_of_it(rig: ContainerRig) -> None:
    service = rig.service()
    manager = service.manager
    first = service.status()
    assert (first.state, first.restarts) == (ServiceState.RUNNING, 0)
    assert first.pid is not None
    assert psutil.Process(first.pid).cmdline() == ["/app/llama-server"]
    assert any("listening" in line for line in manager.log_tail(rig.name, 20))
    following = rig.start("services", "logs", "backend", "--follow")
    assert following.stdout is not None
    assert any("loading model" in line for line in following.stdout)
    # The follower ends with the container.
    manager.restart(rig.name)
    assert service.status().pid not in (None, first.pid)
    manager.stop(rig.name)
    following.communicate(timeout=60)
    assert (service.status().state, service.status().pid) == (ServiceState.STOPPED, None)
    manager.start(rig.name)
    assert service.status().alive
    assert manager.status("nobody").state is ServiceState.MISSING
    for order in (manager.start, manager.stop, manager.restart, manager.reload):
        with pytest.raises(ServiceError, match="nobody"):
            order("nobody")


def test_a_container_that_ended_by_itself_has_failed_and_says_how(rig: ContainerRig) -> None:
    podman("rm", "--force", "--time", "2", rig.name)
    rig.make(program=("/app/llama-server", "--no-such-option"), healthy_soon=False)
    until(lambda: rig.service().status().state is ServiceState.FAILED)
    assert (rig.service().status().detail, rig.service().status().exit_code) == ("exit code 1", 1)


def test_a_runner_in_a_container_swaps_its_engine_and_no_container_is_made(rig: ContainerRig) -> None:
    podman("rm", "--force", "--time", "2", rig.name)
    file = rig.make_runner()
    before, pid = rig.identity(), rig.service().status().pid
    assert (rig.service().env_file, rig.service().reloads, rig.service().replacing) == (file, True, None)
    done = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "swapping the engine" in done.stderr
    assert (rig.identity(), rig.service().status().pid) == (before, pid)
    killed = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=7", fault="restart:asked")
    assert killed.returncode == -signal.SIGKILL
    assert rig.command("recover", "--rollback", "--yes").returncode == 0
    assert parse(file.read_text(encoding="utf-8")).values["LLAMA_DRAFT_MAX"] == "6"
    assert rig.identity() == before


def test_a_server_in_a_container_is_named_where_no_service_is_known(rig: ContainerRig) -> None:
    pid = rig.service().status().pid
    assert pid is not None
    assert container_of(pid, rig.env) == f"podman:{rig.name}"
    assert container_of(psutil.Process().pid, rig.env) is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--rm",), "--rm"),
        (("--label", "com.docker.compose.project=stack"), "compose up -d"),
        (("--label", "PODMAN_SYSTEMD_UNIT=llama.service"), "llama.service"),
    ],
)
def test_a_container_whose_settings_are_not_ours_to_change_says_what_to_do(
    rig: ContainerRig, options: tuple[str, ...], why: str
) -> None:
    podman("rm", "--force", "--time", "2", rig.name)
    rig.make(*options, healthy_soon=False)
    deployment = rig.deployment()
    assert deployment.backend is None
    assert why in "; ".join(deployment.problems)


def test_variables_of_the_command_line_are_made_again_and_win(rig: ContainerRig) -> None:
    podman("rm", "--force", "--time", "2", rig.name)
    rig.make("-e", "LLAMA_ARG_THREADS=1", "-e", "PROXY_API_KEY=secret-of-the-shell", "--label", "mine=kept")
    refused = rig.command("apply", "--yes", "LLAMA_ARG_THREADS=2")
    assert refused.returncode == 7
    assert "make it again without -e LLAMA_ARG_THREADS" in refused.stdout
    assert rig.command("apply", "--yes", CHANGE).returncode == 0
    rig.assert_settled()
    facts = ContainerTool(ContainerEngine.PODMAN).inspect(rig.name)[rig.name]
    assert (facts.labels["mine"], facts.environment["LLAMA_ARG_THREADS"]) == ("kept", "1")
    assert facts.environment["PROXY_API_KEY"] == "secret-of-the-shell"
    assert "secret-of-the-shell" not in " ".join(facts.command)
    assert len(facts.labels[DIGEST_LABEL]) == 64
