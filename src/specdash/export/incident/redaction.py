"""What must not leave the machine, in one table, and the one pass that takes it out of texts and data.

Two things are taken out always: what looks like a secret wherever it stands (`TABLE`), and every secret that is known
by its value (API keys, secret values of env files). Hosts, users and directories are not.
What others wrote (prompts, answers, chat templates) never gets this far: `specdash.llama.log.safe` and
`specdash.export.incident.redaction` let through only what specdash itself has words for.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as url_quote

from specdash.core.changes import ApplyRecord, Change, is_secret
from specdash.core.envfile import parse, quote
from specdash.core.log_facts import LogBatch, ServerEvent, SpeculativeStatistics, TaskFailed, WarningTally
from specdash.core.masking import MASK, without_secrets
from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.proxy_events import ActiveView, GuardrailEvent, ProxyStatus, RequestEvent, SessionView
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.readings import ProcessTree, Reading, RouterModel
from specdash.core.records import Alert, TimelineEvent
from specdash.insight.picture import (
    DraftingPicture,
    LogPicture,
    RouterModelPicture,
    RouterPicture,
    SpeculationPicture,
    WarningPicture,
)
from specdash.insight.request import ServedRequest
from specdash.llama.log.safe import ELLIPSIS, own_seconds, safe_error, safe_event, safe_text, safe_word
from specdash.system.data import dataclass
from specdash.system.text import timestamp

if TYPE_CHECKING:
    from specdash.core.envfile import EnvEntry
    from specdash.export.incident.bundle import EnvPart, EnvVersion


EMAIL_MASK = "(e-mail address)"
SHORTEST_SECRET = 6
"""Shorter values are masked where a key or flag names them, and not searched for elsewhere."""
PLAIN_LENGTH = 400

_NAMING_FLAG = (
    r"--?(?:api[-_]key|hf[-_]token|hft|auth[-_]token|token|password|passwd|secret|access[-_]key|ssl[-_]key[-_]password)"
)
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s'\",;&]+)"


@dataclass(frozen=True, slots=True)
class SecretKind:
    """One kind of secret: how it is recognised, and what stands in its place."""

    name: str
    pattern: re.Pattern[str]
    instead: str


TABLE: tuple[SecretKind, ...] = (
    SecretKind(
        "private key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        MASK,
    ),
    SecretKind(
        "authorization header",
        re.compile(
            r"(?i)\b(authorization[\"']?\s*[:=]\s*)(?:[\"'][^\"']*[\"']|(?:bearer|basic|token|digest)\s+\S+|\S+)"
        ),
        rf"\1{MASK}",
    ),
    SecretKind("bearer or basic token", re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {MASK}"),
    SecretKind(
        "flag that carries a key",
        re.compile(rf"(?i)(?<![\w-])({_NAMING_FLAG}(?:=|\s+))(?!-){_VALUE}"),
        rf"\1{MASK}",
    ),
    SecretKind(
        "named secret",
        re.compile(
            r"(?i)(?<![\w-])((?:[\w-]{0,40}[-_])?(?:api[-_]?key|secret|token|password|passwd|passphrase|credentials?)"
            rf"[\"']?\s*(?:=|:)\s*)(?!\*\*\*)(?!-?[\d.]+\b){_VALUE}"
        ),
        rf"\1{MASK}",
    ),
    SecretKind(
        "token of a known shape",
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|hf|ghp|gho|ghu|ghs|ghr|glpat|npm|pypi|xox[abeoprs]|github_pat|nvapi|gsk)"
            r"[-_][A-Za-z0-9_\-]{6,}|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{10,}"
            r"|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
        ),
        MASK,
    ),
    SecretKind("user and password in a URL", re.compile(r"(?<=://)[^/@\s]+(?=@)"), MASK),
    SecretKind("e-mail address", re.compile(r"[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+"), EMAIL_MASK),
)
"""Applied in this order, everywhere."""


class Redactor:
    """Takes out what must not leave the machine. Equal texts give equal texts; nothing is remembered but that."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are secret values themselves."""
        self.secrets = frozenset(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
        spelled = {spelling for secret in self.secrets for spelling in spellings(secret)}
        self._known = _any_of(spelled)
        self.text: Callable[[str], str] = lru_cache(maxsize=8192)(self._text)

    def _text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = without_secrets(text)
        for row in TABLE:
            text = row.pattern.sub(row.instead, text)
        return text

    def data(self, value: Any, key: str = "") -> Any:
        """JSON-like data of any depth. A text under a key that is a secret's is masked whole."""
        if isinstance(value, Enum):
            return value
        if isinstance(value, str):
            if value and key and is_secret(key.upper()):
                return MASK
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(name): self.data(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, key) for item in value]
        return value

    def setting(self, key: str, value: str) -> str:
        """The value of an env key as it may be shown. Of unknown keys only plain numbers are."""
        if not value:
            return value
        if is_secret(key):
            return MASK
        if key == "LLAMA_EXTRA_ARGS":
            return self._arguments(value)
        return self._plain(value, BY_KEY.get(key) or PROXY_KEYS.get(key), known=_is_known(key))

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """An argument vector: values of flags by what the flag is, other words only where they are plain."""
        shown: list[str] = []
        flag: Parameter | None = None
        waits = False
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            spelled = name.replace("_", "-") if name.startswith("--") else name
            if waits:
                shown.append(self._plain(word, flag, known=flag is not None))
                waits = False
            elif word.startswith("-") and len(word) > 1 and not word[1].isdigit():
                known = BY_FLAG.get(spelled)
                flag = known[0] if known is not None else None
                if equals:
                    shown.append(f"{self.text(name)}={self._plain(value, flag, known=flag is not None)}")
                else:
                    shown.append(self.text(word))
                    following = words[at + 1] if at + 1 < len(words) else "-"
                    negative = following[1:2].isdigit()
                    switch = flag is not None and flag.kind is ValueKind.SWITCH
                    waits = not switch and (flag is not None or not following.startswith("-") or negative)
            else:
                shown.append(self._plain(word, None, known=at == 0 or _PROGRAM.fullmatch(word) is not None))
        return tuple(shown)

    def _arguments(self, text: str) -> str:
        try:
            words = shlex.split(text)
        except ValueError:
            return _left_out(text)
        return " ".join(shlex.quote(word) if MASK not in word else word for word in self.command(words))

    def _plain(self, value: str, parameter: Parameter | None, *, known: bool) -> str:
        """A value as it may be shown: a text only where it is a few plain words of a setting that is known."""
        if parameter is not None and parameter.secret:
            return MASK
        if _NUMBER.fullmatch(value):
            return value
        if not known:
            return MASK
        path = parameter is not None and parameter.kind is ValueKind.PATH
        if not (_PATH if path else _PLAIN).fullmatch(value):
            return _left_out(value)
        return self.text(value)


