"""Sends the completions of a smoke test to a running server, and looks at it before, between and after them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import field, replace
from itertools import chain
from typing import TYPE_CHECKING

from specdash.bench.load.samples import request_body
from specdash.bench.smoke import smoke, smoke_prompts
from specdash.bench.smoke.smoke import Check, CompletionKind, Instance, InstanceLook, SmokeCompletion, Speculation
from specdash.core.errors import InputError, UnreachableError
from specdash.core.readings import Slots, most_recent_resident
from specdash.llama.blocking import ANSWER_S, BlockingClient, bearer
from specdash.llama.chat import ChatClient
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    mapping,
    natural,
    one_line,
    parse_metrics,
    parse_models,
    parse_slots,
    text,
)
from specdash.system import http
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ANY = "any"
"""Instead of a model's name, behind a router: the resident one that was used last."""
BATCH = 512
"""llama.cpp's default of --ubatch-size."""
MARGIN = 1.3
IDENTICAL = 5
DIFFERENT = 4
TOKENS = 64
LIMIT_S = 120.0
REPEATING_TOKENS = 256
LONG_TOKENS = 96
"""Twice that is enough for the drafts of the long prompt alone to tell."""
SPARE_TOKENS = 64
"""What a chat template adds, and then some."""
_EXTRA = 8
_FEW_LINES = 8


@dataclass(frozen=True, slots=True)
class SmokeEffort:
    """What to send. `batch` is the server's physical batch in tokens, `limit_s` bounds one answer."""

    identical: int = IDENTICAL
    tokens: int = TOKENS
    limit_s: float = LIMIT_S
    batch: int = BATCH
    different: int = DIFFERENT


