"""What systemd makes of a unit, as it is reckoned here; and applies to units that are not ours, on the real server."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from specdash.backend import demo
from specdash.backend.launch import free_port
from specdash.backend.start_check import healthy
from specdash.control.services.deployment import find_deployment
from specdash.core.config import resolve
from specdash.core.envfile import read_values
from support.engines import llama_server_binary
from support.systemd_user import running_user_manager
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdash.control.services.services import ManagedService
    from support.systemd_user import UserManager

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserManager]:
    with running_user_manager(tmp_path_factory.mktemp("home") / "ho me") as user_manager:
        yield user_manager


def unit_of(user: UserManager, name: str, lines: str, *drop_ins: str) -> str:
    """A unit of that name, unique on this machine: all managers share one tree of cgroups."""
    unit = f"sd-{os.getpid()}-{name}.service"
    (user.units / unit).write_text(f"[Service]\n{lines}\n", encoding="utf-8")
    for number, text in enumerate(drop_ins):
        folder = user.units / f"{unit}.d"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.conf").write_text(f"[Service]\n{text}\n", encoding="utf-8")
    user.systemctl("daemon-reload")
    return unit


def adopted(user: UserManager, unit: str, env_file: Path | None = None) -> ManagedService:
    given: dict[str, Any] = {"backend_service": unit}
    if env_file is not None:
        given["backend_env_file"] = str(env_file)
    found = find_deployment(resolve(given, {}, None), {**os.environ, **user.environment}).backend
    assert found is not None
    return found


WORDS = (
    "${BRACED} $WHOLE a${BRACED}b a$BRACED $$BRACED $${BRACED} $EMPTY ${EMPTY} $NEVER ${NEVER} 'quo ted' "
    '"${QUOTED}" $LATER $OURS %% x${BRACED}'
)
FIRST = 'BRACED=one\nWHOLE=two  three\nEMPTY=\nQUOTED="a b"\nLATER=early\nOURS=file\nGONE=here\n'


@pytest.mark.parametrize("prefix", ["", ":", "-"])
def test_arguments_and_environment_are_those_of_the_process(user: UserManager, tmp_path: Path, prefix: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable} -S\nimport time\ntime.sleep(600)\n", encoding="utf-8")
    program.chmod(0o755)
    first, second = tmp_path / "first.env", tmp_path / "sec ond.env"
    first.write_text(FIRST, encoding="utf-8")
    second.write_text("LATER=late\n", encoding="utf-8")
    lines = (
        f'Environment=OURS=unit ALONE=unit "SPACED=a b"\nEnvironmentFile={first}\nEnvironmentFile=-{second}\n'
        f"EnvironmentFile=-/no/such.env\nUnsetEnvironment=GONE\nExecStart=/bin/false"
    )
    name = f"words{ord(prefix or '0')}"
    unit = unit_of(user, name, lines, f"Environment=OURS=drop-in\nExecStart=\nExecStart={prefix}{program} {WORDS}")
    service = adopted(user, unit, first)
    command = service.command
    assert command is not None
    assert command.file.endswith("0.conf")
    variables = command.variables(first, read_values(first.read_bytes(), str(first)))
    user.systemctl("start", unit)
    pid = service.status().pid
    assert pid is not None
    until(lambda: psutil.Process(pid).cmdline()[-1].startswith("x"))
    process = psutil.Process(pid)
    argv = command.argv(variables)
    assert process.cmdline()[-len(argv) :] == argv
    real = process.environ()
    keys = ("BRACED", "WHOLE", "EMPTY", "QUOTED", "LATER", "OURS", "GONE", "ALONE", "SPACED")
    assert {key: real.get(key) for key in keys} == {key: variables.get(key) for key in keys}
    user.systemctl("stop", unit)


@pytest.mark.slow
@pytest.mark.llama_server
class TestOnTheServer:
    @pytest.fixture
    def place(self, user: UserManager, tmp_path: Path) -> tuple[UserManager, Path, int]:
        port = free_port("127.0.0.1")
        env_file = tmp_path / "llama.env"
        values = {
            "LLAMA_MODEL": demo.bundled_model(demo.TARGET_MODEL),
            "LLAMA_PORT": port,
            "LLAMA_ARG_CTX_SIZE": 2048,
            "LLAMA_DRAFT_MAX": 4,
        }
        env_file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        return user, env_file, port

    def started(self, place: tuple[UserManager, Path, int], name: str, command: str) -> str:
        user, env_file, port = place
        unit = unit_of(user, f"{name}{port}", f"EnvironmentFile={env_file}\nExecStart={command}\nRestart=on-failure")
        user.systemctl("start", unit)
        until(lambda: healthy(f"http://127.0.0.1:{port}"), 60)
        return unit

    def apply(self, user: UserManager, unit: str, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **user.environment, "SPECDASH_SETTLE_TIME": "0"}
        command = [sys.executable, "-m", "specdash", "apply", "--yes", "--backend-service", unit, *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    def test_only_what_the_unit_reads_can_be_applied(self, place: tuple[UserManager, Path, int]) -> None:
        user, env_file, _ = place
        server = llama_server_binary()
        common = "-m ${LLAMA_MODEL} --port ${LLAMA_PORT} --slots --metrics"
        unit = self.started(place, "plain", f"{server} {common} --spec-type ngram-mod")
        before = env_file.read_bytes()
        pid = adopted(user, unit).status().pid
        refused = self.apply(user, unit, "LLAMA_DRAFT_MAX=6")
        assert refused.returncode == 7, refused.stdout + refused.stderr
        assert "${LLAMA_DRAFT_MAX}" in refused.stdout
        assert "xllamacpp" not in refused.stdout
        assert env_file.read_bytes() == before
        assert adopted(user, unit).status().pid == pid
        done = self.apply(user, unit, "LLAMA_ARG_CTX_SIZE=1024")
        assert done.returncode == 0, done.stdout + done.stderr
        now = adopted(user, unit).status().pid
        assert now is not None
        assert now != pid
        assert psutil.Process(now).environ()["LLAMA_ARG_CTX_SIZE"] == "1024"
        user.systemctl("stop", unit)

    def test_a_script_that_names_a_key_and_does_not_use_it_is_found_out_and_undone(
        self, place: tuple[UserManager, Path, int], tmp_path: Path
    ) -> None:
        user, env_file, port = place
        script = tmp_path / "run.sh"
        script.write_text(
            f'#!/bin/sh\n: "$LLAMA_DRAFT_MAX"\nexec {llama_server_binary()} -m "$LLAMA_MODEL" --port "$LLAMA_PORT" '
            "--slots --spec-type ngram-mod --ctx-size ${LLAMA_CTX_SIZE:-2048}\n",
            encoding="utf-8",
        )
        script.chmod(0o755)
        unit = self.started(place, "script", str(script))
        before = env_file.read_bytes()
        undone = self.apply(user, unit, "LLAMA_DRAFT_MAX=6")
        assert undone.returncode == 11, undone.stdout + undone.stderr
        assert "LLAMA_DRAFT_MAX=6 did not reach" in undone.stderr
        assert env_file.read_bytes() == before
        until(lambda: healthy(f"http://127.0.0.1:{port}"), 60)
        done = self.apply(user, unit, "LLAMA_CTX_SIZE=1024")
        assert done.returncode == 0, done.stdout + done.stderr
        user.systemctl("stop", unit)
