"""The dashboard's cost is measured on the real thing; here without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.checks import gpu_dashboard as check
from gpu.kit import Kit
from gpu.report import Report, Result
from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.collect.gpu import LIBRARY
from support.engines import llama_server_binary


def opens_nvml(environment: dict[str, str]) -> bool:
    code = f"import ctypes; ctypes.CDLL({LIBRARY!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=30, check=False)
    return done.returncode == 0


def test_a_dashboard_without_nvml_does_not_find_the_library_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    (tmp_path / "nvml.c").write_text("int nvmlInit_v2(void) { return 0; }\n")
    command = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / LIBRARY), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert opens_nvml(dict(os.environ))
    assert not opens_nvml({**os.environ, **check.without_nvml(tmp_path / "work")})


def test_the_words_of_a_picture() -> None:
    svg = '<svg><style>x</style><text class="r">GPU0&#160;</text><text> 97 &lt;%</text></svg>'
    assert check.text_of(svg) == "xGPU0  97 <%"


@pytest.mark.slow
@pytest.mark.llama_server
def test_cost_and_pictures_of_the_real_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"target": bundled_model(TARGET_MODEL), "draft": bundled_model(DRAFT_MODEL)}
    monkeypatch.setattr(Kit, "model", lambda _, name: models[name])
    monkeypatch.setattr(check, "DRY_WINDOW_S", 2.0)
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    report = Report(tmp_path / "gpu_dashboard.json", "gpu_dashboard", "")
    kit = Kit(tmp_path / "kit", tmp_path / "work", tmp_path / "out", Path(llama_server_binary()), cpu=True)
    check.run(kit, report)
    assert not [finding for finding in report.findings if finding.result is Result.FAILED]
    costs = [finding.measured for finding in report.findings if finding.result is Result.FIGURE]
    assert len(costs) == 2
    assert all(cost["rss"] > 20 and cost["terminal"] > 0 for cost in costs)
    for name in check.FILES:
        assert "Machine" in check.text_of((tmp_path / "out" / name).read_text())
