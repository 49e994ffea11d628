"""After the clients are served again: one request through the proxy, and a time in which everything has to go on.

What goes wrong here is rolled back like a failed restart, with the clients held again meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.backend.local_http import ask
from specdash.collect.discover import place, recorded_key
from specdash.control import verify
from specdash.control.apply_engine import recorded_proxy, service_promise
from specdash.control.apply_logs import last_lines, telling
from specdash.control.apply_services import proxy_url
from specdash.control.apply_steps import StepFailedError
from specdash.control.apply_wait import because, failure
from specdash.control.env_store import read_env
from specdash.core.applies import Step
from specdash.core.changes import Role
from specdash.llama.bodies import error_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.backend.local_http import Reply
    from specdash.control.apply_wait import Passage
    from specdash.control.apply_work import Work
    from specdash.control.services import ManagedService

_REQUEST_S = 120.0
_REQUEST_TOKENS = 8
_AGAIN_S = 0.2
_NOT_YET = (429, 503, 529)
"""The upstream is on its way, or has no slot free at this moment."""
_LOOK_S = 0.25
_SPECULATION_S = 2.0
_DEAF_S = 20.0
"""How long a process that lives may leave /health unanswered: a starved machine is no dead server."""
_LOG_LINES = 30


class ProxyStanding:
    """A proxy that was changed, as it has to stay from now on."""

    def __init__(self, service: ManagedService) -> None:
        self._service = service
        self._main = service.status()

    def check(self) -> None:
        """Raise `StepFailedError` when it has ended, or was started again."""
        status = self._service.status()
        what = failure(self._main, status)
        if what is not None:
            lines = self._service.manager.log_tail(self._service.name, _LOG_LINES)
            told = telling(lines) or last_lines(list(lines))
            raise StepFailedError(f"{self._service.name} {what}{because(status, told)}", told)


def request_through_proxy(work: Work) -> None:
    """One short turn as a client would ask it. Raises `StepFailedError` when it is not answered."""
    found = _asked_proxy(work)
    if isinstance(found, str):
        work.steps.skip(Step.REQUEST, found)
        return
    url, key = found
    with work.steps.step(Step.REQUEST, url):
        work.note(step=Step.REQUEST)
        began = time.monotonic()
        limit = min(_REQUEST_S, work.journal.health_timeout_s)
        body = {
            # Of a router this means the model in memory, of any other server the one it has.
            "model": "any",
            "max_tokens": _REQUEST_TOKENS,
            "messages": [{"role": "user", "content": "Answer with one word: ready?"}],
        }
        headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
        while True:
            left = limit - (time.monotonic() - began)
            try:
                reply = ask(url, "/v1/messages", headers=headers, body=body, timeout=max(1.0, left))
            except TimeoutError:
                said = f"a request through the proxy at {url} was not answered within {limit:g} s"
                if not _others_are_served(work):
                    raise StepFailedError(said) from None
                # The clients that had waited come first: a queue says nothing about the settings.
                work.warn(f"{said}, while the backend worked for others")
                return
            except OSError as error:
                raise StepFailedError(f"a request through the proxy at {url} broke off ({error})") from None
            if reply.status not in _NOT_YET or left <= 0:
                break
            work.steps.wait(_AGAIN_S)
        if reply.status == 400 and work.deployment.backend is None:
            work.warn(f"the proxy at {url} answers, and its upstream wants a model named: {_complaint(reply)}")
            return
        if reply.status != 200 or not isinstance(reply.json, dict) or reply.json.get("type") != "message":
            raise StepFailedError(f"a request through the proxy at {url} failed: {_complaint(reply)}")
        work.steps.say(f"{url} answered in {time.monotonic() - began:.1f} s")


def settle(work: Work, passage: Passage | None, proxies: Sequence[ProxyStanding]) -> None:
    """Wait for the settle period. Raises `StepFailedError` as soon as something changed does not go on as it should."""
    if work.journal.trial:
        work.steps.skip(Step.SETTLE, "it is on trial, and measured next")
        return
    period = work.journal.settle_s
    with work.steps.step(Step.SETTLE, f"settling {period:g} s"):
        work.note(step=Step.SETTLE)
        began = well_at = time.monotonic()
        next_slots = began + min(_SPECULATION_S, period)
        while True:
            for one in proxies:
                one.check()
            now = time.monotonic()
            left = began + period - now
            well = True
            if passage is not None:
                well = _engine_stands(work, passage)
                well_at = now if well else well_at
                if now - well_at > _DEAF_S:
                    raise StepFailedError(f"it runs, and did not answer /health for {_DEAF_S:g} s", passage.explained())
                if well and (now >= next_slots or left <= 0):
                    _still_speculates(passage)
                    next_slots = now + _SPECULATION_S
            if left <= 0 and well:
                break
            work.steps.say(f"settling {max(0.0, left):.0f} s", min(1.0, (now - began) / period) if period else None)
            work.steps.wait(min(_LOOK_S, max(0.01, left)))
        work.steps.say(f"stood for {period:g} s")


def _engine_stands(work: Work, passage: Passage) -> bool:
    """Whether it answers; raises `StepFailedError` when it is gone."""
    engine = passage.engine
    if engine is not None and not engine.alive:
        work.down(time.monotonic())
        # At once, and not after the log was read: whoever asks now finds nobody behind the proxy.
        work.close_gate()
    passage.check_service()
    if engine is not None and not engine.alive:
        words = f"its process {engine.pid} ended after everything had been verified"
        raise StepFailedError(words, passage.last_words())
    return verify.healthy(engine.url if engine is not None else passage.promise.url)


def _still_speculates(passage: Passage) -> None:
    wanted = passage.promise.speculates
    url = passage.engine.url if passage.engine is not None else passage.promise.url
    if wanted and verify.speculative(url, passage.promise) is False:
        raise StepFailedError("it does not speculate any more", passage.explained())


def _asked_proxy(work: Work) -> tuple[str, str | None] | str:
    """Address and key of the proxy to ask, or in words why none is asked."""
    if work.journal.trial:
        return "it is on trial, and measured next"
    proxy = work.deployment.proxy
    if proxy is None:
        return "there is no proxy"
    if not proxy.status().alive:
        return f"{proxy.name} does not run"
    values = read_env(proxy.env_file).values
    if proxy.reloads:
        record = recorded_proxy(proxy, work.env)
        if record is None:
            return f"{proxy.name} has left no record"
        url, upstream, key = record.url, record.upstream, recorded_key(record, work.env)
        if record.api_key_env is not None and key is None:
            work.warn(f"no request was sent through the proxy at {url}: its key is not known here")
            return "its key is not known"
    else:
        url, key = proxy_url(values), values.get("PROXY_API_KEY")
        upstream = values.get("LLAMA_CPP_BASE") or "http://127.0.0.1:8080/v1"
    return _why_not_asked(work, upstream) or (url, key)


def _why_not_asked(work: Work, upstream: str) -> str | None:
    """Why a turn says nothing about the change, None where it does."""
    backend = work.deployment.backend
    if backend is None:
        return "its upstream is no service of specdash" if not verify.healthy(_root(upstream)) else None
    promised = service_promise(backend, read_env(backend.env_file).values, work.env)
    if place(promised.url) != place(upstream):
        return f"it asks {_root(upstream)}, which is not this backend"
    if promised.no_probe is not None:
        return promised.no_probe
    if work.journal.edit(Role.BACKEND) is None and not verify.healthy(promised.url):
        return "the backend does not answer"
    return None


def _others_are_served(work: Work) -> bool:
    backend = work.deployment.backend
    if backend is None:
        return True
    promised = service_promise(backend, read_env(backend.env_file).values, work.env)
    return bool(verify.busy(promised.url, promised))


def _root(upstream: str) -> str:
    return upstream.rstrip("/").removesuffix("/v1")


def _complaint(reply: Reply) -> str:
    said = error_message(reply.body)
    return f"HTTP {reply.status}{f': {said}' if said else ''}"
