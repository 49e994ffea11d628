"""Did it really speculate? Looked at by the runner after every start and every swap, in a thread that nobody waits for.

The first verdict comes as soon as the server is ready, from its slots and from what it printed; the second after a
short completion. A server that sleeps is not woken, a router is asked nothing, and no user waits long for a probe.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.backend.settings import ROUTER_KEYS
from specdash.collect.api_key import first_key, first_key_of
from specdash.core.errors import SpecdashError
from specdash.core.paths import state_dir
from specdash.core.readings import Health, HealthStatus
from specdash.core.records import SEE_LOG, CompletionEnd, Drafting, StartCheck, unexplained
from specdash.core.speculation import spec_type
from specdash.core.structs import Masked
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    mapping,
    natural,
    parse_health,
    parse_metrics,
    parse_slots,
)
from specdash.system.http import Cancel, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.backend.launch import LaunchPlan
    from specdash.backend.output import Tail
    from specdash.backend.settings import BackendSettings
    from specdash.core.readings import Slots
    from specdash.llama.start_failures import StartFailure
    from specdash.system.http import HttpReply


ANSWER_S = 5.0

# What a backend env promises of the server it makes: where it answers, with which key, and whether it drafts.


class ServerPromise(Masked, Struct, frozen=True):
    """What a backend env says of the server it makes. `speculates` is None where that cannot be told."""

    hidden = ("key",)

    url: str
    key: str | None = None
    speculates: bool | None = None
    log: str | None = None
    no_probe: str | None = None
    """Why the server cannot be asked for a completion, None when it can."""
    router: bool = False
    types: tuple[str, ...] = ()
    """The chain of spec types, as the engine ranks them."""

    def ask(
        self, url: str, path: str, cancel: Cancel | None = None, timeout: float = ANSWER_S, body: Any = None
    ) -> HttpReply:
        """Ask the server with its key. Raises `OSError`."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return ask(url, path, headers=headers, body=body, timeout=timeout, cancel=cancel, verified=False)


def promise_of(settings: BackendSettings, base: Mapping[str, str] = os.environ) -> ServerPromise:
    """What settings promise."""
    router = any(key in settings.native for key in ROUTER_KEYS)
    router = router or any(argument.startswith("--models-") for argument in settings.extra_args)
    reranks = settings.native.get("LLAMA_ARG_RERANKING", "").lower() in ("1", "true", "on", "enabled")
    reranks = reranks or not {"--reranking", "--rerank"}.isdisjoint(settings.extra_args)
    reasons = (
        (router, "a router serves models by name"),
        (settings.value("embeddings"), "it serves embeddings only"),
        (reranks, "it reranks only"),
    )
    default_log = state_dir(base) / "logs" / f"backend-{settings.port}.log"
    return ServerPromise(
        url=settings.url,
        key=server_key(settings),
        speculates=bool(settings.spec_types),
        log=str(Path(settings.log_file or default_log).expanduser().absolute()),
        no_probe=next((reason for holds, reason in reasons if holds), None),
        router=router,
        types=settings.spec_types,
    )


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


class FirstCompletion(Struct, frozen=True):
    """What a first completion gave. `problem` says in words why there is no proper answer, "" when there is one."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    tasks: tuple[int, ...] = ()
    """The numbers of its tasks in the server's log, where /slots shows them."""
    problem: str = ""
    completion: CompletionEnd = CompletionEnd.ANSWERED


def health(url: str, cancel: Cancel | None = None) -> Health | None:
    """GET /health; None when nothing answers, or something that is no llama-server."""
    try:
        reply = ask(url, "/health", timeout=_HEALTH_S, cancel=cancel, verified=False)
        return parse_health(reply.status, reply.body)
    except (OSError, ParseError):
        return None


def healthy(url: str, cancel: Cancel | None = None) -> bool:
    """Whether /health says so."""
    found = health(url, cancel)
    return found is not None and found.status is HealthStatus.OK


def slots_of(url: str, promise: ServerPromise, cancel: Cancel | None = None) -> Slots | str:
    """The slots, or in words why there are none to be seen."""
    try:
        reply = promise.ask(url, "/slots", cancel)
        if reply.status == 200:
            return parse_slots(reply.body)
    except (OSError, ParseError) as error:
        return f"/slots: {error}"
    return f"/slots answers HTTP {reply.status}"


