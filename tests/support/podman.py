"""Real containers on this machine: podman, an image without any file of its own, and folders of the machine in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdash.backend import demo
from specdash.backend.launch import free_port
from specdash.backend.start_check import healthy
from specdash.control.apply.journal import journal_file
from specdash.control.services.containers import ContainerEngine, ContainerTool
from specdash.core.envfile import parse
from specdash.core.paths import state_dir
from support.engines import llama_server_binary
from support.foreign_service import TESTS, ForeignService
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIRED = "SPECDASH_REQUIRE_PODMAN"
_FOLDERS = ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "var", "app", "models")
_USUAL = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
_LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4000:4000", "--security-opt", "seccomp=unconfined")
"""What a machine without the rights of a whole one lets a container have."""
_SECONDS = 60


def podman(*words: str, check: bool = True) -> str:
    """What podman prints."""
    done = subprocess.run(
        [shutil.which("podman") or "podman", *words], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0 or not check, f"podman {words}: {done.stderr}"
    return done.stdout.strip()


def runtime() -> tuple[str, ...]:
    """The options that choose runc where it is: crun refuses some machines that runc takes."""
    runc = shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return ("--runtime", runc) if runc is not None else ()


@contextlib.contextmanager
def container_image(folder: Path) -> Iterator[str]:
    """An image of empty folders; skips the test where podman cannot run it, unless CI says that it must."""
    name = f"specdash-test-{os.getpid()}:1"
    try:
        assert shutil.which("podman") is not None, "no podman is installed (Debian: podman runc)"
        _import_image(folder, name)
        podman(*runtime(), "run", "--rm", "--network", "host", *_LIMITS, "-v", "/usr:/usr:ro", name, "/usr/bin/true")
    except (AssertionError, subprocess.TimeoutExpired) as error:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(str(error))
        pytest.skip(f"podman runs no container here: {error}")
    try:
        yield name
    finally:
        podman("rmi", "--force", name, check=False)


def _import_image(folder: Path, name: str) -> None:
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for path in _FOLDERS:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, to in _USUAL.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)
    podman("import", str(archive), name)


@contextlib.contextmanager
def docker_socket(folder: Path) -> Iterator[dict[str, str]]:
    """The environment with which docker's own command reaches podman: no daemon of docker runs in these tests."""
    if shutil.which("docker") is None:
        pytest.skip("no docker command is installed")
    place = folder / "podman.sock"
    command = [shutil.which("podman") or "podman", *runtime(), "system", "service", "--time", "0", f"unix://{place}"]
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(place.exists)
        yield {**os.environ, "DOCKER_HOST": f"unix://{place}"}
    finally:
        service.terminate()
        service.wait(10)


def run_words(name: str, image: str, *options: str, program: tuple[str, ...]) -> list[str]:
    """`run -d` of a program of this machine, for either engine."""
    return ["run", "-d", "--name", name, "--network", "host", *_LIMITS, "-v", "/usr:/usr:ro", *options, image, *program]


