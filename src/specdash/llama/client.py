"""HTTP to one llama-server: a poller's question ends in time in a value or a `Failure`, never in an exception; that of
a command in an answer or an error that says what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.errors import InputError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.readings import Failure, FailureKind
from specdash.core.structs import Masked
from specdash.core.target import normalise_url
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    is_loading,
    mapping,
    one_line,
    parse_health,
    parse_metrics,
    parse_models,
    parse_props,
    parse_slots,
    text,
)
from specdash.system import http
from specdash.system.http import Http, HttpError, HttpReply

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from threading import Event

    from specdash.core.readings import Counters, Health, Props, RouterModels, Slots
    from specdash.core.target import Target

T = TypeVar("T")

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger answer is not llama-server's."""

CONNECT_DEADLINE_S = 1.0
DEFAULT_DEADLINE_S = 3.0
ANSWER_S = 10.0
"""Of a command's question."""

METRICS_TYPES = ("text/plain", "application/openmetrics-text")
"""What metrics are written in; a server that does not say is believed."""

KIND_OF_STATUS: dict[int, FailureKind] = {
    HTTPStatus.UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: FailureKind.UNAUTHORIZED,
    HTTPStatus.NOT_FOUND: FailureKind.NOT_FOUND,
    HTTPStatus.NOT_IMPLEMENTED: FailureKind.DISABLED,
}

NO_MODEL_MESSAGES = ("model name is missing", "model is not loaded")
"""How a router's answer begins to a question that only a model's own server can answer: where no model is named, and
where the named one is not in memory."""


def bearer(key: str | None) -> dict[str, str]:
    """The header that a key goes in. Raises `UsageError` for one that cannot be sent."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise UsageError("the API key holds characters that cannot be part of one")
    return {"Authorization": f"Bearer {key.strip()}"}


def _query(model: str | None) -> str:
    # Without autoload=false a router loads the model because someone looked.
    return "?" + urlencode({"model": model, "autoload": "false"}) if model else ""


async def question(http: Http, path: str, deadline_s: float, **more: Any) -> HttpReply | Failure:
    """The answer of any status, or why there is none; see `Http.ask`."""
    try:
        return await http.ask(path, deadline_s, most_bytes=MAX_BODY_BYTES, **more)
    except HttpError as error:
        return Failure(FailureKind(error.kind), one_line(str(error)))


class LlamaClient:
    """Asks one llama-server. Not shared between event loops; close it with `aclose`."""

    def __init__(
        self, target: Target, what: str = "llama-server", *, connect_deadline_s: float = CONNECT_DEADLINE_S
    ) -> None:
        """Raises UsageError when the target's url cannot be meant or its key cannot be sent. `what` is the kind of
        server that is asked."""
        self._what = what
        self._key = target.api_key
        self._http = Http(
            normalise_url(target.url),
            bearer(self._key),
            connect_s=connect_deadline_s,
            to_own_user_only=target.key_is_recorded and bool(self._key),
        )
        # An idle server answers the same again and again; a body equal to the last one is not parsed twice.
        self._last: dict[str, tuple[bytes, object]] = {}
        self._query = _query(target.model)

    def look_at(self, model: str | None) -> None:
        """Ask about this model of a router from now on; None: about the server itself."""
        self._query = _query(model)

    async def health(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Health | Failure:
        """GET /health. A loading server is a value here."""
        answer = await self.get("/health", deadline_s)
        if isinstance(answer, Failure):
            return answer
        failure = self._refusal(answer)
        if failure is not None and failure.kind not in (FailureKind.LOADING, FailureKind.ERROR):
            return failure
        health = self._parsed(lambda body: parse_health(answer.status, body, answer.latency_s), answer)
        return replace(health, detail=self._scrubbed(health.detail)) if health.detail else health

    async def props(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Props | Failure:
        """GET /props."""
        return await self.ask("/props" + self._query, parse_props, deadline_s)

    async def metrics(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Counters | Failure:
        """GET /metrics. It resets the server's throughput gauges, the only thing that looking changes."""
        return await self.ask("/metrics" + self._query, parse_metrics, deadline_s, METRICS_TYPES)

    async def slots(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Slots | Failure:
        """GET /slots. It wakes a sleeping server and keeps it awake: see that it is not asleep first."""
        return await self.ask("/slots" + self._query, parse_slots, deadline_s)

    async def models(self, deadline_s: float = DEFAULT_DEADLINE_S) -> RouterModels | Failure:
        """GET /models: those of a router, with their states. It loads and wakes none."""
        return await self.ask("/models", parse_models, deadline_s)

    async def get(self, path: str, deadline_s: float = DEFAULT_DEADLINE_S) -> HttpReply | Failure:
        """GET any path: the answer of any status, or why there is none."""
        return await question(self._http, path, deadline_s)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
        self, path: str, parse: Callable[[bytes], T], deadline_s: float, types: Collection[str] = ()
    ) -> T | Failure:
        """GET any path; its answer as `parse` reads it, once for answers that are the same."""
        answer = await self.get(path, deadline_s)
        if isinstance(answer, Failure):
            return answer
        if (refusal := self._refusal(answer)) is not None:
            return refusal
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if types and kind and kind not in types:
            return Failure(FailureKind.GARBAGE, f"it is {kind}, not {' or '.join(types)}")
        last = self._last.get(path)
        if last is None or last[0] != answer.body:
            last = self._last[path] = (answer.body, self._parsed(parse, answer))
        return cast("T | Failure", last[1])

    def _parsed(self, parse: Callable[[bytes], T], answer: HttpReply) -> T | Failure:
        try:
            return parse(answer.body)
        except ParseError as error:
            return Failure(FailureKind.GARBAGE, f"{error}; is this {self._what}?")

    def _refusal(self, answer: HttpReply) -> Failure | None:
        """Why an answer holds no value, None when it is a success."""
        status = answer.status
        if status == HTTPStatus.OK:
            return None
        message = self._scrubbed(error_message(answer.body))
        if is_loading(status, answer.body):
            return Failure(FailureKind.LOADING, message)
        if status == HTTPStatus.BAD_REQUEST and message.lower().startswith(NO_MODEL_MESSAGES):
            return Failure(FailureKind.NO_MODEL, message)
        if (kind := KIND_OF_STATUS.get(status)) is not None:
            return Failure(kind, message or f"HTTP {status}")
        return Failure(FailureKind.ERROR, f"HTTP {status}{': ' if message else ''}{message}")

    def _scrubbed(self, words: str) -> str:
        return one_line(words.replace(self._key, "***") if self._key else words)


