"""The user manager that other tests rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.systemd


def test_a_unit_runs_in_it_with_its_env_file(tmp_path: Path) -> None:
    with running_user_manager(tmp_path / "home") as manager:
        env, out = tmp_path / "a.env", tmp_path / "out"
        env.write_text('A="x  y"\n', encoding="utf-8")
        unit = f"[Service]\nType=oneshot\nEnvironmentFile={env}\nExecStart=/usr/bin/env\nStandardOutput=append:{out}\n"
        (manager.units / "a.service").write_text(unit, encoding="utf-8")
        manager.systemctl("daemon-reload")
        manager.systemctl("start", "a.service")
        assert "A=x  y" in out.read_text(encoding="utf-8").splitlines()
