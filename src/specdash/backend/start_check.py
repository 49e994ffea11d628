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
    default_log = state_dir(base) / "logs" / f"backend-{settings.port}.log"
    return ServerPromise(
        url=settings.url,
        key=server_key(settings),
        speculates=bool(settings.spec_types),
        log=str(Path(settings.log_file or default_log).expanduser().absolute()),
        no_probe=_no_probe(settings, router=router),
        router=router,
        types=settings.spec_types,
    )


def server_key(settings: BackendSettings) -> str | None:
    """A key that the server takes, None where it asks for none or its file cannot be read."""
    secret = settings.secrets.get("api-key")
    if secret is not None:
        return first_key(secret)
    return first_key_of(settings.api_key_file) if settings.api_key_file is not None else None


def _no_probe(settings: BackendSettings, *, router: bool) -> str | None:
    if router:
        return "a router serves models by name"
    if settings.value("embeddings"):
        return "it serves embeddings only"
    reranks = settings.native.get("LLAMA_ARG_RERANKING", "").lower() in ("1", "true", "on", "enabled")
    if reranks or "--reranking" in settings.extra_args or "--rerank" in settings.extra_args:
        return "it reranks only"
    return None


_HEALTH_S = 1.0
_NOT_ALLOWED = (401, 403, 429, 503)
SHORT_PROMPT = "the speculative decoder drafts several tokens, the speculative decoder drafts several"
LONG_PROMPT = (
    "Count the lanterns along the harbour wall: one, two, three, four, five, six, seven, eight, nine, ten, eleven, "
    "twelve, and then begin again at the first of them without a pause.\n"
)
"""Long enough that n-grams of 24 tokens are in it."""
PROBE_TOKENS = 16
_HARD_TOKENS = 32
_HARD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
"""What no draft can guess: some settings abort the server only at a rejected token."""


class FirstCompletion(Struct, frozen=True):
    """What a first completion gave. `problem` says in words why there is no proper answer, "" when there is one."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    tasks: tuple[int, ...] = ()
    """The numbers of its tasks in the server's log, where /slots told them."""
    problem: str = ""
    completion: CompletionEnd = CompletionEnd.ANSWERED

    @property
    def rejected(self) -> int:
        """Draft tokens that the target did not take."""
        return self.drafted - self.accepted

    def and_then(self, more: FirstCompletion) -> FirstCompletion:
        """Both together."""
        return replace(
            more,
            tokens=self.tokens + more.tokens,
            drafted=self.drafted + more.drafted,
            accepted=self.accepted + more.accepted,
            seconds=self.seconds + more.seconds,
            tasks=(*self.tasks, *more.tasks),
        )


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


def first_completion(
    url: str, promise: ServerPromise, timeout: float, *, patience: float, cancel: Cancel | None = None
) -> FirstCompletion:
    """Generate a few tokens, and a few more where that has not shown everything yet.

    Where nothing was drafted and n-gram types draft, the answer is put into the prompt, so that there is something to
    repeat. Where a draft model drafts and no token of it was rejected, something is generated that no draft can guess:
    some settings abort the server only then. `timeout` bounds all of it; more is asked only when the first took less
    than `patience`, in seconds.
    """
    kinds = [item for item in map(spec_type, promise.types) if item is not None]
    repeats = bool(promise.speculates) and any(not kind.reads_draft_model for kind in kinds)
    deadline = time.monotonic() + timeout

    def generate(prompt: Any, count: int, **parameters: Any) -> tuple[FirstCompletion, list[int]]:
        return _completion(url, promise, deadline - time.monotonic(), cancel, prompt, count, **parameters)

    prompt = LONG_PROMPT if repeats else SHORT_PROMPT
    found, tokens = generate(prompt, PROBE_TOKENS, temperature=0, return_tokens=repeats)
    if found.problem or found.seconds > patience:
        return found
    if repeats and not found.drafted and tokens:
        found = found.and_then(generate([prompt, *tokens, prompt], PROBE_TOKENS, temperature=0)[0])
    if drafts_with_a_model(promise) and not found.problem and not found.rejected:
        found = found.and_then(generate(SHORT_PROMPT, _HARD_TOKENS, **_HARD)[0])
    return found


