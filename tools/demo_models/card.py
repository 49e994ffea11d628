"""Renders MODEL_CARD.md: what the files are, what they were trained on, what was measured."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demo_models.network import Llama
    from demo_models.training import Outcome

MEASURED_DRAFT_LENGTHS = (3, 4, 8)
_MEASURED = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", re.DOTALL)
_TEMPLATE = Path(__file__).with_name("card_template.md")
_MEASURE_SCRIPT = Path(__file__).with_name("measure.py")


@dataclass(frozen=True, slots=True)
class Trained:
    """One model, its file, and how its training went, phase by phase."""

    role: str
    path: Path
    model: Llama
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class Training:
    """Facts of the whole run."""

    seed: int
    corpus_tokens: int
    python: str
    torch: str
    losses_by_position: Sequence[tuple[int, int, float]]
    models: Sequence[Trained]


def write(training: Training, path: Path) -> None:
    """Write the card without measurements."""
    path.write_text(
        _TEMPLATE.read_text(encoding="utf-8").format(
            files="\n".join(_file_row(t) for t in training.models),
            shapes="\n".join(_shape_row(t) for t in training.models),
            runs="\n".join(_run_row(t) for t in training.models),
            positions="\n".join(f"| {a}-{b} | {loss:.2f} |" for a, b, loss in training.losses_by_position),
            seed=training.seed,
            tokens=f"{training.corpus_tokens / 1e6:.1f}",
            python=training.python,
            torch=training.torch,
            hardware=_hardware(),
        ),
        encoding="utf-8",
    )


def measure(path: Path, engine_python: str) -> None:
    """Measure the pair beside the card at ``path`` on the real engine and put the tables into the card."""
    reports = []
    for n_max in MEASURED_DRAFT_LENGTHS:
        command = [engine_python, str(_MEASURE_SCRIPT), "--models", str(path.parent), "--n-max", str(n_max)]
        done = subprocess.run(command, check=True, timeout=600, stdout=subprocess.PIPE, text=True)
        reports.append(json.loads(done.stdout))
    text = path.read_text(encoding="utf-8")
    path.write_text(_MEASURED.sub(lambda _: _measured_section(reports), text), encoding="utf-8")


def _measured_section(reports: list[dict[str, Any]]) -> str:
    classes = list(reports[0]["acceptance"])
    rows = []
    for report in reports:
        cells = []
        for name in classes:
            each = [a["accepted"] / a["drafted"] for a in report["answers"][name] if a["drafted"]]
            cells.append(f"{report['acceptance'][name]:.1%} ({min(each):.0%}-{max(each):.0%})")
        rows.append(f"| {report['n_max']} | " + " | ".join(cells) + " |")
    return (
        f"Engine: {reports[0]['engine']} (llama.cpp {reports[0]['build']}), `draft-simple`, p_min 0, temperature 0,\n"
        "answers of up to 256 tokens. Accepted over drafted tokens, all prompts of the class together, in brackets\n"
        "the lowest and the highest single prompt:\n\n"
        f"| n_max | {' | '.join(classes)} |\n|---{'|---' * len(classes)}|\n" + "\n".join(rows) + "\n"
    )


def _file_row(trained: Trained) -> str:
    content = trained.path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"| `{trained.path.name}` | {trained.role} | {len(content):,} | `{digest}` |"


def _shape_row(trained: Trained) -> str:
    s = trained.model.shape
    parameters = f"{trained.model.parameter_count:,}"
    return f"| {trained.role} | {parameters} | {s.layers} | {s.width} | {s.heads} x {s.head_width} | {s.feed_forward} |"


def _run_row(trained: Trained) -> str:
    runs = trained.outcomes
    steps = " + ".join(str(run.steps) for run in runs)
    return f"| {trained.role} | {steps} | {runs[-1].loss:.3f} | {sum(run.seconds for run in runs) / 60:.1f} min |"


def _hardware() -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"
