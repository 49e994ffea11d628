"""Readings, alerts and records without secrets and without a word of what others wrote, as values of the same types.

Every text passes the redactor. The few fields that come from a log line or from a client are made anew or left out:
they are named here, and nowhere else.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from enum import Enum
from functools import cache, singledispatch
from typing import TYPE_CHECKING, Any

from specdash.core.alerts import Alert
from specdash.core.applies import ApplyRecord, StoredChange
from specdash.core.log_facts import LogBatch, ServerEvent, SpeculativeStatistics, TaskFailed, WarningTally
from specdash.core.observations import ProcessTree
from specdash.core.proxy_events import GuardrailEvent, RequestEvent
from specdash.core.proxy_status import ActiveView, ProxyStatus, SessionView
from specdash.core.readings import Reading
from specdash.core.router import RouterModel
from specdash.core.timeline import TimelineEvent
from specdash.insight.drafter_picture import (
    DraftingPicture,
    PrefixRequest,
    PrefixSession,
    RouterModelPicture,
    RouterPicture,
)
from specdash.insight.picture import LogPicture, SpeculationPicture, WarningPicture
from specdash.llama.log_prefix import own_seconds
from specdash.llama.log_safe import ELLIPSIS, safe_error, safe_event, safe_text, safe_word

if TYPE_CHECKING:
    from specdash.export.incident.redaction import Redactor

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
    """A text that may be a log line, made anew if it is one by its time stamp."""
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
    return tuple(one.name for one in dataclasses.fields(kind) if set(_WORD.findall(str(one.type))) - _NUMERIC)


@singledispatch
def _without(value: Any, _redactor: Redactor) -> Any:
    """The value without its fields that others wrote."""
    return value


@_without.register(Reading)
def _(value: Reading[Any], _redactor: Redactor) -> Any:
    failure = value.failure
    if failure is None:
        return value
    return replace(value, failure=replace(failure, detail=line_or_text(failure.detail)))


@_without.register(LogBatch)
def _(value: LogBatch, _redactor: Redactor) -> Any:
    return replace(value, tail=tuple(map(safe_text, value.tail)), unrecognised_samples=())


@_without.register(WarningTally)
def _(value: WarningTally, _redactor: Redactor) -> Any:
    return replace(value, sample=_sample(value.sample))


@_without.register(WarningPicture)
def _(value: WarningPicture, _redactor: Redactor) -> Any:
    return replace(value, sample=_sample(value.sample))


@_without.register(ServerEvent)
def _(value: ServerEvent, _redactor: Redactor) -> Any:
    return replace(value, fields=safe_event(value))


@_without.register(TaskFailed)
def _(value: TaskFailed, _redactor: Redactor) -> Any:
    return replace(value, error=safe_error(value.error))


@_without.register(SpeculativeStatistics)
def _(value: SpeculativeStatistics, _redactor: Redactor) -> Any:
    return replace(value, type=safe_word(value.type), printed_type=_word(value.printed_type))


@_without.register(SpeculationPicture)
def _(value: SpeculationPicture, _redactor: Redactor) -> Any:
    return replace(value, problem=_sample(value.problem))


@_without.register(ProcessTree)
def _(value: ProcessTree, redactor: Redactor) -> Any:
    return replace(value, command=redactor.command(value.command))


@_without.register(GuardrailEvent)
def _(value: GuardrailEvent, redactor: Redactor) -> Any:
    facts = {key: item for key, item in value.facts.items() if isinstance(item, bool | int | float)}
    return replace(value, facts=facts, session=redactor.identity(value.session), request_id=_id(value.request_id))


@_without.register(RequestEvent)
def _(value: RequestEvent, redactor: Redactor) -> Any:
    return replace(
        value,
        session=redactor.identity(value.session),
        request_id=_id(value.request_id),
        path=value.path.partition("?")[0],
        model=_id_of_model(value.model),
        error_type=_mark(value.error_type),
        stop_reason=_mark(value.stop_reason),
        tool_calls=tuple(ELLIPSIS for _ in value.tool_calls or ()) if value.tool_calls is not None else None,
        guardrails=tuple(filter(_MARK.fullmatch, value.guardrails)) if value.guardrails is not None else None,
    )


@_without.register(ActiveView)
def _(value: ActiveView, redactor: Redactor) -> Any:
    return replace(
        value,
        session=redactor.identity(value.session),
        request_id=_id(value.request_id),
        path=value.path.partition("?")[0],
        model=_id_of_model(value.model),
    )


@_without.register(SessionView)
def _(value: SessionView, redactor: Redactor) -> Any:
    return replace(value, id=redactor.identity(value.id), model=_id_of_model(value.model))


@_without.register(ProxyStatus)
def _(value: ProxyStatus, _redactor: Redactor) -> Any:
    # A problem quotes the value of the setting that it is about.
    named = (_KEY.match(one) for one in value.problems)
    return replace(value, problems=tuple(f"{key[0] if key else ''} {ELLIPSIS}".strip() for key in named))


@_without.register(LogPicture)
def _(value: LogPicture, _redactor: Redactor) -> Any:
    return replace(value, reason=line_or_text(value.reason))


@_without.register(DraftingPicture)
def _(value: DraftingPicture, _redactor: Redactor) -> Any:
    return replace(value, because=line_or_text(value.because), fix=line_or_text(value.fix))


@_without.register(PrefixRequest)
def _(value: PrefixRequest, redactor: Redactor) -> Any:
    return replace(value, session=redactor.identity(value.session)) if value.session else value


@_without.register(PrefixSession)
def _(value: PrefixSession, redactor: Redactor) -> Any:
    return replace(value, id=redactor.identity(value.id))


@_without.register(RouterModel)
def _(value: RouterModel, _redactor: Redactor) -> Any:
    return replace(
        value,
        id=_id_of_model(value.id),
        aliases=tuple(map(_id_of_model, value.aliases)),
        failure=line_or_text(value.failure),
    )


@_without.register(RouterModelPicture)
def _(value: RouterModelPicture, _redactor: Redactor) -> Any:
    return replace(value, id=_id_of_model(value.id), failure=line_or_text(value.failure))


@_without.register(RouterPicture)
def _(value: RouterPicture, _redactor: Redactor) -> Any:
    return replace(value, any_means=_id_of_model(value.any_means)) if value.any_means else value


@_without.register(ApplyRecord)
def _(value: ApplyRecord, _redactor: Redactor) -> Any:
    reason = value.reason
    for line in value.log_lines:
        reason = reason.replace(line, ELLIPSIS) if line else reason
    return replace(
        value,
        log_lines=tuple(map(safe_text, value.log_lines)),
        reason=line_or_text(reason),
        warnings=tuple(map(line_or_text, value.warnings)),
    )


@_without.register(StoredChange)
def _(value: StoredChange, redactor: Redactor) -> Any:
    return replace(
        value, before=_setting(value.key, value.before, redactor), after=_setting(value.key, value.after, redactor)
    )


@_without.register(Alert)
def _(value: Alert, redactor: Redactor) -> Any:
    return replace(
        value,
        summary=line_or_text(value.summary),
        evidence=tuple(
            (label, _sample(said) if _LINE_LABELS.search(label) else line_or_text(said))
            for label, said in value.evidence
        ),
        fix=tuple((key, _setting(key, said, redactor)) for key, said in value.fix),
    )


@_without.register(TimelineEvent)
def _(value: TimelineEvent, _redactor: Redactor) -> Any:
    return replace(value, title=line_or_text(value.title), detail=line_or_text(value.detail))


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
