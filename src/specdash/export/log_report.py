"""What a log says, as JSON and as text for people. docs/parse-log.md describes both.

Requests can be many, so the JSON is written in pieces and never held as a whole.
"""

from __future__ import annotations

import json
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from specdash.core.proxy_events import DECODE, PREFILL, speed
from specdash.core.structs import json_of
from specdash.insight.proxy.prefix_cache import over_limit
from specdash.llama.log import warning_class
from specdash.llama.log.safe import safe_sample, safe_text
from specdash.llama.log.server_lines import SERVER_STARTING
from specdash.llama.start_failures import MOST_GENERAL, explain
from specdash.system.stats import share
from specdash.system.text import MIB, UNKNOWN, counted, number, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specdash.core.log_facts import ServerEvent
    from specdash.core.proxy_events import SpeedLimits
    from specdash.insight.log.log_summary import LogSummary
    from specdash.insight.request import DraftTally, ServedRequest

SCHEMA: Final = "specdash.parse-log/1"
_SHOWN_REQUESTS = 10
_encode = json.JSONEncoder(allow_nan=False).encode
_REQUEST_FIELDS = (
    "slot", "task", "origin", "instance", "build", "started_s", "at_s", "prompt_total_tokens", "prompt_cached",
    "prompt_tokens", "prompt_ms",
    "decode_tokens", "decode_ms", "total_ms", "draft_generated", "draft_accepted", "mean_accepted_length",
    "acceptance_per_position", "decode_tokens_seen", "steps", "truncated", "cancelled", "error", "finished",
)  # fmt: skip
_STEPS_AT = _REQUEST_FIELDS.index("steps")
_REQUEST = "{" + ", ".join(f'"{name}": %s' for name in _REQUEST_FIELDS) + "}"
_ATTRIBUTES = {"prompt_tokens": "processed_tokens"}
_values_of = attrgetter(*(_ATTRIBUTES.get(name, name) for name in _REQUEST_FIELDS if name != "steps"))
_NUMBERS = frozenset({int, float})
_WORDS = {None: "null", True: "true", False: "false"}
_SERVER_SHOWN: Final = ("build", "model", "draft_model", "url", "slots", "n_ctx_slot")
_SEVERITIES = ("error", "warning", "notice")


def json_lines(summary: LogSummary, path: str) -> Iterator[str]:
    """The report as one JSON object, in pieces that make lines; `requests` comes last."""
    yield "{"
    for key, value in _head(summary, path).items():
        yield f"{_encode(key)}: {_encode(value)},"
    yield '"requests": ['
    last = len(summary.requests) - 1
    for index, request in enumerate(summary.requests):
        yield _request(request) + ("," if index < last else "")
    yield "]}"


def _head(summary: LogSummary, path: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "file": path,
        "lines": summary.lines,
        "unrecognised": summary.unrecognised,
        "unrecognised_samples": [safe_text(line) for line in summary.unrecognised_samples],
        "last_s": summary.last_s,
        "server": _server(summary),
        "totals": _totals(summary),
        "steps": _steps(summary.steps),
        "statistics": _statistics(summary),
        "warnings": _warnings(summary),
        "checkpoints": _checkpoints(summary),
        "prompt_cache": _prompt_cache(summary),
    }


def _request(request: ServedRequest) -> str:
    """A request as JSON. There may be a hundred thousand, so only what is neither number nor word is left to `json`."""
    values = [
        value if type(value) in _NUMBERS else _WORDS.get(value) or _encode(value) for value in _values_of(request)
    ]
    values.insert(_STEPS_AT, _encode(_steps(request.steps)) if request.steps.steps else "null")
    return _REQUEST % tuple(values)


def _steps(drafts: DraftTally) -> dict[str, Any]:
    return {
        "count": drafts.steps or 0,
        "accepted": drafts.accepted,
        "generated": drafts.drafted,
        "replays": drafts.replays,
    }


def _totals(summary: LogSummary) -> dict[str, Any]:
    requests = summary.requests
    generated, accepted = _sum(requests, "draft_generated"), _sum(requests, "draft_accepted")
    return {
        "requests": len(requests),
        "completed": sum(1 for request in requests if request.completed),
        "cancelled": sum(request.cancelled for request in requests),
        "failed": sum(request.error is not None for request in requests),
        "unfinished": sum(not request.finished for request in requests),
        "prompt_tokens": _sum(requests, "processed_tokens"),
        "prompt_tokens_per_second": _rate(requests, "processed_tokens", "prompt_ms", PREFILL),
        "decode_tokens": _sum(requests, "decode_tokens"),
        "decode_tokens_per_second": _rate(requests, "decode_steps", "decode_ms", DECODE),
        "draft_generated": generated,
        "draft_accepted": accepted,
        "acceptance": share(accepted, generated),
    }


def _sum(requests: Iterable[ServedRequest], field: str) -> float | None:
    """The sum of what is known of a field, None when no request has it."""
    values = [value for value in map(attrgetter(field), requests) if value is not None]
    return sum(values) if values else None


