"""The tuner on the real server: against a sweep of every point, on the bundled models.

`python benchmarks/tuner_real.py [--type T ...] [--workload W ...] [--repeats 3] [--runs 3] [--out DIR] [--resume]`.

A *cell* is a way to speculate and a workload. Its points, prompts and limits are those that `specdash tune --beside`
plans. Every point is booted `--repeats` times: one round boots all points in random order, and between the rounds of
all cells the tuner runs on its own, with boots of its own and `--restarts` of them, so that a machine that becomes
slower does so for both. `draft-simple` on both classes at once is a cell too: its runs are re-scored for either class.
Then step times with synthetic acceptance, from which those of other draft lengths are predicted.

Every boot is on the disk in DIR/results.jsonl before the next begins; Ctrl-C and kills lose one boot, or one run of the
tuner, and `--resume` goes on. `--report` judges what there is: DIR/summary.json, DIR/table.md, and DIR/fit-*.json for
`python benchmarks/simulator_fit.py DIR/fit-synthetic.json`. How it is judged is told in tuner_real_judge.py.

Boots that others disturbed are done again, twice at most, by the tuner and by the sweep alike; `--busy-ok` takes them
as they are. Neither waits for a quiet machine before a boot, as `specdash tune` does. Texts are not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from specdash.backend.demo import env_text
from specdash.bench.compare.beds import OwnBed
from specdash.bench.load.samples import BootFailedError
from specdash.bench.load.workloads import bundled
from specdash.core.errors import SpecdashError
from specdash.core.flag import Flag
from specdash.tune.model.problem import BootResult, Budget, Objective, Point, results_of
from specdash.tune.model.tuner import SpecTuner
from specdash.tune.run.knobs import configuration
from specdash.tune.run.loop import REPEATS, Loop, LoopParts
from specdash.tune.run.measuring import Measurer, UnmeasuredError
from specdash.tune.run.planning import TuneOptions, prepare
from specdash.tune.run.status import Ending, TuneRunRecord

sys.path[:0] = [str(Path(__file__).parent.parent)]
from benchmarks.tuner_real_cells import SYNTHETIC, Cell, Results, thinned  # noqa: E402
from benchmarks.tuner_real_report import report  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdash.tune.model.problem import Task
    from specdash.tune.run.planning import PreparedRun
    from specdash.tune.run.status import Boot, CurrentStep

TYPES = ("ngram-mod", "ngram-simple", "draft-simple")
WORKLOADS = ("coding", "pattern")
MIXED = ("coding", "pattern")
SYNTHETIC_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
SYNTHETIC_RATES = "0.85,0.7225,0.614,0.522"
"""For the four tokens that the bundled draft is asked for; `knobs` goes on with them for longer drafts."""
SAME_BOOTS = 6
"""Of one point, at the very beginning: what boots differ by."""
SAID_EVERY_S = 20.0
"""Where there is no terminal."""
START_S, SILENCE_S, REQUEST_S = 60.0, 30.0, 60.0


@dataclass(slots=True)
class Ground:
    """A cell with all that its boots need."""

    cell: Cell
    bed: OwnBed
    prepared: PreparedRun
    task: Task
    measure: Measurer

    def configure(self, point: Point) -> Mapping[str, str]:
        """Settings of a point."""
        return configuration(point, self.bed.values, os.environ)


@dataclass(slots=True)
class Clock:
    """How much is left: work in prompts asked, and what one takes on average."""

    left: int = 0
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def spend(self, prompts: int) -> None:
        """So many were asked, or needed not be."""
        self.left -= prompts
        self.done += prompts

    def words(self) -> str:
        """For people."""
        took = time.monotonic() - self.began
        if not self.done:
            return f"{took / 60:.0f} min"
        return f"{took / 60:.1f} min, {took / self.done * self.left / 60:.1f} left"


class Quiet:
    """Observes a run of the tuner on one line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def now(self, now: CurrentStep) -> None:
        """Not shown."""

    def booted(self, boot: Boot, again: bool) -> None:  # noqa: ARG002 - as `loop.Observer` has it
        """Say which."""
        self._say(f"boot {boot.number}, {boot.result.point.name}, {boot.speed or 0:.0f} tok/s {boot.result.failure}")

    def discarded(self, why: str) -> None:
        """Say why."""
        self._say(f"discarded: {why}")


