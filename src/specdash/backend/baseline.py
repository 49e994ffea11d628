"""Baselines: what they are kept in, the server they are measured on, and how one that speculates is measured.

A completion of two tokens cannot draft: llama.cpp drafts at most as many tokens as are left, less one
(`get_n_draft_max`). Its first token is the prompt's, so its second is one decode step of the loaded model without a
draft, on the same context, at the same load, in the same second. One part of it is no decode: after every batch a draft
model reads the target's tokens, too. A completion of three tokens drafts one, and what that costs beside a step without
a draft, less what reading one more token of a prompt costs, is the draft model's time for one token. docs/speedup.md.
"""

from __future__ import annotations

import os
import time
from dataclasses import field
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specdash.core.errors import ConflictError, InputError, NotWrittenError, RefusedError, SpecdashError
from specdash.core.paths import baselines_file, trial_file
from specdash.core.records import Baseline, BaselineMethod
from specdash.core.speculation import spec_type
from specdash.llama.blocking import BlockingClient
from specdash.llama.server_answers import error_message, mapping
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.http import Cancel
from specdash.system.stats import Z_95, Interval, interval, mean, mean_reach, median, median_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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


@dataclass(frozen=True, slots=True)
class BaselineCell:
    """What one baseline stands for: tokens in the context, and requests at the same time."""

    context: int
    concurrency: int

    @property
    def words(self) -> str:
        return f"context {self.context}, {self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class BaselineEffort:
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
    """High over low of an interval of steps that still tells something; wider ones are left out."""
    frugal: bool = False
    """Whether the prompts of all slots together must fit into the context of one: slots may share a cache, and what
    others have in it shall stay."""


@dataclass(frozen=True, slots=True)
class BaselineStep:
    """One report: the cell that is being measured, the share of the work that is done, seconds left where known."""

    cell: BaselineCell
    number: int
    cells: int
    share: float
    left_s: float | None = None
    baseline: Baseline | None = None
    """Set once the cell is measured."""


