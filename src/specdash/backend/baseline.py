"""Baselines, decode without speculation: what they are kept in, and how they are measured on a running server.

Per context length and concurrency a prompt of just that many tokens is put into as many slots first; then all of them
generate at the same time, from a prompt that is cached, so that no one's prefill stands in another's decode.

On a server that speculates, completions of two tokens cannot draft: llama.cpp drafts at most as many tokens as are
left, less one (`get_n_draft_max`). The first token is the prompt's, so the second is one decode step of the loaded
model without a draft, on the same context, at the same load, in the same second. One part of it is no decode: after
every batch a draft model reads the target's tokens, too. A constant share is taken off for that. docs/speedup.md.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.backend.auto import look
from specdash.backend.env_store import writing
from specdash.backend.journal import read_lines
from specdash.core.errors import InputError, RefusedError, SpecdashError
from specdash.core.paths import baselines_file, trial_file
from specdash.core.readings import ROUTER
from specdash.core.records import Baseline, BaselineMethod
from specdash.core.speculation import spec_type
from specdash.llama.client import BlockingClient
from specdash.llama.model_shape import shape_of
from specdash.llama.server_answers import mapping
from specdash.system import files
from specdash.system.stats import Interval, bootstrap, mean, mean_reach, median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.readings import Slots


CONTEXTS = (256, 2048, 8192)
ROUNDS = 5
TOKENS = 96
LIMIT_S = 300.0
SPARE_TOKENS = 16
"""Of a slot's context, left free."""
IDLE_S = 60.0
_ANSWER_S = 5.0
_SILENCE_S = 1800.0
_TEXT = (
    "The server reads a request, puts its prompt through the model in batches, and then writes the answer one token "
    "after the other. Each of them needs all of the model's weights once, so the speed of an answer is that of memory. "
    "A cache keeps what attention needs of every earlier token; it is read in full for each new one, and that is why a "
    "long conversation is slower than a short one. Requests that run at the same time share the reading of the weights."
)


class BaselineCell(Struct, frozen=True):
    """What one baseline stands for: tokens in the context, and requests at the same time."""

    context: int
    concurrency: int

    @property
    def words(self) -> str:
        return f"context {self.context}, {self.concurrency} at once"


class BaselineEffort(Struct, frozen=True):
    """How much to measure. `limit_s` bounds the whole run in seconds: cells for which no time is left are left out."""

    contexts: tuple[int, ...] = CONTEXTS
    concurrencies: tuple[int, ...] = ()
    """Empty: one, and as many as there are slots."""
    rounds: int = ROUNDS
    tokens: int = TOKENS
    limit_s: float = LIMIT_S
    idle_s: float = IDLE_S
    """How long to wait for requests of others to end."""
    widest: float = 1.5
    """High over low of an interval of steps that still says something; wider ones are left out."""
    frugal: bool = False
    """Whether the prompts of all slots together must fit into the context of one: slots may share a cache, and what
    others have in it shall stay."""


