"""Which services are found on a machine, by which name, and what is said when one is not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.control.services import systemd as systemctl
from specdash.control.services.deployment import find_deployment
from specdash.control.services.units import BACKEND_UNIT, PROXY_SOCKET, PROXY_UNIT, UnitFacts, unit_texts
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.config import resolve
from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.control.services.services import Deployment
    from specdash.control.services.tool import ToolOutput
    from support.systemd_user import UserManager

SLEEP = shutil.which("sleep") or "sleep"
UAP_BACKEND, UAP_PROXY = "uap-llama-server.service", "uap-anthropic-proxy.service"


def uap(env_file: Path | str) -> str:
    return f"[Service]\nEnvironmentFile={env_file}\nExecStart={SLEEP} 1000\n"


def found(env: Mapping[str, str], **settings: str) -> Deployment:
    return find_deployment(resolve(settings, {}, None), env)


def supervised(env: Mapping[str, str], *entries: dict[str, Any]) -> None:
    file = paths.services_file(env)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"version": 1, "services": list(entries)}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Rig:
    user: UserManager

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.user.environment}

    @property
    def env_file(self) -> Path:
        return self.user.home / ".config/uap/llama-server.env"

    def unit(self, name: str, text: str) -> None:
        (self.user.units / name).write_text(text, encoding="utf-8")
        self.user.systemctl("daemon-reload")

    def install(self, backend: str, proxy: str, *listen: str) -> None:
        for name, text in unit_texts(UnitFacts("/bin/false", backend, proxy, listen or ("127.0.0.1:4000",))).items():
            self.unit(name, text)

    def found(self, **settings: str) -> Deployment:
        return found(self.env, **settings)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running_user_manager(tmp_path / "ho me") as user:
        yield Rig(user)


@pytest.mark.systemd
class TestInSystemd:
    def test_our_own_units_with_their_env_files(self, rig: Rig) -> None:
        rig.install("/a b/50% back\"end'.env", "/p.env")
        deployment = rig.found()
        assert deployment.problems == ()
        backend, proxy = deployment.backend, deployment.proxy
        assert backend is not None
        assert proxy is not None
        assert (backend.name, backend.manager.kind, backend.origin) == (BACKEND_UNIT, "systemd", "installed unit")
        assert backend.env_file == Path("/a b/50% back\"end'.env")
        assert (backend.reloads, backend.socket) == (True, False)
        assert (proxy.name, proxy.env_file) == (PROXY_UNIT, Path("/p.env"))
        assert (proxy.reloads, proxy.socket) == (True, True)

    def test_uap_units_are_recognised_and_only_restarted(self, rig: Rig) -> None:
        rig.unit(UAP_BACKEND, uap("%h/.config/uap/llama server.env"))
        rig.unit(UAP_PROXY, uap("-/other.env"))
        deployment = rig.found()
        assert deployment.problems == ()
        backend, proxy = deployment.backend, deployment.proxy
        assert backend is not None
        assert proxy is not None
        assert (backend.name, backend.origin) == (UAP_BACKEND, "recognised (UAP)")
        assert backend.env_file == rig.user.home / ".config/uap/llama server.env"
        assert (backend.reloads, backend.socket) == (False, False)
        assert proxy.env_file == Path("/other.env")

    def test_ours_come_before_uaps_and_one_that_runs_beside_them_is_named(self, rig: Rig) -> None:
        rig.install("/b.env", "/p.env")
        rig.unit(UAP_BACKEND, uap("-/u.env"))
        assert rig.found().problems == ()
        rig.user.systemctl("start", UAP_BACKEND)
        deployment = rig.found()
        assert deployment.backend is not None
        assert deployment.backend.name == BACKEND_UNIT
        assert [line for line in deployment.problems if f"{UAP_BACKEND} runs too" in line]

    def test_a_unit_that_the_settings_name_wins_with_or_without_its_suffix(self, rig: Rig) -> None:
        rig.install("/b.env", "/p.env")
        rig.unit("mine.service", uap("/mine.env"))
        for name in ("mine", "mine.service"):
            backend = rig.found(backend_service=name).backend
            assert backend is not None
            assert (backend.name, backend.env_file) == ("mine.service", Path("/mine.env"))
            assert backend.origin == "command line --backend-service"

    def test_an_env_file_that_the_settings_name_wins(self, rig: Rig, tmp_path: Path) -> None:
        rig.unit(UAP_BACKEND, uap("/u.env"))
        backend = rig.found(backend_env_file=str(tmp_path / "x.env")).backend
        assert backend is not None
        assert backend.env_file == tmp_path / "x.env"

    def test_the_last_of_several_env_files_is_the_one_that_counts(self, rig: Rig) -> None:
        rig.unit(UAP_BACKEND, f"[Service]\nEnvironmentFile=/one.env\nEnvironmentFile=/two.env\nExecStart={SLEEP} 1\n")
        backend = rig.found().backend
        assert backend is not None
        assert backend.env_file == Path("/two.env")

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("none", None, "backend_service = none (command line --backend-service): no such service"),
            ("bad", "[Service]\nExecStart=not/absolute\n", "bad unit file setting"),
            ("bare", f"[Service]\nExecStart={SLEEP} 1\n", "names no EnvironmentFile=; say which env file it reads"),
        ],
    )
    def test_a_named_unit_that_cannot_be_used_is_said_and_nothing_else_taken(
        self, rig: Rig, name: str, text: str | None, said: str
    ) -> None:
        rig.install("/b.env", "/p.env")
        if text is not None:
            rig.unit(f"{name}.service", text)
        deployment = rig.found(backend_service=name)
        assert deployment.backend is None
        assert deployment.proxy is not None
        (problem,) = deployment.problems
        assert problem.startswith("backend: ")
        assert said in problem

    def test_a_masked_unit(self, rig: Rig) -> None:
        (rig.user.units / BACKEND_UNIT).symlink_to("/dev/null")
        rig.user.systemctl("daemon-reload")
        deployment = rig.found()
        assert deployment.backend is None
        assert "backend: specdash-backend.service: is masked; `systemctl --user unmask" in "\n".join(
            deployment.problems
        )

    def test_ours_wrapped_by_a_drop_in_no_longer_reloads(self, rig: Rig) -> None:
        rig.install("/b.env", "/p.env")
        drop_in = rig.user.units / f"{BACKEND_UNIT}.d"
        drop_in.mkdir()
        text = f"[Service]\nExecStart=\nExecStart={SLEEP} 1000\nEnvironmentFile=/other.env\n"
        (drop_in / "x.conf").write_text(text, encoding="utf-8")
        rig.user.systemctl("daemon-reload")
        backend = rig.found().backend
        assert backend is not None
        assert (backend.reloads, backend.env_file) == (False, Path("/other.env"))

    @pytest.mark.parametrize(
        ("command", "reloads"),
        [
            ("/opt/bin/specdash backend run --env-file=/x.env", True),
            ("/usr/bin/python3 -P -m specdash backend run --env-file /x.env --log-file /l", True),
            ("/opt/bin/specdash proxy run --env-file /x.env", False),
            ("/opt/bin/other backend run --env-file /x.env", False),
        ],
    )
    def test_what_counts_as_ours_is_the_command_not_the_name(self, rig: Rig, command: str, *, reloads: bool) -> None:
        text = f"[Service]\nEnvironmentFile=/y.env\nExecStart={command}\nExecReload=/bin/kill -USR1 $MAINPID\n"
        rig.unit("mine.service", text)
        backend = rig.found(backend_service="mine").backend
        assert backend is not None
        assert (backend.reloads, backend.env_file) == (reloads, Path("/x.env" if reloads else "/y.env"))

    def test_a_socket_that_listens_elsewhere_than_the_env_file_says_is_told(self, rig: Rig, tmp_path: Path) -> None:
        env_file = tmp_path / "p.env"
        rig.install("/b.env", str(env_file), "127.0.0.1:4000")
        env_file.write_text("PROXY_PORT=4000\n", encoding="utf-8")
        assert rig.found().problems == ()
        env_file.write_text("PROXY_PORT=4100\n", encoding="utf-8")
        (problem,) = rig.found().problems
        assert f"{PROXY_SOCKET} listens on 127.0.0.1:4000, but {env_file} says 127.0.0.1:4100" in problem

    def test_systemd_is_asked_one_question(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        rig.install("/b.env", "/p.env")
        asked: list[tuple[str, ...]] = []
        run = systemctl.Systemctl.run

        def count(self: systemctl.Systemctl, *arguments: str, timeout: float | None = None) -> ToolOutput:
            asked.append(arguments)
            return run(self, *arguments, timeout=timeout)

        monkeypatch.setattr(systemctl.Systemctl, "run", count)
        assert rig.found().backend is not None
        assert len(asked) == 1

    def test_the_setting_forces_the_manager(self, rig: Rig) -> None:
        rig.install("/b.env", "/p.env")
        supervised(rig.env, {"name": "b", "role": "backend", "env_file": "/s.env"})
        backend = rig.found(manager="supervisor").backend
        assert backend is not None
        assert (backend.name, backend.manager.kind) == ("b", "supervisor")
        backend = rig.found(manager="systemd").backend
        assert backend is not None
        assert backend.manager.kind == "systemd"

    def test_what_systemd_does_not_have_may_be_the_supervisors(self, rig: Rig) -> None:
        rig.unit(UAP_PROXY, uap("/u.env"))
        supervised(rig.env, {"name": "b", "role": "backend", "env_file": "/s.env"})
        deployment = rig.found()
        assert deployment.problems == ()
        assert deployment.backend is not None
        assert deployment.proxy is not None
        assert (deployment.backend.manager.kind, deployment.proxy.manager.kind) == ("supervisor", "systemd")


class TestWithoutSystemd:
    @pytest.fixture
    def env(self, tmp_path: Path) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}

    def test_nothing_is_known_and_both_reasons_are_said(self, env: dict[str, str]) -> None:
        deployment = found(env)
        assert (deployment.backend, deployment.proxy) == (None, None)
        backend, proxy, systemd = deployment.problems
        assert backend.startswith("backend: no service found; ")
        assert "started by hand" in backend
        assert "`specdash services adopt`" in backend
        assert proxy == "proxy: no service found; `specdash services install` sets it up"
        assert systemd.startswith("systemd's user manager does not answer")
        assert systemd.endswith("; the built-in supervisor needs none")
        assert deployment.about(Role.PROXY) == (proxy,)

    def test_the_supervisors_services_are_found_whether_it_runs_or_not(self, env: dict[str, str]) -> None:
        supervised(
            env,
            {"name": "b", "role": "backend", "env_file": "/b.env"},
            {"name": "p", "role": "proxy", "env_file": "/p.env", "listen": "env"},
        )
        deployment = found(env)
        backend, proxy = deployment.backend, deployment.proxy
        assert deployment.problems == ()
        assert backend is not None
        assert proxy is not None
        assert (backend.name, backend.env_file, backend.origin) == ("b", Path("/b.env"), "services.json")
        assert (backend.reloads, backend.socket) == (True, False)
        assert (proxy.reloads, proxy.socket) == (True, True)

    def test_a_service_with_a_command_of_its_own_does_not_reload(self, env: dict[str, str]) -> None:
        entry = {"name": "b", "role": "backend", "env_file": "/b.env", "argv": [SLEEP, "1"]}
        supervised(env, entry)
        backend = found(env).backend
        assert backend is not None
        assert backend.reloads is False

    def test_the_settings_choose_among_several(self, env: dict[str, str]) -> None:
        supervised(
            env,
            {"name": "one", "role": "backend", "env_file": "/1.env"},
            {"name": "two", "role": "backend", "env_file": "/2.env"},
        )
        backend = found(env, backend_service="two", backend_env_file="/3.env").backend
        assert backend is not None
        assert (backend.name, backend.env_file) == ("two", Path("/3.env"))
        deployment = found(env, backend_service="three")
        assert deployment.backend is None
        assert deployment.problems[0].startswith("backend: backend_service = three (command line --backend-service)")

    def test_a_services_file_that_cannot_be_read_is_said(self, env: dict[str, str]) -> None:
        supervised(env)
        paths.services_file(env).write_text("{", encoding="utf-8")
        deployment = found(env)
        assert all("services.json is not valid JSON" in problem for problem in deployment.problems)

    def test_asking_for_systemd_alone_says_why_not(self, env: dict[str, str]) -> None:
        supervised(env, {"name": "b", "role": "backend", "env_file": "/b.env"})
        deployment = found(env, manager="systemd")
        assert deployment.backend is None
        assert "does not answer" in deployment.problems[0]