@dataclass(slots=True)
class BaselineReport:
    """What became of a run."""

    measured: list[Baseline] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Cells that were not measured, and why."""
    generated: int = 0
    """Tokens of all its completions."""


class MeasuredServer:
    """A server whose decode is measured. Use as a context manager."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        engine: str | None = None,
        gpu: str | None = None,
        cancel: Cancel | None = None,
        verified: bool = True,
    ) -> None:
        """`engine` names it where that is known; else it is what /props says. Raises `UnreachableError` when nobody
        answers, `RefusedError` when it does not tell whether it speculates."""
        from specdash.collect.host import OthersMeter

        self.url = url
        self._cancel = cancel or Cancel()
        self._client = BlockingClient(url, key, timeout=_ANSWER_S, cancel=self._cancel, verified=verified)
        self.gpu = gpu
        self.generated = 0
        """Tokens of all its answers."""
        self.props = self._client.props()
        if self.props.role == "router":
            raise RefusedError(
                f"{url} is a router; name one of its models' own servers (`specdash targets` lists them)"
            )
        self.engine = engine or self.props.build_info or ""
        self._others = OthersMeter(url)
        self.slots = self.look()
        if self.slots.drafting is None:
            raise RefusedError(f"{url} does not tell whether it speculates; a newer llama.cpp does")
        self._tokens = self._client.tokenised(_TEXT, special=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; the server stops what it was asked for."""
        self._cancel()

    @property
    def speculates(self) -> bool:
        """Whether any of its slots drafts."""
        return any(self.slots.drafting or ())

    @property
    def slot_context(self) -> int:
        """Tokens that fit into one slot."""
        return self.slots.least_context or self.props.n_ctx or 0

    def cells(self, effort: BaselineEffort, report: BaselineReport) -> list[BaselineCell]:
        """What can be measured, the most telling first; what cannot goes into the report."""
        count = len(self.slots.slots)
        concurrencies = effort.concurrencies or tuple(sorted({1, count}))
        found = []
        for concurrency in concurrencies:
            for context in effort.contexts:
                cell = BaselineCell(context, concurrency)
                if concurrency > count:
                    report.left_out.append(f"{cell.words}: the server has {count} slots")
                elif context + effort.tokens + SPARE_TOKENS > self.slot_context:
                    report.left_out.append(f"{cell.words}: a slot has {self.slot_context} tokens")
                elif effort.frugal and concurrency * (context + _GROWTH) > self.slot_context:
                    report.left_out.append(f"{cell.words}: the slots may share {self.slot_context} tokens")
                else:
                    found.append(cell)
        return found

    def prompt(self, length: int, slot: int) -> list[int]:
        """That many tokens, other ones for every slot."""
        turn = 37 * (slot + 1) % len(self._tokens)
        text = self._tokens[turn:] + self._tokens[:turn]
        return (text * (length // len(text) + 1))[:length]

    def wait_idle(self, limit_s: float = IDLE_S) -> None:
        """Until no slot works. Raises `RefusedError` when somebody goes on using the server."""
        deadline = time.monotonic() + limit_s
        while any(slot.is_processing for slot in self.look().slots):
            if time.monotonic() > deadline:
                raise RefusedError(f"{self.url} is in use, and requests of others would be measured too; try again")
            time.sleep(0.2)

    def generate(self, slot: int, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """The `timings` of one answer from the slot. Raises `SpecdashError`."""
        return mapping(self.complete({slot: prompt}, tokens)[0].get("timings"))

    def complete(self, prompts: Mapping[int, Sequence[int]], tokens: int) -> list[dict[str, Any]]:
        """Greedy answers of just so many tokens to the prompts of these slots, in their order. Raises `SpecdashError`.

        Several prompts go in one request, so that all begin with the same batch; the server then takes the slot that
        holds most of a prompt already. Not streamed: writing every token to a client takes time that decode might have.
        """
        slots = list(prompts)
        body: dict[str, Any] = {
            "prompt": [list(prompts[slot]) for slot in slots], "n_predict": tokens, "temperature": 0,
            "ignore_eos": True, "cache_prompt": True, "stream": False, "return_tokens": True,
        }  # fmt: skip
        if len(slots) == 1:
            body |= {"prompt": body["prompt"][0], "id_slot": slots[0]}
        try:
            reply = self._client.post("/completion", body, _SILENCE_S)
        except OSError as error:
            raise self._client.unreachable(error) from None
        answers = reply.json if isinstance(reply.json, list) else [reply.json]
        if reply.status != 200 or len(answers) != len(slots):
            raise SpecdashError(f"{self.url} answered HTTP {reply.status}: {error_message(reply.body)}")
        timings = [mapping(mapping(answer).get("timings")) for answer in answers]
        self.generated += sum(int(item.get("predicted_n") or 0) for item in timings)
        return sorted(map(mapping, answers), key=lambda answer: int(answer.get("index") or 0))

    def look(self) -> Slots:
        """The slots as they are now."""
        return self._client.slots()

    def baseline(self, cell: BaselineCell, rate: Interval, requests: int, tokens: int, **more: Any) -> Baseline:
        """The baseline of a cell; `rate` is in tokens a second."""
        path = Path(self.props.model_path or "")
        try:
            size = path.stat().st_size if path.name else None
        except (OSError, ValueError):
            size = None
        return Baseline(
            at=time.time(), model=path.name, engine=self.engine, context=cell.context,
            concurrency=cell.concurrency, decode_rate=rate.value, low=rate.low, high=rate.high, requests=requests,
            model_bytes=size, gpu=self.gpu, decode_tokens=tokens, others=self._others.share(), **more,
        )  # fmt: skip


def gpu_names() -> str | None:
    """The GPUs of this machine, as baselines name them; None where NVML shows none."""
    from specdash.collect.gpu import look

    return ", ".join(sorted(gpu.name for gpu in look().gpus if gpu.name)) or None


# Decode steps without a draft, on a server that speculates.

STEP_ROUNDS = 24
"""Of each kind, at most; fewer where the interval is narrow sooner."""
LEAST_ROUNDS = 6
NARROW = 0.01
"""Half the width of the interval, as a share, at which a cell is known well enough."""
_PIECES = (32, 512)
"""Tokens of a prompt that are read at once, at least and at most: whoever comes meanwhile waits for these alone."""
_PIECE_S = 0.4
_GROWTH = 8 * STEP_ROUNDS
"""Tokens by which a prompt grows while it is measured."""
BY_ITSELF = BaselineEffort((64, 1024, 8192), rounds=STEP_ROUNDS, tokens=2, limit_s=8.0, idle_s=2.0, frugal=True)
"""What is measured without being asked: seconds, in slots that nobody uses."""
_STALL = 3.0
"""A step that took so many times the median tells of a stall, and counts no more than that."""
_MOST_OWN_PASS = 0.6
_OWN_PASS = (0.45, 0.23)
"""What a draft model's pass over the target's tokens costs, as a share of what a draft of one token adds to a step, and
the deviation of that: between nothing and 0.9 (measured: 0.1 to 1.0, docs/speedup.md). The rest of it is sampling, and
what only a verified token costs."""


def measure_steps(
    server: MeasuredServer,
    effort: BaselineEffort,
    keep: Callable[[Baseline], None],
    on_step: Callable[[BaselineStep], None] = lambda _: None,
    on_tasks: Callable[[frozenset[int]], None] = lambda _: None,
) -> BaselineReport:
    """Measure every cell on a server that speculates, and `keep` each as soon as it is measured.

    `effort.rounds` bounds the completions of each kind in a cell; `on_tasks` gets the numbers of all tasks so far.
    Raises `InputError` where nothing can be measured, `RefusedError` when others go on using the server, and for a
    model with recurrent states.
    """
    if _keeps_states(server.props.model_path):
        raise RefusedError(
            "the model has recurrent states, saved as it speculates, so its steps are not those of a server "
            "without speculation; measure that with `specdash baseline record` on an engine of its own"
        )
    report = BaselineReport()
    # Short contexts first: the longer prompt goes on from the shorter one, which is in the slot already.
    cells = sorted(server.cells(effort, report), key=lambda cell: (cell.context, cell.concurrency))
    if not cells:
        raise InputError(f"nothing to measure: {'; '.join(report.left_out)}")
    asking = StepAsking(server, effort, on_tasks)
    began = time.monotonic()
    for number, cell in enumerate(cells):
        left = effort.limit_s - (time.monotonic() - began)
        if left <= 0:
            report.left_out.append(f"{cell.words}: no time is left of {effort.limit_s:.0f} s")
            continue
        on_step(BaselineStep(cell, number + 1, len(cells), number / len(cells)))
        problem = asking.read(cell, left)
        if problem:
            report.left_out.append(f"{cell.words}: {problem}")
            continue
        sums = StepTimes()
        deadline = time.monotonic() + max(left / (len(cells) - number), 0.5)
        along = asking.reads_draft_model is not False
        while sums.rounds < effort.rounds and (sums.rounds < LEAST_ROUNDS or time.monotonic() < deadline):
            asking.round(cell, sums, drafts=along)
            known = step_of(sums, reads_along=along) if sums.rounds % 3 == 0 else None
            if known is not None and sqrt(known.high / known.low) - 1 < NARROW:
                break
        step = step_of(sums, reads_along=along)
        if step is None:
            report.left_out.append(f"{cell.words}: the server is in use, or drafts in two tokens")
            continue
        if step.high > effort.widest * step.low:
            report.left_out.append(f"{cell.words}: steps without a draft take {step.low:.1f} to {step.high:.1f} ms")
            continue
        rate = Interval(1000 / step.value, 1000 / step.high, 1000 / step.low)
        own = sums.own_token
        baseline = server.baseline(
            cell, rate, sums.rounds, 2, method=BaselineMethod.TWO_TOKENS,
            draft_token_s=None if own is None else own.value / 1000.0, pair_share=median(sums.pairs),
        )  # fmt: skip
        keep(baseline)
        report.measured.append(baseline)
        on_step(BaselineStep(cell, number + 1, len(cells), (number + 1) / len(cells), None, baseline))
    report.generated = server.generated
    return report


def _keeps_states(path: str | None) -> bool:
    """Whether the model, where this machine has the file, has recurrent states: it then saves them as it speculates, in
    every step, which no short completion tells apart."""
    from specdash.llama.gguf import read_facts
    from specdash.llama.model_facts import shape_of

    try:
        shape = shape_of(read_facts(path)) if path else None
    except (OSError, SpecdashError):
        return False
    return shape is not None and shape.recurrent


def measure_unasked(
    url: str,
    key: str | None,
    engine: str | None,
    *,
    cancel: Cancel | None = None,
    on_tasks: Callable[[frozenset[int]], None] = lambda _: None,
    env: Mapping[str, str] = os.environ,
) -> BaselineReport:
    """Measure decode without speculation on a server of this machine for some seconds, and keep it.

    Raises `RefusedError` where it does not speculate, and while it is on a trial, which this would disturb;
    and what `measure_steps` raises.
    """
    if trial_file(env).exists():
        raise RefusedError("a trial is under way, and what it measures would be disturbed; wait for its end")
    with MeasuredServer(url, key, engine=engine, gpu=gpu_names(), cancel=cancel, verified=False) as server:
        if not server.speculates:
            raise RefusedError("it does not speculate: there is nothing to compare")
        return measure_steps(server, BY_ITSELF, lambda baseline: add_baseline(baseline, env), on_tasks=on_tasks)


@dataclass(slots=True)
class StepTimes:
    """What the rounds of one cell took, in milliseconds."""

    plain: list[float] = field(default_factory=list)
    """Steps without a draft."""
    own: list[float] = field(default_factory=list)
    """What drafting one token took, each of one round, so that a machine that grows slower is in all parts of it."""
    pairs: list[float] = field(default_factory=list)
    """What two tokens of a prompt took to be read, as a share of what one of the same round took."""
    rounds: int = 0

    def draft(self, took: float, *, plain: float, more_ms: float, accepted: bool) -> None:
        """A round in which a draft of one token was verified in one batch with the token before it; was it rejected, a
        step without a draft followed. `more_ms` is what such a batch takes more than one token: less than nothing where
        it has a faster kernel, and the step then hides what its draft costs."""
        self.own.append((took if accepted else took - plain) - plain - more_ms)

    @property
    def own_token(self) -> Interval | None:
        """What drafting one token takes, with its interval; None of too few drafts."""
        if len(self.own) < 3:
            return None
        found = interval(median_of(self.own))
        return Interval(max(found.value, 0.0), max(found.low, 0.0), max(found.high, 0.0))


def step_of(times: StepTimes, *, reads_along: bool) -> Interval | None:
    """Milliseconds of a decode step without speculation, with the interval; None of too few.

    `reads_along`: a draft model may read every token of the target's, which is taken off.
    """
    middle = median(times.plain)
    if middle is None or len(times.plain) < LEAST_ROUNDS:
        return None
    # Stalls come while the server speculates, too, so they count; but one that lasted for seconds is no step's time.
    values = [min(value, _STALL * middle) for value in times.plain]
    step, error = mean(values) or middle, mean_reach(values) or 0.0
    own = times.own_token if reads_along else None
    if own is not None:
        share, deviation = _OWN_PASS
        taken = min(share * own.value, _MOST_OWN_PASS * step)
        error = sqrt(error**2 + (share * (own.high - own.low) / 2) ** 2 + (Z_95 * deviation * own.value) ** 2)
        step -= taken
    elif reads_along:
        # It reads along, and nobody knows what that costs.
        error += 0.2 * step
    return Interval(step, max(step - error, 0.2 * step), step + error)


class StepAsking:
    """Short completions on the slots of one server. Each goes on from where the last one of its slot ended, so that
    nothing is read twice, not even by a model that cannot go back."""

    def __init__(
        self, server: MeasuredServer, effort: BaselineEffort, on_tasks: Callable[[frozenset[int]], None]
    ) -> None:
        self._server = server
        self._idle_s = effort.idle_s
        self._on_tasks = on_tasks
        # llama-server fills the slots from the first on: the last ones are the least likely to hold somebody's prompt.
        self._slots = [slot.id for slot in server.slots.slots][::-1]
        self._texts: dict[int, list[int]] = {}
        self._tasks: dict[int, int | None] = {slot.id: slot.task for slot in server.slots.slots}
        self._own: set[int] = set()
        self._token_s: float | None = None
        self._types: set[str] = set()

    @property
    def reads_draft_model(self) -> bool | None:
        """Whether a draft model reads along; None where the server does not name its types."""
        kinds = [spec_type(name) for name in self._types]
        if not kinds:
            return None
        return any(kind is None or kind.reads_draft_model for kind in kinds)

    def read(self, cell: BaselineCell, limit_s: float) -> str:
        """Put a prompt of the cell's length into its slots; why that is not possible, "" when it was."""
        deadline = time.monotonic() + limit_s
        for slot in self._slots[: cell.concurrency]:
            text = self._texts.setdefault(slot, [])
            while len(text) < cell.context:
                if time.monotonic() > deadline:
                    return f"its prompt is not read within {limit_s:.0f} s"
                self._server.wait_idle(self._idle_s)
                least, most = _PIECES
                size = least if self._token_s is None else min(max(int(_PIECE_S / self._token_s), least), most)
                piece = min(len(text) + size, cell.context)
                text += self._server.prompt(cell.context, slot)[len(text) : piece]
                (answer,) = self._server.complete({slot: text}, 1)
                timings = mapping(answer.get("timings"))
                tokens, took = timings.get("prompt_n"), timings.get("prompt_ms")
                if isinstance(tokens, int) and isinstance(took, int | float) and tokens >= least:
                    self._token_s = max(took / 1000.0 / tokens, 1e-6)
                self._looked({slot})
        answers = self._ask(cell, 2)
        if answers is None:
            return "the server is in use"
        kept = all(_figure(timings, "prompt_n") <= _PIECES[0] for timings in answers)
        return "" if kept else "the server does not keep a prompt in its slot"

    def round(self, cell: BaselineCell, times: StepTimes, *, drafts: bool) -> None:
        """A completion of two tokens in each slot of the cell, then one of a prompt with one token more: of two tokens
        again, or of three where `drafts` are of interest."""
        times.rounds += 1
        plain = self._ask(cell, 2)
        if plain is None or any(timings.get("draft_n") for timings in plain):
            return
        step, read_one = (min(_figure(timings, name) for timings in plain) for name in ("predicted_ms", "prompt_ms"))
        times.plain.append(step)
        for slot in self._slots[: cell.concurrency]:
            self._texts[slot] += self._server.prompt(1, slot + times.rounds)
        second = self._ask(cell, 3 if drafts else 2)
        if second is None:
            return
        read_two = min(_figure(timings, "prompt_ms") for timings in second)
        times.pairs.append(read_two / max(read_one, 1e-6))
        tried = [timings for timings in second if timings.get("draft_n")]
        accepted = [timings for timings in tried if timings.get("draft_n_accepted")]
        took = min(_figure(timings, "predicted_ms") for timings in accepted or tried or second)
        if tried:
            times.draft(took, plain=step, more_ms=read_two - read_one, accepted=bool(accepted))
        elif not drafts:
            times.plain.append(took)

    def _ask(self, cell: BaselineCell, tokens: int) -> list[dict[str, Any]] | None:
        """The timings of one answer in each slot; None where others used the server meanwhile."""
        slots = self._slots[: cell.concurrency]
        answers = self._server.complete({slot: self._texts[slot] for slot in slots}, tokens)
        for slot, answer in zip(slots, answers, strict=True):
            answered = answer.get("tokens")
            if isinstance(answered, list):
                self._texts[slot] += [token for token in answered if isinstance(token, int)]
        if not self._looked(set(slots)):
            self._server.wait_idle(self._idle_s)
            return None
        return [mapping(answer.get("timings")) for answer in answers]

    def _looked(self, used: set[int]) -> bool:
        """Note which tasks were ours; whether nobody else used the server since the last look."""
        alone = True
        for slot in self._server.look().slots:
            alone = alone and not slot.is_processing and (slot.id in used or slot.task == self._tasks.get(slot.id))
            self._tasks[slot.id] = slot.task
            if slot.id in used and slot.task is not None and not slot.is_processing:
                self._own.add(slot.task)
                self._types.update(slot.speculative_types or ())
        self._on_tasks(frozenset(self._own))
        return alone


def _figure(timings: Mapping[str, Any], name: str) -> float:
    value = timings.get(name)
    if not isinstance(value, int | float):
        raise SpecdashError("the server's answer has no timings; a newer llama.cpp has")
    return float(value)


# The file of recorded baselines: read what can be read, replaced as a whole, so that nobody ever sees half of it.


def read_baselines(env: Mapping[str, str] = os.environ) -> tuple[Baseline, ...]:
    """All of them, oldest first; lines that are none are passed over. Raises `InputError` for an unreadable file."""
    found = (Baseline.from_json(line) for line in _lines(baselines_file(env)))
    return tuple(sorted((baseline for baseline in found if baseline is not None), key=lambda baseline: baseline.at))


def add_baseline(baseline: Baseline, env: Mapping[str, str] = os.environ) -> None:
    """Keep it, in the place of an older one of its key. Raises `NotWrittenError`, `ConflictError` or `InputError`."""
    _replace(baselines_file(env), lambda item: item.key != baseline.key, (baseline,))


def forget_baselines(is_to_go: Callable[[Baseline], bool], env: Mapping[str, str] = os.environ) -> int:
    """Remove those; how many there were. Raises what `add_baseline` raises."""
    gone = [read_baseline for read_baseline in read_baselines(env) if is_to_go(read_baseline)]
    if gone:
        _replace(baselines_file(env), lambda baseline: not is_to_go(baseline))
    return len(gone)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; the baselines cannot be read") from None


def _replace(path: Path, stays: Callable[[Baseline], bool], added: Iterable[Baseline] = ()) -> None:
    """Write the file again: what stays, lines of a newer version, and what is added."""

    def kept(line: str) -> bool:
        known = Baseline.from_json(line)
        return bool(line.strip()) and (known is None or stays(known))

    try:
        files.make_directories(path.parent)
        with files.locked(path.parent, path.name):
            lines = [*filter(kept, _lines(path)), *(baseline.to_json() for baseline in added)]
            # Never an empty file: a follower takes that for a file whose writer has not begun.
            files.replace(path, ("\n".join(lines) + "\n").encode())
            files.sync_directory(path.parent)
    except files.BusyError as error:
        raise ConflictError(str(error)) from None
    except OSError as error:
        raise NotWrittenError(files.not_written(path, error)) from None