class Programme:
    """All of it, in order."""

    def __init__(self, options: argparse.Namespace, results: Results, scratch: Path) -> None:
        self._options, self._results, self._scratch = options, results, scratch
        self._stop = Flag()
        self._clock = Clock()
        self._said = 0.0
        self._grounds = [self._ground(cell) for cell in _cells(options)]

    def run(self) -> None:
        """Whatever is not there yet."""
        options, grounds = self._options, self._grounds
        synthetic = self._synthetic() if options.synthetic else None
        for ground in grounds:
            self._results.plan(ground.cell, ground.task)
            print(f"{ground.cell.name}: {len(ground.task.points)} points, start {ground.task.start.name}", flush=True)
        steps: list[tuple[int, Callable[[], None]]] = [] if not grounds else list(self._same(grounds[-1]))
        for turn in range(max(options.repeats, options.runs)):
            for ground in grounds:
                steps += chain(self._sweep(ground, turn), self._runs(ground, turn))
            if synthetic is not None:
                steps += self._sweep(synthetic, turn)
        self._clock.left = sum(prompts for prompts, _ in steps)
        print(f"{len(steps)} steps, {self._clock.left} prompts to ask", flush=True)
        for prompts, step in steps:
            step()
            self._clock.spend(prompts)
        self._say("all measured", last=True)

    def _ground(self, cell: Cell, extra: str = "") -> Ground:
        directory = self._scratch / cell.slug
        directory.mkdir()
        file, prompts = directory / "backend.env", directory / "prompts.jsonl"
        text = env_text(
            port=8080, log=directory / "log", spec_types=(cell.type,), engine=os.environ.get("LLAMA_ENGINE", "auto")
        )
        file.write_text(text + extra, encoding="utf-8")
        rows = [asdict(prompt) for prompt in bundled(cell.kinds, self._options.each)]
        kept = [{key: row[key] for key in ("id", "kind", "messages")} for row in rows]
        prompts.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
        bed = OwnBed(str(file), directory, start_s=START_S)
        options = TuneOptions(
            beside=True, prompts=str(prompts), each=self._options.each, tokens=self._options.tokens, check_texts=False
        )
        prepared = prepare(options, bed.values, bed.words, None)
        measure = replace(prepared.measure, silence_s=SILENCE_S, limit_s=REQUEST_S)
        task = prepared.task
        task = replace(task, points=thinned(task.points, task.start, self._options.points))
        return Ground(cell, bed, prepared, task, Measurer(prepared.prompts, measure, None, self._stop))

    def _synthetic(self) -> Ground:
        ground = self._ground(SYNTHETIC, f'LLAMA_EXTRA_ARGS="--spec-synth-rates {SYNTHETIC_RATES}"\n')
        lengths = tuple(Point(("draft-simple",), n_max=length, p_min=0.0) for length in SYNTHETIC_LENGTHS)
        ground.task = replace(ground.task, points=(*lengths, Point()))
        self._results.plan(SYNTHETIC, ground.task)
        return ground

    def _same(self, ground: Ground) -> Iterator[tuple[int, Callable[[], None]]]:
        """The start again and again."""
        for turn in range(SAME_BOOTS if self._options.repeats > 1 else 2):
            if not self._results.has("same", ground.cell, turn, ground.task.start):
                yield (
                    len(ground.measure.prompts),
                    partial(self._booted, "same", ground, turn, ground.task.start),
                )

    def _sweep(self, ground: Ground, turn: int) -> Iterator[tuple[int, Callable[[], None]]]:
        """One round of all points, in an order of its own."""
        if turn >= self._options.repeats:
            return
        order = list(ground.task.points)
        Random(f"{ground.cell.name} {turn}").shuffle(order)
        for point in order:
            if not self._results.has("sweep", ground.cell, turn, point):
                yield (
                    len(ground.measure.prompts),
                    partial(self._booted, "sweep", ground, turn, point),
                )

    def _runs(self, ground: Ground, turn: int) -> Iterator[tuple[int, Callable[[], None]]]:
        """One run of the tuner for each budget."""
        if turn >= self._options.runs:
            return
        for restarts in self._options.restarts:
            if not self._results.tuned(ground.cell, restarts, turn):
                yield (
                    restarts * len(ground.measure.prompts),
                    partial(self._tuned, ground, restarts, turn),
                )

    def _booted(self, what: str, ground: Ground, turn: int, point: Point) -> None:
        """One boot of the sweep."""
        began, disturbed = time.monotonic(), ""
        for _ in range(1 if self._options.busy_ok else REPEATS + 1):
            result, disturbed = self._measured(ground, point)
            if not disturbed:
                break
        took = time.monotonic() - began
        self._results.add_boot(what, ground.cell, turn, result, took, disturbed)
        speed = sum(prompt.tokens for prompt in result.prompts) / max(
            sum(prompt.seconds for prompt in result.prompts), 1e-9
        )
        self._say(f"{what} {turn + 1}, {ground.cell.name}, {point.name}: {speed:.0f} tok/s {result.failure}")

    def _measured(self, ground: Ground, point: Point) -> tuple[BootResult, str]:
        """What a boot measured, and who disturbed it."""
        try:
            with ground.bed.boot(ground.configure(point)) as place:
                measured = ground.measure(place, lambda _done, _of: None)
                measured.check()
        except (BootFailedError, UnmeasuredError, SpecdashError) as error:
            return BootResult(point, failure=str(error) or type(error).__name__), ""
        results, draft_s = results_of(Objective.DECODE, measured, every_step=point.drafts_every_step)
        return BootResult(point, results, draft_s, ttft_s=measured.ttft_s), measured.seen.disturbance()

    def _tuned(self, ground: Ground, restarts: int, turn: int) -> None:
        """One run of the tuner, as `specdash tune --beside` does it."""
        task = replace(ground.task, budget=Budget(restarts))
        directory = self._options.out / "runs" / f"{ground.cell.slug}-{restarts}-{turn}"
        shutil.rmtree(directory, ignore_errors=True)
        name = f"tuner {turn + 1}, {ground.cell.name}, {restarts} restarts"
        gear = LoopParts(
            tuner=SpecTuner(task, ground.prepared.options.seed),
            bed=ground.bed,
            measure=ground.measure,
            configure=ground.configure,
            record=TuneRunRecord(directory),
            observer=Quiet(lambda words: self._say(f"{name}: {words}")),
            limits=ground.prepared.limits,
            objective=ground.prepared.objective,
            repeats=0 if self._options.busy_ok else REPEATS,
        )
        plan = replace(ground.prepared.plan, budget=task.budget, points=len(task.points))
        loop = Loop(task, plan, gear, stop=self._stop, command="benchmarks/tuner_real.py")
        began, error, outcome = time.monotonic(), "", None
        try:
            end = loop.run()
            outcome = end.outcome
            if end.ending is Ending.STOPPED:
                raise KeyboardInterrupt
        except SpecdashError as found:
            error = str(found)
        took = time.monotonic() - began
        results = [boot.result for boot in loop.boots]
        self._results.add_run(ground.cell, restarts, turn, results, outcome, took, error)
        chosen = outcome.chosen.name if outcome is not None else error
        self._say(f"{name}: {chosen}, {took:.0f} s", last=True)

    def _say(self, words: str, *, last: bool = False) -> None:
        line = f"[{self._clock.words()}] {words}"
        if sys.stdout.isatty():
            print(f"\r\x1b[K{line[:150]}", end="\n" if last else "", flush=True)
        elif last or self._options.verbose or time.monotonic() - self._said > SAID_EVERY_S:
            self._said = time.monotonic()
            print(line, flush=True)


