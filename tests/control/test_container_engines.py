"""What an engine of containers promises: podman, and docker's own command on podman's socket (no docker daemon)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from specdash.control.services.containers import (
    ContainerEngine,
    ContainerFacts,
    ContainerManager,
    ContainerTool,
    command_of,
    remade,
    why_fixed,
)
from specdash.control.services.deployment import declared
from specdash.control.services.services import ContainerChange, ServiceState
from specdash.core.errors import ServiceError
from support.podman import container_image, docker_socket, run_words, runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OLD, NEW = "a" * 64, "b" * 64
FORWARD = ContainerChange(NEW, OLD, {"SIZE": "2", "ADDED": "yes", "GONE": None})
BACK = ContainerChange(OLD, NEW, {"SIZE": "1", "ADDED": None, "GONE": "here"})


@dataclasses.dataclass(frozen=True)
class Place:
    """A container that sleeps, made by an operator with an env file."""

    manager: ContainerManager
    name: str
    env_file: Path

    def settings(self) -> dict[str, str | None]:
        environment = self.facts().environment
        return {key: environment.get(key) for key in ("SIZE", "ADDED", "GONE", "MINE")}

    def facts(self) -> ContainerFacts:
        return self.manager.tool.inspect(self.name)[self.name]

    def identity(self) -> str:
        return str(self.facts().raw["Id"])

    def write(self, **values: str) -> None:
        self.env_file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")


@pytest.fixture(params=list(ContainerEngine))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    engine: ContainerEngine = request.param
    with container_image(tmp_path) as image:
        env: Mapping[str, str] = os.environ
        if engine is ContainerEngine.DOCKER:
            env = request.getfixturevalue("docker_env")
        name = f"sd-{os.getpid()}-{engine}"
        made = Place(ContainerManager(engine, env), name, tmp_path / "a.env")
        made.write(SIZE="1", GONE="here")
        own = () if engine is ContainerEngine.DOCKER else runtime()
        options = ("--env-file", str(made.env_file), "-e", "MINE=kept", "--label", "of=operator", "--stop-timeout", "1")
        words = run_words(name, image, *options, program=("/usr/bin/sleep", "600"))
        subprocess.run([engine, *own, *words], env=env, check=True, capture_output=True, timeout=60)
        try:
            yield made
        finally:
            for ending in ("", ".specdash-before", ".specdash-new"):
                made.manager.tool.run("rm", "--force", name + ending, timeout=60)


@pytest.fixture
def docker_env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with docker_socket(tmp_path) as env:
        yield env


@pytest.mark.podman
@pytest.mark.timeout(200)
def test_another_version_is_another_container_and_the_way_back_is_the_same_one(place: Place) -> None:
    first, settings = place.identity(), place.settings()
    assert settings == {"SIZE": "1", "ADDED": None, "GONE": "here", "MINE": "kept"}
    assert place.manager.version(place.name) is None
    place.write(SIZE="2", ADDED="yes")
    place.manager.replace(place.name, FORWARD)
    assert place.settings() == {"SIZE": "2", "ADDED": "yes", "GONE": None, "MINE": "kept"}
    assert place.manager.version(place.name) == NEW
    assert place.facts().labels["of"] == "operator"
    assert place.facts().argv == ("/usr/bin/sleep", "600")
    second, pid = place.identity(), place.manager.status(place.name).pid
    place.manager.replace(place.name, FORWARD)
    assert place.identity() == second
    assert place.manager.status(place.name).pid != pid
    place.manager.put_back(place.name, BACK, run=True)
    assert (place.identity(), place.settings()) == (first, settings)
    assert place.manager.status(place.name).state is ServiceState.RUNNING
    place.manager.put_back(place.name, BACK, run=False)
    place.manager.forget_before(place.name)
    assert place.identity() == first
    assert (
        len(place.manager.tool.inspect(place.name, f"{place.name}.specdash-before", f"{place.name}.specdash-new")) == 1
    )


@pytest.mark.podman
@pytest.mark.timeout(200)
def test_what_was_kept_goes_when_the_change_stands_and_is_made_again_where_somebody_removed_it(place: Place) -> None:
    place.write(SIZE="2", ADDED="yes")
    place.manager.replace(place.name, FORWARD)
    place.manager.forget_before(place.name)
    assert list(place.manager.tool.inspect(place.name, f"{place.name}.specdash-before")) == [place.name]
    place.write(SIZE="1", GONE="here")
    place.manager.put_back(place.name, BACK, run=True)
    assert place.settings() == {"SIZE": "1", "ADDED": None, "GONE": "here", "MINE": "kept"}
    assert place.manager.version(place.name) == OLD


@pytest.mark.podman
def test_an_engine_that_does_not_answer_is_no_container_that_is_missing(tmp_path: Path) -> None:
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    for engine in ContainerEngine:
        with pytest.raises(ServiceError, match=engine):
            ContainerManager(engine, {"PATH": str(tmp_path)}).status("any")
    if ContainerTool(ContainerEngine.DOCKER, env).run("--version").done:
        with pytest.raises(ServiceError, match="does not answer"):
            ContainerManager(ContainerEngine.DOCKER, env).status("any")


# Recorded: what docker 28 says where podman says something else, from its reference (docker container inspect).

DOCKER: dict[str, Any] = {
    "Id": "4f1c" * 16,
    "Name": "/llama",
    "Path": "/app/llama-server",
    "Args": ["--metrics"],
    "Image": "sha256:5ca1ab1e",
    "RestartCount": 3,
    "State": {"Status": "running", "Pid": 4711, "ExitCode": 0, "StartedAt": "2026-11-23T13:33:26.889376065Z"},
    "Config": {
        "Hostname": "4f1c4f1c4f1c",
        "Env": ["LLAMA_ARG_HOST=0.0.0.0", "LLAMA_ARG_PORT=8080", "LLAMA_ARG_MODEL=/models/a.gguf"],
        "Image": "ghcr.io/ggml-org/llama.cpp:server",
        "Labels": None,
    },
    "HostConfig": {
        "NetworkMode": "bridge",
        "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "9001"}]},
        "Binds": ["/srv/models:/models:ro"],
        "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
    },
    "Mounts": [
        {"Type": "bind", "Source": "/srv/models", "Destination": "/models"},
        {"Type": "volume", "Name": "c0ffee", "Source": "/var/lib/docker/volumes/c0ffee/_data", "Destination": "/cache"},
    ],
    "NetworkSettings": {"Networks": {"bridge": {"Aliases": ["4f1c4f1c4f1c", "llama"], "IPAddress": "172.17.0.2"}}},
}


def changed(**parts: Any) -> ContainerFacts:
    return ContainerFacts({**DOCKER, **parts})


def state(**values: Any) -> ContainerFacts:
    return changed(State={**DOCKER["State"], **values})


def test_docker_says_the_same_in_other_words() -> None:
    facts = ContainerFacts(DOCKER)
    assert (facts.name, facts.argv, facts.command) == ("llama", ("/app/llama-server", "--metrics"), ())
    status = facts.status("llama")
    assert (status.state, status.pid, status.restarts) == (ServiceState.RUNNING, 4711, 3)
    assert status.since == pytest.approx(1795440806.889376)


@pytest.mark.parametrize(
    ("values", "wanted", "detail"),
    [
        ({"Status": "created", "Pid": 0}, ServiceState.STOPPED, ""),
        ({"Status": "exited", "Pid": 0}, ServiceState.STOPPED, ""),
        ({"Status": "exited", "Pid": 0, "ExitCode": 143}, ServiceState.STOPPED, ""),
        ({"Status": "exited", "Pid": 0, "ExitCode": 137, "OOMKilled": True}, ServiceState.FAILED, "out of memory"),
        ({"Status": "exited", "Pid": 0, "ExitCode": 134}, ServiceState.FAILED, "signal SIGABRT"),
        ({"Status": "exited", "Pid": 0, "ExitCode": 1}, ServiceState.FAILED, "exit code 1"),
        ({"Status": "restarting", "ExitCode": 1}, ServiceState.WAITING, "exit code 1"),
        ({"Status": "removing", "Pid": 0}, ServiceState.STOPPING, ""),
    ],
)
def test_a_state_of_an_engine_is_a_state_of_a_service(
    values: dict[str, Any], wanted: ServiceState, detail: str
) -> None:
    status = state(**values).status("llama")
    assert status.state is wanted
    assert detail in status.detail


def test_paths_and_ports_inside_are_those_of_this_machine(tmp_path: Path) -> None:
    env_file = tmp_path / "llama.env"
    env_file.write_text("LLAMA_ARG_MODEL=/models/a.gguf\n", encoding="utf-8")
    command = command_of(ContainerFacts(DOCKER), "docker container llama", (), env_file)
    view = command.container
    assert view is not None
    assert view.path_here("/models/a.gguf") == "/srv/models/a.gguf"
    assert view.path_here("/modelsother/a.gguf") == "/modelsother/a.gguf"
    assert (view.ports, view.port_inside(9001), view.port_inside(8080)) == ({8080: 9001}, 8080, None)
    assert "LLAMA_ARG_MODEL" not in command.environment


def test_what_docker_makes_it_from_again_leaves_out_what_is_this_ones_alone() -> None:
    request = ContainerFacts(DOCKER).as_request()
    assert "Hostname" not in request
    assert request["HostConfig"]["Binds"] == ["/srv/models:/models:ro", "c0ffee:/cache"]
    assert request["HostConfig"]["RestartPolicy"] == {"Name": "unless-stopped", "MaximumRetryCount": 0}
    assert request["NetworkingConfig"]["EndpointsConfig"]["bridge"]["Aliases"] == ["llama"]
    assert "IPAddress" not in request["NetworkingConfig"]["EndpointsConfig"]["bridge"]


def made_by(*words: str, **config: Any) -> ContainerFacts:
    return changed(Config={**DOCKER["Config"], "CreateCommand": list(words), **config})


def test_the_command_of_podman_makes_the_next_one_without_a_secret_on_it() -> None:
    facts = made_by(
        *("/usr/bin/podman", "--log-level", "error", "run", "-dit", "--name=llama", "--replace", "--cidfile", "/x"),
        *("--label", f"specdash.env-digest={OLD}", "--env-file", "/etc/a.env", "-e", "LLAMA_API_KEY=s3cret"),
        *("-e", "LLAMA_ARG_HOST", "-v", "/m:/models", "image:1", "--name", "-d"),
        Cmd=["--name", "-d"],
    )
    words, variables = remade(facts, "llama.new", NEW)
    assert words == [
        *("--log-level", "error", "create", "--name", "llama.new", "--label", f"specdash.env-digest={NEW}"),
        *("--env-file", "/etc/a.env", "--env", "LLAMA_API_KEY", "--env", "LLAMA_ARG_HOST=0.0.0.0"),
        *("-it", "-v", "/m:/models", "image:1", "--name", "-d"),
    ]
    assert variables == {"LLAMA_API_KEY": "s3cret"}


@pytest.mark.parametrize(
    ("facts", "engine", "why"),
    [
        (made_by("podman", "run", "image"), "podman", "--env-file"),
        (made_by("podman", "run", "--env-file", "a.env", "image"), "podman", "relative path a.env"),
        (made_by("podman", "run", "--env-file", "/a", "-v", "./m:/m", "image"), "podman", "relative path ./m"),
        (made_by(), "podman", "is not known"),
        (changed(), "docker", "name that file"),
        (changed(NetworkSettings={"Networks": {"a": {}, "b": {}}}), "docker", "2 networks"),
    ],
)
def test_what_cannot_be_made_again_is_refused_with_what_to_do(facts: ContainerFacts, engine: str, why: str) -> None:
    assert why in (why_fixed(facts, ContainerEngine(engine)) or "")


def test_a_container_is_named_with_its_engine_or_by_the_manager() -> None:
    assert declared("podman:llama", "auto") == ("podman", "llama")
    assert declared("llama", "docker") == ("docker", "llama")
    assert declared("llama.service", "auto") is None
    assert declared("getty@tty1:x", "systemd") is None
