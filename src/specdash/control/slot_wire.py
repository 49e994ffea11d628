"""The HTTP of the slots: what to ask, and what llama-server's refusals mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from specdash.core.errors import InputError, RefusedError, UnreachableError
from specdash.llama.bodies import ParseError, error_message, load_object, natural
from specdash.llama.health import is_loading
from specdash.llama.props import parse_props
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    import httpx

    from specdash.core.observations import Props, Slots
    from specdash.core.target import Target

ANSWER_S = 5.0
_NO_SUCH_ACTION = "none"
"""An action that no build has: refused as such where actions are switched on, with 501 where they are not."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What the server says that it did: tokens, and the bytes of the file where there is one."""

    tokens: int
    bytes: int | None = None


class SlotServer:
    """Asks one server about its slots. Use as a context manager."""

    def __init__(self, target: Target, *, timeout_s: float = ANSWER_S) -> None:
        """`timeout_s` is for changes; looking has a deadline of its own."""
        import httpx

        self._target = target
        self._timeout_s = timeout_s
        self._query = {"model": target.model, "autoload": "false"} if target.model else {}
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self._client: httpx.Client = httpx.Client(headers=headers, trust_env=False, timeout=ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def props(self) -> Props:
        """GET /props. Raises `RefusedError` for a router of which no model is named."""
        try:
            props = parse_props(self._answer("/props").content)
        except ParseError as error:
            raise UnreachableError(f"{self._target.url}/props: {error}; is this llama-server?") from None
        if props.role == "router":
            raise RefusedError(f"{self._target.url} is a router, which has no slots; name one of its models by --model")
        return props

    def slots(self) -> Slots:
        """GET /slots, which wakes a server that sleeps: look at /props first."""
        try:
            return parse_slots(self._answer("/slots").content)
        except ParseError as error:
            raise UnreachableError(f"{self._target.url}/slots: {error}; is this llama-server?") from None

    def model(self, props: Props) -> str | None:
        """What tells its model from others: the path of its file, else its name."""
        return props.model_path or props.model_alias or self._target.model

    def check_actions(self) -> None:
        """Raise `RefusedError` when the server was started without a place for saved slots."""
        answer = self._post(0, _NO_SUCH_ACTION, {}, ANSWER_S)
        if answer.status_code == 501:
            raise RefusedError(_without_flag(self._target.url))

    def change(self, slot: int, action: str, filename: str | None) -> Changed:
        """Do it. Raises `RefusedError` with what the server says, `UnreachableError` when it breaks off."""
        answer = self._post(slot, action, {"filename": filename} if filename is not None else {}, self._timeout_s)
        if answer.status_code != 200:
            self._refuse(answer, f"/slots/{slot}?action={action}")
        try:
            told = load_object(answer.content)
        except ParseError as error:
            raise RefusedError(f"{self._target.url}: {error} after {action} of slot {slot}") from None
        number = {"save": "n_saved", "restore": "n_restored", "erase": "n_erased"}[action]
        size = {"save": "n_written", "restore": "n_read"}.get(action, "")
        return Changed(natural(told.get(number)) or 0, natural(told.get(size)))

    def _post(self, slot: int, action: str, body: dict[str, Any], timeout_s: float) -> httpx.Response:
        # A router reads the model of a POST in its body, that of a GET in its query.
        named = {"model": self._target.model} if self._target.model else {}
        return self._send("POST", f"/slots/{slot}", {"action": action, **self._query}, {**body, **named}, timeout_s)

    def _answer(self, path: str) -> httpx.Response:
        answer = self._send("GET", path, self._query, None, ANSWER_S)
        if answer.status_code != 200:
            self._refuse(answer, path)
        return answer

    def _send(
        self, method: str, path: str, query: dict[str, str], body: dict[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        import httpx

        url = f"{self._target.url}{path}{'?' + urlencode(query) if query else ''}"
        timeout = httpx.Timeout(ANSWER_S, read=timeout_s)
        try:
            return self._client.request(method, url, json=body, timeout=timeout)
        except httpx.ConnectError:
            raise UnreachableError(f"{self._target.url}: nothing listens there; name a server with --url") from None
        except httpx.TimeoutException:
            raise UnreachableError(f"{self._target.url}{path}: no answer within {timeout_s:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            broke = "it broke the connection off without an answer" if method == "POST" else type(error).__name__
            crash = "; it may have crashed: see its log" if method == "POST" else ""
            raise UnreachableError(f"{self._target.url}{path}: {broke}{crash}") from None

    def _refuse(self, answer: httpx.Response, path: str) -> None:
        url, status, said = self._target.url, answer.status_code, error_message(answer.content)
        if self._target.api_key:
            said = said.replace(self._target.api_key, "***")
        if is_loading(status, answer.content):
            raise RefusedError(f"{url} loads its model; try again when it is done")
        if status in (401, 403):
            raise InputError(f"{url} wants another API key; name one with --api-key-env or --api-key-file")
        if status == 501:
            raise RefusedError(
                _without_flag(url) if "action" in path else f"{url}: start the server without --no-slots"
            )
        if "action=restore" in path:
            said = f"{said}; the slot is empty now"
        raise RefusedError(f"{url}{path}: HTTP {status}{': ' if said else ''}{said}")


def _without_flag(url: str) -> str:
    return (
        f"{url} answers HTTP 501: it was started without --slot-save-path DIRECTORY; set LLAMA_SLOT_SAVE_PATH in its "
        "env file (`specdash apply LLAMA_SLOT_SAVE_PATH=DIRECTORY`), or give it that flag"
    )
