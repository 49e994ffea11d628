"""Questions to one llama-server for commands that wait for the answer; pollers have `llama.client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from msgspec import Struct

from specdash.core.errors import InputError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.structs import Masked
from specdash.llama.server_answers import ParseError, error_message, mapping, parse_props, parse_slots, text
from specdash.system import http

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.readings import Props, Slots
    from specdash.system.http import Cancel, HttpReply

ANSWER_S = 10.0
T = TypeVar("T")


def bearer(key: str | None) -> dict[str, str]:
    """The header that a key goes in. Raises `UsageError` for one that cannot be sent."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise UsageError("the API key holds characters that cannot be part of one")
    return {"Authorization": f"Bearer {key.strip()}"}


class BlockingClient(Masked, Struct, frozen=True):
    """Asks the server at `url`; `key` is its API key, `model` the one that is meant behind a router.

    Used by several threads at once. `timeout` is in seconds and bounds an answer.
    """

    hidden = ("key", "cancel")

    url: str
    key: str | None = None
    model: str | None = None
    timeout: float = ANSWER_S
    cancel: Cancel | None = None
    verified: bool = True
    """False for a server of this machine: its certificate may name another host."""

    def get(self, path: str, timeout: float | None = None) -> HttpReply:
        """The answer with any status. A router loads no model because of it. Raises OSError."""
        query = "?" + urlencode({"model": self.model, "autoload": "false"}) if self.model else ""
        return self._ask(path + query, None, timeout)

    def post(self, path: str, body: Mapping[str, Any], timeout: float | None = None, **more: Any) -> HttpReply:
        """The answer with any status. Raises OSError."""
        named = {"model": self.model} if self.model else {}
        return self._ask(path, {**body, **named}, timeout, **more)

    def look(self, path: str, body: Mapping[str, Any] | None = None) -> HttpReply:
        """The answer that is a success. Raises `UnreachableError` when no server answers or it loads its model,
        `InputError` for a refused key, `RefusedError` where /slots is switched off, and `SpecdashError`."""
        try:
            reply = self.get(path) if body is None else self.post(path, body)
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
        return UnreachableError(f"{self.url} does not answer ({http.words(error)}); start it, or name another --url")

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

    def complete(self, body: Mapping[str, Any], timeout: float, name: str) -> dict[str, Any]:
        """What POST /completion answers. Raises `SpecdashError` in which the server is called `name`."""
        try:
            reply = self.post("/completion", body, timeout)
        except TimeoutError:
            raise SpecdashError(f"{name} did not answer within {timeout:.0f} s") from None
        except OSError as error:
            raise SpecdashError(f"{name} broke off: {http.words(error)}") from None
        if reply.status != 200:
            raise SpecdashError(f"{name} answered HTTP {reply.status}: {error_message(reply.body)}")
        return mapping(reply.json)

    def tokens(self, words: str, *, special: bool = True, timeout: float | None = None) -> list[int] | None:
        """The text's tokens, by default with those that stand at the beginning of any text; None where the server does
        not tell. Raises OSError."""
        found = self._object("/tokenize", {"content": words, "add_special": special, "parse_special": True}, timeout)
        tokens = found.get("tokens")
        return tokens if isinstance(tokens, list) and all(isinstance(entry, int) for entry in tokens) else None

    def tokenised(self, words: str, *, special: bool = True) -> list[int]:
        """The same. Raises `UnreachableError` when no server answers, `SpecdashError` where there are no tokens."""
        try:
            found = self.tokens(words, special=special)
        except OSError as error:
            raise self.unreachable(error) from None
        if not found:
            raise SpecdashError(f"{self.url}/tokenize gave no tokens; is this llama-server?")
        return found

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        timeout: float | None = None,
    ) -> str | None:
        """The prompt that the model's chat template makes; None where the server does not tell. Raises OSError."""
        body = {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
        return text(self._object("/apply-template", body, timeout).get("prompt"))

    def _object(self, path: str, body: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        reply = self.post(path, body, timeout, most_bytes=1 << 30)
        return mapping(reply.json) if reply.status == 200 else {}

    def _ask(self, path: str, body: Any, timeout: float | None, **more: Any) -> HttpReply:
        wait = timeout if timeout is not None else self.timeout
        how = {"timeout": wait, "cancel": self.cancel, "verified": self.verified, **more}
        return http.ask(self.url, path, body=body, headers=bearer(self.key), **how)