class BlockingClient(Masked, Struct, frozen=True):
    """Asks the server at `url`, waiting for the answer; `model` is the one that is meant behind a router.

    Used by several threads at once. `timeout` is in seconds and bounds an answer.
    """

    hidden = ("key", "cancel")

    url: str
    key: str | None = None
    model: str | None = None
    timeout: float = ANSWER_S
    cancel: Event | None = None
    verified: bool = True
    """False for a server of this machine: its certificate may name another host."""

    def get(self, path: str, timeout: float | None = None, **more: Any) -> HttpReply:
        """The answer with any status. A router loads no model because of it. Raises `HttpError`."""
        path += "" if "body" in more else _query(self.model)
        how: dict[str, Any] = {"timeout": timeout or self.timeout, "cancel": self.cancel, "verified": self.verified}
        return http.ask(self.url, path, headers=bearer(self.key), **how, **more)

    def post(self, path: str, body: Mapping[str, Any], timeout: float | None = None, **more: Any) -> HttpReply:
        """The answer with any status. Raises `HttpError`."""
        return self.get(path, timeout, body={**body, **({"model": self.model} if self.model else {})}, **more)

    def look(self, path: str, body: Mapping[str, Any] | None = None, timeout: float | None = None) -> HttpReply:
        """The answer that is a success. Raises `UnreachableError` when no server answers or it loads its model,
        `InputError` for a refused key, `RefusedError` where /slots is switched off, and `SpecdashError`."""
        try:
            reply = self.get(path) if body is None else self.post(path, body, timeout, most_bytes=1 << 30)
        except OSError as error:
            raise self.unreachable(error) from None
        if reply.status == 200:
            return reply
        self.check_key(reply, path)
        if reply.status == 503:
            raise UnreachableError(f"{self.url} is not ready: {error_message(reply.body) or 'HTTP 503'}")
        if path == "/slots" and reply.status in (404, 501):
            raise RefusedError(
                f"{self.url}{path} answers HTTP {reply.status}, so it does not tell whether it speculates; start it "
                "without --no-slots"
            )
        raise SpecdashError(f"{self.url}{path} answers HTTP {reply.status}: {error_message(reply.body)}")

    def unreachable(self, error: OSError) -> UnreachableError:
        """The error for a server that does not answer, with the reason."""
        return UnreachableError(f"{self.url} does not answer ({error}); start it, or name another --url")

    def check_key(self, reply: HttpReply, path: str = "") -> None:
        """Raise `InputError` for the answer to a key that is not the server's."""
        if reply.status in (401, 403):
            raise InputError(
                f"{self.url}{path} refuses this API key; name another with --api-key-env or --api-key-file"
            )

    def props(self) -> Props:
        """GET /props. Raises as `look` does."""
        return self._parsed("/props", parse_props)

    def slots(self) -> Slots:
        """GET /slots, which wakes a server that sleeps. Raises as `look` does."""
        return self._parsed("/slots", parse_slots)

    def _parsed(self, path: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(self.look(path).body)
        except ParseError as error:
            raise SpecdashError(f"{self.url}{path}: {error}; is this llama-server?") from None

    def tokens(self, words: str, *, special: bool = True) -> list[int]:
        """The text's tokens, by default with those that stand at the beginning of any text. Raises as `look` does."""
        body = {"content": words, "add_special": special, "parse_special": True}
        tokens = mapping(self.look("/tokenize", body).json).get("tokens")
        if not (isinstance(tokens, list) and tokens and all(isinstance(entry, int) for entry in tokens)):
            raise SpecdashError(f"{self.url}/tokenize gave no tokens; is this llama-server?")
        return tokens

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt that the model's chat template makes. Raises as `look` does."""
        body = {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
        prompt = text(mapping(self.look("/apply-template", body).json).get("prompt"))
        if prompt is None:
            raise SpecdashError(f"{self.url}/apply-template gave no prompt")
        return prompt
