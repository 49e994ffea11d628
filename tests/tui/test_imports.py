"""The screen loads nothing that collects, and its chart library only after the first paint."""

from __future__ import annotations

import subprocess
import sys


def test_the_dashboard_imports_no_collector_library_and_no_chart_library() -> None:
    code = "import sys, specdash.tui.app; print([m for m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    for name in ("httpx", "psutil", "pynvml", "plotext", "pydantic"):
        assert f"'{name}'" not in loaded
