"""The dashboard's key for an incident bundle, down to the file."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

from specdash.cli.options import resolved_settings
from specdash.cli.watch import Collecting
from specdash.core.target import Target
from specdash.insight.state import TargetState

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_bundle_is_of_the_server_that_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    target = Target("http://127.0.0.1:9", origin="test")
    collecting = Collecting(target, None, resolved_settings(None))
    collecting._state = TargetState(target)
    path = collecting.write_incident()
    assert path.is_relative_to(tmp_path / "state")
    with tarfile.open(path) as bundle:
        names = [member.name for member in bundle.getmembers() if member.name.endswith("manifest.json")]
        manifest = bundle.extractfile(names[0])
        assert manifest is not None
        assert "127.0.0.1:9" in json.dumps(json.load(manifest))
    assert collecting.recording_trouble == ""
