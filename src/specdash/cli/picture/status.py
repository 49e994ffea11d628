"""`specdash status`: one line for a status bar, from what a running dashboard or recorder knows, else from one quick
ask. Nothing heavy is imported on the way: it is run every few seconds (docs/scripting.md)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, resolved_settings
from specdash.core import paths
from specdash.core.config import TARGET_SETTINGS
from specdash.core.errors import ExitCode, UnreachableError
from specdash.core.status import DEFAULT_FORMAT, FRESH_S, STATUS_FIELDS, StatusNote, check_format, status_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from specdash.core.readings import Counters, Health
    from specdash.core.target import Target

ASK_S = 0.1
"""How long an unwatched server has to answer."""
AWAY = {"down": ExitCode.UNREACHABLE, "unknown": ExitCode.UNREACHABLE, "unauthorized": ExitCode.BAD_INPUT}
"""States in which the line says nothing else, and the exit code, as `specdash snapshot` has it."""
NEEDS_WATCHING = "CAN'T TELL YET (needs a dashboard or `specdash record`)"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, TARGET_SETTINGS)
    parser.add_argument(
        "--format",
        dest="form",
        default=DEFAULT_FORMAT,
        metavar="F",
        help=f"the line, with fields in braces: {', '.join(STATUS_FIELDS)} (docs/scripting.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the line; 0, or as `AWAY` says."""
    check_format(args.form)
    settings = resolved_settings(args)
    named: str | None = settings["url"].value
    if named is not None:
        from specdash.core.target import normalise_url

        named = normalise_url(named)
    note = newest_note(named)
    if note is not None:
        return _say(args.form, note.fields)
    from specdash.cli.options import one_target

    try:
        target = one_target(settings)
    except UnreachableError:
        print("NO SERVER found on this machine")
        return ExitCode.UNREACHABLE
    return _say(args.form, asked(target))


def _say(form: str, fields: dict[str, str]) -> ExitCode:
    state = fields["state"]
    if state in AWAY:
        print(f"{state.upper()} {fields['url']}")
        return AWAY[state]
    print(status_line(form, fields))
    return ExitCode.OK


def newest_note(url: str | None) -> StatusNote | None:
    """The newest note of the server, or of any, whose writer still watches."""
    now = time.time()
    fresh = [note for note in _notes() if abs(now - note.wall) <= FRESH_S and (url is None or note.url == url)]
    if not fresh:
        return None
    from specdash.system.processes import is_alive

    return max((note for note in fresh if is_alive(note.pid)), key=lambda note: note.wall, default=None)


def _notes() -> Iterator[StatusNote]:
    try:
        names = list(paths.status_notes_dir().glob("*.json"))
    except OSError:
        return
    for name in names:
        try:
            note = StatusNote.from_json(name.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        if note is not None and note.fields.keys() >= STATUS_FIELDS.keys():
            yield note


def asked(target: Target) -> dict[str, str]:
    """The fields as far as one quick ask tells; the server is not woken, and no model is loaded, by it."""
    import asyncio

    from specdash.core.readings import ROUTER, Failure, FailureKind, HealthStatus, Props
    from specdash.llama.client import LlamaClient
    from specdash.system.text import UNKNOWN, clean, percent, rate

    async def looks() -> tuple[Health | Failure, Props | Failure, Counters | Failure | None]:
        ends = time.monotonic() + ASK_S
        client = LlamaClient(target)
        try:
            health, props = await asyncio.gather(client.health(ASK_S), client.props(ASK_S))
            is_asked = isinstance(props, Props) and not props.is_sleeping and (props.role != ROUTER or target.model)
            left = ends - time.monotonic()
            return health, props, await client.metrics(left) if is_asked and left > 0 else None
        finally:
            await client.aclose()

    health, props, totals = asyncio.run(looks())
    fields = {**dict.fromkeys(STATUS_FIELDS, UNKNOWN), "url": target.url, "verdict": NEEDS_WATCHING}
    fields |= {"alerts": "", "alert": "", "why": "", "better": ""}
    if isinstance(health, Failure):
        states = {FailureKind.TIMEOUT: "busy", FailureKind.GARBAGE: "unknown"}
        return {**fields, "state": states.get(health.kind, "down")}
    if isinstance(props, Failure) and props.kind is FailureKind.UNAUTHORIZED:
        return {**fields, "state": "unauthorized"}
    if health.status is not HealthStatus.OK:
        loading = health.status is HealthStatus.LOADING
        words = "CAN'T TELL YET (needs the model, which is loading)" if loading else NEEDS_WATCHING
        return {**fields, "state": "loading" if loading else "down", "verdict": words}
    fields |= {"state": "live"}
    if isinstance(props, Failure):
        return fields
    fields["model"] = clean(target.model or props.model_alias or (props.model_path or UNKNOWN).rsplit("/", 1)[-1], 60)
    if totals is None or isinstance(totals, Failure):
        return fields
    if totals.draft_tokens:
        fields["acceptance"] = percent((totals.accepted_tokens or 0.0) / totals.draft_tokens)
    if totals.predicted_tokens and totals.predicted_seconds:
        fields["decode"] = rate(totals.predicted_tokens / totals.predicted_seconds)
    if totals.requests_processing is not None and props.total_slots:
        fields["busy"] = f"{totals.requests_processing:.0f}/{props.total_slots}"
    return fields
