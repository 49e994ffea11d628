"""What happened, on one line of time: alerts, applies and restarts. The charts, the incidents screen, history and
bundles all show these."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")


class JsonRecord:
    """A struct that is kept as one line of JSON, each field held to its type when it is read; bytes are base64."""

    __slots__ = ()
    lenient: ClassVar[frozenset[str]] = frozenset()
    """Fields that count as absent where they are of another version."""

    @property
    def is_possible(self) -> bool:
        """Whether what it says can be so."""
        return True

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self | None:
        """What `to_json` wrote, None for anything else (half-written, damaged). Unknown fields are ignored."""
        try:
            record = read(cls, json.loads(text), cls.lenient)
        except (ValueError, RecursionError):
            return None
        return record if record.is_possible else None


def read(cls: type[T], values: Any, lenient: frozenset[str] = frozenset()) -> T:
    """The struct of a mapping. Unknown fields are ignored, and those named in `lenient` where they do not fit.

    Raises `ValueError` for a field of another type or an absurd number, and where one is missing.
    """
    if lenient and isinstance(values, dict):
        try:
            return read(cls, values)
        except ValueError:
            return read(cls, {name: value for name, value in values.items() if name not in lenient})
    if not can_be_meant(values):
        raise ValueError("a number beyond what can be meant")
    return msgspec.convert(values, cls)


_MOST = 2.0**63


def can_be_meant(value: Any) -> bool:
    """Whether a number, or every number in a list or a mapping, is one that something counted; NaN is not."""
    if isinstance(value, int | float):
        return -_MOST < value < _MOST
    if isinstance(value, dict):
        return all(map(can_be_meant, value.values()))
    return not isinstance(value, list | tuple) or all(map(can_be_meant, value))


# The notes a running backend and a running proxy leave of themselves, so that a dashboard finds them: a file for each
# process under `paths.run_records_dir` and `paths.proxy_records_dir`, removed at its exit; a backend's last one stays
# under `paths.ended_records_dir`. A record whose process is gone is void: readers check the pid and its start time.


SEE_LOG = "see the first lines of the log, and `specdash preflight`"
"""What to do where nothing says why a server does not speculate."""


def unexplained(drafting: int, slots: int) -> str:
    """Why a server is taken not to speculate, where all that is known is how many of its slots can draft."""
    many = f"{drafting} of {slots} slots draft" if drafting else "its slots do not draft"
    return f"{many}, and the log does not say why"


class Drafting(StrEnum):
    """Whether the server speculates, as a state of its own."""

    YES = "speculating"
    """Drafts were seen."""
    READY = "ready"
    """Its slots can draft, and none was seen yet."""
    OFF = "off"
    """No speculation type is set, and there is none."""
    FAILED = "running without speculation"
    """It was asked for, and the server runs without."""
    UNKNOWN = "unknown"


class StartCheck(Struct, frozen=True):
    """The verdict on one start. Moments are Unix time; None is unknown."""

    drafting: Drafting
    checked: float
    because: str = ""
    """What says so; for FAILED the cause, in one sentence without a full stop."""
    fix: str = ""
    cause: str = ""
    """Id of the cause in `llama.start_failures`, "" where none was recognised."""
    slots: int | None = None
    slots_drafting: int | None = None
    probe_tokens: int | None = None
    """Tokens that the probe generated; None when there was no probe."""
    probe_drafted: int | None = None
    probe_accepted: int | None = None
    probe_s: float | None = None
    probe_tasks: tuple[int, ...] = ()
    """Numbers of the probe's tasks in the server's log, where they could be learnt: no request of a user's."""
    probe_totals: tuple[tuple[str, float], ...] = ()
    """What /metrics counted when its own requests had ended and no client's had come, by field of `Counters`: what
    clients had is what the server counts beyond that. Empty where it is not known."""
    probe_positions: tuple[int, ...] = ()
    """The same, of draft tokens accepted by position."""
    probe_problem: str = ""
    """Why the probe got no proper answer, or was not made; "" when it was answered."""
    pending: bool = False
    """The probe is still to come, or under way: another verdict follows."""