@dataclass
class ContainerRig(ForeignService):
    """A llama-server in a container that somebody made with `podman run --env-file`, and nothing of specdash in it."""

    image: str
    name: str

    @property
    def file(self) -> Path:
        """The env file that it was made with."""
        return self.home / "llama.env"

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def make(
        self,
        *options: str,
        program: tuple[str, ...] = ("/app/llama-server",),
        healthy_soon: bool = True,
        network: tuple[str, ...] = ("--network", "host"),
        **settings: str,
    ) -> None:
        """Make it as an operator would, with further options and settings."""
        self.write(**settings)
        server, models = Path(llama_server_binary()).parent, Path(demo.bundled_model(demo.TARGET_MODEL)).parent
        places = ("-v", "/usr:/usr:ro", "-v", f"{server}:/app:ro", "-v", f"{models}:/models:ro")
        own = ("-e", "LD_LIBRARY_PATH=/app", "--env-file", str(self.file), "--stop-timeout", "5")
        podman(
            *(*runtime(), "run", "-d", "--name", self.name, *network, *_LIMITS, *places, *own),
            *(*options, self.image, *program),
        )
        if healthy_soon:
            until(lambda: healthy(self.url), _SECONDS)

    def make_runner(self) -> Path:
        """Make one that runs `specdash backend run`, seen from here as docs/containers.md asks for; its env file."""
        state, settings = state_dir(self.env), self.home / "settings"
        for folder in (state, settings):
            folder.mkdir(parents=True, exist_ok=True)
        file, server = settings / "backend.env", llama_server_binary()
        text = demo.env_text(
            port=self.port, log=state / "server.log", spec_types=("draft-simple",), engine="llama-server"
        )
        file.write_text(f"{text}LLAMA_BIN={server}\n", encoding="utf-8")
        file.chmod(0o600)
        read = {"/usr", sys.base_prefix, sys.prefix, str(TESTS.parent), str(Path(server).parent)}
        places = [*(f"{path}:{path}:ro" for path in sorted(read)), f"{state}:{state}", f"{settings}:{settings}"]
        mounted = [word for path in places for word in ("-v", path)]
        own = ("--pid", "host", "-e", f"XDG_STATE_HOME={state.parent}", "-e", "HOME=/tmp")
        program = (sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(file))
        podman(
            *(*runtime(), "run", "-d", "--name", self.name, "--network", "host", *_LIMITS, *mounted, *own),
            *(self.image, *program),
        )
        until(lambda: healthy(self.url), _SECONDS)
        return file

    def write(self, **more: str) -> None:
        """The settings as llama-server itself reads them."""
        model = Path(demo.bundled_model(demo.TARGET_MODEL)).name
        values = {
            "LLAMA_ARG_MODEL": f"/models/{model}",
            "LLAMA_ARG_HOST": "127.0.0.1",
            "LLAMA_ARG_PORT": str(self.port),
            "LLAMA_ARG_CTX_SIZE": "2048",
            "LLAMA_ARG_SPEC_TYPE": "ngram-mod",
            "LLAMA_ARG_ENDPOINT_METRICS": "1",
            "LLAMA_API_KEY": "secret-of-the-container",
            **more,
        }
        self.file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        self.file.chmod(0o600)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same, not waited for."""
        return subprocess.Popen(
            [sys.executable, "-m", "specdash", *words], env=self.env, text=True, stdout=subprocess.PIPE
        )

    def containers(self) -> dict[str, str]:
        """Every container of this rig and its state, under the end of its name."""
        names = podman("ps", "--all", "--filter", f"name={self.name}", "--format", "{{.Names}}").splitlines()
        all_facts = ContainerTool(ContainerEngine.PODMAN, self.env).inspect(*names) if names else {}
        return {name.removeprefix(self.name): str(facts.state["Status"]) for name, facts in all_facts.items()}

    def identity(self) -> str:
        """The id of the container that has the name."""
        return podman("inspect", "--format", "{{.Id}}", self.name)

    def runs_with(self) -> dict[str, str]:
        """The variables of the container that has the name."""
        return ContainerTool(ContainerEngine.PODMAN, self.env).inspect(self.name)[self.name].environment

    def values(self) -> dict[str, str]:
        """What the env file says."""
        return parse(self.file.read_text(encoding="utf-8")).values

    def reset(self) -> None:
        """As it was made, with nothing of an apply left."""
        journal_file(self.env).remove()
        for ending in self.containers():
            podman("rm", "--force", "--time", "2", self.name + ending)
        self.make()

    def assert_settled(self) -> None:
        """One container, which runs, answers, and has what the env file says; nothing of an apply is left."""
        assert self.containers() == {"": "running"}
        assert not journal_file(self.env).path.exists()
        until(lambda: healthy(self.url), _SECONDS)
        runs = self.runs_with()
        assert {key: runs.get(key) for key in self.values()} == self.values()


@contextlib.contextmanager
def container_rig(folder: Path) -> Iterator[ContainerRig]:
    """A rig without its container yet; whatever it made is removed afterwards."""
    with container_image(folder) as image:
        port = free_port("127.0.0.1")
        name = f"sd-{os.getpid()}-{port}"
        rig = ContainerRig(folder, port, f"podman:{name}", image, name)
        try:
            yield rig
        finally:
            for ending in rig.containers():
                podman("rm", "--force", "--time", "2", rig.name + ending, check=False)
