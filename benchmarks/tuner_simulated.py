"""The tuner against what people do, on made-up machines whose best setting is known.

`python benchmarks/tuner_simulated.py --tuner specdash --tuner tpe --noise quiet --restarts 12 --seeds 0-99`. Seeds that
are set aside (docs/simulator.md) need `--held-out`, and every opening of them is added to `held_out.jsonl` beside this
file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).parent.parent)]

from benchmarks.tuner_lab.grid import Equal, Noise  # noqa: E402
from benchmarks.tuner_lab.harness import Score, as_json, judge, paired, run, score  # noqa: E402
from benchmarks.tuner_lab.recorded_sweeps import RIGS, grounds, usual_picks  # noqa: E402
from benchmarks.tuner_lab.rivals import RIVALS  # noqa: E402
from specdash.core.errors import SpecdashError  # noqa: E402
from specdash.tune.model.problem import BootResult, NextBoot, Point, Stage, Task, TuneOutcome, mixture_speed  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.tuner_lab.harness import Figure
    from specdash.tune.model.problem import Tuner

LEDGER = Path(__file__).parent / "held_out.jsonl"
TUNERS = ("specdash", "tpe", *RIVALS)


class Tpe:
    """Optuna's tree-structured Parzen estimator: 5 start-up trials, grouped, the start first."""

    def __init__(self, task: Task, seed: int) -> None:
        import warnings

        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(n_startup_trials=5, multivariate=True, group=True, seed=seed)
        self._optuna, self._task = optuna, task
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._places = {point: place for place, point in enumerate(task.points)}
        self._study.enqueue_trial(self._asked(task.start))
        self._trial: Any = None
        self._boots = 0
        self._measured: dict[Point, list[float]] = {}

    def ask(self) -> NextBoot | None:
        """What the sampler wants next."""
        if self._boots >= self._task.budget.restarts:
            return None
        self._trial = self._study.ask()
        return NextBoot(self._suggested(self._trial), Stage.EXPLORE, "the sampler's next trial")

    def tell(self, result: BootResult) -> None:
        """Speed on the mixture; a failure is told as one."""
        self._boots += 1
        speed = None if result.failure else mixture_speed(result.prompts, self._task.workload)
        if speed is None:
            self._study.tell(self._trial, state=self._optuna.trial.TrialState.FAIL)
            return
        self._study.tell(self._trial, speed)
        self._measured.setdefault(result.point, []).append(speed)

    def outcome(self) -> TuneOutcome:
        """The point with the best mean of its boots."""
        if not self._measured:
            return TuneOutcome(self._task.start, improved=False)
        best = max(self._measured, key=lambda point: sum(self._measured[point]) / len(self._measured[point]))
        return TuneOutcome(best, improved=best != self._task.start)

    def _suggested(self, trial: Any) -> Point:
        types = trial.suggest_categorical("types", sorted({" ".join(point.types) for point in self._task.points}))
        like = [point for point in self._task.points if " ".join(point.types) == types]
        for knob in ("n_max", "p_min", "ngram_max"):
            values = sorted({value for point in like if (value := getattr(point, knob)) is not None})
            if values:
                place = trial.suggest_int(knob, 0, len(values) - 1)
                like = [point for point in like if getattr(point, knob) == values[place]]
        return like[0]

    def _asked(self, point: Point) -> dict[str, Any]:
        like = [item for item in self._task.points if item.types == point.types]
        asked: dict[str, Any] = {"types": " ".join(point.types)}
        for knob in ("n_max", "p_min", "ngram_max"):
            values = sorted({value for point in like if (value := getattr(point, knob)) is not None})
            if values:
                asked[knob] = values.index(getattr(point, knob))
        return asked


def factory(name: str) -> Callable[[Task, int], Tuner]:
    """How a tuner of this name is made."""
    if name == "tpe":
        return Tpe
    if name == "specdash":
        from specdash.tune.model.tuner import SpecTuner

        return SpecTuner
    return RIVALS[name]


def main(words: list[str] | None = None) -> int:
    """Runs what is asked for and prints a table, or JSON."""
    options = _options(words)
    if options.recorded:
        return _recorded(options)
    seeds = _seeds(options.seeds)
    scores = []
    for name in options.tuner or TUNERS:
        budget = 112 if name == "exhaustive" else options.restarts
        try:
            scores.append(
                run(
                    factory(name),
                    name,
                    Noise(options.noise),
                    seeds,
                    budget,
                    equal=Equal(options.equal),
                    held_out=options.held_out,
                    ledger=LEDGER,
                    progress=_Progress(name),
                )
            )
        except SpecdashError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
    _print(scores, options)
    return 0


