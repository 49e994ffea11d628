"""Sends the completions of a smoke test to a running server, and looks at it before, between and after them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from specdash.bench import smoke, smoke_prompts
from specdash.bench.smoke import Check, Completion, Instance, Kind, Look, Speculation
from specdash.bench.smoke_answer import Gathered, complaint, with_answer
from specdash.core.errors import InputError, UnreachableError
from specdash.core.observations import Slots
from specdash.core.router import most_recent_resident
from specdash.llama.bodies import ParseError, error_message, mapping, one_line, text
from specdash.llama.metrics import parse_metrics
from specdash.llama.models import parse_models
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CHAT = "/v1/chat/completions"
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
_LOOK_S = 10.0
_EXTRA = 8
_FEW_LINES = 8


@dataclass(frozen=True, slots=True)
class Effort:
    """What to send. `batch` is the server's physical batch in tokens, `limit_s` bounds one answer."""

    identical: int = IDENTICAL
    tokens: int = TOKENS
    limit_s: float = LIMIT_S
    batch: int = BATCH
    different: int = DIFFERENT


@dataclass(slots=True)
class Smoke:
    """One smoke test of the server at `url`; use as a context manager. `key` is its API key, the secret itself.

    `completions`, `looks` and `checks` fill as it goes.
    """

    url: str
    effort: Effort
    expected: bool | None = None
    because: str = ""
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    process: Callable[[], tuple[int, float] | None] = lambda: None
    """Pid and start of the server's process now."""
    on_step: Callable[[str, int, int], None] = lambda _words, _done, _all: None
    completions: list[Completion] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    told: Speculation = field(default_factory=Speculation)
    skipped: str = ""
    """Why there is no long prompt."""
    _room: int | None = field(init=False, default=None)
    _client: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import httpx

        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=httpx.Timeout(self.effort.limit_s, connect=_LOOK_S),
            trust_env=False,
            verify=not self.url.startswith("http://"),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self) -> None:
        """Send everything. Raises `UnreachableError` when nobody answers at the beginning, `InputError` for a model or
        key that the server does not take; whatever happens later is for the checks to say."""
        self._first_look()
        effort = self.effort
        same = [(Kind.IDENTICAL, smoke_prompts.IDENTICAL, effort.tokens)] * effort.identical
        planned = len(same) + effort.different + 4
        for index, (kind, prompt, tokens) in enumerate(chain(same, self._others())):
            self.on_step(str(kind), index, planned)
            self._ask(kind, prompt, tokens, streamed=index % 2 == 1)
        for number in range(_EXTRA):
            # Nothing accepted so far, and too few drafts to say that nothing ever will be.
            whole = [one for one in self.completions if one.error is None]
            drafts = sum(one.drafts for one in whole)
            if any(one.accepted for one in whole) or not 0 < drafts < smoke.enough_drafts():
                break
            self.on_step("more drafts", planned, planned + 1)
            self._ask(Kind.DIFFERENT, f"{number + 1}. {smoke_prompts.IDENTICAL}", REPEATING_TOKENS, streamed=False)

    @property
    def checks(self) -> list[Check]:
        """The judgement on what was seen so far."""
        done = self.completions
        unseen = Check("speculation", smoke.Status.SKIP, "it was not looked at")
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

    def _others(self) -> Iterator[tuple[Kind, str, int]]:
        """What follows the identical prompts; made then, because by then a router has loaded the model."""
        effort = self.effort
        yield from ((Kind.DIFFERENT, prompt, effort.tokens) for prompt in smoke_prompts.DIFFERENT[: effort.different])
        # Twice each: whole and streamed.
        yield from self._repeating() * 2
        long = self._long_prompt()
        if long is not None:
            yield from [(Kind.LONG, long, max(effort.tokens, LONG_TOKENS))] * 2

    def _repeating(self) -> list[tuple[Kind, str, int]]:
        """As much as a slot holds of a text that repeats, and room for the answer."""
        tokens = max(self.effort.tokens, REPEATING_TOKENS)
        for times in (3, 2, 1):
            prompt = smoke_prompts.repeating(times)
            if self._room is None or self._size(prompt) + tokens + SPARE_TOKENS <= self._room:
                return [(Kind.REPEATING, prompt, tokens)]
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
            reply = self._look("/tokenize", {"content": prompt, **self._named()})
        except OSError:
            reply = None
        tokens = mapping(reply).get("tokens")
        return max(1, len(tokens)) if isinstance(tokens, list) else len(prompt) // 6

    def _first_look(self) -> None:
        import httpx

        try:
            reply = self._client.get("/health", timeout=_LOOK_S)
        except httpx.HTTPError as error:
            words = one_line(str(error)) or type(error).__name__
            raise UnreachableError(f"{self.url} does not answer ({words}); start it, or name another --url") from None
        if reply.status_code == 503:
            raise UnreachableError(f"{self.url} is not ready: {error_message(reply.content) or 'HTTP 503'}")
        if mapping(self._props()).get("role") == "router":
            self._choose()
        self.looks.append(Look(self._instance()))
        self.told = self._speculation(self._slots())

    def _choose(self) -> None:
        """The model behind a router, and how it is started. Raises `InputError` when none such is there."""
        import httpx

        try:
            known = parse_models(self._client.get("/models", timeout=_LOOK_S).content).models
        except (httpx.HTTPError, ParseError) as error:
            raise InputError(f"{self.url}/models: {one_line(str(error)) or type(error).__name__}") from None
        found = next((one for one in known if self.model in (one.id, *one.aliases)), None)
        if self.model == ANY:
            found = most_recent_resident(known)
        if found is None:
            names = ", ".join(one.id for one in known) or "none"
            problem = "no model is resident" if self.model == ANY else f"it has no model {self.model!r}"
            problem = "it is a router" if self.model is None else problem
            raise InputError(f"{self.url}: {problem}; name one with --model: {names}")
        self.model = found.id
        if self.expected is None and found.spec_types is not None:
            self.expected = bool(found.spec_types)
            self.because = f"the router starts it with spec-type {','.join(found.spec_types) or 'none'}"

    def _props(self) -> Any:
        import httpx

        try:
            reply = self._client.get("/props", timeout=_LOOK_S)
        except httpx.HTTPError:
            return None
        if reply.status_code in (401, 403):
            raise InputError(f"{self.url}/props wants another API key; name one with --api-key-env or --api-key-file")
        try:
            return reply.json()
        except ValueError:
            return None

    def _named(self) -> dict[str, str]:
        return {"model": self.model} if self.model is not None else {}

    def _look(self, path: str, body: Any = None) -> Any:
        """The JSON of an endpoint; None when there is none. Raises `OSError` when nobody answers."""
        reply = self._get(path, body)
        try:
            return reply.json() if reply.status_code == 200 else None
        except ValueError:
            return None

    def _get(self, path: str, body: Any = None) -> Any:
        import httpx

        query = {"model": self.model, "autoload": "false"} if self.model is not None else None
        try:
            if body is None:
                return self._client.get(path, params=query, timeout=_LOOK_S)
            return self._client.post(path, json=body, timeout=_LOOK_S)
        except httpx.HTTPError as error:
            raise OSError(type(error).__name__) from None

    def _slots(self) -> Slots | None:
        try:
            reply = self._get("/slots")
            return parse_slots(reply.content) if reply.status_code == 200 else None
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
            props = mapping(self._look("/props"))
            build, model = (
                text(props.get("build_info")),
                text(props.get("model_path")) or text(props.get("model_alias")),
            )
            reply = self._get("/metrics")
            if reply.status_code == 200:
                started = reply.headers.get("Process-Start-Time-Unix")
                predicted = parse_metrics(reply.content).predicted_tokens
        except (OSError, ParseError):
            pass
        slots = self._slots()
        tasks = [slot.task for slot in slots.slots if slot.task is not None] if slots is not None else []
        return Instance(build, model, started, self.process(), predicted, max(tasks, default=None))

    def _ask(self, kind: Kind, prompt: str, tokens: int, *, streamed: bool) -> None:
        began = time.monotonic()
        one = self._completion(kind, prompt, tokens, streamed=streamed)
        self.completions.append(replace(one, seconds=time.monotonic() - began))
        # Counters are of one server; what a request left of itself there is not ours to expect when it failed.
        now = self._instance()
        if one.error is None or now != Instance():
            self.looks.append(Look(now, one.tokens if one.error is None else 0))
        if not self.told.types:
            # Types are told once a slot has served, and a router's model may be loaded only now.
            self.told = self._speculation(self._slots()) if self.told.drafting is None else self._typed()

    def _typed(self) -> Speculation:
        return replace(self.told, types=self._speculation(self._slots()).types)

    def _completion(self, kind: Kind, prompt: str, tokens: int, *, streamed: bool) -> Completion:
        import httpx

        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "seed": 1,
            "stream": streamed, **self._named(),
        }  # fmt: skip
        if streamed:
            body["stream_options"] = {"include_usage": True}
        blank = Completion(kind, streamed)
        try:
            if streamed:
                return self._streamed(body, blank)
            reply = self._client.post(CHAT, json=body)
            if reply.status_code != 200:
                return replace(blank, error=complaint(reply.status_code, reply.content))
            return with_answer(blank, mapping(reply.json()))
        except httpx.TimeoutException:
            return replace(blank, error=f"no answer within {self.effort.limit_s:.0f} s")
        except httpx.HTTPError as error:
            return replace(blank, error=f"the server broke off ({type(error).__name__})")
        except ValueError:
            return replace(blank, error="the answer is no JSON")

    def _streamed(self, body: Any, blank: Completion) -> Completion:
        deadline = time.monotonic() + self.effort.limit_s
        gathered = Gathered(blank)
        with self._client.stream("POST", CHAT, json=body) as reply:
            if reply.status_code != 200:
                reply.read()
                return replace(blank, error=complaint(reply.status_code, reply.content))
            for line in reply.iter_lines():
                if time.monotonic() > deadline:
                    return replace(blank, error=f"no whole answer within {self.effort.limit_s:.0f} s")
                gathered.feed(line)
        return gathered.completion()