def _rate(requests: Iterable[ServedRequest], tokens: str, ms: str, limits: SpeedLimits) -> float | None:
    """Tokens per second over all requests that have both."""
    known = [pair for pair in map(attrgetter(tokens, ms), requests) if None not in pair]
    return speed(sum(count for count, _ in known), sum(time for _, time in known), limits)


_STATISTICS = "printed_type calls drafts_generated drafts_accepted tokens_generated tokens_accepted"
_STATISTICS += " mean_accepted_length acceptance_per_position"


def _statistics(summary: LogSummary) -> dict[str, dict[str, Any]]:
    return {
        name if origin is None else f"{name}@{origin}": json_of(last, _STATISTICS)
        | {"durations_ms": last.durations_ms or None, "at_s": last.at_s}
        for (name, origin), last in summary.statistics.items()
    }


def _warnings(summary: LogSummary) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "title": warning_class(name).title,
            "severity": str(warning_class(name).severity),
            "count": tally.count,
            "first": tally.first_s,
            "last": tally.last_s,
            "sample": safe_sample(name, tally.sample),
            "note": warning_class(name).meaning,
            "slots": len(tally.slots.ids),
            "slots_at_least": tally.slots.more,
            "tasks": len(tally.tasks.ids),
            "tasks_at_least": tally.tasks.more,
        }
        for name, tally in sorted(summary.warnings.items(), key=_gravity)
    }


def _gravity(item: tuple[str, Any]) -> tuple[int, int, str]:
    name, tally = item
    return _SEVERITIES.index(str(warning_class(name).severity)), -tally.count, name


def _checkpoints(summary: LogSummary) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "action": action,
            "count": totals.count,
            "total_mib": round(totals.total_mib, 3) if totals.sized else None,
            "largest_mib": totals.largest_mib,
        }
        for (kind, action), totals in summary.checkpoints.items()
    ]


def _prompt_cache(summary: LogSummary) -> dict[str, Any]:
    state = summary.cache_state
    known = [
        (request.prompt_cached, request.prompt_total_tokens)
        for request in summary.requests
        if request.prompt_cached is not None and request.prompt_total_tokens
    ]
    total = sum(length for _, length in known)
    cached = sum(tokens for tokens, _ in known)
    return {
        "prompts": state.prompts if state else None,
        "size_mib": state.size_mib if state else None,
        "limit_mib": state.limit_mib if state else None,
        "limit_tokens": state.limit_tokens if state else None,
        "saved": summary.event_counts["prompt_cache_saved"],
        "hits": summary.event_counts["prompt_cache_hit"],
        "updates": summary.event_counts["prompt_cache_updated"],
        "update_ms": round(summary.cache_update_ms, 3),
        "reused_tokens": cached if known else None,
        "prompt_tokens": total if known else None,
        "reused_share": share(cached, total),
        "slots_selected": dict(summary.selections),
    }


def _server(summary: LogSummary) -> dict[str, Any]:
    """The last server that wrote the log."""
    events = {event.name: event for port, event in summary.events if port is None}

    def field(name: str, key: str) -> str | None:
        return events[name].get(key) if name in events else None

    return {
        "starts": summary.starts,
        "restarts": summary.restarts,
        "build": field("build", "build") or field(SERVER_STARTING, "build"),
        "commit": field("build", "commit") or field(SERVER_STARTING, "commit"),
        "compiler": field("build", "compiler") or field(SERVER_STARTING, "compiler"),
        "verbosity": field("verbosity", "verbosity"),
        "model": field("model_loading", "path"),
        "draft_model": field("draft_loading", "path"),
        "url": field("listening", "url"),
        "slots": field("slots_ready", "slots"),
        "n_ctx_slot": field("slots_ready", "n_ctx_slot"),
        "kv_unified": field("slots_ready", "kv_unified"),
        "loaded": "model_loaded" in events,
        "stopping": "stopping" in events,
        "speculation": {
            "types": [event.get("type") for _, event in summary.events if event.name == "spec_implementation"],
            "parameters": [dict(event.fields) for _, event in summary.events if event.name == "spec_parameters"],
            "ready": "spec_ready" in events,
            "off": "spec_none" in events,
            "uses_checkpoints": "spec_checkpoints" in events,
            "synthetic": dict(events["spec_synthetic"].fields) if "spec_synthetic" in events else None,
        },
        "events": [_event(port, event) for port, event in summary.events],
    }


def _event(port: int | None, event: ServerEvent) -> dict[str, Any]:
    return {"name": event.name, "at_s": event.at_s, "origin": port, "fields": dict(event.fields)}


def text_lines(summary: LogSummary, path: str) -> Iterator[str]:
    """The report for people; only what the log says."""
    yield f"{path}: {summary.lines:,} lines, {summary.unrecognised:,} warnings and errors not understood"
    yield from _server_text(_server(summary))
    totals = _totals(summary)
    yield from _requests_text(summary, totals)
    yield from _starts_text(summary.requests)
    yield from _speculation_text(summary, totals)
    yield from _memory_text(summary)
    yield from _warnings_text(summary)
    for sample in islice(summary.unrecognised_samples, 5):
        yield f"not understood: {safe_text(sample)}"