def drafts_with_a_model(promise: ServerPromise) -> bool:
    """Whether a model drafts for it, as far as its settings tell."""
    kinds = [item for item in map(spec_type, promise.types) if item is not None]
    return bool(promise.speculates) and (not kinds or any(kind.reads_draft_model for kind in kinds))


def _completion(
    url: str, promise: ServerPromise, timeout: float, cancel: Cancel | None, prompt: Any, count: int, **parameters: Any
) -> tuple[FirstCompletion, list[int]]:
    """One completion, and the tokens that it generated where it was asked for them."""
    body = {"prompt": prompt, "n_predict": count, "cache_prompt": False, "ignore_eos": True, "stream": False}
    began = time.monotonic()

    def ended(why: str, how: CompletionEnd) -> tuple[FirstCompletion, list[int]]:
        took = time.monotonic() - began
        return FirstCompletion(seconds=took, problem=f"a first completion {why}", completion=how), []

    try:
        reply = promise.ask(url, "/completion", cancel, max(1.0, timeout), {**body, **parameters})
    except TimeoutError:
        return ended("did not answer in time", CompletionEnd.LATE)
    except OSError as error:
        return ended(f"broke off ({error})", CompletionEnd.BROKEN_OFF)
    if reply.status != 200 or not isinstance(reply.json, dict):
        text = error_message(reply.body)
        how = CompletionEnd.NOT_ALLOWED if reply.status in _NOT_ALLOWED else CompletionEnd.FAILED
        return ended(f"failed: HTTP {reply.status}{': ' if text else ''}{text}", how)
    seconds, answer, timings = time.monotonic() - began, reply.json, mapping(reply.json.get("timings"))
    counted = natural(answer.get("tokens_predicted"))
    tokens = counted if counted is not None else 1 if answer.get("content") else 0
    if not tokens:
        return ended("gave no tokens", CompletionEnd.FAILED)
    drafted, accepted = (natural(timings.get(name)) or 0 for name in ("draft_n", "draft_n_accepted"))
    slots = slots_of(url, promise, cancel) if isinstance(answer.get("id_slot"), int) else ""
    rows = () if isinstance(slots, str) else slots.slots
    tasks = tuple(row.task for row in rows if row.id == answer["id_slot"] and row.task is not None)
    written = answer.get("tokens")
    kept = [entry for entry in written if isinstance(entry, int)] if isinstance(written, list) else []
    return FirstCompletion(tokens, drafted, accepted, seconds, tasks), kept


PROBE_S = 8.0
"""A probe takes no longer: a user may wait behind it for the only slot."""
PATIENCE_S = 2.0
"""Where the first completion of the probe took longer, there is no second."""
_COUNT_LOOKS, _COUNT_S = 10, 0.1
_TOTALS = (
    "prompt_tokens", "prompt_tokens_cached", "prompt_seconds", "predicted_tokens", "predicted_seconds", "decode_calls",
    "draft_tokens", "accepted_tokens", "verification_steps",
)  # fmt: skip
_POLL_S = 0.01
_SLOWEST_POLL_S = 0.25
_SLOWER = 1.2
_PIPE_S = 0.1
FAILED_COMPLETION = "completion_failed"
"""The cause of a server that fails every request for no reason that the log names."""
_REPEATS = "n-gram types draft only where text repeats"


class SlotsLook(Struct, frozen=True):
    """What the slots showed. `problem` says in words why nothing could be seen, "" when something was."""

    slots: int | None = None
    drafting: int | None = None
    busy: int = 0
    problem: str = ""
    asleep: bool = False
    """Looking would have woken it."""

    @property
    def is_full(self) -> bool:
        """Whether requests run in every slot."""
        return bool(self.slots) and self.busy == self.slots


