"""Measures decode without speculation on a running server: per context length and concurrency, one short run each.

A prompt of just that many tokens is put into as many slots first; then all of them generate at the same time, from a
prompt that is cached, so that nobody's prefill stands in another's decode. The speed of one request is its own
`timings`: tokens after the first over the time since the first.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self

from specdash.backend.local_http import Reply, ask
from specdash.core.baselines import Baseline
from specdash.core.errors import InputError, RefusedError, SpecdashError, UnreachableError
from specdash.insight.bootstrap import MOST, interval, median_of
from specdash.llama.bodies import ParseError, error_message
from specdash.llama.props import parse_props
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.core.observations import Props, Slots

CONTEXTS = (256, 2048, 8192)
ROUNDS = 5
TOKENS = 96
LIMIT_S = 300.0
LEAST_VALUES = 3
"""So many requests make a baseline when the run is cut short."""
SPARE_TOKENS = 16
"""Of a slot's context, left free."""
IDLE_S = 60.0
"""How long to wait for requests of others to end."""
_ANSWER_S = 5.0
_SILENCE_S = 1800.0
_WARM_PREFILL_SHARE = 0.15
_TEXT = (
    "The server reads a request, puts its prompt through the model in batches, and then writes the answer one token "
    "after the other. Each of them needs all of the model's weights once, so the speed of an answer is that of memory. "
    "A cache keeps what attention needs of every earlier token; it is read in full for each new one, and that is why a "
    "long conversation is slower than a short one. Requests that run at the same time share the reading of the weights."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one baseline stands for: tokens in the context, and requests at the same time."""

    context: int
    concurrency: int

    @property
    def words(self) -> str:
        """For people."""
        return f"context {self.context}, {self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. `limit_s` bounds the whole run in seconds: cells for which no time is left are left out."""

    contexts: tuple[int, ...] = CONTEXTS
    concurrencies: tuple[int, ...] = ()
    """Empty: one, and as many as there are slots."""
    rounds: int = ROUNDS
    tokens: int = TOKENS
    limit_s: float = LIMIT_S


@dataclass(frozen=True, slots=True)
class Step:
    """One report: the cell that is being measured, the share of the work that is done, seconds left where known."""

    cell: Cell
    number: int
    cells: int
    share: float
    left_s: float | None = None
    baseline: Baseline | None = None
    """Set once the cell is measured."""


@dataclass(slots=True)
class Report:
    """What became of a run."""

    measured: list[Baseline] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Cells that were not measured, and why."""


class Server:
    """A server that runs without speculation, as its own answers say. Use as a context manager."""

    def __init__(self, url: str, key: str | None = None, *, engine: str | None = None, gpu: str | None = None) -> None:
        """`engine` names it where that is known; else it is what /props says. Raises `UnreachableError` when nobody
        answers, `RefusedError` when it speculates or does not tell."""
        import httpx

        self.url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.gpu = gpu
        self.props = self._props()
        self.engine = engine or self.props.build_info or ""
        self.slots = self._checked()
        # A connection that is used again may be the one that the server is closing at that moment.
        self._client = httpx.Client(
            base_url=url,
            headers=self._headers,
            timeout=_SILENCE_S,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._tokens = self._tokenised()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; the server stops what it was asked for."""
        self._client.close()

    @property
    def slot_context(self) -> int:
        """Tokens that fit into one slot."""
        return self.slots.least_context or self.props.n_ctx or 0

    def cells(self, effort: Effort, report: Report) -> list[Cell]:
        """What can be measured, the most telling first; what cannot goes into the report."""
        count = len(self.slots.slots)
        concurrencies = effort.concurrencies or tuple(sorted({1, count}))
        found = []
        for concurrency in concurrencies:
            for context in effort.contexts:
                cell = Cell(context, concurrency)
                if concurrency > count:
                    report.left_out.append(f"{cell.words}: the server has {count} slots")
                elif context + effort.tokens + SPARE_TOKENS > self.slot_context:
                    report.left_out.append(f"{cell.words}: a slot has {self.slot_context} tokens")
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
        while any(slot.is_processing for slot in self._slots().slots):
            if time.monotonic() > deadline:
                raise RefusedError(f"{self.url} is in use, and requests of others would be measured too; try again")
            time.sleep(0.2)

    def generate(self, slot: int, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """One answer of just so many tokens from the slot; its `timings`. Raises `SpecdashError`.

        Not streamed: writing every token to a client of its own takes time that decode might have had.
        """
        import httpx

        body = {
            "prompt": prompt, "n_predict": tokens, "ignore_eos": True, "cache_prompt": True, "stream": False,
            "id_slot": slot, "seed": slot + 1,
        }  # fmt: skip
        try:
            answer = self._client.post("/completion", json=body)
        except (httpx.HTTPError, RuntimeError) as error:
            raise SpecdashError(f"{self.url} broke off: {type(error).__name__} {error}".rstrip()) from None
        if answer.status_code != 200:
            raise SpecdashError(f"{self.url} answered HTTP {answer.status_code}: {error_message(answer.content)}")
        try:
            timings = answer.json()["timings"]
        except (ValueError, KeyError, TypeError):
            timings = None
        return timings if isinstance(timings, dict) else {}

    def _ask(self, path: str, body: Any = None) -> Reply:
        try:
            reply = ask(self.url, path, headers=self._headers, body=body, timeout=_ANSWER_S)
        except OSError as error:
            raise UnreachableError(f"{self.url} does not answer ({error}); start it, or name another --url") from None
        if reply.status == 200:
            return reply
        if reply.status in (401, 403):
            raise InputError(f"{self.url}{path} wants another API key; name one with --api-key-env or --api-key-file")
        if path == "/slots":
            raise RefusedError(
                f"{self.url}{path} answers HTTP {reply.status}, so nobody can tell whether it speculates; start it "
                "without --no-slots"
            )
        raise SpecdashError(f"{self.url}{path} answers HTTP {reply.status}: {error_message(reply.body)}")

    def _props(self) -> Props:
        try:
            return parse_props(self._ask("/props").body)
        except ParseError as error:
            raise SpecdashError(f"{self.url}/props: {error}; is this llama-server?") from None

    def _slots(self) -> Slots:
        try:
            return parse_slots(self._ask("/slots").body)
        except ParseError as error:
            raise SpecdashError(f"{self.url}/slots: {error}; is this llama-server?") from None

    def _checked(self) -> Slots:
        slots = self._slots()
        flags = slots.drafting
        if flags is None:
            raise RefusedError(f"{self.url} does not tell whether it speculates; a newer llama.cpp does")
        if any(flags):
            raise RefusedError(
                f"{self.url} speculates, and a baseline is decode without speculation; start it with "
                "LLAMA_SPEC_TYPE=none, or leave --url out and specdash starts one of its own"
            )
        return slots

    def _tokenised(self) -> list[int]:
        told = self._ask("/tokenize", {"content": _TEXT}).json
        found = told.get("tokens") if isinstance(told, dict) else None
        if not isinstance(found, list) or not found or not all(isinstance(one, int) for one in found):
            raise SpecdashError(f"{self.url}/tokenize gave no tokens; is this llama-server?")
        return found


def measure(
    server: Server, effort: Effort, keep: Callable[[Baseline], None], on_step: Callable[[Step], None] = lambda _: None
) -> Report:
    """Measure every cell, and `keep` each as soon as it is measured. Ctrl-C ends it, keeping what there is by then."""
    report = Report()
    cells = server.cells(effort, report)
    if not cells:
        raise InputError(f"nothing to measure: {'; '.join(report.left_out)}")
    work = [_work(cell, effort) for cell in cells]
    began = time.monotonic()
    pool = ThreadPoolExecutor(max(cell.concurrency for cell in cells), "baseline")
    try:
        for number, cell in enumerate(cells):
            spent = time.monotonic() - began
            done = sum(work[:number])
            if number and spent + spent / done * work[number] > effort.limit_s:
                report.left_out.append(f"{cell.words}: no time is left of {effort.limit_s:.0f} s")
                continue

            def told(share: float, number: int = number, cell: Cell = cell, done: float = done) -> None:
                so_far = done + share * work[number]
                passed = time.monotonic() - began
                left = passed / so_far * (sum(work) - so_far) if so_far > 0 and passed > 1 else None
                on_step(Step(cell, number + 1, len(cells), so_far / sum(work), left))

            values: list[float] = []
            try:
                _run(server, cell, effort, pool, values, told)
            except BaseException:
                # Else the pool would wait for answers that nobody wants any more.
                server.close()
                raise
            finally:
                # Also when cut short: what was measured is worth keeping.
                if len(values) >= LEAST_VALUES:
                    baseline = baseline_of(server, cell, effort, values)
                    keep(baseline)
                    report.measured.append(baseline)
                    on_step(Step(cell, number + 1, len(cells), (done + work[number]) / sum(work), None, baseline))
    finally:
        # Cut short, nobody waits for answers that nobody wants any more: they end with the connection, or the engine.
        pool.shutdown(wait=False, cancel_futures=True)
    return report


def _work(cell: Cell, effort: Effort) -> float:
    """How long a cell takes, in units of one token's decode."""
    prefill = cell.concurrency * cell.context * _WARM_PREFILL_SHARE
    return prefill + effort.rounds * effort.tokens * sqrt(cell.concurrency)


def _run(
    server: Server,
    cell: Cell,
    effort: Effort,
    pool: ThreadPoolExecutor,
    values: list[float],
    told: Callable[[float], None],
) -> None:
    server.wait_idle()
    prompts = [server.prompt(cell.context, slot) for slot in range(cell.concurrency)]
    told(0.0)
    for slot, prompt in enumerate(prompts):
        server.generate(slot, prompt, 2)
    for number in range(effort.rounds):
        told((number + 0.5) / (effort.rounds + 0.5))
        server.wait_idle()
        asked = [pool.submit(server.generate, slot, prompt, effort.tokens) for slot, prompt in enumerate(prompts)]
        wait(asked)
        values += [rate_of(one.result()) for one in asked]


def rate_of(timings: dict[str, Any]) -> float:
    """Tokens a second after the first."""
    tokens, ms = timings.get("predicted_n"), timings.get("predicted_ms")
    if not isinstance(tokens, int) or not isinstance(ms, int | float) or tokens < 2 or ms <= 0:
        raise SpecdashError("the server's answer has no timings; a newer llama.cpp has")
    if timings.get("draft_n"):
        raise RefusedError("the server drafts although /slots says that it does not; nothing was kept of this run")
    return float((tokens - 1) * 1000.0 / ms)


def baseline_of(server: Server, cell: Cell, effort: Effort, values: Sequence[float]) -> Baseline:
    """The baseline that these speeds of single requests make."""
    found = interval(median_of(values[-MOST:]))
    path = server.props.model_path or ""
    try:
        size = Path(path).stat().st_size if path else None
    except (OSError, ValueError):
        size = None
    return Baseline(
        at=time.time(),
        model=PurePath(path).name,
        engine=server.engine,
        context=cell.context,
        concurrency=cell.concurrency,
        decode_rate=found.value,
        low=found.low,
        high=found.high,
        requests=len(values),
        model_bytes=size,
        gpu=server.gpu,
        decode_tokens=effort.tokens,
    )