class RunRecord(JsonRecord, Struct, frozen=True):
    """One running backend. `pid_started`, in Unix time, distinguishes it from another process of its pid; `parameters`
    are the speculation flags it was started with; no secrets are ever stored."""

    lenient = frozenset({"start_check"})
    pid: int
    pid_started: float
    url: str
    engine: str
    log: str | None = None
    env_file: str | None = None
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key, never the key."""
    api_key_file: str | None = None
    certificate: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    runner_pid: int | None = None
    """The `specdash backend run` around it."""
    control: str | None = None
    """The control socket of that runner, through which its settings are changed."""
    env_digest: str | None = None
    """SHA-256 of the env file's bytes that it was started from: the version of the file that is in force."""
    refused: str | None = None
    """Why the env file, as it was edited, is not in force: the last good version runs."""
    start_check: StartCheck | None = None
    """Whether it really speculates, as was seen after its start; None until that was looked at."""
    ended: float | None = None
    """Unix time when its engine ended; None while it runs, and where its runner was killed with it."""
    end: str | None = None
    """How it ended, in words: `signal SIGKILL`."""
    crashed: bool = False


class ProxyRecord(JsonRecord, Struct, frozen=True):
    """One running proxy. No secrets are ever stored; URLs are without user and password."""

    pid: int
    pid_started: float
    url: str
    upstream: str
    """Root URL of the llama.cpp server behind it."""
    events: str | None = None
    """The file its events go to; None when they are switched off."""
    log: str | None = None
    env_file: str | None = None
    api_key_env: str | None = None
    """Name of the variable, in the environment or in `env_file`, that holds the key clients need; None: none asked."""
    env_digest: str | None = None
    """SHA-256 of the env file's bytes that its settings come from: the version of the file that is in force."""
    refused: str | None = None
    """Why it did not take over the version of the env file that `refused_digest` names."""
    refused_digest: str | None = None
    restarts_itself: bool = False
    """Whether SIGUSR2 makes it drain and execute itself again with its listening socket."""
    admin_token_file: str | None = None
    """The file, readable by its user alone, with the token that its admin endpoints ask for; None: none asked."""


class BaselineMethod(StrEnum):
    """How a baseline was measured."""

    WITHOUT = "without speculation"
    """On a server that ran without speculation."""
    TWO_TOKENS = "two tokens"
    """On a server that speculates, by completions that are too short to draft."""


class Baseline(JsonRecord, Struct, frozen=True):
    """Decode speed without speculation of one model on one machine, at one context length and concurrency: a line in
    `paths.baselines_file`, where the newest of one key counts.

    `decode_rate` is the median of tokens per second of one request; `low` and `high` bound its 95 % interval. `at` is
    Unix time, `decode_tokens` the length of each answer.
    """

    at: float
    model: str
    """File name of the model, without its directory."""
    engine: str
    context: int
    """Tokens in the context when the decode began; it stands for its bucket."""
    concurrency: int
    """Requests that decoded at the same time."""
    decode_rate: float
    low: float
    high: float
    requests: int
    model_bytes: int | None = None
    """Size of the model's file: another file of the same name is another model."""
    gpu: str | None = None
    decode_tokens: int | None = None
    method: BaselineMethod = BaselineMethod.WITHOUT

    @property
    def key(self) -> tuple[object, ...]:
        """What it was measured on: a newer one of the same key takes its place."""
        return (self.model, self.model_bytes, self.engine, self.gpu, self.context, self.concurrency, self.method)

    @property
    def is_possible(self) -> bool:
        """Whether the figures can have been measured."""
        return 0 < self.low <= self.decode_rate <= self.high and self.context >= 0 and self.concurrency >= 1

    @property
    def middle(self) -> float:
        """Tokens in the context halfway through its answers."""
        return self.context + (self.decode_tokens or 0) / 2


