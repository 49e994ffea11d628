"""HTTP to one llama-server: every question ends in time in a value or a `Failure`, never in an exception."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

from msgspec.structs import replace

from specdash.core.readings import Failure, FailureKind
from specdash.core.target import normalise_url
from specdash.llama.blocking import bearer
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    is_loading,
    one_line,
    parse_health,
    parse_metrics,
    parse_models,
    parse_props,
    parse_slots,
)
from specdash.system.http import Http, HttpError, HttpReply

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from specdash.core.readings import Counters, Health, Props, RouterModels, Slots
    from specdash.core.target import Target

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger answer is not llama-server's."""

CONNECT_DEADLINE_S = 1.0


async def question(http: Http, path: str, deadline_s: float, **more: Any) -> HttpReply | Failure:
    """The answer of any status, or why there is none; see `Http.ask`."""
    try:
        return await http.ask(path, deadline_s, most_bytes=MAX_BODY_BYTES, **more)
    except HttpError as error:
        return Failure(FailureKind(error.kind), one_line(str(error)))


T = TypeVar("T")

DEFAULT_DEADLINE_S = 3.0

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


class LlamaClient:
    """Asks one llama-server. Not shared between event loops; close it with `aclose`."""

    def __init__(
        self, target: Target, what: str = "llama-server", *, connect_deadline_s: float = CONNECT_DEADLINE_S
    ) -> None:
        """Raises UsageError when the target's url cannot be meant or its key cannot be sent. `what` is the kind of
        server that is asked."""
        self._what = what
        self._key = target.api_key
        bearer(self._key)
        self._http = Http(
            normalise_url(target.url),
            self._key,
            connect_s=connect_deadline_s,
            to_own_user_only=target.key_is_recorded,
        )
        # An idle server answers the same again and again; a body equal to the last one is not parsed twice.
        self._last: dict[str, tuple[bytes, object]] = {}
        self._query = ""
        self.look_at(target.model)

    def look_at(self, model: str | None) -> None:
        """Ask about this model of a router from now on; None: about the server itself."""
        # Without autoload=false a router loads the model because someone looked.
        self._query = "?" + urlencode({"model": model, "autoload": "false"}) if model else ""

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
        if types and answer.media_type and answer.media_type not in types:
            return Failure(FailureKind.GARBAGE, f"it is {answer.media_type}, not {' or '.join(types)}")
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
