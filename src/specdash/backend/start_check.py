"""Did it really speculate? Looked at by the runner after every start and every swap, in a thread of its own.

The first verdict comes as soon as the server is ready, from its slots and from what it printed; the second after a
short completion. A server that sleeps is not woken, a router is asked nothing, and no user waits long for a probe.
"""

from __future__ import annotations

import contextlib
import threading
import time
from threading import Event
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.collect.api_key import first_key, first_key_of
from specdash.core.errors import SpecdashError
from specdash.core.readings import Health, HealthStatus
from specdash.core.records import SEE_LOG, Drafting, StartCheck, unexplained
from specdash.llama.client import BlockingClient
from specdash.llama.server_answers import ParseError, error_message, mapping, natural, parse_health, parse_metrics
from specdash.system.http import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.backend.settings import BackendSettings
    from specdash.core.readings import Counters, Slots
    from specdash.llama.start_failures import StartFailure


ANSWER_S = 5.0


def client_of(settings: BackendSettings, cancel: Event | None = None) -> BlockingClient:
    """What asks the server of these settings, with its key."""
    return BlockingClient(settings.url, server_key(settings), timeout=ANSWER_S, cancel=cancel, verified=False)


def server_key(settings: BackendSettings) -> str | None:
    """A key that the server takes, None where it asks for none or its file cannot be read."""
    secret = settings.secrets.get("api-key")
    if secret is not None:
        return first_key(secret)
    return first_key_of(settings.api_key_file) if settings.api_key_file is not None else None


