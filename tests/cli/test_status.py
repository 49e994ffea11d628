"""`specdash status`: one line for a status bar."""

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.cli.picture import snapshot, status
from specdash.core import paths
from specdash.core.readings import Health, HealthStatus, Reading, Source
from specdash.core.status import FRESH_S, STATUS_FIELDS, StatusNote
from specdash.export.status_notes import EVERY_S, StatusNotes, status_fields
from specdash.insight.picture import BackendPicture, BackendState, Picture
from support.certificates import make_certificate
from support.fault_server import FaultServer, hangs, says, writes
from support.outside import say
from tui.fake_alerts import alerts
from tui.fake_state import FakeState

URL = "http://127.0.0.1:18080"
PROPS = {"model_path": "/models/m.gguf", "total_slots": 4}
METRICS = """llamacpp:tokens_predicted_total 1000
llamacpp:tokens_predicted_seconds_total 20
llamacpp:spec_decode_num_draft_tokens_total 400
llamacpp:spec_decode_num_accepted_tokens_total 300
llamacpp:requests_processing 1
"""
ROUTES = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, json.dumps(PROPS)),
    "/metrics": says(200, METRICS, "Content-Type: text/plain"),
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no test fail."""
    monkeypatch.setattr(status, "ASK_S", 20.0)


def left(**changes: Any) -> Path:
    """The note of a program that watches."""
    fields = {**dict.fromkeys(STATUS_FIELDS, "--"), "verdict": "PAYS 1.6×", "state": "live", "url": URL}
    note = StatusNote(URL, time.time(), os.getpid(), {**fields, **changes.pop("fields", {})})
    note = replace(note, **changes)
    directory = paths.status_notes_dir()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{len(list(directory.iterdir()))}.json"
    file.write_text(note.to_json(), encoding="utf-8")
    return file


def test_the_line_is_what_a_program_that_watches_knows() -> None:
    left(fields={"acceptance": "67 %", "decode": "57.6", "alerts": ""})
    assert say("status") == (0, "PAYS 1.6×  67 % accepted  57.6 tok/s\n", "")
    assert say("status", "--url", URL, "--format", "{verdict:.4}|{state}|{model}") == (0, "PAYS|live|--\n", "")


def test_the_newest_note_counts_and_one_that_no_longer_holds_does_not() -> None:
    left(fields={"verdict": "the older one"}, wall=time.time() - 5)
    left(fields={"verdict": "of the past"}, wall=time.time() - 2 * FRESH_S)
    left(fields={"verdict": "of a program that is gone"}, pid=2**22 + 7)
    left(fields={"verdict": "of another server"}, url="http://127.0.0.1:18081")
    (paths.status_notes_dir() / "torn.json").write_text('{"url": ', encoding="utf-8")
    assert say("status", "--url", URL, "--format", "{verdict}")[1] == "the older one\n"


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        ("{speed}", "no field {speed}; there are verdict, "),
        ("{verdict.upper}", "no field {verdict.upper}"),
        ("{}", "no field {}"),
        ("{verdict", "expected '}'"),
        ("{verdict:d}", "Unknown format code"),
    ],
)
def test_a_format_that_cannot_be_meant_is_a_usage_error(form: str, complaint: str) -> None:
    code, out, err = say("status", "--format", form)
    assert (code, out) == (2, "")
    assert err.startswith("specdash: --format")
    assert complaint in err


def test_a_server_that_nobody_watches_is_asked_for_what_one_look_tells() -> None:
    with FaultServer(ROUTES) as server:
        form = "{verdict}|{acceptance}|{decode}|{busy}|{model}|{state}"
        code, out, _ = say("status", "--url", server.url, "--format", form)
        assert (code, out) == (0, f"{status.NEEDS_WATCHING}|75 %|50.0|1/4|m.gguf|live\n")
        assert server.count("/slots") == 0


def test_a_sleeping_server_is_let_sleep() -> None:
    with FaultServer({**ROUTES, "/props": says(200, json.dumps({**PROPS, "is_sleeping": True}))}) as server:
        assert say("status", "--url", server.url, "--format", "{acceptance}")[:2] == (0, "--\n")
        assert server.count("/metrics") == 0


def test_a_server_that_is_away_is_the_whole_line_and_the_exit_code_of_snapshot() -> None:
    left(fields={"state": "down", "url": URL})
    assert say("status", "--format", "{acceptance}") == (4, f"DOWN {URL}\n", "")
    with FaultServer({**ROUTES, "/props": says(401, "{}")}) as server:
        assert say("status", "--url", server.url)[:2] == (3, f"UNAUTHORIZED {server.url}\n")
    with FaultServer({"/health": says(200, "<html>")}) as server:
        assert say("status", "--url", server.url)[:2] == (4, f"UNKNOWN {server.url}\n")
    assert say("status", "--url", server.url)[:2] == (4, f"DOWN {server.url}\n")


def test_no_server_is_said_where_a_status_bar_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdash.collect.discover.discover", lambda _: [])
    assert say("status") == (4, "NO SERVER found on this machine\n", "")


def test_a_server_that_is_slow_to_answer_is_busy_and_one_that_loads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer({"/health": says(503, '{"error":{"message":"Loading model"}}')}) as server:
        assert "which is loading" in say("status", "--url", server.url)[1]
    monkeypatch.setattr(status, "ASK_S", 0.05)
    with FaultServer({"/health": hangs()}) as server:
        assert say("status", "--url", server.url, "--format", "{state}")[:2] == (0, "busy\n")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("certificate", "TLS: self-signed certificate"),
        ("garbage", "TLS: WRONG_VERSION_NUMBER"),
        ("silence", "TLS: no answer in time"),
    ],
)
def test_where_tls_is_not_agreed_the_server_is_down_with_the_reason(
    kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "silence":
        monkeypatch.setattr(status, "ASK_S", 0.05)
        monkeypatch.setattr(status, "TLS_S", 0.2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "own"))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                taken.append(connection)
                with contextlib.suppress(OSError):
                    if kind == "certificate":
                        context.wrap_socket(connection, server_side=True)
                    elif kind == "garbage":
                        connection.sendall(b"220 mail.example ESMTP\r\n")

    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=serve, daemon=True).start()
        assert say("status", "--url", url) == (4, f"DOWN {url}: {reason}\n", "")
        listener.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


def test_what_is_not_http_is_down_with_the_reason() -> None:
    with FaultServer({"/health": writes(b"220 mail.example ESMTP\r\n")}) as server:
        assert say("status", "--url", server.url)[:2] == (4, f"DOWN {server.url}: the answer is not HTTP\n")


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_config_file_that_would_never_end_is_refused(kind: str) -> None:
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    assert say("status") == (3, "", f"specdash: cannot read {file}: it is a pipe or a device; name a file\n")


def test_every_state_has_one_exit_code_here_and_in_snapshot() -> None:
    for state in BackendState:
        shown = snapshot.exit_code(Picture(0.0, 0.0, 60.0, BackendPicture(URL, state=state)))
        assert status.AWAY.get(str(state), 0) == shown


@pytest.mark.parametrize("scene", ["busy", "down", "storm", "failed", "hurting", "estimated"])
def test_a_picture_gives_every_field(scene: str) -> None:
    assert status_fields(FakeState(scene).picture(0.0, 1.0, 300.0)).keys() == STATUS_FIELDS.keys()


def test_a_picture_with_alerts_counts_them_and_names_the_cause() -> None:
    fields = status_fields(alerts(FakeState("busy").picture(0.0, 1.0, 300.0)))
    assert fields["alerts"].endswith("alerts")
    assert fields["alert"]


def test_whoever_watches_leaves_a_note_a_second_and_takes_it_back() -> None:
    now = [100.0]
    pictures = []

    def picture(at: float, wall: float, window_s: float) -> Picture:
        pictures.append(at)
        return FakeState("busy").picture(at, wall, window_s)

    notes = StatusNotes(picture, clock=lambda: now[0])
    health = Reading.known(Source.HEALTH, 1.0, Health(HealthStatus.OK))
    notes.on_reading(health)
    notes.on_reading(health)
    assert pictures == [100.0]
    assert say("status", "--format", "{verdict}")[1] == "PAYS 1.8×\n"
    now[0] += EVERY_S
    notes.on_reading(health)
    assert len(pictures) == 2
    notes.close()
    assert list(paths.status_notes_dir().iterdir()) == []