def spellings(secret: str) -> frozenset[str]:
    """How a secret value is written in a text, a URL and a JSON string."""
    return frozenset(
        {secret, url_quote(secret, safe=""), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    )


_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,9})?(?:,[+-]?\d{1,12}(?:\.\d{1,9})?){0,63}")
_PLAIN = re.compile(rf"[\w.,:@%+/=~\[\]*-]{{0,{PLAIN_LENGTH}}}")
_PATH = re.compile(rf"[^\n\r\0]{{0,{PLAIN_LENGTH}}}")
_PROGRAM = re.compile(r"[\w./+-]{0,200}?(?:python[\d.]*|llama-server[\w.-]*|specdash[\w.]*|-m|run|backend|proxy)")
_READ_BY_OTHERS = ("LLAMA_ARG_", "GGML_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "OMP_", "SPECDASH_")


def _is_known(key: str) -> bool:
    return key in BY_KEY or key in PROXY_KEYS or key.startswith(_READ_BY_OTHERS)


def _left_out(value: str) -> str:
    return f"(text of {len(value)} characters)"


def _any_of(values: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted((value for value in set(values) if len(value) > 2), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


# Env files as they may be shown: every setting that is known and no secret, and what changed in them, line by line.

COMMENT = "# (comment left out)"
UNREADABLE = "# (unreadable line left out)"


def shown(text: str, redactor: Redactor) -> str:
    """An env file without secrets: comments, which may hold anything, and values of unknown keys are left out too."""
    return "".join(f"{line}\n" for line in _lines(text, redactor))


def diffs(part: EnvPart, redactor: Redactor) -> str:
    """What changed from version to version, as unified diffs; a changed secret shows as changed."""
    versions = [*part.before, part.now]
    found: list[str] = []
    for old, new in pairwise(versions):
        found += [f"# {_name(old)} -> {_name(new)}", *_diff(old, new, part, redactor), ""]
    return "\n".join(found)


def changed_lines(part: EnvPart, redactor: Redactor) -> list[str]:
    """What changed over the whole span, without context."""
    if not part.before:
        return []
    return [
        line
        for line in _diff(part.before[0], part.now, part, redactor)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]


def secret_values(text: str) -> set[str]:
    """Values in an env file that must never be found in a bundle: of secret keys, and of flags that carry a key."""
    found: set[str] = set()
    for entry in parse(text).entries:
        if entry.key is None or not entry.value:
            continue
        if is_secret(entry.key):
            found.add(entry.value)
        found |= _of_flags(entry.value)
    return found


def _of_flags(value: str) -> set[str]:
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    found: set[str] = set()
    for at, word in enumerate(words):
        flag, equals, inline = word.partition("=")
        known = BY_FLAG.get(flag.replace("_", "-") if flag.startswith("--") else flag)
        if known is not None and known[0].secret:
            found.update([inline] if equals else words[at + 1 : at + 2])
    return found


def _diff(old: EnvVersion, new: EnvVersion, part: EnvPart, redactor: Redactor) -> list[str]:
    name = redactor.text(part.path.name)
    before, after = _lines(old.text, redactor), _lines(new.text, redactor)
    lines = list(difflib.unified_diff(before, after, name, name, _name(old), _name(new), n=2, lineterm=""))
    hidden = _secrets(old.text), _secrets(new.text)
    changed = sorted(key for key in hidden[0] | hidden[1] if hidden[0].get(key) != hidden[1].get(key))
    return lines + [
        f"! {key}: the secret is another one" for key in changed if hidden[0].get(key) and hidden[1].get(key)
    ]


def _name(version: EnvVersion) -> str:
    if version.at is None:
        return "now"
    number = f"backup {version.number}, " if version.number is not None else ""
    return f"{number}until {timestamp(version.at)}"


def _secrets(text: str) -> dict[str, str | None]:
    return {entry.key: entry.value for entry in parse(text).entries if entry.key is not None and is_secret(entry.key)}


def _lines(text: str, redactor: Redactor) -> list[str]:
    return [line for entry in parse(text).entries for line in _entry(entry, redactor)]


def _entry(entry: EnvEntry, redactor: Redactor) -> list[str]:
    if entry.problem is not None:
        return [UNREADABLE]
    if entry.key is None or entry.value is None:
        return [COMMENT if entry.raw.strip() else ""]
    value = redactor.setting(entry.key, entry.value)
    written = value if value == MASK or value.startswith("(text of") else quote(value)
    return f"{entry.key}={written}".splitlines() or [""]


# Readings, alerts and records without secrets and without a word of what others wrote, as values of the same types.
#
# Every text passes the redactor. The few fields that come from a log line or from a client are rebuilt or left out:
# they are named here, and nowhere else.

_NUMBERS = frozenset({int, float, bool, type(None)})
_NUMERIC = frozenset({"int", "float", "bool", "None", "tuple"})
"""The words of a declaration that allows nothing but numbers."""
_WORD = re.compile(r"\w+")
_LINE_LABELS = re.compile(r"(?i)\b(?:sample|line|log)\b")
_KEY = re.compile(r"[A-Z][A-Z0-9_]{2,60}(?![a-z])")
_ID = re.compile(r"[\w.:-]{1,64}")
_MARK = re.compile(r"[a-z_]{1,40}(?::[a-z_]{1,40})?")


def redacted(value: Any, redactor: Redactor) -> Any:
    """The value without what must not leave the machine."""
    kind = type(value)
    if kind in _NUMBERS:
        return value
    if kind is str:
        return redactor.text(value)
    if kind is tuple or kind is list:
        return kind(redacted(item, redactor) for item in value)
    if dataclasses.is_dataclass(kind):
        return _all_fields(_without(value, redactor), redactor)
    if isinstance(value, Enum):
        return value
    if isinstance(value, dict):
        return {redactor.text(str(key)): redacted(item, redactor) for key, item in value.items()}
    return redactor.text(str(value))


def line_or_text(text: str) -> str:
    """A text that may be a log line, rebuilt if it has a log line's time stamp."""
    return safe_text(text) if own_seconds(text) is not None else text


def _all_fields(value: Any, redactor: Redactor) -> Any:
    changes = {}
    kind: Any = type(value)
    for name in _with_text(kind):
        before = getattr(value, name)
        after = redacted(before, redactor)
        if after is not before and after != before:
            changes[name] = after
    return replace(value, **changes) if changes else value


@cache
def _with_text(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass that are not declared to be nothing but numbers."""
    return tuple(
        dataclass_field.name
        for dataclass_field in dataclasses.fields(kind)
        if set(_WORD.findall(str(dataclass_field.type))) - _NUMERIC
    )


def _without(value: Any, redactor: Redactor) -> Any:
    """The value without its fields that others wrote."""
    made_anew = _FOREIGN.get(type(value))
    changes = made_anew(value, redactor) if made_anew is not None else {}
    return replace(value, **changes) if changes else value


def _request(event: RequestEvent | ActiveView, _redactor: Redactor) -> dict[str, Any]:
    return {
        "request_id": _id(event.request_id),
        "path": event.path.partition("?")[0],
        "model": _id_of_model(event.model),
    }


def _finished_request(event: RequestEvent, redactor: Redactor) -> dict[str, Any]:
    return {
        **_request(event, redactor),
        "error_type": _mark(event.error_type),
        "stop_reason": _mark(event.stop_reason),
        "tool_calls": None if event.tool_calls is None else tuple(ELLIPSIS for _ in event.tool_calls),
        "guardrails": None if event.guardrails is None else tuple(filter(_MARK.fullmatch, event.guardrails)),
    }


def _served_request(request: ServedRequest, _redactor: Redactor) -> dict[str, Any]:
    return {"error": safe_error(request.error)} if request.error is not None else {}


def _guardrail(event: GuardrailEvent, _redactor: Redactor) -> dict[str, Any]:
    facts = {key: fact for key, fact in event.facts.items() if isinstance(fact, bool | int | float)}
    return {"facts": facts, "request_id": _id(event.request_id)}


def _proxy_status(status: ProxyStatus, _redactor: Redactor) -> dict[str, Any]:
    # A problem quotes the value of the setting that it is about.
    named = (_KEY.match(problem) for problem in status.problems)
    return {"problems": tuple(f"{key[0] if key else ''} {ELLIPSIS}".strip() for key in named)}


def _apply_record(record: ApplyRecord, _redactor: Redactor) -> dict[str, Any]:
    reason = record.reason
    for line in filter(None, record.log_lines):
        reason = reason.replace(line, ELLIPSIS)
    return {
        "log_lines": tuple(map(safe_text, record.log_lines)),
        "reason": line_or_text(reason),
        "warnings": tuple(map(line_or_text, record.warnings)),
    }


def _alert(alert: Alert, redactor: Redactor) -> dict[str, Any]:
    return {
        "summary": line_or_text(alert.summary),
        "evidence": tuple(
            (label, (_sample if _LINE_LABELS.search(label) else line_or_text)(text)) for label, text in alert.evidence
        ),
        "fix": tuple((key, _setting(key, value, redactor)) for key, value in alert.fix),
    }


def _failure(reading: Reading[Any], _redactor: Redactor) -> dict[str, Any]:
    failure = reading.failure
    return {"failure": replace(failure, detail=line_or_text(failure.detail))} if failure is not None else {}


_FOREIGN: Mapping[type, Callable[[Any, Redactor], dict[str, Any]]] = {
    Reading: _failure,
    LogBatch: lambda batch, _: {"tail": tuple(map(safe_text, batch.tail)), "unrecognised_samples": ()},
    WarningTally: lambda warning, _: {"sample": _sample(warning.sample)},
    WarningPicture: lambda warning, _: {"sample": _sample(warning.sample)},
    ServerEvent: lambda event, _: {"fields": safe_event(event)},
    TaskFailed: lambda failed, _: {"error": safe_error(failed.error)},
    SpeculativeStatistics: lambda row, _: {"type": safe_word(row.type), "printed_type": _word(row.printed_type)},
    SpeculationPicture: lambda speculation, _: {"problem": _sample(speculation.problem)},
    ProcessTree: lambda process, redactor: {"command": redactor.command(process.command)},
    GuardrailEvent: _guardrail,
    RequestEvent: _finished_request,
    ActiveView: _request,
    SessionView: lambda session, _: {"model": _id_of_model(session.model)},
    ProxyStatus: _proxy_status,
    LogPicture: lambda log, _: {"reason": line_or_text(log.reason)},
    DraftingPicture: lambda drafting, _: {
        "because": line_or_text(drafting.because), "fix": line_or_text(drafting.fix),
    },
    ServedRequest: _served_request,
    RouterModel: lambda model, _: {
        "id": _id_of_model(model.id),
        "aliases": tuple(map(_id_of_model, model.aliases)),
        "failure": line_or_text(model.failure),
    },
    RouterModelPicture: lambda model, _: {"id": _id_of_model(model.id), "failure": line_or_text(model.failure)},
    RouterPicture: lambda router, _: {"any_means": _id_of_model(router.any_means)} if router.any_means else {},
    ApplyRecord: _apply_record,
    Change: lambda change, redactor: {
        name: _setting(change.key, getattr(change, name), redactor) for name in ("before", "after")
    },
    Alert: _alert,
    TimelineEvent: lambda event, _: {"title": line_or_text(event.title), "detail": line_or_text(event.detail)},
}  # fmt: skip
"""Of each type, the fields that come from a log line or from a client, as they may be shown."""


def _setting(key: str, value: str | None, redactor: Redactor) -> str | None:
    return None if value is None else redactor.setting(key, value)


def _sample(line: str) -> str:
    return safe_text(line) if line else line


def _word(text: str) -> str:
    return safe_word(text) if text else text


def _mark(text: str | None) -> str | None:
    return text if text is None or _MARK.fullmatch(text) else ELLIPSIS


def _id(text: str) -> str:
    return text if not text or _ID.fullmatch(text) else ELLIPSIS


def _id_of_model(text: str) -> str:
    return text if len(text) <= 200 and re.fullmatch(r"[\w./:@+-]*", text) else ELLIPSIS