@dataclass(slots=True)
class Smoke:
    """One smoke test of the server at `url`. `key` is its API key, the secret itself.

    `completions`, `looks` and `checks` fill as it goes.
    """

    url: str
    effort: SmokeEffort
    expected: bool | None = None
    because: str = ""
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    process: Callable[[], tuple[int, float] | None] = lambda: None
    """Pid and start of the server's process now."""
    on_step: Callable[[str, int, int], None] = lambda _words, _done, _all: None
    completions: list[SmokeCompletion] = field(default_factory=list)
    looks: list[InstanceLook] = field(default_factory=list)
    told: Speculation = field(default_factory=Speculation)
    skipped: str = ""
    """Why there is no long prompt."""
    _room: int | None = field(init=False, default=None)
    _client: BlockingClient = field(init=False, repr=False)
    _chat: ChatClient = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limit_s = self.effort.limit_s
        self._client = BlockingClient(self.url, self.key, self.model)
        self._chat = ChatClient(self.url, self.key, silence_s=limit_s, limit_s=limit_s, keep_text=True)

    def run(self) -> None:
        """Send everything. Raises `UnreachableError` when nobody answers at the beginning, `InputError` for a model or
        key that the server does not take; whatever happens later is for the checks to say."""
        self._first_look()
        effort = self.effort
        same = [(CompletionKind.IDENTICAL, smoke_prompts.IDENTICAL, effort.tokens)] * effort.identical
        planned = len(same) + effort.different + 4
        for index, (kind, prompt, tokens) in enumerate(chain(same, self._others())):
            self.on_step(str(kind), index, planned)
            self._ask(kind, prompt, tokens, streamed=index % 2 == 1)
        for number in range(_EXTRA):
            # Nothing accepted so far, and too few drafts to say that nothing ever will be.
            whole = [completion for completion in self.completions if completion.error is None]
            drafts = sum(completion.drafts for completion in whole)
            if any(completion.accepted for completion in whole) or not 0 < drafts < smoke.enough_drafts():
                break
            self.on_step("more drafts", planned, planned + 1)
            self._ask(
                CompletionKind.DIFFERENT, f"{number + 1}. {smoke_prompts.IDENTICAL}", REPEATING_TOKENS, streamed=False
            )

    @property
    def checks(self) -> list[Check]:
        """The judgement on what was seen so far."""
        done = self.completions
        unseen = Check("speculation", smoke.SmokeStatus.SKIP, "it was not looked at")
        return [
            smoke.speculation(self.told) if self.looks else unseen,
            smoke.answers(done),
            smoke.output(done),
            smoke.drafter(done, self.told),
            smoke.acceptance(done),
            smoke.cache_path(done),
            smoke.long_prompt(done, self.effort.batch, skipped=self.skipped),
            smoke.instance(self.looks, done),
        ]

    def _others(self) -> Iterator[tuple[CompletionKind, str, int]]:
        """What follows the identical prompts; made then, because by then a router has loaded the model."""
        effort = self.effort
        yield from (
            (CompletionKind.DIFFERENT, prompt, effort.tokens) for prompt in smoke_prompts.DIFFERENT[: effort.different]
        )
        # Twice each: whole and streamed.
        yield from self._repeating() * 2
        long = self._long_prompt()
        if long is not None:
            yield from [(CompletionKind.LONG, long, max(effort.tokens, LONG_TOKENS))] * 2

    def _repeating(self) -> list[tuple[CompletionKind, str, int]]:
        """As much as a slot holds of a text that repeats, and room for the answer."""
        tokens = max(self.effort.tokens, REPEATING_TOKENS)
        for times in (3, 2, 1):
            prompt = smoke_prompts.repeating(times)
            if self._room is None or self._size(prompt) + tokens + SPARE_TOKENS <= self._room:
                return [(CompletionKind.REPEATING, prompt, tokens)]
        return []

    def _long_prompt(self) -> str | None:
        """A prompt of more tokens than a physical batch has, None where no slot holds one."""
        wanted = int(self.effort.batch * MARGIN) + SPARE_TOKENS
        lines = _FEW_LINES
        prompt = smoke_prompts.long_text(lines)
        while (size := self._size(prompt)) <= wanted:
            lines = max(lines + _FEW_LINES, int(1.1 * lines * wanted / size))
            prompt = smoke_prompts.long_text(lines)
        room = self._room
        if room is not None and size + max(self.effort.tokens, LONG_TOKENS) + SPARE_TOKENS > room:
            self.skipped = (
                f"a slot holds {room:,} tokens: too few for a prompt of more than a batch of {self.effort.batch:,}"
            )
            return None
        return prompt

    def _size(self, prompt: str) -> int:
        """Tokens of the text; where the server does not tell, a cautious guess."""
        try:
            tokens = self._client.tokens(prompt)
        except OSError:
            tokens = None
        return max(1, len(tokens)) if tokens is not None else len(prompt) // 6

    def _first_look(self) -> None:
        try:
            reply = http.ask(self.url, "/health", timeout=ANSWER_S)
        except OSError as error:
            raise self._client.unreachable(error) from None
        if reply.status == 503:
            raise UnreachableError(f"{self.url} is not ready: {error_message(reply.body) or 'HTTP 503'}")
        props = None
        with contextlib.suppress(OSError):
            props = http.ask(self.url, "/props", headers=bearer(self.key), timeout=ANSWER_S)
            self._client.check_key(props, "/props")
        if props is not None and mapping(props.json).get("role") == "router":
            self._choose()
        self.looks.append(InstanceLook(self._instance()))
        self.told = self._speculation(self._slots())

    def _choose(self) -> None:
        """The model behind a router, and how it is started. Raises `InputError` when none such is there."""
        try:
            known = parse_models(http.ask(self.url, "/models", headers=bearer(self.key), timeout=ANSWER_S).body).models
        except (OSError, ParseError) as error:
            raise InputError(f"{self.url}/models: {one_line(str(error)) or type(error).__name__}") from None
        found = next(
            (router_model for router_model in known if self.model in (router_model.id, *router_model.aliases)), None
        )
        if self.model == ANY:
            found = most_recent_resident(known)
        if found is None:
            names = ", ".join(router_model.id for router_model in known) or "none"
            problem = "no model is resident" if self.model == ANY else f"it has no model {self.model!r}"
            problem = "it is a router" if self.model is None else problem
            raise InputError(f"{self.url}: {problem}; name one with --model: {names}")
        self.model = found.id
        self._client = replace(self._client, model=found.id)
        if self.expected is None and found.spec_types is not None:
            self.expected = bool(found.spec_types)
            self.because = f"the router starts it with spec-type {','.join(found.spec_types) or 'none'}"

    def _slots(self) -> Slots | None:
        try:
            reply = self._client.get("/slots")
            return parse_slots(reply.body) if reply.status == 200 else None
        except (OSError, ParseError):
            return None

    def _speculation(self, slots: Slots | None) -> Speculation:
        seen = slots if slots is not None else Slots()
        flags, self._room = seen.drafting, seen.least_context
        drafting = sum(flags) if flags is not None else None
        types = {name for slot in seen.slots for name in slot.speculative_types or ()}
        return Speculation(len(seen.slots), drafting, tuple(sorted(types)), self.expected, self.because)

    def _instance(self) -> Instance:
        """What it can be known by now. What does not answer is unknown: a completion says that it is gone."""
        build = model = started = None
        predicted: float | None = None
        try:
            props = mapping(self._client.get("/props").json)
            build, model = (
                text(props.get("build_info")),
                text(props.get("model_path")) or text(props.get("model_alias")),
            )
            reply = self._client.get("/metrics")
            if reply.status == 200:
                started = reply.headers.get("process-start-time-unix")
                predicted = parse_metrics(reply.body).predicted_tokens
        except (OSError, ParseError):
            pass
        slots = self._slots()
        tasks = [slot.task for slot in slots.slots if slot.task is not None] if slots is not None else []
        return Instance(build, model, started, self.process(), predicted, max(tasks, default=None))

    def _ask(self, kind: CompletionKind, prompt: str, tokens: int, *, streamed: bool) -> None:
        began = time.monotonic()
        completion = self._completion(kind, prompt, tokens, streamed=streamed)
        self.completions.append(replace(completion, seconds=time.monotonic() - began))
        # Counters are of one server; what a request left of itself there is not ours to expect when it failed.
        now = self._instance()
        if completion.error is None or now != Instance():
            self.looks.append(InstanceLook(now, completion.tokens if completion.error is None else 0))
        if not self.told.types:
            # Types are told once a slot has served, and a router's model may be loaded only now.
            self.told = self._speculation(self._slots()) if self.told.drafting is None else self._typed()

    def _typed(self) -> Speculation:
        return replace(self.told, types=self._speculation(self._slots()).types)

    def _completion(self, kind: CompletionKind, prompt: str, tokens: int, *, streamed: bool) -> SmokeCompletion:
        messages = [{"role": "user", "content": prompt}]
        body = request_body(messages, tokens, model=self.model, streamed=streamed)
        blank = SmokeCompletion(kind, streamed)
        answer = self._chat.ask(body)
        if answer.fault is not None:
            return replace(blank, error=answer.error)
        if answer.finish is None:
            return replace(blank, error="the stream ended in the middle of the answer")
        return replace(
            blank,
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=len(answer.calls),
            finish=answer.finish,
            prompt_tokens=answer.prompt_tokens or 0,
            tokens=answer.predicted_tokens or 0,
            cached=answer.cached_tokens or 0,
            drafted=natural(answer.timings.get("draft_n")) or 0,
            accepted=natural(answer.timings.get("draft_n_accepted")) or 0,
            model=answer.model,
            build=answer.build,
        )
