"""Keeps the results of a run beside the kit, and puts their figures into docs/performance.md."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from gpu.report import Result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tools" / "gpu" / "results"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- tools/gpu: begin -->", "<!-- tools/gpu: end -->"


def publish(results: Path, kept: Path = RESULTS, page: Path = PAGE) -> int:
    """Keep `results` as DATE-GPU.json in `kept` and renew the table in `page`.

    2, with nothing written, where the file is no result of the kit, or was made without a GPU.
    """
    try:
        whole = json.loads(results.read_text(encoding="utf-8"))
        machine, checks = whole["machine"], whole["checks"]
        gpu = machine["gpu"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(
            f"{results} holds no results from a GPU ({error!r}): give the results.json of tools/gpu/run.sh\n"
        )
        return 2
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    if not found or END not in rest:
        sys.stderr.write(f"{page} lacks the lines {BEGIN} and {END}: put them where the table belongs\n")
        return 2
    kept.mkdir(parents=True, exist_ok=True)
    target = kept / f"{machine['date']}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"
    target.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    body = "\n".join(section(machine, checks))
    page.write_text(f"{before}{BEGIN}\n{body}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    sys.stdout.write(f"{target}\n{page}\n")
    return 0


def section(machine: dict[str, Any], checks: list[dict[str, Any]]) -> list[str]:
    """The lines of the table: figures and whatever failed; what passed is counted."""
    gpu = machine["gpu"]
    card = f"{gpu['name']} ({gpu['memory.total']}), driver {gpu['driver_version']}, CUDA {machine['cuda'] or '--'}"
    lines = [
        f"{machine['date']}, {card}, llama.cpp {machine['llama_cpp'] or '--'}, {machine['cores']} cores.",
        "",
        "| check | statements that hold | figures, and what does not hold | |",
        "|---|---|---|---|",
    ]
    for check in checks:
        findings = check["findings"]
        judged = [finding for finding in findings if finding["result"] in (Result.PASSED, Result.FAILED)]
        held = sum(finding["result"] == Result.PASSED for finding in judged)
        name = f"**{check['name']}**: {_cell(check['title'])}"
        lines.append(f"| {name} | {held} of {len(judged)} | | {check['seconds']:.0f} s |")
        lines += [
            f"| | | {_cell(finding['what'])} | {_measured(finding)} |"
            for finding in findings
            if finding["result"] in (Result.FIGURE, Result.FAILED)
        ]
    return lines


def _measured(finding: dict[str, Any]) -> str:
    unit = finding.get("unit") or ""
    value = finding.get("measured")
    said = f"{value:.4g}" if isinstance(value, float) else "--" if value is None else _cell(str(value))
    said = f"{said} {unit}".strip()
    if finding["result"] == Result.FAILED:
        return f"**{said}**, expected {_cell(str(finding.get('expected')))}"
    return said


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