def _print(scores: list[Score], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps([as_json(item) for item in scores], indent=1))
        return
    even = "" if options.equal == Equal.NOTHING else f", all equal on the {options.equal}"
    print(f"noise {options.noise}, {scores[0].grounds} environments, seeds {options.seeds}{even}")
    print(table(scores))
    if len(scores) > 1 and options.equal == Equal.NOTHING:
        for other in scores[1:]:
            better = paired(scores[0], other)
            words = ", ".join(f"{name} {_points(figure)}" for name, figure in better.items())
            print(f"{scores[0].tuner} better than {other.tuner}, paired, in points: {words}")


def table(scores: list[Score]) -> str:
    """One row a tuner, in Markdown; intervals are of 95 %."""
    heads = (
        "tuner",
        "restarts",
        "median",
        "p95 regret",
        "mean",
        "within 97 %",
        "within 95 %",
        "harmed",
        "promoted",
        "covered",
    )
    rows = [heads, ("---",) * len(heads)]
    for item in scores:
        covered = "" if item.covered is None else f"{item.covered:.2f}"
        rows.append(
            (
                item.tuner,
                f"{item.mean_restarts:.1f}",
                _percent(item.median_regret),
                _percent(item.p95_regret),
                _percent(item.mean_regret),
                _share(item.within_97),
                _share(item.within_95),
                _share(item.harmed),
                _share(item.promoted),
                covered,
            )
        )
    rows_text = ["| " + " | ".join(row) + " |" for row in rows]
    thought = ", ".join(
        f"{item.tuner} {item.mean_thought_s:.2f} s, slowest decision {item.slowest_s:.2f} s" for item in scores
    )
    return "\n".join((*rows_text, f"processor time of a run: {thought}"))


def _recorded(options: argparse.Namespace) -> int:
    """Every public sweep, with many seeds of noise: regret by rig."""
    noise = Noise(options.noise)
    seeds = _seeds(options.seeds)
    for name in options.tuner or ("specdash", "tpe", "random", "sweep"):
        trials = []
        print(f"{name}, noise {noise}, {len(seeds)} seeds a rig, at most {options.restarts} restarts")
        print("| rig | points | restarts | mean regret | worst | usual picks |\n| --- | --- | --- | --- | --- | --- |")
        for place, rig in enumerate(RIGS):
            some = [judge(factory(name), grounds(seed, noise)[place], options.restarts, seed) for seed in seeds]
            picks = ", ".join(f"{pick} {100 * regret:.1f} %" for pick, regret in usual_picks(rig).items())
            cells = (
                rig.name,
                str(len(rig.points)),
                f"{sum(trial.restarts for trial in some) / len(some):.1f}",
                f"{100 * sum(trial.regret for trial in some) / len(some):.2f} %",
                f"{100 * max(trial.regret for trial in some):.2f} %",
                picks,
            )
            print("| " + " | ".join(cells) + " |")
            trials += some
        print(table([score(trials, name, noise, options.restarts)]))
    return 0


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuner", action="append", choices=TUNERS, help="may be given again; all of them if never")
    parser.add_argument("--noise", choices=[noise.value for noise in Noise], default=Noise.QUIET.value)
    parser.add_argument("--restarts", type=int, default=12)
    parser.add_argument("--seeds", default="0-99", help="A-B, both included")
    evens = [equal.value for equal in Equal]
    equal_help = "all points equally fast, on the prompts or on the text they sample: every promotion is false"
    parser.add_argument("--equal", nargs="?", choices=evens, default="nothing", const="prompts", help=equal_help)
    parser.add_argument("--held-out", action="store_true", help="opens seeds that are set aside; it is written down")
    parser.add_argument("--recorded", action="store_true", help="public sweeps instead of the simulator")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


class _Progress:
    """One line on how far a tuner is; on a terminal only, but for its end."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        if sys.stderr.isatty() or done == of:
            left = (time.monotonic() - self._began) / done * (of - done)
            end = "\n" if done == of else ""
            print(f"\r{self._name}: {done} of {of}, {left:.0f} s left", end=end, file=sys.stderr, flush=True)


def _percent(figure: Figure) -> str:
    return f"{100 * figure.value:.1f} % [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def _points(figure: Figure) -> str:
    return f"{100 * figure.value:+.1f} [{100 * figure.low:+.1f}, {100 * figure.high:+.1f}]"


def _share(figure: Figure) -> str:
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
