"""A real Prometheus, scraping an exporter or filled with weeks of samples in a second."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from specdash.system.http import status_of
from support.fault_server import free_port
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def running_prometheus(directory: Path, *, scraped: str | None = None, samples: str = "") -> Iterator[str]:
    """Its address. `scraped` is HOST:PORT of an exporter, `samples` a page of OpenMetrics with their moments."""
    program, tool = shutil.which("prometheus"), shutil.which("promtool")
    if program is None or tool is None:
        pytest.skip("needs prometheus (Debian's package)")
    data = directory / "data"
    data.mkdir()
    if samples:
        page = directory / "samples.om"
        page.write_text(samples)
        command = [tool, "tsdb", "create-blocks-from", "--max-block-duration=720h", "openmetrics", str(page), str(data)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    config = directory / "prometheus.yml"
    jobs = f"[{{job_name: s, static_configs: [{{targets: ['{scraped}']}}]}}]" if scraped else "[]"
    config.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs: {jobs}\n")
    place = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={config}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=60d"]
    with subprocess.Popen([program, *options, f"--web.listen-address={place}"], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: status_of(f"http://{place}", "/-/ready", 1.0) == 200, 30.0)
            yield f"http://{place}"
        finally:
            process.terminate()
