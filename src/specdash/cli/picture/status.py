"""`specdash status`: one line for a status bar, from what a running dashboard or recorder knows, else from one quick
ask. Nothing heavy is imported on the way: it is run every few seconds (docs/scripting.md)."""

from __future__ import annotations

import threading
import time
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection  # noqa: TID251 - see `_ask`
from ssl import SSLError
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from specdash.cli.options import add_settings, resolved_settings
from specdash.core import paths
from specdash.core.config import TARGET_SETTINGS
from specdash.core.errors import ExitCode, UnreachableError
from specdash.core.status import DEFAULT_FORMAT, FRESH_S, STATUS_FIELDS, StatusNote, check_format, status_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from specdash.core.target import Target

ASK_S = 0.1
"""How long an unwatched server has to answer."""
TLS_S = 1.0
"""And how much longer over TLS, which takes some messages more."""
LATE, FAILED = 0, -1
"""In place of an answer's status."""
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
        why = f": {fields['reason']}" if fields.get("reason") else ""
        print(f"{state.upper()} {fields['url']}{why}")
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

    connect, limit_s = _connector(target.url)
    ends = time.monotonic() + limit_s
    fields = {**dict.fromkeys(STATUS_FIELDS, UNKNOWN), "url": target.url, "verdict": NEEDS_WATCHING}
    fields |= {"alerts": "", "alert": "", "why": "", "better": ""}
    answers = _ask(target, connect, ("/health", "/props"), ends)
    status, body = answers["/health"]
    if status in (LATE, FAILED):
        return {**fields, "state": "busy" if status == LATE else "down", "reason": clean(body.decode(), 200)}
    try:
        health = parse_health(status, body).status
        props = parse_props(answers["/props"][1]) if answers["/props"][0] == 200 else None
    except ValueError:
        return {**fields, "state": "unknown"}
    if answers["/props"][0] in (401, 403):
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
    status, body = _ask(target, connect, ("/metrics",), ends)["/metrics"]
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


def _ask(
    target: Target, connect: Callable[[], HTTPConnection], places: tuple[str, ...], ends: float
) -> dict[str, tuple[int, bytes]]:
    """Status and body of each; `LATE` for one that has not answered in time, `FAILED` and why where none can come,
    which a listener's absence alone says by itself."""
    # A server that is at work takes connections; one that does not shake hands speaks no TLS.
    secured = urlsplit(target.url).scheme == "https"
    answers = dict.fromkeys(places, (FAILED, b"TLS: no answer in time") if secured else (LATE, b""))

    def look(place: str) -> None:
        # A status line is printed every few seconds, and httpx takes longer to import than all of this may take.
        connection = connect()
        try:
            connection.connect()
            answers[place] = (LATE, b"")
            connection.request("GET", urlsplit(target.url).path + place + query, headers=headers)
            reply = connection.getresponse()
            answers[place] = (reply.status, reply.read(MOST_BYTES))
        except TimeoutError:
            return
        except ConnectionRefusedError:
            answers[place] = (FAILED, b"")
        except SSLError as error:
            answers[place] = (FAILED, f"TLS: {getattr(error, 'verify_message', '') or error.reason}".encode())
        except OSError as error:
            answers[place] = (FAILED, str(error.strerror or error).encode())
        except (HTTPException, ValueError):
            answers[place] = (FAILED, b"the answer is not HTTP")
        finally:
            connection.close()

    query = "?" + urlencode({"model": target.model, "autoload": "false"}) if target.model else ""
    headers = {"Authorization": f"Bearer {target.api_key.strip()}"} if target.api_key else {}
    threads = [threading.Thread(target=look, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    return dict(answers)


def _connector(url: str) -> tuple[Callable[[], HTTPConnection], float]:
    """What makes a connection, and how long the server has to answer."""
    place = urlsplit(url)
    if place.scheme != "https":
        return partial(HTTPConnection, place.hostname or "", place.port, timeout=ASK_S), ASK_S
    from specdash.system.http import tls_context

    # Reading the authorities takes as long as an answer may, and is not the server's time.
    limit_s = ASK_S + TLS_S
    more = {"timeout": limit_s, "context": tls_context(url)}
    return partial(HTTPSConnection, place.hostname or "", place.port, **more), limit_s