class TrialNote(JsonRecord, Struct, frozen=True):
    """A trial that is under way, or that was when its process died (`alive` False): what others than its runner may
    know of `backend.trial`'s journal, no setting. What is published leaves its process and its server out."""

    lenient = frozenset({"boot", "planned"})
    what: str
    """The command: `bench ab`, `tune`."""
    service: str
    at: float
    """When it began, in Unix time."""
    alive: bool = True
    boot: int | None = None
    """The boot that is made now, from 1; None between the boots that are counted."""
    planned: int | None = None
    pid: int = 0
    pid_started: float = 0.0
    url: str | None = None

    @property
    def is_possible(self) -> bool:
        """Whether it is a note of a process, in words that can be shown."""
        return self.pid > 0 and f"{self.what}{self.service}".isprintable()

    @property
    def words(self) -> str:
        """``on trial by `specdash tune`, boot 4 of 12``."""
        if not self.alive:
            why = f"left on trial: `specdash {self.what}` was cut short"
            return f"{why}; the next start of the backend puts the original back"
        text = f"on trial by `specdash {self.what}`"
        if self.boot is None:
            return text
        of = f" of {self.planned}" if self.planned is not None and self.planned >= self.boot else ""
        return f"{text}, boot {self.boot}{of}"


# Alerts. Moments are Unix times in seconds; texts never hold a secret or prompt text: they go into bundles and tickets.


class AlertSeverity(StrEnum):
    """How bad it is. A notice is worth knowing; a warning needs a person today; a critical one now."""

    NOTICE = "notice"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return tuple(AlertSeverity).index(self)


class Symptom(Struct, frozen=True):
    """What a rule says while it holds. `summary` is one sentence without a full stop that names the cause with its
    figures; `evidence` are labels and formatted values.

    `subject` distinguishes alerts of one rule (`slot 3`, `GPU 0`, a session's id). `fix` are settings that would
    help, as (key, value), None for a key to be removed: the tune screen takes them as pending, nothing applies them by
    itself. `severity` overrides the rule's own.
    """

    summary: str
    evidence: tuple[tuple[str, str], ...] = ()
    subject: str = ""
    fix: tuple[tuple[str, str | None], ...] = ()
    severity: AlertSeverity | None = None
    names: tuple[tuple[str, str], ...] = ()
    """What the runbook's placeholders stand for here, where that is particular to the symptom: (placeholder, value)."""
    remedy: str = ""
    """What helps in this case, in place of the rule's own."""


class Alert(JsonRecord, Struct, frozen=True):
    """One alert. `since` is when its symptom was first seen, `raised` when it had lasted long enough, `last` when it
    was last seen, `ended` when it was over."""

    rule: str
    title: str
    severity: AlertSeverity
    summary: str
    since: float
    raised: float
    last: float
    ended: float | None = None
    subject: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    fix: tuple[tuple[str, str | None], ...] = ()
    chart: str | None = None
    """The `insight.charts.Metric` that shows it best."""
    names: tuple[tuple[str, str], ...] = ()
    """What the placeholders of its runbook stand for, as far as it was known: (placeholder, value)."""
    refuted: bool = False
    """It is over, and what was seen since shows that it was never so; the evidence says what."""
    remedy: str = ""
    """What helps in this case, in place of the rule's own."""

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same alert."""
        return self.rule, self.subject

    @property
    def is_active(self) -> bool:
        """Whether it is not over."""
        return self.ended is None


class Transition(StrEnum):
    """What became of an alert."""

    RAISED = "raised"
    CHANGED = "changed"
    """Its severity is another one."""
    ENDED = "ended"


class AlertEvent(Struct, frozen=True):
    """One transition of one alert, at Unix time `at`."""

    transition: Transition
    alert: Alert
    at: float


class EventKind(StrEnum):
    """What kind of thing happened."""

    ALERT = "alert"
    APPLY = "apply"
    RESTART = "restart"
    STATE = "state"
    """The server's state is another one: down, loading, live."""
    RECORDER = "recorder"
    """Recording began, ended, or lost something."""


class TimelineEvent(Struct, frozen=True):
    """One event at Unix time `at`, until `ended` where it lasts. `title` is a few words, without secrets."""

    at: float
    kind: EventKind
    title: str
    severity: AlertSeverity | None = None
    ended: float | None = None
    detail: str = ""
    ref: str = ""
    """What it is about: a rule's id, an apply's number."""
