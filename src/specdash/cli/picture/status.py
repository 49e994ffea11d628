"""`specdash status`: one line for a status bar, from what a running dashboard or recorder knows, else from one quick
ask. Nothing heavy is imported on the way: it is run every few seconds (docs/scripting.md)."""

from __future__ import annotations

import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection  # noqa: TID251 - see `_ask`
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from specdash.cli.options import add_settings, resolved_settings
from specdash.core import paths
from specdash.core.config import TARGET_SETTINGS
from specdash.core.errors import ExitCode, UnreachableError
from specdash.core.status import DEFAULT_FORMAT, FRESH_S, STATUS_FIELDS, StatusNote, check_format, status_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from specdash.core.target import Target

ASK_S = 0.1
"""How long an unwatched server has to answer."""
MOST_BYTES = 4 * 1024 * 1024
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
    """The fields as far as one quick look shows; the server is not woken, and no model is loaded, by it."""
    from specdash.core.readings import HealthStatus
    from specdash.llama.server_answers import parse_health, parse_metrics, parse_props
    from specdash.system.text import UNKNOWN, clean, percent, rate

    ends = time.monotonic() + ASK_S
    fields = {**dict.fromkeys(STATUS_FIELDS, UNKNOWN), "url": target.url, "verdict": NEEDS_WATCHING}
    fields |= {"alerts": "", "alert": "", "why": "", "better": ""}
    answers = _ask(target, ("/health", "/props"), ends)
    status, body = answers.get("/health", (0, b""))
    if not status:
        return {**fields, "state": "busy" if "/health" in answers else "down"}
    try:
        health = parse_health(status, body).status
        props = parse_props(answers["/props"][1]) if answers.get("/props", (0,))[0] == 200 else None
    except ValueError:
        return {**fields, "state": "unknown"}
    if answers.get("/props", (0,))[0] in (401, 403):
        return {**fields, "state": "unauthorized"}
    if health is not HealthStatus.OK:
        loading = health is HealthStatus.LOADING
        words = "CAN'T TELL YET (needs the model, which is loading)" if loading else NEEDS_WATCHING
        return {**fields, "state": "loading" if loading else "down", "verdict": words}
    fields |= {"state": "live"}
    if props is None:
        return fields
    fields["model"] = clean(target.model or props.model_alias or (props.model_path or UNKNOWN).rsplit("/", 1)[-1], 60)
    if props.is_sleeping or (props.role == "router" and target.model is None):
        return fields
    status, body = _ask(target, ("/metrics",), ends).get("/metrics", (0, b""))
    if status != 200:
        return fields
    try:
        totals = parse_metrics(body)
    except ValueError:
        return fields
    if totals.draft_tokens:
        fields["acceptance"] = percent((totals.accepted_tokens or 0.0) / totals.draft_tokens)
    if totals.predicted_tokens and totals.predicted_seconds:
        fields["decode"] = rate(totals.predicted_tokens / totals.predicted_seconds)
    if totals.requests_processing is not None and props.total_slots:
        fields["busy"] = f"{totals.requests_processing:.0f}/{props.total_slots}"
    return fields


def _ask(target: Target, places: tuple[str, ...], ends: float) -> dict[str, tuple[int, bytes]]:
    """Status and body of each; status 0 for one that has not answered in time, none for one without a listener."""
    answers: dict[str, tuple[int, bytes]] = {}

    def look(place: str) -> None:
        # A status line is printed every few seconds, and httpx takes longer to import than all of this may take.
        connection = _connection(target.url)
        try:
            connection.request("GET", urlsplit(target.url).path + place + query, headers=headers)
            reply = connection.getresponse()
            answers[place] = (reply.status, reply.read(MOST_BYTES))
        except TimeoutError:
            answers[place] = (0, b"")
        except (OSError, HTTPException, ValueError):
            return
        finally:
            connection.close()

    query = "?" + urlencode({"model": target.model, "autoload": "false"}) if target.model else ""
    headers = {"Authorization": f"Bearer {target.api_key.strip()}"} if target.api_key else {}
    threads = {place: threading.Thread(target=look, args=(place,), daemon=True) for place in places}
    for thread in threads.values():
        thread.start()
    for place, thread in threads.items():
        thread.join(max(0.0, ends - time.monotonic()))
        if thread.is_alive():
            answers.setdefault(place, (0, b""))
    return dict(answers)


def _connection(url: str) -> HTTPConnection:
    place = urlsplit(url)
    if place.scheme != "https":
        return HTTPConnection(place.hostname or "", place.port, timeout=ASK_S)
    from specdash.system.http import tls_context

    return HTTPSConnection(place.hostname or "", place.port, timeout=ASK_S, context=tls_context(url))