def _cells(options: argparse.Namespace) -> list[Cell]:
    found = [Cell(entry, (kind,)) for entry in options.type or TYPES for kind in options.workload or WORKLOADS]
    mixed = options.mixed and "draft-simple" in (options.type or TYPES)
    return [*found, *([Cell("draft-simple", MIXED)] if mixed else [])]


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", action="append", choices=TYPES, help="may be given again; all of them if never")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="likewise")
    parser.add_argument("--repeats", type=int, default=3, help="boots of every point")
    parser.add_argument("--runs", type=int, default=3, help="runs of the tuner with each budget")
    parser.add_argument("--restarts", type=int, action="append", help="budgets of the tuner; 12 and 8 if never given")
    parser.add_argument("--points", type=int, default=1000, help="at most so many in a cell, spread evenly")
    parser.add_argument("--each", type=int, default=8, help="prompts of a class")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--no-mixed", dest="mixed", action="store_false", help="without the cell of both classes")
    parser.add_argument("--no-synthetic", dest="synthetic", action="store_false", help="without synthetic acceptance")
    parser.add_argument("--busy-ok", action="store_true", help="take boots that others disturb as they are")
    parser.add_argument("--out", type=Path, default=Path("tuner-real"))
    parser.add_argument("--resume", action="store_true", help="go on with what is in --out")
    parser.add_argument("--report", action="store_true", help="only judge what is in --out")
    parser.add_argument("--verbose", action="store_true", help="a line for every boot where there is no terminal")
    options = parser.parse_args(words)
    options.restarts = options.restarts or [12, 8]
    return options


def main(words: list[str] | None = None) -> int:
    """Measures and judges; 130 where it was stopped, with what was measured judged all the same."""
    options = _options(words)
    try:
        results = Results.open(
            options.out, again=options.resume or options.report, head={} if options.report else _head(options)
        )
    except (SpecdashError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    code = 0
    if not options.report:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with tempfile.TemporaryDirectory(prefix="specdash-tuner-real-") as scratch:
                Programme(options, results, Path(scratch)).run()
        except KeyboardInterrupt:
            print("\nstopped; --resume goes on", file=sys.stderr)
            code = 130
        except SpecdashError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = 1
    print(report(results, options.out))
    return code


def _head(options: argparse.Namespace) -> dict[str, Any]:
    """What results depend on; another one cannot go on with them."""
    return {"each": options.each, "tokens": options.tokens, "points": options.points}


if __name__ == "__main__":
    sys.exit(main())