_HEALTH_S = 1.0
_NOT_ALLOWED = (401, 403, 429, 503)
SHORT_PROMPT = "the speculative decoder drafts several tokens, the speculative decoder drafts several"
LONG_PROMPT = (
    "Count the lanterns along the harbour wall: one, two, three, four, five, six, seven, eight, nine, ten, eleven, "
    "twelve, and then begin again at the first of them without a pause.\n"
)
"""Long enough that n-grams of 24 tokens are in it."""
PROBE_TOKENS = 16
_HARD = {"n_predict": 32, "temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
"""What no draft can guess: some settings abort the server only at a rejected token."""


def health(url: str, cancel: Event | None = None) -> Health | None:
    """GET /health; None when nothing answers, or something that is no llama-server."""
    try:
        reply = ask(url, "/health", timeout=_HEALTH_S, cancel=cancel, verified=False)
        return parse_health(reply.status, reply.body)
    except (OSError, ParseError):
        return None


def healthy(url: str, cancel: Event | None = None) -> bool:
    """Whether /health says so."""
    found = health(url, cancel)
    return found is not None and found.status is HealthStatus.OK


def _slots(client: BlockingClient) -> Slots | str:
    """The slots, or in words why there are none to be seen. A server that sleeps is not woken."""
    with contextlib.suppress(SpecdashError):
        if client.props().is_sleeping:
            return ASLEEP
    try:
        return client.slots()
    except SpecdashError as error:
        return str(error)


def _counters(client: BlockingClient) -> Counters | None:
    with contextlib.suppress(SpecdashError, ParseError):
        return parse_metrics(client.look("/metrics").body)
    return None


def busy(settings: BackendSettings) -> int | None:
    """Requests that the backend works on or has queued; None where it does not tell."""
    client = client_of(settings)
    counters = _counters(client)
    if counters is not None and counters.requests_processing is not None:
        return int(counters.requests_processing + (counters.requests_deferred or 0))
    found = "" if settings.is_router else _slots(client)
    return None if isinstance(found, str) else sum(slot.is_processing for slot in found.slots)


def first_completion(settings: BackendSettings, timeout: float, cancel: Event | None = None) -> StartCheck:
    """Generate a few tokens, and a few more where that has not shown everything yet; `timeout` bounds all of it. What
    it gave is in the fields of the probe; the cause is set where the server fails any client's, too.

    Where n-gram types draft and nothing was drafted, the answer is put into the prompt, so that there is something to
    repeat. Where a draft model drafts and no token of it was rejected, something is generated that no draft can guess.
    """
    client, kinds = client_of(settings, cancel), settings.kinds
    repeats = any(not kind.reads_draft_model for kind in kinds)
    modelled = bool(settings.spec_types) and (not kinds or any(kind.reads_draft_model for kind in kinds))
    deadline = time.monotonic() + timeout
    found = StartCheck(Drafting.UNKNOWN, time.time(), probe_tokens=0, probe_drafted=0, probe_accepted=0)
    prompt = LONG_PROMPT if repeats else SHORT_PROMPT
    bodies: list[dict[str, Any]] = [{"prompt": prompt, "n_predict": PROBE_TOKENS, "temperature": 0}]
    while bodies:
        body = {"cache_prompt": False, "ignore_eos": True, "stream": False, "return_tokens": repeats, **bodies.pop()}
        began = time.monotonic()
        try:
            reply = client.post("/completion", body, max(1.0, deadline - began))
        except TimeoutError:
            # Of a server that answered once, a second answer that is late says nothing.
            late = "a first completion did not answer in time"
            return found if found.probe_tokens else replace(found, probe_problem=late)
        except OSError as error:
            return replace(found, probe_problem=f"a first completion broke off ({error})")
        answer = mapping(reply.json)
        tokens = natural(answer.get("tokens_predicted"))
        tokens = (1 if answer.get("content") else 0) if tokens is None else tokens
        if reply.status != 200 or not tokens:
            text = error_message(reply.body)
            why = f"failed: HTTP {reply.status}{': ' if text else ''}{text}"
            why = "gave no tokens" if reply.status == 200 and answer else why
            cause = "" if reply.status in _NOT_ALLOWED else FAILED_COMPLETION
            return replace(found, probe_problem=f"a first completion {why}", cause=cause)
        timings = mapping(answer.get("timings"))
        drafted, accepted = (natural(timings.get(name)) or 0 for name in ("draft_n", "draft_n_accepted"))
        seconds, tasks = (found.probe_s or 0.0) + time.monotonic() - began, found.probe_tasks
        if not isinstance(slots := _slots(client), str):
            tasks += tuple(row.task for row in slots.slots if row.id == answer.get("id_slot") and row.task is not None)
        found = replace(
            found, probe_tokens=(found.probe_tokens or 0) + tokens, probe_drafted=(found.probe_drafted or 0) + drafted,
            probe_accepted=(found.probe_accepted or 0) + accepted, probe_s=round(seconds, 4), probe_tasks=tasks,
        )  # fmt: skip
        written = answer.get("tokens")
        if repeats and not found.probe_drafted and written and found.probe_tokens == tokens:
            bodies = [{"prompt": [prompt, *written, prompt], "n_predict": PROBE_TOKENS, "temperature": 0}]
        elif modelled and found.probe_drafted == found.probe_accepted and "seed" not in body:
            bodies = [{"prompt": SHORT_PROMPT, **_HARD}]
    return found


PROBE_S = 8.0
"""A probe takes no longer: a user may wait behind it for the only slot."""
ASLEEP = "it sleeps, and looking at its slots would wake it"
_COUNT_LOOKS, _COUNT_S = 10, 0.1
_TOTALS = (
    "prompt_tokens", "prompt_tokens_cached", "prompt_seconds", "predicted_tokens", "predicted_seconds", "decode_calls",
    "draft_tokens", "accepted_tokens", "verification_steps",
)  # fmt: skip
_POLL_S = 0.05
_PIPE_S = 0.1
FAILED_COMPLETION = "completion_failed"
"""The cause of a server that fails every request for no reason that the log names."""
_REPEATS = " (n-gram types draft only where text repeats)"


def judge(
    settings: BackendSettings, slots: tuple[int | None, int | None], unseen: str, failure: StartFailure | None,
    probed: StartCheck | None = None,
) -> StartCheck:  # fmt: skip
    """The verdict on a start. `slots` are how many there are and how many of them draft, `unseen` says why that is not
    known; `failure` is what the log says against it."""
    (count, can), drafted = slots, (probed.probe_drafted or 0) if probed is not None else 0
    seen = replace(probed or StartCheck(Drafting.UNKNOWN, time.time()), slots=count, slots_drafting=can)

    def verdict(drafting: Drafting, because: str, fix: str = "", cause: str = "") -> StartCheck:
        return replace(seen, drafting=drafting, because=because, fix=fix, cause=cause)

    # Slots that can draft are worth nothing on a server that fails what it is asked.
    fails = seen.cause == FAILED_COMPLETION
    partly = can is not None and can < (count or 0)
    chain = ",".join(settings.spec_types)
    if settings.is_router:
        return verdict(Drafting.UNKNOWN, "a router: each of its models has settings of its own")
    if not settings.spec_types and (can or drafted):
        return verdict(Drafting.YES if drafted else Drafting.READY, "it drafts although the settings ask for none")
    if not settings.spec_types:
        return verdict(Drafting.OFF, f"no speculation type is set{f' ({unseen})' if unseen else ''}")
    if drafted:
        return verdict(Drafting.YES, f"{chain}, {seen.probe_accepted} of {drafted} drafted tokens accepted")
    if failure is not None and (fails or partly or can is None):
        return verdict(Drafting.FAILED, failure.because, failure.fix, failure.id)
    if fails:
        return verdict(Drafting.FAILED, seen.probe_problem, SEE_LOG, FAILED_COMPLETION)
    if partly:
        return verdict(Drafting.FAILED, unexplained(can or 0, count or 0), SEE_LOG)
    if can is None:
        return verdict(Drafting.UNKNOWN, f"whether it speculates cannot be seen: {unseen}")
    ngrams = all(kind.startswith("ngram") for kind in settings.spec_types)
    why = "; no draft seen yet"
    if probed is not None:
        none = f", and made no draft in {seen.probe_tokens} tokens{_REPEATS if ngrams else ''}"
        why = f", but {seen.probe_problem}" if seen.probe_problem else none
    return verdict(Drafting.READY, f"{chain}: its slots can draft{why}")


def line(check: StartCheck) -> str:
    """The verdict as the runner says it."""
    if check.cause == FAILED_COMPLETION:
        return f"it runs, and fails what it is asked: {check.because}; {check.fix}"
    begins = {
        Drafting.YES: "speculating: ",
        Drafting.READY: "ready to speculate: ",
        Drafting.FAILED: "running without speculation because ",
        Drafting.OFF: "running without speculation: ",
        Drafting.UNKNOWN: "not known whether it speculates: ",
    }
    return f"{begins[check.drafting]}{check.because}{f'; {check.fix}' if check.drafting is Drafting.FAILED else ''}"


def check_start(
    settings: BackendSettings,
    lines: Callable[[], Sequence[str]],
    *,
    probe: bool = True,
    cancel: Event | None = None,
    publish: Callable[[StartCheck], None] = lambda _: None,
) -> StartCheck:
    """Look at a server that is ready, and ask it one short completion. Never raises for what the server does.

    `lines` are what it printed since its start. `publish` gets the verdict before the probe, too. Where `cancel` was
    set, the verdict is as far as it is known.
    """
    from specdash.llama.start_failures import explain

    seen = "" if settings.is_router else _slots(client_of(settings, cancel))
    count = drafting = None
    all_busy, unseen = False, seen if isinstance(seen, str) else ""
    if not isinstance(seen, str):
        count, all_busy = len(seen.slots), bool(seen.slots) and all(slot.is_processing for slot in seen.slots)
        drafting = None if seen.drafting is None else sum(seen.drafting)
        unseen = "this build's /slots does not tell" if drafting is None else ""
    failure = explain(lines(), None)
    if failure is None and settings.spec_types and drafting == 0:
        # What it printed before it was ready may still be on its way through the pipe.
        time.sleep(_PIPE_S)
        failure = explain(lines(), None)
    first = judge(settings, (count, drafting), unseen, failure)
    reasons = (
        (not probe, "LLAMA_START_PROBE=0"),
        (settings.no_probe is not None, settings.no_probe or ""),
        (not settings.spec_types, "no speculation type is set"),
        (drafting == 0, "its slots do not draft"),
        (seen == ASLEEP, "it sleeps"),
        (all_busy, "requests run in all slots"),
        (cancel is not None and cancel.is_set(), "cancelled"),
    )
    if (skipped := next((reason for holds, reason in reasons if holds), None)) is not None:
        return replace(first, probe_problem=skipped)
    publish(replace(first, pending=True))
    probed = first_completion(settings, PROBE_S, cancel)
    if cancel is not None and cancel.is_set():
        return replace(first, probe_problem="cancelled")
    if probed.cause:
        failure = explain(lines(), None) or failure
    return judge(settings, (count, drafting), unseen, failure, probed)


class StartWatch:
    """Watches the start of a server in a thread: `publish` gets each verdict, the first as soon as the server answers
    at all. If it drafts, decode without speculation is measured after that."""

    def __init__(
        self,
        settings: BackendSettings,
        lines: Callable[[], Sequence[str]],
        publish: Callable[[StartCheck], None],
        *,
        probe: bool,
        engine: str | None = None,
    ) -> None:
        """`lines` gives what was printed so far. `engine` names it in baselines; None: none is measured."""
        self._settings, self._lines, self._publish = settings, lines, publish
        self._probe, self._engine = probe, engine
        self._cancel = Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._work, name="start-check", daemon=True).start()

    def cancel(self) -> None:
        """End it, at once and with its connection: a server that is to end waits for its clients."""
        self._stopped.set()
        self._cancel.set()

    def _work(self) -> None:
        settings, publish, cancel, answers = self._settings, self._publish, self._cancel, False
        while (seen := health(settings.url, cancel)) is None or seen.status is not HealthStatus.OK:
            if seen is not None and not answers:
                answers = True
                publish(StartCheck(Drafting.UNKNOWN, time.time(), because="it is being looked at", pending=True))
            if self._stopped.wait(_POLL_S):
                return
        found = check_start(settings, self._lines, probe=self._probe, cancel=cancel, publish=publish)
        if self._stopped.is_set():
            return
        found = self._counted(found, found.probe_tokens) if found.probe_tokens else found
        publish(found)
        if self._engine is None or not found.probe_tokens or found.drafting not in (Drafting.YES, Drafting.READY):
            return
        from specdash.backend.baseline import measure_unasked

        tasks: set[int] = set()
        generated = found.probe_tokens
        # Where nothing was measured the server serves all the same; `specdash baseline record` says why.
        with contextlib.suppress(SpecdashError, OSError):
            report = measure_unasked(settings.url, server_key(settings), self._engine, cancel=cancel, tasks=tasks)
            generated += report.generated
        # The measurement has used `cancel` up: it ends its own connections by it.
        if tasks and not self._stopped.is_set():
            found = replace(found, probe_tasks=(*found.probe_tasks, *sorted(tasks)))
            publish(self._counted(found, generated))

    def _counted(self, check: StartCheck, generated: int) -> StartCheck:
        """With what /metrics counts now, if that is just what these checks have `generated`; it counts a request a
        moment after its answer."""
        client = client_of(self._settings, self._stopped)
        for _ in range(_COUNT_LOOKS):
            counters = _counters(client)
            if counters is not None and counters.predicted_tokens == generated:
                totals = {name: getattr(counters, name) for name in _TOTALS}
                known = tuple((name, float(value)) for name, value in totals.items() if value is not None)
                return replace(check, probe_totals=known, probe_positions=counters.accepted_per_position or ())
            if self._stopped.wait(_COUNT_S):
                break
        return check