def _server_text(server: dict[str, Any]) -> Iterator[str]:
    known = [f"{key} {server[key]}" for key in _SERVER_SHOWN if server[key]]
    if known:
        yield "server: " + ", ".join(known)
    if server["restarts"]:
        yield f"server: restarted {server['restarts']} times within this log; its figures above are of the last one"
    if server["speculation"]["types"]:
        yield "speculation: " + ", ".join(filter(None, server["speculation"]["types"]))


def _requests_text(summary: LogSummary, totals: dict[str, Any]) -> Iterator[str]:
    yield (
        f"requests: {totals['requests']:,} ({totals['completed']:,} completed, {totals['cancelled']:,} cancelled, "
        f"{totals['failed']:,} failed, {totals['unfinished']:,} unfinished)"
    )
    if not summary.requests:
        return
    yield (
        f"  prefill {number(totals['prompt_tokens'])} tokens at {number(totals['prompt_tokens_per_second'], 1)} tok/s, "
        f"decode {number(totals['decode_tokens'])} tokens at {number(totals['decode_tokens_per_second'], 1)} tok/s"
    )
    skipped = len(summary.requests) - _SHOWN_REQUESTS
    if skipped > 0:
        yield f"  the last {_SHOWN_REQUESTS} of them (all with --json):"
    yield "  slot   task  prompt  prefill ms  decode  decode ms  accepted"
    for request in summary.requests[-_SHOWN_REQUESTS:]:
        drafts = _share(request.draft_accepted, request.draft_generated)
        end = request.error or ("cancelled" if request.cancelled else drafts if request.finished else "unfinished")
        prefill = f"{number(request.prompt_tokens):>7} {number(request.prompt_ms, 1):>11}"
        decode = f"{number(request.decode_tokens):>7} {number(request.decode_ms, 1):>10}"
        yield f"  {number(request.slot):>4} {number(request.task):>6} {prefill} {decode}  {end}"


def _starts_text(requests: Sequence[ServedRequest]) -> Iterator[str]:
    """A line for each start of the server, where the log has several: what changed with a build."""
    starts: dict[int, list[ServedRequest]] = {}
    for request in requests:
        starts.setdefault(request.instance, []).append(request)
    if len(starts) < 2:
        return
    for instance, served in starts.items():
        build = next((request.build for request in served if request.build is not None), None)
        drafts = _share(_sum(served, "draft_accepted"), _sum(served, "draft_generated"))
        rate = number(_rate(served, "decode_steps", "decode_ms", DECODE), 1)
        of_build = f" (build {build})" if build is not None else ""
        yield f"start {instance}{of_build}: {counted(len(served), 'request')}, decode {rate} tok/s, accepted {drafts}"


def _speculation_text(summary: LogSummary, totals: dict[str, Any]) -> Iterator[str]:
    if totals["draft_generated"]:
        yield f"draft tokens: {_share(totals['draft_accepted'], totals['draft_generated'])} over the requests"
    steps = summary.steps
    if steps.steps:
        counted = _share(steps.accepted, steps.drafted)
        yield f"verification steps: {steps.steps:,}, {counted}, {steps.replays:,} replays"
    for (name, _), last in summary.statistics.items():
        drafts = _share(last.tokens_accepted, last.tokens_generated)
        yield f"statistics {name}: {drafts}, {last.drafts_generated:,} drafts since the server's start"


def _memory_text(summary: LogSummary) -> Iterator[str]:
    for (kind, action), totals in summary.checkpoints.items():
        sized = f", {size(totals.total_mib * MIB)}" if totals.sized else ""
        yield f"checkpoints: {kind} {action} {totals.count:,}{sized}"
    state, cache = summary.cache_state, _prompt_cache(summary)
    if state is not None:
        limit = f" of {size(state.limit_mib * MIB)}" if state.limit_mib is not None else ""
        over = f"; {words}" if (words := over_limit(state.prompts, state.size_mib, state.limit_mib)) else ""
        yield f"prompt cache: {counted(state.prompts, 'prompt')}, {size(state.size_mib * MIB)}{limit}{over}"
    if cache["reused_share"] is not None:
        yield f"prompt reuse: {_share(cache['reused_tokens'], cache['prompt_tokens'])} of the prompts' tokens"


def _warnings_text(summary: LogSummary) -> Iterator[str]:
    for name, tally in sorted(summary.warnings.items(), key=_gravity):
        known = warning_class(name)
        when = "" if tally.first_s is None else f", {tally.first_s:.3f} s to {tally.last_s or tally.first_s:.3f} s"
        yield f"{known.severity}: {name} x{tally.count:,}{when}: {known.title}"
        if known.severity != "notice":
            yield f"  {known.meaning}"
    found = explain(summary.last_lines, None)
    if found is not None and found.id != MOST_GENERAL:
        yield f"cause: {found.because}; {found.fix}"


def _share(part: float | None, whole: float | None) -> str:
    if part is None or not whole:
        return UNKNOWN
    return f"{number(part)}/{number(whole)} ({percent(part / whole, 1)})"