def sleeps(url: str, promise: ServerPromise, cancel: Cancel | None = None) -> bool:
    """Whether the server sleeps, so that looking at its slots would wake it."""
    try:
        props = promise.ask(url, "/props", cancel).json
    except OSError:
        return False
    return isinstance(props, dict) and props.get("is_sleeping") is True


def busy(url: str, promise: ServerPromise) -> int | None:
    """Requests that the backend works on or has queued; None where it does not tell."""
    with contextlib.suppress(OSError, ParseError):
        reply = promise.ask(url, "/metrics")
        if reply.status == 200:
            counters = parse_metrics(reply.body)
            if counters.requests_processing is not None:
                return int(counters.requests_processing + (counters.requests_deferred or 0))
    if promise.router or sleeps(url, promise):
        return None
    found = slots_of(url, promise)
    return None if isinstance(found, str) else sum(slot.is_processing for slot in found.slots)


def first_completion(url: str, promise: ServerPromise, timeout: float, cancel: Cancel | None = None) -> FirstCompletion:
    """Generate a few tokens, and a few more where that has not shown everything yet; `timeout` bounds all of it.

    Where n-gram types draft and nothing was drafted, the answer is put into the prompt, so that there is something to
    repeat. Where a draft model drafts and no token of it was rejected, something is generated that no draft can guess.
    """
    kinds = [kind for kind in map(spec_type, promise.types) if kind is not None]
    repeats = bool(promise.speculates) and any(not kind.reads_draft_model for kind in kinds)
    modelled = bool(promise.speculates) and (not kinds or any(kind.reads_draft_model for kind in kinds))
    deadline = time.monotonic() + timeout
    found, prompt = FirstCompletion(), LONG_PROMPT if repeats else SHORT_PROMPT
    bodies: list[dict[str, Any]] = [{"prompt": prompt, "n_predict": PROBE_TOKENS, "temperature": 0}]
    while bodies:
        body = {"cache_prompt": False, "ignore_eos": True, "stream": False, "return_tokens": repeats, **bodies.pop()}
        began = time.monotonic()
        try:
            reply = promise.ask(url, "/completion", cancel, max(1.0, deadline - began), body)
        except TimeoutError:
            # Of a server that answered once, a second answer that is late says nothing.
            late = replace(found, problem="a first completion did not answer in time", completion=CompletionEnd.LATE)
            return found if found.tokens else late
        except OSError as error:
            why = f"a first completion broke off ({error})"
            return replace(found, problem=why, completion=CompletionEnd.BROKEN_OFF)
        answer = mapping(reply.json)
        tokens = natural(answer.get("tokens_predicted"))
        tokens = (1 if answer.get("content") else 0) if tokens is None else tokens
        if reply.status != 200 or not tokens:
            text = error_message(reply.body)
            why = f"failed: HTTP {reply.status}{': ' if text else ''}{text}"
            why = "gave no tokens" if reply.status == 200 and answer else why
            how = CompletionEnd.NOT_ALLOWED if reply.status in _NOT_ALLOWED else CompletionEnd.FAILED
            return replace(found, problem=f"a first completion {why}", completion=how)
        seconds, timings = found.seconds + time.monotonic() - began, mapping(answer.get("timings"))
        drafted, accepted = (natural(timings.get(name)) or 0 for name in ("draft_n", "draft_n_accepted"))
        slots = slots_of(url, promise, cancel) if isinstance(answer.get("id_slot"), int) else ""
        rows = () if isinstance(slots, str) else slots.slots
        tasks = (row.task for row in rows if row.id == answer["id_slot"] and row.task is not None)
        found = FirstCompletion(
            found.tokens + tokens, found.drafted + drafted, found.accepted + accepted, seconds, (*found.tasks, *tasks)
        )
        written = answer.get("tokens")
        if repeats and not found.drafted and written and found.tokens == tokens:
            bodies = [{"prompt": [prompt, *written, prompt], "n_predict": PROBE_TOKENS, "temperature": 0}]
        elif modelled and found.drafted == found.accepted and "seed" not in body:
            bodies = [{"prompt": SHORT_PROMPT, **_HARD}]
    return found


PROBE_S = 8.0
"""A probe takes no longer: a user may wait behind it for the only slot."""
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


class SlotsLook(Struct, frozen=True):
    """What the slots showed. `problem` says in words why nothing could be seen, "" when something was."""

    slots: int | None = None
    drafting: int | None = None
    busy: int = 0
    problem: str = ""


