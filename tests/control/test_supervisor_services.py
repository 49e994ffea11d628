"""services.json: what is read, what is refused, and how an entry becomes a process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from specdash.control.services.supervisor_services import ServiceEntry, describe, read_services, write_services
from specdash.core.changes import Role
from specdash.core.errors import InputError, NotWrittenError

GOOD = {"name": "proxy", "role": "proxy", "env_file": "/x/proxy.env"}


def written(path: Path, *services: object, version: object = 1) -> Path:
    path.write_text(json.dumps({"version": version, "services": services}), encoding="utf-8")
    return path


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "config" / "services.json"
    entries = (
        ServiceEntry("backend", Role.BACKEND, Path("/x/a b.env")),
        ServiceEntry("proxy", Role.PROXY, Path("/x/proxy.env"), listen="env"),
        ServiceEntry("t@1", Role.PROXY, Path("/x/t.env"), "[::1]:4000", ("sleep", "5"), 0.5),
    )
    write_services(path, entries)
    assert read_services(path) == entries
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["services.json"]


def test_without_a_file_there_are_no_services(tmp_path: Path) -> None:
    assert read_services(tmp_path / "services.json") == ()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "a/b"}, "service 1: name 'a/b': must be up to 64 letters, digits"),
        ({"name": "x" * 65}, "must be up to 64 letters"),
        ({"name": None}, "name None"),
        ({"role": "database"}, "role 'database': must be one of backend, proxy"),
        ({"role": ["proxy"]}, "must be one of backend, proxy"),
        ({"env_file": "proxy.env"}, "env_file 'proxy.env': must be an absolute path"),
        ({"env_file": None}, "must be an absolute path"),
        ({"listen": "4000"}, "listen '4000': must be HOST:PORT"),
        ({"listen": ":4000"}, "must be HOST:PORT"),
        ({"listen": "localhost:0"}, "must be HOST:PORT"),
        ({"listen": "localhost:65536"}, "must be HOST:PORT"),
        ({"listen": 4000}, "listen 4000: must be HOST:PORT"),
        ({"role": "backend", "listen": "localhost:80"}, "llama-server opens its own socket"),
        ({"role": "backend", "listen": "env", "argv": ["true"]}, "listen 'env': must be HOST:PORT"),
        ({"argv": []}, "argv: must be a list of texts, the program first"),
        ({"argv": "true"}, "must be a list of texts"),
        ({"argv": ["true", 1]}, "must be a list of texts"),
        ({"argv": ["tr\0ue"]}, "must be a list of texts"),
        ({"stop_timeout": -1}, "stop_timeout -1: must be seconds, from 0 to 3600"),
        ({"stop_timeout": True}, "stop_timeout True"),
        ({"lisen": "env"}, "unknown field lisen; known: argv, env_file, listen"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = written(tmp_path / "services.json", {**GOOD, **change})
    with pytest.raises(InputError) as caught:
        read_services(path)
    assert str(caught.value).startswith(f"{path}: service 1: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("\xff", "is not valid JSON"),
        ("[]", 'must be {"version": 1, "services": [...]}'),
        ('{"version": 1, "services": {}}', "must be {"),
        ('{"version": 2, "services": []}', "version 2 is not one this specdash reads (1)"),
        ('{"services": []}', "version None"),
        ('{"version": 1, "services": ["x"]}', "service 1: must be an object"),
        (" " * 1_100_000, "is larger than 1.0 MiB"),
    ],
    ids=lambda text: text[:12],
)
def test_a_file_that_cannot_be_meant_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "services.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        read_services(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_name_may_be_there_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="service 'proxy' is there twice"):
        read_services(written(tmp_path / "services.json", GOOD, GOOD))


def test_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        read_services(tmp_path)


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    path = written(tmp_path / "services.json", GOOD)
    before = path.read_bytes()
    with pytest.raises(InputError, match="must be an absolute path"):
        write_services(path, [ServiceEntry("a", Role.PROXY, Path("relative.env"))])
    with pytest.raises(InputError, match="is there twice"):
        write_services(path, [ServiceEntry("a", Role.PROXY, Path("/x"))] * 2)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x", encoding="utf-8")
    with pytest.raises(NotWrittenError, match="was not written"):
        write_services(blocked / "services.json", [])
    assert blocked.read_text() == "x"


def test_a_service_runs_specdash_itself_with_its_env_file(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "NOTIFY_SOCKET": "/run/other", "CUDA_VISIBLE_DEVICES": "1"}
    found = describe(ServiceEntry("backend", Role.BACKEND, tmp_path / "b.env"), env)
    assert found.argv == (sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(tmp_path / "b.env"))
    assert found.env == {"HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1", "PYTHONSAFEPATH": "1"}
    assert found.cwd == str(tmp_path)
    assert found.log == str(tmp_path / ".local/state/specdash/logs/service-backend.log")
    assert found.reload_signal == signal.SIGUSR1
    assert describe(ServiceEntry("p", Role.PROXY, tmp_path / "p.env"), env).reload_signal == signal.SIGHUP


@pytest.mark.parametrize(
    ("role", "text", "seconds"),
    [
        (Role.BACKEND, "", 5),
        (Role.BACKEND, "LLAMA_STOP_TIMEOUT=20\n", 20),
        (Role.BACKEND, "LLAMA_STOP_TIMEOUT=soon\n", 5),
        (Role.PROXY, "", 30),
        (Role.PROXY, "PROXY_DRAIN_TIMEOUT=90\n", 90),
    ],
)
def test_a_service_may_take_longer_to_stop_than_it_takes_itself(
    tmp_path: Path, role: Role, text: str, seconds: float
) -> None:
    file = tmp_path / "env"
    file.write_text(text, encoding="utf-8")
    assert describe(ServiceEntry("s", role, file), os.environ).stop_timeout == seconds + 8


def test_where_the_env_file_decides_the_proxy_listens_there(tmp_path: Path) -> None:
    file = tmp_path / "proxy.env"
    entry = ServiceEntry("proxy", Role.PROXY, file, listen="env")
    file.write_text("", encoding="utf-8")
    assert describe(entry, os.environ).listen == ("127.0.0.1", 4000)
    file.write_text("PROXY_HOST=0.0.0.0\nPROXY_PORT=4100\n", encoding="utf-8")
    assert describe(entry, os.environ).listen == ("0.0.0.0", 4100)


@pytest.mark.parametrize("text", [None, "PROXY_PORT=soon\n", "PROXY_PORT=70000\n", "what is this\n"])
def test_an_env_file_that_cannot_be_read_keeps_the_socket_that_is_open(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "proxy.env"
    entry = ServiceEntry("proxy", Role.PROXY, file, listen="env")
    file.write_text("PROXY_PORT=4100\n", encoding="utf-8")
    before = describe(entry, os.environ)
    if text is None:
        file.unlink()
    else:
        file.write_text(text, encoding="utf-8")
    assert describe(entry, os.environ, before).listen == ("127.0.0.1", 4100)
    assert describe(entry, os.environ).listen is None
