"""How near the engine simulator comes to real runs: published ones, and those in a file.

`python benchmarks/simulator_fit.py [RUNS.json]`. The file: `{"step_ms": {"0": 11.3, "1": 13.1}, "accepted": {"6": [0.9,
0.8]}}`, milliseconds of a step by draft length (0 is off) and acceptance by position by longest draft; either may be
left out. `benchmarks/tuner_real.py --out DIR` writes such files of its sweeps: DIR/fit-*.json. Lengths beyond those
that the simulator knows are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent)]

from benchmarks.tuner_lab.exact import Exact, accepted_at, follow  # noqa: E402
from benchmarks.tuner_lab.fit import fit_acceptance, fit_costs  # noqa: E402
from benchmarks.tuner_lab.grid import DEEPEST  # noqa: E402
from benchmarks.tuner_lab.published import (  # noqa: E402
    CPU_STEP_MS,
    FIRST_ALONE,
    POWER_STUDY,
    POWER_STUDY_ACCEPTANCE,
    TRACES,
)
from benchmarks.tuner_lab.rig import BATCHES  # noqa: E402
from benchmarks.tuner_lab.simulator import Environment  # noqa: E402
from specdash.core.errors import SpecdashError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DRAWN = 300
NEAR = 0.05


def main(words: Sequence[str]) -> int:
    """Prints the fits; of a file's runs alone where one is given."""
    try:
        if words:
            runs = json.loads(Path(words[0]).read_text(encoding="utf-8"))
            if "step_ms" in runs:
                _costs(words[0], {int(n): float(ms) for n, ms in runs["step_ms"].items()})
            if "accepted" in runs:
                _accepted(words[0], {int(n): tuple(curve) for n, curve in runs["accepted"].items()})
            return 0
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        return 2
    except SpecdashError as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        return 2
    _costs("llama-server b11434, CPU, synthetic acceptance", CPU_STEP_MS)
    emitted = (1.0, *(1 + n * value for n, value in enumerate(POWER_STUDY_ACCEPTANCE, start=1)))
    for watts, speeds in POWER_STUDY.items():
        _costs(f"RTX 5090, {watts} W", {n: 1000 * emitted[n] / speed for n, speed in enumerate(speeds)})
    first = fit_acceptance({8: TRACES[0].accepted}).accepted(1)[0]
    print(f"{TRACES[0].name}: one token alone {first:.3f} by the fit of eight, {FIRST_ALONE} as published")
    _coverage()
    return 0


def _costs(name: str, step_ms: Mapping[int, float]) -> None:
    fit = fit_costs({n: ms for n, ms in step_ms.items() if n < BATCHES})
    cliff = f", +{fit.jump:.2f} past a batch of {fit.cliff}" if fit.jump else ""
    print(f"{name}: {fit.alone_ms:.2f} ms, +{fit.slope:.3f} a token, experts +{fit.spread:.2f}{cliff}; ", end="")
    print(f"error median {100 * fit.median_error:.1f} %, largest {100 * fit.largest_error:.1f} %")
    for length, fitted in fit.fitted_ms.items():
        apart = 100 * (fitted / step_ms[length] - 1)
        print(f"  n {length:2d}  {step_ms[length]:8.2f} ms  fitted {fitted:8.2f}  {apart:+.1f} %")


def _accepted(name: str, accepted: Mapping[int, Sequence[float]]) -> None:
    accepted = {longest: curve for longest, curve in accepted.items() if longest <= DEEPEST}
    fit = fit_acceptance(accepted)
    print(f"{name}: acceptance, error rms {fit.rms_error:.4f}, largest {fit.largest_error:.4f}")
    for longest, wanted in accepted.items():
        print(f"  n {longest:2d}  measured {_row(wanted)}\n        fitted   {_row(fit.fitted[longest])}")


def _coverage() -> None:
    """Whether what was published is among what is drawn: the nearest of all classes and levels, at its worst."""
    drawn = [Environment.draw(seed) for seed in range(DRAWN)]
    ways = [follow(environment.text, 0, 8) for environment in drawn]
    copied = np.concatenate([Exact(environment.text, environment.rig).copied_acceptance(16) for environment in drawn])
    print(f"| published | fitted: rms, largest error | nearest of {len(copied)} drawn | share of them within {NEAR} |")
    print("| --- | --- | --- | --- |")
    for trace in TRACES:
        size = len(trace.accepted)
        curves = copied[:, :size] if trace.copies else np.concatenate([accepted_at(way, size) for way in ways])
        apart = np.abs(curves - np.array(trace.accepted)).max(1)
        fitted = ""
        if not trace.copies:
            fit = fit_acceptance({size: trace.accepted})
            fitted = f"{fit.rms_error:.4f}, {fit.largest_error:.3f}"
        print(f"| {trace.name} | {fitted} | {apart.min():.3f} | {100 * (apart < NEAR).mean():.1f} % |")


def _row(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
