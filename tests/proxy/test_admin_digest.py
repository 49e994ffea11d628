"""Which version of its env file a running proxy has in force: its run record says it, before and after SIGHUP."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec.structs
import pytest

from specdash.core.records import ProxyRecord
from support.engines import write_env
from support.fault_server import free_port
from support.proxy_process import ProxyProcess, running_proxy
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with running_proxy(f"http://127.0.0.1:{free_port()}", tmp_path) as proxy_process:
        yield proxy_process


def record(proxy: ProxyProcess) -> ProxyRecord:
    (file,) = (proxy.env_file.parent / "state" / "specdash" / "run" / "proxy").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    found = ProxyRecord.from_json(file.read_text(encoding="utf-8"))
    assert found is not None
    return found


def digest(proxy: ProxyProcess) -> str:
    return hashlib.sha256(proxy.env_file.read_bytes()).hexdigest()


def test_the_digest_follows_each_reload(proxy: ProxyProcess) -> None:
    first = record(proxy)
    assert first.env_digest == digest(proxy)
    for threshold in ("9", "10"):
        write_env(proxy.env_file, {**proxy.values, "PROXY_LOOP_REPEAT_THRESHOLD": threshold})
        assert record(proxy).env_digest != digest(proxy)
        proxy.send(signal.SIGHUP)
        until(lambda: record(proxy).env_digest == digest(proxy))
    assert (record(proxy).pid, record(proxy).url) == (first.pid, first.url)


def test_a_refused_reload_leaves_the_digest_and_names_the_refused_version(proxy: ProxyProcess) -> None:
    before = record(proxy)
    proxy.env_file.write_text(proxy.env_file.read_text(encoding="utf-8") + "no assignment\n", encoding="utf-8")
    proxy.send(signal.SIGHUP)
    until(lambda: record(proxy).refused_digest == digest(proxy))
    after = record(proxy)
    assert "no '=' in the line" in (after.refused or "")
    assert msgspec.structs.replace(after, refused=None, refused_digest=None) == before
    assert "nothing was changed" in proxy.stderr
    assert proxy.request("GET", "/health").status == 200


def test_a_reload_that_is_asked_for_during_the_start_is_not_lost_and_ends_nothing(tmp_path: Path) -> None:
    proxy_process = ProxyProcess(f"http://127.0.0.1:{free_port()}", tmp_path)
    try:
        # Caught once the command runs; a process that is only Python yet could not tell it from a kill.
        status = Path(f"/proc/{proxy_process.process.pid}/status")
        until(lambda: int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGHUP - 1) & 1)
        proxy_process.send(signal.SIGHUP)
        proxy_process.wait_ready()
        until(lambda: "reload:" in proxy_process.stderr)
        assert proxy_process.stop() == 0
    finally:
        proxy_process.close()