class BaselineReport(Struct):
    """What became of a run."""

    measured: list[Baseline] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Cells that were not measured, and why."""
    generated: int = 0
    """Tokens of all its completions."""


class MeasuredServer(contextlib.AbstractContextManager["MeasuredServer"]):
    """A server whose decode is measured, with a prompt of its own in each slot.

    On one that speculates each completion goes on from where the last one of its slot ended, so that nothing is read
    twice."""

    def __init__(
        self, url: str, key: str | None = None, *, engine: str | None = None, gpu: str | None = None,
        cancel: Event | None = None, verified: bool = True,
    ) -> None:  # fmt: skip
        """`engine` names it where that is known; else it is what /props says. Raises `UnreachableError` when nothing
        answers, `RefusedError` when it does not show whether it speculates."""
        self.url, self.gpu = url, gpu
        self._cancel = cancel or Event()
        self._client = BlockingClient(url, key, timeout=_ANSWER_S, cancel=self._cancel, verified=verified)
        self.generated = 0
        """Tokens of all its answers."""
        self.props = self._client.props()
        if self.props.role == ROUTER:
            raise RefusedError(
                f"{url} is a router; name one of its models' own servers (`specdash targets` lists them)"
            )
        self.engine = engine or self.props.build_info or ""
        seen = self.look()
        if seen.drafting is None:
            raise RefusedError(f"{url} does not tell whether it speculates; a newer llama.cpp does")
        self.speculates = any(seen.drafting)
        """Whether any of its slots drafts."""
        self.room = seen.least_context or self.props.n_ctx or 0
        """Tokens of a slot."""
        # llama-server fills the slots from the first on: the last ones are the least likely to hold a client's prompt.
        self.slots = [slot.id for slot in seen.slots][::-1]
        self.tasks: set[int] = set()
        """The numbers of all tasks that were asked for."""
        self.read_along = True
        """Whether a draft model reads along, as far as the server names its types."""
        self._text = self._client.tokens(_TEXT, special=False)
        self._prompts: dict[int, list[int]] = {slot: [] for slot in self.slots}
        self._last = {slot.id: slot.task for slot in seen.slots}

    def __exit__(self, *_: object) -> None:
        # With the connections ends what the server was asked for.
        self._cancel.set()

    def look(self) -> Slots:
        """The slots as they are now."""
        return self._client.slots()

    def cells(self, effort: BaselineEffort, report: BaselineReport) -> list[BaselineCell]:
        """What can be measured, short contexts first, as a longer prompt goes on from a shorter one; what cannot goes
        into the report. Raises `InputError` where that is everything."""
        count, found = len(self.slots), []
        for context in effort.contexts:
            for concurrency in effort.concurrencies or tuple(sorted({1, count})):
                cell = BaselineCell(context, concurrency)
                if concurrency > count:
                    report.left_out.append(f"{cell.words}: the server has {count} slots")
                elif context + effort.tokens + SPARE_TOKENS > self.room:
                    report.left_out.append(f"{cell.words}: a slot has {self.room} tokens")
                elif effort.frugal and concurrency * (context + _GROWTH) > self.room:
                    report.left_out.append(f"{cell.words}: the slots may share {self.room} tokens")
                else:
                    found.append(cell)
        if not found:
            raise InputError(f"nothing to measure: {'; '.join(report.left_out)}")
        return found

    def wait_idle(self, limit_s: float) -> None:
        """Until no slot works. Raises `RefusedError` when others go on using the server."""
        deadline = time.monotonic() + limit_s
        while any(slot.is_processing for slot in self.look().slots):
            if time.monotonic() > deadline:
                raise RefusedError(f"{self.url} is in use, and requests of others would be measured too; try again")
            time.sleep(0.2)

    def read(self, slots: Sequence[int], context: int, end: float, idle_s: float) -> bool:
        """Put a prompt of that length into the slots; whether that was done before `end`."""
        for slot in slots:
            while (missing := context - len(self._prompts[slot])) > 0:
                if time.monotonic() > end:
                    return False
                self.wait_idle(idle_s)
                self.ask([slot], 1, idle_s, more=min(missing, _PIECE))
        self.ask(slots, 2, idle_s)
        return time.monotonic() < end

    def ask(self, slots: Sequence[int], tokens: int, idle_s: float, more: int = 0) -> list[dict[str, Any]] | None:
        """The timings of one greedy answer of just so many tokens in each slot, its prompt `more` tokens longer, an
        answer of few tokens part of it from then on; None where others used the server meanwhile. Raises
        `SpecdashError`.

        Several prompts go in one request, so that all begin with the same batch; the server then takes the slot that
        holds most of a prompt already. Not streamed: writing every token to a client takes time that decode might have.
        """
        for slot in slots:
            # Other words for every slot.
            prompt, turn = self._prompts[slot], 37 * (slot + 1) % len(self._text)
            text = self._text[turn:] + self._text[:turn]
            prompt += (text * ((len(prompt) + more) // len(text) + 1))[len(prompt) : len(prompt) + more]
        prompts = [self._prompts[slot] for slot in slots]
        body: dict[str, Any] = {
            "prompt": prompts, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True,
            "stream": False, "return_tokens": True,
        }  # fmt: skip
        if len(slots) == 1:
            body |= {"prompt": prompts[0], "id_slot": slots[0]}
        found = self._client.look("/completion", body, _SILENCE_S).json
        answers = [mapping(row) for row in (found if isinstance(found, list) else [found])]
        if len(answers) != len(slots):
            raise SpecdashError(f"{self.url}/completion gave {len(answers)} answers to {len(slots)} prompts")
        answers.sort(key=lambda answer: int(answer.get("index") or 0))
        self.generated += sum(int(mapping(answer.get("timings")).get("predicted_n") or 0) for answer in answers)
        for slot, answer in zip(slots, answers, strict=True) if tokens <= 2 else ():
            self._prompts[slot] += [token for token in answer.get("tokens") or () if isinstance(token, int)]
        alone = True
        for row in self.look().slots:
            alone = alone and not row.is_processing and (row.id in slots or row.task == self._last.get(row.id))
            self._last[row.id] = row.task
            if row.id in slots and row.task is not None and not row.is_processing:
                self.tasks.add(row.task)
                kinds = [spec_type(name) for name in row.speculative_types or ()]
                self.read_along = not kinds or any(kind is None or kind.reads_draft_model for kind in kinds)
        if alone:
            return [mapping(answer.get("timings")) for answer in answers]
        self.wait_idle(idle_s)
        return None

    def baseline(self, cell: BaselineCell, rate: Interval, requests: int, tokens: int) -> Baseline:
        """The baseline of a cell; `rate` is in tokens a second."""
        path, size = Path(self.props.model_path or ""), None
        with contextlib.suppress(OSError, ValueError):
            size = path.stat().st_size if path.name else None
        return Baseline(
            at=time.time(), model=path.name, engine=self.engine, context=cell.context,
            concurrency=cell.concurrency, decode_rate=rate.value, low=rate.low, high=rate.high, requests=requests,
            model_bytes=size, gpu=self.gpu, decode_tokens=tokens,
            method=BaselineMethod.TWO_TOKENS if self.speculates else BaselineMethod.WITHOUT,
        )  # fmt: skip


def gpu_names() -> str | None:
    """The GPUs of this machine, as baselines name them; None where NVML shows none."""
    from specdash.collect.gpu import look

    return ", ".join(sorted(gpu.name for gpu in look().gpus if gpu.name)) or None


STEP_ROUNDS = 24
"""Completions in a cell, at most, on a server that speculates."""
LEAST_ROUNDS = 6
LEAST_VALUES = 3
"""So many answers make a baseline of a server that does not."""
_PIECE = 128
"""Tokens of a prompt that are read at once: a client that comes meanwhile waits for these alone."""
_GROWTH = 8 * STEP_ROUNDS
"""Tokens by which a prompt grows while it is measured."""
BY_ITSELF = BaselineEffort((64, 1024, 8192), rounds=STEP_ROUNDS, tokens=2, limit_s=8.0, idle_s=2.0, frugal=True)
"""What is measured without being asked: seconds, in slots that are idle."""
_STALL = 3.0
"""A step that took so many times the median is a stall, and counts no more than that."""
_OWN_PASS = 0.1
"""A draft model's pass over the target's tokens as a share of a step; between nothing and twice that."""


def measure(
    server: MeasuredServer,
    effort: BaselineEffort,
    keep: Callable[[Baseline], None],
    on_cell: Callable[[str], None] = lambda _: None,
) -> BaselineReport:
    """Measure every cell, and `keep` each as soon as it is measured; `on_cell` gets its number and its words before.

    A server that does not speculate is measured by answers of `effort.tokens`; one that does by completions of two
    tokens. `effort.rounds` bounds the completions in a cell. Raises `InputError` where nothing can be
    measured, `RefusedError` when others go on using the server, and for a model with recurrent states that speculates.
    """
    facts = look(server.props.model_path) if server.speculates and server.props.model_path else None
    shape = shape_of(facts) if facts is not None else None
    if shape is not None and shape.recurrent:
        raise RefusedError(
            "the model has recurrent states, saved as it speculates, so its steps are not those of a server "
            "without speculation; measure that with `specdash baseline record` on an engine of its own"
        )
    report = BaselineReport()
    cells = server.cells(effort, report)
    least = LEAST_ROUNDS if server.speculates else LEAST_VALUES
    end = time.monotonic() + effort.limit_s
    for number, cell in enumerate(cells):
        on_cell(f"{number + 1}/{len(cells)}  {cell.words}")
        slots = server.slots[: cell.concurrency]
        if not server.read(slots, cell.context, end, effort.idle_s):
            report.left_out.append(f"{cell.words}: no time is left of {effort.limit_s:.0f} s")
            continue
        plain: list[float] = []
        deadline = time.monotonic() + (end - time.monotonic()) / (len(cells) - number)
        for done in range(effort.rounds):
            if done >= least and time.monotonic() > deadline:
                break
            answers = server.ask(slots, effort.tokens, effort.idle_s)
            if answers is None or any(timings.get("draft_n") for timings in answers):
                continue
            known = [timings.get("predicted_ms") for timings in answers]
            steps = [float(took) / (effort.tokens - 1) for took in known if isinstance(took, int | float)]
            if len(steps) < len(known):
                raise SpecdashError("the server's answer has no timings; a newer llama.cpp has")
            plain += [min(steps)] if server.speculates else steps
        found = step_of(plain, read_along=server.read_along) if server.speculates else None
        if not server.speculates and len(plain) >= LEAST_VALUES:
            found = bootstrap([plain], median, is_narrow=False)
        if found is None:
            report.left_out.append(f"{cell.words}: the server is in use, or drafts in {effort.tokens} tokens")
        elif server.speculates and found.high > effort.widest * found.low:
            report.left_out.append(f"{cell.words}: steps without a draft take {found.low:.1f} to {found.high:.1f} ms")
        else:
            rate = Interval(1000 / found.value, 1000 / found.high, 1000 / found.low)
            baseline = server.baseline(cell, rate, len(plain), effort.tokens)
            keep(baseline)
            report.measured.append(baseline)
    report.generated = server.generated
    return report


def step_of(plain: Sequence[float], *, read_along: bool) -> Interval | None:
    """Milliseconds of a decode step without speculation, with the interval, from steps without a draft; None of too
    few. With `read_along` a draft model reads every token of the target's, which is taken off."""
    middle = median(plain)
    if middle is None or len(plain) < LEAST_ROUNDS:
        return None
    # Stalls come while the server speculates, too, so they count; but one that lasted for seconds is no step's time.
    values = [min(value, _STALL * middle) for value in plain]
    step, reach = mean(values) or middle, mean_reach(values) or 0.0
    taken = _OWN_PASS * step if read_along else 0.0
    return Interval(step - taken, step - 2 * taken - min(reach, step / 2), step + reach)