def judge(
    promise: ServerPromise,
    look: SlotsLook,
    failure: StartFailure | None,
    probed: FirstCompletion | None,
    checked: float,
) -> StartCheck:
    """The verdict on a start. `failure` is what the log or the parameters say against it, `checked` the Unix time."""
    seen = StartCheck(Drafting.UNKNOWN, checked, slots=look.slots, slots_drafting=look.drafting)
    if probed is not None:
        seen = replace(
            seen,
            probe_tokens=probed.tokens,
            probe_drafted=probed.drafted,
            probe_accepted=probed.accepted,
            probe_s=round(probed.seconds, 4) if probed.tokens else None,
            probe_tasks=probed.tasks,
            probe_problem=probed.problem,
        )
    drafted = probed is not None and probed.drafted > 0
    # Slots that can draft are worth nothing on a server that fails what it is asked.
    fails = probed is not None and probed.completion is CompletionEnd.FAILED
    unseen, some_do_not = look.drafting is None, (look.drafting or 0) < (look.slots or 0) and look.drafting is not None
    chain = ",".join(promise.types) or "the type that it detected itself"
    ngrams = bool(promise.types) and all(kind.startswith("ngram") for kind in promise.types)
    none_seen = f", and made no draft in {probed.tokens if probed else 0} tokens{_REPEATS if ngrams else ''}"
    unlikely = f", but {probed.problem}" if probed is not None and probed.problem else none_seen
    because, fix, cause = "", "", ""
    if promise.router:
        drafting, because = Drafting.UNKNOWN, "a router: each of its models has settings of its own"
    elif promise.speculates is False and (look.drafting or drafted):
        drafting = Drafting.YES if drafted else Drafting.READY
        because = "it drafts although the settings ask for none"
    elif promise.speculates is False:
        because = f"no speculation type is set{f' ({look.problem})' if unseen and look.problem else ''}"
        drafting = Drafting.OFF
    elif probed is not None and drafted:
        drafting, because = Drafting.YES, f"{chain}, {probed.accepted} of {probed.drafted} drafted tokens accepted"
    elif failure is not None and (fails or some_do_not or unseen):
        drafting, because, fix, cause = Drafting.FAILED, failure.because, failure.fix, failure.id
    elif probed is not None and fails:
        drafting, because, fix, cause = Drafting.FAILED, probed.problem, SEE_LOG, FAILED_COMPLETION
    elif some_do_not:
        drafting, because, fix = Drafting.FAILED, unexplained(look.drafting or 0, look.slots or 0), SEE_LOG
    elif unseen:
        drafting, because = Drafting.UNKNOWN, f"whether it speculates cannot be seen: {look.problem}"
    else:
        why = "; no draft seen yet" if probed is None else unlikely
        drafting, because = Drafting.READY, f"{chain}: its slots can draft{why}"
    return replace(seen, drafting=drafting, because=because, fix=fix, cause=cause)


def pending() -> StartCheck:
    """The verdict before anything was seen."""
    return StartCheck(Drafting.UNKNOWN, time.time(), because="it is being looked at", pending=True)


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
    promise: ServerPromise,
    lines: Callable[[], Sequence[str]],
    *,
    parameters: Mapping[str, str],
    probe: bool = True,
    cancel: Cancel | None = None,
    publish: Callable[[StartCheck], None] = lambda _: None,
) -> StartCheck:
    """Look at a server that is ready, and ask it one short completion. Never raises for what the server does.

    `lines` are what it printed since its start. `publish` gets the verdict before the probe, too. Where `cancel` was
    set, the verdict is as far as it is known.
    """
    from specdash.llama.start_failures import explain, unspoken

    asleep = not promise.router and sleeps(promise.url, promise, cancel)
    slots = "" if promise.router or asleep else slots_of(promise.url, promise, cancel)
    if isinstance(slots, str):
        look = SlotsLook(problem="it sleeps, and looking at its slots would wake it" if asleep else slots)
    else:
        drafting, busy = slots.drafting, sum(slot.is_processing for slot in slots.slots)
        unseen = "this build's /slots does not tell" if drafting is None else ""
        look = SlotsLook(len(slots.slots), None if drafting is None else sum(drafting), busy, unseen)
    failure = explain(lines(), None)
    if failure is None and promise.speculates and look.drafting == 0:
        # What it printed before it was ready may still be on its way through the pipe.
        time.sleep(_PIPE_S)
        failure = explain(lines(), None)
    failure = failure or unspoken(parameters)
    first = judge(promise, look, failure, None, time.time())
    reasons = (
        (not probe, "LLAMA_START_PROBE=0"),
        (promise.no_probe is not None, promise.no_probe or ""),
        (promise.speculates is False, "no speculation type is set"),
        (look.drafting == 0, "its slots do not draft"),
        (asleep, "it sleeps"),
        (bool(look.slots) and look.busy == look.slots, "requests run in all slots"),
        (cancel is not None and cancel.cancelled, "cancelled"),
    )
    for holds, reason in reasons:
        if holds:
            return replace(first, probe_problem=reason)
    publish(replace(first, pending=True))
    probed = first_completion(promise.url, promise, PROBE_S, cancel)
    if cancel is not None and cancel.cancelled:
        return replace(first, probe_problem="cancelled")
    if probed.completion is CompletionEnd.FAILED:
        failure = explain(lines(), None) or failure
    return judge(promise, look, failure, probed, time.time())


