"""What 0.1 left on a disk still opens. `tests/data/from_0_1/README.md` lists it."""

import base64
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.backend.journal import Journal, read_note, read_records
from specdash.backend.launch import free_port
from specdash.control.profiles import find_profile
from specdash.core.changes import Role
from specdash.core.config import resolve
from specdash.core.envfile import read_values
from specdash.core.errors import ExitCode
from specdash.core.paths import user_profiles_dir
from specdash.history.store import Store
from specdash.system.files import short_path
from support.asking import ask, healthy
from support.systemd_user import running_user_manager
from support.waiting import until

LEFT = Path(__file__).parent / "data/from_0_1"


def test_a_record_of_0_1_opens(tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    shutil.copy(LEFT / "state/history.db", history)
    with Store(history) as store:
        assert store.targets()


def test_the_journal_of_a_killed_apply_holds_both_versions_of_the_env_file() -> None:
    journal = read_note(LEFT / "state/apply.journal", Journal, "journal")
    assert journal is not None
    edit = journal.edit(Role.BACKEND)
    assert edit is not None
    assert (edit.values(new=False)["LLAMA_DRAFT_MAX"], edit.values(new=True)["LLAMA_DRAFT_MAX"]) == ("6", "8")


def test_finished_applies_are_listed() -> None:
    assert [record.number for record in read_records(LEFT / "state/applies.jsonl")] == [1]


def test_a_saved_profile_is_converted(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    folder = user_profiles_dir(env)
    folder.mkdir(parents=True)
    shutil.copy(LEFT / "config/profiles/evening.toml", folder)
    evening = find_profile("evening", env)
    assert evening.summary == "what the workshop runs after six"
    assert evening.values == {
        Role.BACKEND: {
            "LLAMA_SPEC_TYPE": "draft-simple",
            "LLAMA_DRAFT_MAX": "6",
            "LLAMA_CTX_SIZE": "4096",
            "LLAMA_PARALLEL": "2",
        },
        Role.PROXY: {"PROXY_LOOP_BREAKER": "1"},
    }
    assert sorted(path.name for path in folder.iterdir()) == ["evening.env", "evening.toml.converted"]


def test_a_config_with_every_key_of_0_1_warns_of_what_was_removed_and_keeps_the_rest() -> None:
    warnings: list[str] = []
    text = (LEFT / "config/config.toml").read_text(encoding="utf-8")
    settings = resolve({}, {}, text, "config.toml", warnings.append)
    assert (settings["window"].value, settings["history_days"].value) == ("15m", 3)
    assert "manager" not in settings
    (table,) = settings["target"].value
    assert "backend_service" not in table
    assert all(" was removed and is ignored" in warning for warning in warnings)
    assert [warning.split(" was removed")[0] for warning in warnings] == [
        "config.toml: layout",
        "config.toml: manager",
        "config.toml: backend_service",
        "config.toml: proxy_service",
        "config.toml: ascii",
        "config.toml: ssh",
        "config.toml [[target]]: gpu_host",
        "config.toml [[target]]: backend_service",
    ]


class Installation:
    """The files of 0.1 in a home of their own, as they would be there: with its paths, ports, models and Python."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = free_port("127.0.0.1"), free_port("127.0.0.1")
        self.config, self.state = home / ".config/specdash", home / ".local/state/specdash"
        self.units = home / ".config/systemd/user"
        self._changed = {
            "/home/alex/specdash/.venv/bin/python": sys.executable,
            "/home/alex/models/demo-target.gguf": str(bundled_model(TARGET_MODEL)),
            "/home/alex/models/demo-draft.gguf": str(bundled_model(DRAFT_MODEL)),
            "/home/alex": str(home),
            "18471": str(self.ports[0]),
            "18472": str(self.ports[1]),
        }
        texts: dict[Path, str] = {}
        for part, folder in (("config", self.config), ("state", self.state), ("systemd", self.units)):
            for file in (LEFT / part).rglob("*"):
                there = folder / file.relative_to(LEFT / part)
                if file.parent.suffix == ".wants":
                    there.parent.mkdir(parents=True, exist_ok=True)
                    there.symlink_to(self.units / file.name)
                elif file.is_file():
                    there.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, there)
                    if file.suffix != ".db":
                        texts[there] = self._here(file.read_text(encoding="utf-8"))
        # Digests are those of the env files with their new paths.
        for file, text in texts.items():
            for old, new in self._changed.items():
                if re.fullmatch("[0-9a-f]{64}", old):
                    text = text.replace(old, new)
            file.write_text(text, encoding="utf-8")
        (self.state / "logs").mkdir(parents=True, exist_ok=True)
        # The config has every key; what it names besides is there too, or not named.
        config = self.config / "config.toml"
        config.write_text(re.sub(r"\w+_key_env = .*\n", "", config.read_text(encoding="utf-8")), encoding="utf-8")
        (self.config / "rules.toml").touch()
        (self.config / "key").write_text("canary-old-key\n", encoding="utf-8")
        (self.config / "key").chmod(0o600)

    def _here(self, text: str) -> str:
        text = re.sub(r'"([A-Za-z0-9+/]{80,}=*)"', lambda found: f'"{self._encoded(found[1])}"', text)
        changed = text
        for old, new in self._changed.items():
            changed = changed.replace(old, new)
        self._changed[hashlib.sha256(text.encode()).hexdigest()] = hashlib.sha256(changed.encode()).hexdigest()
        return changed

    def _encoded(self, text: str) -> str:
        return base64.b64encode(self._here(base64.b64decode(text).decode()).encode()).decode()

    def specdash(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "specdash", *words]
        return subprocess.run(
            command, env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def values(self) -> dict[str, str]:
        file = self.config / "llama-server.env"
        return read_values(file.read_bytes(), str(file))

    def answers(self) -> bool:
        body = {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "the speculative decoder"}]}
        return bool(ask(f"http://127.0.0.1:{self.ports[1]}/v1/messages", body, timeout=60)["content"])


@pytest.mark.systemd
@pytest.mark.engine
def test_a_whole_installation_serves_at_the_next_boot_and_is_renewed_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in an apply and in a tune, with its supervisor still there: 0.2 is installed, and the machine boots."""
    old = Installation(tmp_path / "home")
    (old.state / "run").mkdir(exist_ok=True)
    with running_user_manager(old.home) as user, socket.socket(socket.AF_UNIX) as supervisor:
        for key, value in user.environment.items():
            monkeypatch.setenv(key, value)
        with short_path(old.state / "run/supervisor.sock") as place:
            supervisor.bind(place)
        supervisor.listen()
        until(lambda: healthy(f"http://127.0.0.1:{old.ports[0]}") and healthy(f"http://127.0.0.1:{old.ports[1]}"), 60)
        assert old.answers()
        assert (old.values()["LLAMA_DRAFT_MAX"], old.values()["WORKSHOP_NOTE"]) == ("6", "keep me")
        assert not (old.state / "apply.journal").exists()
        assert not (old.state / "trial.json").exists()

        renewed = old.specdash("services", "install", "--record")
        assert renewed.returncode == ExitCode.OK, renewed.stderr
        assert f"`kill {os.getpid()}` stops them all" in renewed.stderr
        (stops, starts) = re.findall(
            r"`specdash (services stop)`, then `(start)`, takes the new units", renewed.stdout
        )[0]
        for words in (stops.split(), ["services", starts]):
            done = old.specdash(*words)
            assert done.returncode == ExitCode.OK, done.stderr
        for unit in old.units.glob("specdash-*"):
            assert unit.read_text(encoding="utf-8").startswith("# specdash unit, version 2"), unit
        until(lambda: bool(healthy(f"http://127.0.0.1:{old.ports[0]}")), 60)
        assert old.answers()
        assert old.specdash("services", "status").returncode == ExitCode.OK

        applied = old.specdash("apply", "LLAMA_DRAFT_MAX=5", "--yes", "--settle-time", "0")
        assert applied.returncode == ExitCode.OK, applied.stderr
        assert old.specdash("rollback", "--yes", "--settle-time", "0").returncode == ExitCode.OK
        assert old.values()["LLAMA_DRAFT_MAX"] == "6"
        records = json.loads(old.specdash("applies", "--json").stdout)
        assert [(row["number"], row["kind"], row["outcome"]) for row in records] == [
            (1, "apply", "applied"),
            (2, "recover", "rolled back"),
            (3, "apply", "applied"),
            (4, "rollback", "applied"),
        ]
        for command in ("config show", "profile show evening", "history stats", "env history"):
            done = old.specdash(*command.split())
            assert done.returncode == ExitCode.OK, done.stderr
            assert "canary-old-key" not in done.stdout + done.stderr