def look_of(slots: Slots | str) -> SlotsLook:
    """The look that an answer of /slots is; a text says why there is none."""
    if isinstance(slots, str):
        return SlotsLook(problem=slots)
    told, busy = slots.drafting, sum(slot.is_processing for slot in slots.slots)
    if told is None:
        return SlotsLook(len(slots.slots), busy=busy, problem="this build's /slots does not tell")
    return SlotsLook(len(told), sum(told), busy)


def judge(
    promise: ServerPromise,
    look: SlotsLook,
    failure: StartFailure | None,
    probed: FirstCompletion | None,
    checked: float,
) -> StartCheck:
    """The verdict on a start. `failure` is what the log or the parameters say against it, `checked` the Unix time."""
    said = StartCheck(Drafting.UNKNOWN, checked, slots=look.slots, slots_drafting=look.drafting)
    if probed is not None:
        said = replace(
            said,
            probe_tokens=probed.tokens,
            probe_drafted=probed.drafted,
            probe_accepted=probed.accepted,
            probe_s=round(probed.seconds, 4) if probed.tokens else None,
            probe_tasks=probed.tasks,
            probe_problem=probed.problem,
        )
    if promise.router:
        return replace(said, because="a router: each of its models has settings of its own")
    drafted = probed is not None and probed.drafted > 0
    if promise.speculates is False:
        if look.drafting or drafted:
            seen = Drafting.YES if drafted else Drafting.READY
            return replace(said, drafting=seen, because="it drafts although the settings ask for none")
        unseen = f" ({look.problem})" if look.drafting is None and look.problem else ""
        return replace(said, drafting=Drafting.OFF, because=f"no speculation type is set{unseen}")
    chain = ",".join(promise.types) or "the type that it detected itself"
    if probed is not None and drafted:
        share = f"{probed.accepted} of {probed.drafted} drafted tokens accepted"
        return replace(said, drafting=Drafting.YES, because=f"{chain}, {share}")
    # Slots that can draft are worth nothing on a server that fails what it is asked.
    fails = probed is not None and probed.completion is CompletionEnd.FAILED
    some_do_not = look.drafting is not None and look.slots is not None and look.drafting < look.slots
    if failure is not None and (fails or some_do_not or look.drafting is None):
        return replace(said, drafting=Drafting.FAILED, because=failure.because, fix=failure.fix, cause=failure.id)
    if probed is not None and fails:
        return replace(said, drafting=Drafting.FAILED, because=probed.problem, fix=SEE_LOG, cause=FAILED_COMPLETION)
    if some_do_not:
        why = unexplained(look.drafting or 0, look.slots or 0)
        return replace(said, drafting=Drafting.FAILED, because=why, fix=SEE_LOG)
    if look.drafting is None:
        return replace(said, because=f"whether it speculates cannot be seen: {look.problem}")
    if probed is None:
        why = "; no draft seen yet"
    elif probed.problem:
        why = f", but {probed.problem}"
    else:
        ngrams = bool(promise.types) and all(kind.startswith("ngram") for kind in promise.types)
        why = f", and made no draft in {probed.tokens} tokens{f' ({_REPEATS})' if ngrams else ''}"
    return replace(said, drafting=Drafting.READY, because=f"{chain}: its slots can draft{why}")


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

    `lines` are what it printed since its start. `publish` gets the verdict before the probe, too. Whoever sets `cancel`
    gets the verdict as far as it is known.
    """
    look = _look(promise, cancel)
    failure = _cause(promise, look, lines, parameters)
    first = judge(promise, look, failure, None, time.time())
    reason = _unprobed(promise, look, probe=probe)
    if reason is not None or (cancel is not None and cancel.cancelled):
        return replace(first, probe_problem=reason or "cancelled")
    publish(replace(first, pending=True))
    probed = first_completion(promise.url, promise, PROBE_S, patience=PATIENCE_S, cancel=cancel)
    if cancel is not None and cancel.cancelled:
        return replace(first, probe_problem="cancelled")
    if probed.completion is CompletionEnd.FAILED:
        failure = _cause(promise, look, lines, parameters)
    return judge(promise, look, failure, probed, time.time())


def _cause(
    promise: ServerPromise, look: SlotsLook, lines: Callable[[], Sequence[str]], parameters: Mapping[str, str]
) -> StartFailure | None:
    from specdash.llama.start_failures import explain, unspoken

    found = explain(lines(), None)
    if found is None and promise.speculates and look.drafting == 0:
        # What it printed before it was ready may still be on its way through the pipe.
        time.sleep(_PIPE_S)
        found = explain(lines(), None)
    return found or unspoken(parameters)


def _look(promise: ServerPromise, cancel: Cancel | None) -> SlotsLook:
    if promise.router:
        return SlotsLook(problem="a router's slots are those of its models")
    if sleeps(promise.url, promise, cancel):
        return SlotsLook(problem="it sleeps, and looking at its slots would wake it", asleep=True)
    return look_of(slots_of(promise.url, promise, cancel))


def _unprobed(promise: ServerPromise, look: SlotsLook, *, probe: bool) -> str | None:
    if not probe:
        return "LLAMA_START_PROBE=0"
    if promise.no_probe is not None:
        return promise.no_probe
    if promise.speculates is False:
        return "no speculation type is set"
    if look.drafting == 0:
        return "its slots do not draft"
    if look.asleep:
        return "it sleeps"
    return "requests run in all slots" if look.is_full else None


def watch_start(plan: LaunchPlan, tail: Tail) -> StartWatch:
    """Begin to watch the start of the engine of `plan`, whose output `tail` keeps."""
    settings = plan.settings
    engine = plan.engine.words if settings.start_probe and settings.start_baseline else None
    parameters = dict(plan.speculation)
    return StartWatch(promise_of(settings), tail.early, parameters, probe=settings.start_probe, engine=engine)


class StartWatch:
    """Waits in a thread until a server is ready, then checks its start; `take` gives each verdict once. If it drafts,
    decode without speculation is measured after that."""

    def __init__(
        self,
        promise: ServerPromise,
        lines: Sequence[bytes],
        parameters: Mapping[str, str],
        *,
        probe: bool,
        engine: str | None = None,
    ) -> None:
        """`lines` may grow while it waits. `engine` names it in baselines; None: none is measured."""
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
        """End it, at once and with its connection: a server that is told to end waits for its clients."""
        self._stopped.set()
        self._cancel()

    def _work(self) -> None:
        wait = _POLL_S
        while not healthy(self._promise.url, self._cancel):
            if self._stopped.wait(wait):
                return
            wait = min(_SLOWEST_POLL_S, wait * _SLOWER)
        found = check_start(
            self._promise,
            lambda: [line.decode("utf-8", "replace") for line in list(self._lines)],
            parameters=self._parameters,
            probe=self._probe,
            cancel=self._cancel,
            publish=self._verdicts.append,
        )
        if self._stopped.is_set():
            return
        found = self._counted(found, found.probe_tokens) if found.probe_tokens else found
        self._verdicts.append(found)
        if self._engine is not None and found.probe_tokens and found.drafting in (Drafting.YES, Drafting.READY):
            self._measure(found, self._engine)

    def _measure(self, check: StartCheck, engine: str) -> None:
        from specdash.backend.baseline import measure_unasked

        tasks: frozenset[int] = frozenset()

        def note(known: frozenset[int]) -> None:
            nonlocal tasks
            tasks = known

        generated = check.probe_tokens or 0
        # Where nothing was measured the server serves all the same; `specdash baseline record` says why.
        with contextlib.suppress(SpecdashError, OSError):
            report = measure_unasked(self._promise.url, self._promise.key, engine, cancel=self._cancel, on_tasks=note)
            generated += report.generated
        if tasks and not self._stopped.is_set():
            check = replace(check, probe_tasks=(*check.probe_tasks, *sorted(tasks)))
            self._verdicts.append(self._counted(check, generated))

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