class StartWatch:
    """Waits in a thread until a server is ready, then checks its start; `take` gives each verdict once. If it drafts,
    decode without speculation is measured after that."""

    def __init__(
        self,
        promise: ServerPromise,
        lines: Callable[[], Sequence[str]],
        parameters: Mapping[str, str],
        *,
        probe: bool,
        engine: str | None = None,
    ) -> None:
        """`lines` gives what was printed so far. `engine` names it in baselines; None: none is measured."""
        self._promise = promise
        self._lines = lines
        self._parameters = parameters
        self._probe = probe
        self._engine = engine
        self._cancel = Cancel()
        self._verdicts: deque[StartCheck] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="start-check", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether no verdict is left, and none will come."""
        return not self._verdicts and not self._thread.is_alive()

    def take(self) -> StartCheck | None:
        """The next verdict, None while there is none."""
        return self._verdicts.popleft() if self._verdicts else None

    def cancel(self) -> None:
        """End it, at once and with its connection: a server that is to end waits for its clients."""
        self._stopped.set()
        self._cancel()

    def _work(self) -> None:
        while not healthy(self._promise.url, self._cancel):
            if self._stopped.wait(_POLL_S):
                return
        found = check_start(
            self._promise,
            self._lines,
            parameters=self._parameters,
            probe=self._probe,
            cancel=self._cancel,
            publish=self._verdicts.append,
        )
        if self._stopped.is_set():
            return
        found = self._counted(found, found.probe_tokens) if found.probe_tokens else found
        self._verdicts.append(found)
        if self._engine is None or not found.probe_tokens or found.drafting not in (Drafting.YES, Drafting.READY):
            return
        from specdash.backend.baseline import measure_unasked

        known = [frozenset[int]()]
        generated = found.probe_tokens
        # Where nothing was measured the server serves all the same; `specdash baseline record` says why.
        with contextlib.suppress(SpecdashError, OSError):
            promise = self._promise
            report = measure_unasked(promise.url, promise.key, self._engine, cancel=self._cancel, on_tasks=known.append)
            generated += report.generated
        if known[-1] and not self._stopped.is_set():
            found = replace(found, probe_tasks=(*found.probe_tasks, *sorted(known[-1])))
            self._verdicts.append(self._counted(found, generated))

    def _counted(self, check: StartCheck, generated: int) -> StartCheck:
        """With what /metrics counts now, if that is just what these checks have `generated`; it counts a request a
        moment after its answer."""
        promise = self._promise
        for _ in range(_COUNT_LOOKS):
            with contextlib.suppress(OSError, ParseError):
                reply = promise.ask(promise.url, "/metrics", self._cancel)
                counters = parse_metrics(reply.body)
                if reply.status == 200 and counters.predicted_tokens == generated:
                    totals = {name: getattr(counters, name) for name in _TOTALS}
                    known = tuple((name, float(value)) for name, value in totals.items() if value is not None)
                    return replace(check, probe_totals=known, probe_positions=counters.accepted_per_position or ())
            if self._stopped.wait(_COUNT_S):
                break
        return check


def watch_start(plan: LaunchPlan, tail: Tail) -> StartWatch:
    """Begin to watch the start of the engine of `plan`, whose output `tail` keeps."""
    settings = plan.settings
    engine = plan.engine.words if settings.start_probe and settings.start_baseline else None
    parameters = dict(plan.speculation)
    return StartWatch(promise_of(settings), tail.texts, parameters, probe=settings.start_probe, engine=engine)
