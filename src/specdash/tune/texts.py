"""Are the answers at temperature 0 the same with the chosen configuration as without drafts? `bench.verify`, on a bed.

Two boots, and one or two more where texts differ: the one without drafts is asked what it thinks of the differences. A
near tie is what other batch shapes do and is allowed; more than that is damage.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdash.bench.verify import Side, Verdict, cause
from specdash.bench.verify_prompts import BUILT_IN
from specdash.bench.verify_run import Effort, Verification
from specdash.bench.verify_server import Server
from specdash.core.errors import NotWrittenError, SpecdashError
from specdash.tune.loop import Texts
from specdash.tune.problem import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from specdash.bench.samples import Bed
    from specdash.bench.verify import Report
    from specdash.bench.verify_prompts import Prompt
    from specdash.bench.verify_run import Step

TOKENS = 128
MOST_BOOTS = 4
SYNTHETIC = "acceptance is synthetic (--spec-synth-*), which makes every text garbage by design: nothing to compare"


class TextCheck:
    """Compares a point with no drafts at all, on the bed that it was tuned on."""

    def __init__(
        self,
        bed: Bed,
        configure: Callable[[Point], Mapping[str, str]],
        prompts: Sequence[Prompt] = BUILT_IN,
        tokens: int = TOKENS,
    ) -> None:
        self._bed = bed
        self._configure = configure
        self._prompts = tuple(prompts)
        self._tokens = tokens

    def __call__(self, point: Point, say: Callable[[str], None]) -> Texts:
        """Never raises for what a server does: what could not be compared is unknown, with the reason."""

        def step(one: Step) -> None:
            say(one.words)

        check = Verification(self._prompts, Effort(tokens=self._tokens), step)
        try:
            check.run(lambda: self._open(Point(), "without drafts"), lambda: self._open(point, point.name))
        except NotWrittenError:
            raise
        except SpecdashError as error:
            if check.report.verdict is not Verdict.DAMAGED:
                return Texts(None, f"could not be compared: {error}")
        return judged(check.report)

    @contextmanager
    def _open(self, point: Point, name: str) -> Iterator[Server]:
        with self._bed.boot(self._configure(point)) as place, Server(place.url, place.key, name) as server:
            yield server


def judged(report: Report) -> Texts:
    """What a comparison says of a configuration."""
    runs = report.of(Side.CANDIDATE)
    verdict = report.verdict
    if verdict is None or not runs:
        return Texts(None, "nothing was compared")
    worst = next(run for run in runs if run.verdict is verdict)
    answers = f"{len(runs)} answers compared with those without drafts"
    if verdict is Verdict.IDENTICAL:
        return Texts(True, f"{answers}: identical")
    if verdict is Verdict.BATCH_SHAPE:
        return Texts(True, f"{answers}: {cause(worst)}")
    return Texts(None if verdict is Verdict.UNDECIDED else False, f"{answers}: {verdict}: {cause(worst)}")
