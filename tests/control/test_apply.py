"""An apply on a real backend and a real proxy, under real service managers: the change in force, or all as it was."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from specdash.backend.launch import free_port
from specdash.collect.run_records import live_proxies
from specdash.control.change import Apply
from specdash.control.plan import plan_rollback
from specdash.core.changes import STEPS, ApplyOutcome, ApplyStep, Role, StepState
from specdash.core.errors import ExitCode
from specdash.core.paths import apply_journal_file
from support import tiny_models
from support.asking import ask
from support.certificates import make_certificate
from support.clients import Clients
from support.deployment import ON_A_SCRIPTED_ENGINE, UNDER_THE_DAEMON, Rig, misbehaving, sweep
from support.fault_server import FaultServer, says
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BROKEN_TEMPLATE = "LLAMA_ARG_CHAT_TEMPLATE={% for message in messages %}{{ message.content "
SECRET = "secret-of-the-rig"
HEALTHY = {"/health": says(200, '{"status":"ok"}')}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny_models.build(tmp_path_factory.mktemp("models"))


@contextlib.contextmanager
def long_request(url: str, body: dict[str, Any], headers: dict[str, str]) -> Iterator[list[str]]:
    """A request that takes seconds, in a thread; the list gets how it ended."""
    import urllib.request

    import msgspec

    ended: list[str] = []

    def ask() -> None:
        request = urllib.request.Request(
            url, msgspec.json.encode(body), {"content-type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
            ended.append("answered")
        except OSError as error:
            ended.append(repr(error))

    thread = threading.Thread(target=ask)
    thread.start()
    yield ended
    thread.join(60)


ENDLESS = {"prompt": "the", "n_predict": 3500, "ignore_eos": True, "temperature": 1.5}
DIRECT = {"authorization": f"Bearer {SECRET}"}
LONG_TURN = {"model": "m", "max_tokens": 3500, "messages": [{"role": "user", "content": "recite"}]}
ENDLESS_TURN = {**LONG_TURN, "max_tokens": 500, "ignore_eos": True, "temperature": 1.5, "stream": True}
"""For `/v1/chat/completions`: never ends of itself, which a turn of the demo model may do after a few words."""


def test_a_good_change_is_in_force_verified_and_recorded(rig: Rig) -> None:
    old = rig.file().read_bytes()
    with Clients(rig) as clients:
        record = rig.apply("LLAMA_DRAFT_MAX=8")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    rig.assert_settled(version=old.replace(b'MAX="4"', b"MAX=8"))
    assert clients.errors == []
    assert [(change.key, change.before, change.after) for change in record.changes] == [("LLAMA_DRAFT_MAX", "4", "8")]
    assert record.downtime_s is not None
    assert 0 < record.downtime_s < 30
    assert 0 < record.step_seconds["engine load"] < 30
    assert record.digests == {"backend": rig.digest()}
    assert rig.backups()[record.backups["backend"] - 1] == old
    assert rig.records()[-1] == record
    done = [report.step for report in rig.reports if report.state is StepState.DONE]
    assert done == list(STEPS)


FAILING = {
    "exits": (ApplyStep.HEALTH, "failed to load the model of the test"),
    "deaf": (ApplyStep.HEALTH, "not healthy within 2 s (no answer yet)"),
    "loading": (ApplyStep.HEALTH, "not healthy within 2 s (loading)"),
    "no-drafts": (ApplyStep.SPECULATION, "it is healthy and does not speculate"),
    "dies-on-probe": (ApplyStep.PROBE, "a first completion broke off"),
    "no-tokens": (ApplyStep.PROBE, "HTTP 500: speculative batch index 7"),
}
LOGGED = {"no-drafts": "the vocab does not match", "dies-on-probe": "GGML_ASSERT(the test said so)"}


@sweep("way", list(FAILING), "exits", "dies-on-probe")
def test_a_server_that_fails_is_rolled_back_and_no_client_notices(rig: Rig, way: str) -> None:
    step, reason = FAILING[way]
    old = rig.file().read_bytes()
    with Clients(rig) as clients:
        # The runner asks nothing of its own, so that what the apply finds is the apply's.
        words = (*misbehaving(rig.home, way), "LLAMA_START_PROBE=0")
        record = rig.apply(*words, health_timeout_s=2 if step is ApplyStep.HEALTH else 30)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, step), record.reason
    assert reason in record.reason
    assert LOGGED.get(way, "") in "\n".join(record.log_lines)
    assert clients.errors == []
    rig.assert_settled(version=old)


@UNDER_THE_DAEMON
def test_a_plan_that_the_runner_refuses_stops_nothing(rig: Rig, models: dict[str, Path]) -> None:
    draft = rig.home / "vanishing.gguf"
    shutil.copy(models["draft"], draft)
    engine, old = rig.engine(), rig.file().read_bytes()
    words = (f"LLAMA_MODEL={models['target']}", f"LLAMA_DRAFT_MODEL={draft}")
    record = rig.during("lock:before", draft.unlink, *words)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.REFUSED, ApplyStep.PREFLIGHT), record.reason
    assert "no such file" in record.reason
    assert rig.engine() == engine
    rig.assert_settled(version=old)


def moved(port: int) -> tuple[str, ...]:
    return (f"LLAMA_PORT={port}", f"LLAMA_CPP_BASE=http://127.0.0.1:{port}/v1")


@UNDER_THE_DAEMON
def test_a_backend_moves_together_with_its_proxy_or_not_at_all(rig: Rig) -> None:
    port, old = free_port("127.0.0.1"), rig.file().read_bytes()
    alone = rig.prepare(f"LLAMA_PORT={port}")
    assert alone.plan.refused
    assert f"set LLAMA_CPP_BASE=http://127.0.0.1:{port}/v1" in alone.plan.findings[0].line
    assert rig.file().read_bytes() == old
    record = rig.apply(*moved(port))
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert rig.ask()
    assert ask(f"http://127.0.0.1:{port}/health")["status"] == "ok"
    plan = plan_rollback(rig.deployment, env=rig.env)
    assert Apply(plan, rig.options, lambda _: None, rig.env).run().outcome is ApplyOutcome.APPLIED
    rig.assert_settled(version=old)


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize("word", ["LLAMA_API_KEY=another-key", "-PROXY_UPSTREAM_API_KEY", "PROXY_PORT=%d"])
def test_what_would_cut_the_clients_off_is_refused_and_nobody_notices(rig: Rig, word: str) -> None:
    word = word % free_port("127.0.0.1") if "%" in word else word
    engine = rig.engine()
    with Clients(rig) as clients:
        apply = rig.prepare(word)
        assert apply.plan.refused
        record = apply.run()
    assert (record.outcome, record.failed_step) == (ApplyOutcome.REFUSED, ApplyStep.PREFLIGHT)
    assert apply.error is not None
    assert apply.error.exit_code is ExitCode.REFUSED
    assert clients.errors == []
    assert rig.engine() == engine
    rig.assert_settled(version=rig.good_backend)


def spoil(rig: Rig) -> threading.Thread:
    """Add a key with which no proxy starts, until the proxy has refused it."""
    file = rig.file(Role.PROXY)
    data = file.read_bytes()
    file.write_bytes(data + b"PROXY_TLS_CERT_FILE=/x.pem\n")

    def mend() -> None:
        until(lambda: any(record.refused for record in live_proxies(rig.env)), 20)
        file.write_bytes(data)

    thread = threading.Thread(target=mend)
    thread.start()
    return thread


def test_a_proxy_that_does_not_come_back_takes_the_backend_back_with_it(rig: Rig) -> None:
    """It refuses its env file when it restarts; by then the backend runs the new settings, and clients pass."""
    old = rig.file().read_bytes()
    with Clients(rig) as clients:
        words = ("LLAMA_DRAFT_MAX=9", "PROXY_MAX_CONNECTIONS=7")
        record = rig.during("health:before", lambda: spoil(rig), *words, health_timeout_s=5)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.RESUME), record.reason
    assert "did not take its settings over within 5 s" in record.reason
    assert clients.errors == []
    rig.assert_settled(version=old)


@ON_A_SCRIPTED_ENGINE
def test_a_backend_that_serves_tls_is_verified_over_tls(rig: Rig, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "backend", "DNS:gpu.example")
    # The proxy asks over http.
    rig.order("stop", Role.PROXY)
    alone = replace(rig, deployment=replace(rig.deployment, proxy=None))
    for words in ((f"LLAMA_ARG_SSL_CERT_FILE={certificate}", f"LLAMA_ARG_SSL_KEY_FILE={key}"), ("LLAMA_DRAFT_MAX=9",)):
        record = alone.apply(*words, health_timeout_s=10)
        assert record.outcome is ApplyOutcome.APPLIED, record.reason
        engine = rig.engine()
        assert engine is not None
        assert engine.url == rig.backend_url.replace("http:", "https:")


@ON_A_SCRIPTED_ENGINE
def test_edits_by_hand_that_are_not_in_force_yet_are_told_of(rig: Rig) -> None:
    rig.file().write_bytes(rig.file().read_bytes() + b"LLAMA_DRAFT_P_MIN=0.5\n")
    record = rig.apply("LLAMA_DRAFT_MAX=9")
    assert record.outcome is ApplyOutcome.APPLIED
    assert any("those edits come into force too" in warning for warning in record.warnings)


@ON_A_SCRIPTED_ENGINE
def test_a_stranger_who_answers_healthy_in_the_place_of_the_engine_is_not_believed(rig: Rig) -> None:
    old, port = rig.file().read_bytes(), free_port("127.0.0.1")
    words = (*misbehaving(rig.home, "deaf"), *moved(port))
    with contextlib.ExitStack() as stack:
        answer = lambda: stack.enter_context(FaultServer(HEALTHY, port))  # noqa: E731
        record = rig.during("health:before", answer, *words, health_timeout_s=2)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.HEALTH), record.reason
    rig.assert_settled(version=old)


@sweep("step", STEPS, ApplyStep.RESTART, ApplyStep.SETTLE)
def test_a_cancel_at_any_step_leaves_everything_as_it_was(rig: Rig, step: ApplyStep) -> None:
    old = rig.file().read_bytes()
    with Clients(rig) as clients:
        record = rig.cancelled_at(step, "LLAMA_DRAFT_MAX=9", "PROXY_LOOP_WINDOW=11")
    untouched = step in (ApplyStep.LOCK, ApplyStep.PREFLIGHT, ApplyStep.BACKUP)
    assert record.outcome is (ApplyOutcome.REFUSED if untouched else ApplyOutcome.ROLLED_BACK)
    assert (record.failed_step, record.reason) == (step, "it was interrupted")
    assert clients.errors == []
    rig.assert_settled(version=old)


@UNDER_THE_DAEMON
def test_a_hot_proxy_setting_drops_no_stream_and_restarts_nothing(rig: Rig) -> None:
    engine, proxy = rig.engine(), rig.service(Role.PROXY).status().pid
    with long_request(f"{rig.proxy_url}/v1/messages", LONG_TURN, {}) as ended:
        record = rig.apply("PROXY_LOOP_WINDOW=12")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert ended == ["answered"]
    assert (rig.engine(), rig.service(Role.PROXY).status().pid) == (engine, proxy)
    assert record.downtime_s is None
    rig.assert_settled()


def test_a_proxy_setting_that_needs_a_restart_loses_no_request(rig: Rig) -> None:
    proxy = rig.service(Role.PROXY).status().pid
    with Clients(rig) as clients:
        record = rig.apply("PROXY_MAX_CONNECTIONS=32")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert rig.service(Role.PROXY).status().pid == proxy
    assert clients.errors == []
    rig.assert_settled()


@sweep("word", ["PROXY_LOOP_WINDOW=13"], "PROXY_MAX_CONNECTIONS=33")
def test_both_services_change_as_one(rig: Rig, word: str) -> None:
    with Clients(rig) as clients:
        record = rig.apply("LLAMA_DRAFT_MAX=6", word)
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert clients.errors == []
    assert set(record.digests) == {"backend", "proxy"}
    rig.assert_settled()
    with Clients(rig) as clients:
        record = rig.apply(*misbehaving(rig.home, "exits"), "PROXY_LOOP_WINDOW=14", "PROXY_MAX_CONNECTIONS=34")
    assert record.outcome is ApplyOutcome.ROLLED_BACK
    assert clients.errors == []
    assert rig.values(Role.PROXY)[word.split("=", maxsplit=1)[0]] == word.split("=")[1]
    rig.assert_settled()


@UNDER_THE_DAEMON
@pytest.mark.parametrize("force", [False, True])
def test_requests_that_do_not_end_in_time_stop_the_apply_or_are_cut_off_by_force(rig: Rig, *, force: bool) -> None:
    old, engine = rig.file().read_bytes(), rig.engine()
    with contextlib.ExitStack() as stack:
        ended: list[list[str]] = []

        def begin() -> None:
            turns = [long_request(f"{rig.proxy_url}/v1/chat/completions", ENDLESS_TURN, {}) for _ in range(3)]
            ended.extend(stack.enter_context(turn) for turn in turns)
            until(lambda: rig.proxy("/admin/state")["active"] > 1)

        record = rig.during("backup:before", begin, "LLAMA_DRAFT_MAX=9", drain_timeout_s=0.01, force=force)
    if force:
        assert record.outcome is ApplyOutcome.APPLIED, record.reason
        assert any("cut off (--force)" in warning for warning in record.warnings)
        rig.assert_settled()
        return
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.DRAIN)
    assert "requests were still running after 0.01 s" in record.reason
    assert ended == [["answered"]] * 3
    assert rig.engine() == engine
    rig.assert_settled(version=old)


@UNDER_THE_DAEMON
def test_requests_sent_straight_to_the_backend_are_waited_for_and_then_told_of(rig: Rig) -> None:
    with long_request(f"{rig.backend_url}/completion", ENDLESS, DIRECT) as ended:
        until(lambda: any(slot["is_processing"] for slot in ask(f"{rig.backend_url}/slots", key=SECRET)))
        record = rig.apply("LLAMA_DRAFT_MAX=9")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    if ended != ["answered"]:
        assert any("did not come through a held proxy" in warning for warning in record.warnings)
    rig.assert_settled()


@ON_A_SCRIPTED_ENGINE
def test_a_file_that_is_edited_between_write_and_rollback_is_left_alone_and_said(rig: Rig) -> None:
    old = rig.file().read_bytes()

    def edit() -> None:
        rig.file().write_bytes(rig.file().read_bytes() + b"# an editor was here\n")

    record = rig.during("probe:before", edit, *misbehaving(rig.home, "no-tokens"))
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.PROBE)
    assert any(f"backup {record.backups['backend']}" in warning for warning in record.warnings)
    assert rig.status()["env_digest"] == hashlib.sha256(old).hexdigest()
    assert rig.file().read_bytes().endswith(b"# an editor was here\n")
    assert rig.proxy("/admin/state")["held"] is False
    assert not apply_journal_file(rig.env).exists()


@ON_A_SCRIPTED_ENGINE
def test_the_settings_of_a_backend_that_does_not_run_are_written_and_count_at_its_next_start(rig: Rig) -> None:
    rig.order("stop", Role.BACKEND)
    old = rig.file().read_bytes()
    record = rig.apply("LLAMA_DRAFT_MAX=6")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert record.downtime_s is None
    assert rig.backups()[record.backups["backend"] - 1] == old
    assert any(report.step is ApplyStep.RESTART and "next start" in report.detail for report in rig.reports)
    rig.order("start", Role.BACKEND)
    rig.wait_ready()
    rig.assert_settled(version=old.replace(b'MAX="4"', b"MAX=6"))


@ON_A_SCRIPTED_ENGINE
def test_no_secret_reaches_records_or_progress(rig: Rig) -> None:
    record = rig.apply("LLAMA_API_KEY=another-secret", "PROXY_UPSTREAM_API_KEY=another-secret")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    kept = (rig.home / ".local/state/specdash/applies.jsonl").read_text(encoding="utf-8")
    told = kept + "".join(report.detail for report in rig.reports)
    assert SECRET not in told
    assert "another-secret" not in told
    rig.assert_settled()


def test_a_storm_of_good_refused_and_failing_changes_costs_no_client_a_request(rig: Rig) -> None:
    """One after the other under the same clients: each ends as it must, and the file is that of the last good one."""
    good = (("LLAMA_DRAFT_MAX=8",), ("LLAMA_DRAFT_P_MIN=0.4",), ("LLAMA_DRAFT_MAX=6", "PROXY_MAX_CONNECTIONS=48"))
    refused = (("LLAMA_DRAFT_MAX=0",), ("LLAMA_MODEL=/no/such/model.gguf",), ("LLAMA_SPEC_TYPE=draft-simpel",))
    failing = (misbehaving(rig.home, "exits"), [BROKEN_TEMPLATE], misbehaving(rig.home, "no-drafts"))
    ends = []
    with Clients(rig) as clients:
        for change, refusal, failure in zip(good, refused, failing, strict=True):
            ends += [rig.apply(*change).outcome, rig.prepare(*refusal).run().outcome, rig.apply(*failure).outcome]
    assert ends == [ApplyOutcome.APPLIED, ApplyOutcome.REFUSED, ApplyOutcome.ROLLED_BACK] * 3
    assert clients.errors == []
    rig.assert_settled()
    assert rig.values()["LLAMA_DRAFT_MAX"] == "6"
    assert rig.values()["LLAMA_DRAFT_P_MIN"] == "0.4"
    assert rig.values(Role.PROXY)["PROXY_MAX_CONNECTIONS"] == "48"