def measure_unasked(
    url: str,
    key: str | None,
    engine: str | None,
    *,
    cancel: Event | None = None,
    tasks: set[int] | None = None,
    env: Mapping[str, str] = os.environ,
) -> BaselineReport:
    """Measure decode without speculation on a server of this machine for some seconds, and keep it.

    `tasks` gets the numbers of what it was asked. Raises `RefusedError` where it does not speculate, and while it is on
    a trial, which this would disturb; and what `measure` raises.
    """
    if trial_file(env).exists():
        raise RefusedError("a trial is under way, and what it measures would be disturbed; wait for its end")
    with MeasuredServer(url, key, engine=engine, gpu=gpu_names(), cancel=cancel, verified=False) as server:
        if not server.speculates:
            raise RefusedError("it does not speculate: there is nothing to compare")
        server.tasks = server.tasks if tasks is None else tasks
        return measure(server, BY_ITSELF, lambda baseline: add_baseline(baseline, env))


# The file of recorded baselines: read what can be read, replaced as a whole, so that a reader never sees half of it.


def read_baselines(env: Mapping[str, str] = os.environ) -> tuple[Baseline, ...]:
    """All of them, oldest first; lines that are none are passed over. Raises `InputError` for an unreadable file."""
    found = (Baseline.from_json(line) for line in read_lines(baselines_file(env)))
    return tuple(sorted((baseline for baseline in found if baseline is not None), key=lambda baseline: baseline.at))


def add_baseline(baseline: Baseline, env: Mapping[str, str] = os.environ) -> None:
    """Keep it, in the place of an older one of its key. Raises `NotWrittenError`, `ConflictError` or `InputError`."""
    path = baselines_file(env)
    with writing(path):
        files.make_directories(path.parent)
        with files.locked(path.parent, path.name):
            read = ((line, Baseline.from_json(line)) for line in read_lines(path) if line.strip())
            # Lines of a newer version stay.
            lines = [line for line, known in read if known is None or known.key != baseline.key]
            files.replace(path, b"\n".join([*lines, baseline.to_json().encode(), b""]))
