"""`specdash apply`, `rollback` and `applies` as an operator and a script use them."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.journal import Journal, append_record, write_note
from specdash.cli.main import main
from specdash.cli.signals import change_begun
from specdash.control.plan import plan_apply
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Change, Role
from specdash.core.errors import ExitCode
from specdash.core.paths import applies_file, apply_journal_file, config_file
from support.deployment import Rig, assert_each_end_has_its_code_and_json, misbehaving, running_deployment
from support.outside import say
from support.pseudo_terminal import read_until
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def with_engine(test: Any) -> Any:
    return pytest.mark.slow(pytest.mark.timeout(180)(test))


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    """The services on a scripted engine, which starts in a tenth of the time: the command is what is looked at."""
    with running_deployment("scripted") as item:
        yield item


def test_nothing_to_apply_is_bad_usage() -> None:
    code, _, err = say("apply", "--yes")
    assert code == ExitCode.USAGE
    assert "write KEY=VALUE, --unset KEY or --profile NAME" in err


@pytest.mark.parametrize("word", ["-LLAMA_DRAFT_MIN", "!LLAMA_DRAFT_MIN"])
def test_a_key_to_remove_may_be_written_with_a_dash(word: str) -> None:
    code, _, err = say("apply", word, "--dry-run")
    assert code == ExitCode.SERVICE
    assert "no backend to change" in err


def test_an_unknown_option_is_no_key() -> None:
    code, _, err = say("apply", "-x", "LLAMA_DRAFT_MAX=4")
    assert code == ExitCode.USAGE
    assert "unrecognized arguments: -x" in err


def test_settings_of_another_service_are_refused_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.StringIO('{"backend": {"LLAMA_API_KEY": "canary"}, "proxy": {"PROXY_PORT": "1"}}')
    )
    code, _, said = say("apply", "--yes", "--service", "proxy", "--from-stdin")
    assert code == ExitCode.USAGE
    assert "LLAMA_API_KEY: belongs to another service than the proxy" in said
    assert "canary" not in said


def test_another_machine_is_named_by_the_command_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = say("apply", "--url", "http://127.0.0.1:8080", "LLAMA_DRAFT_MAX=4")
    assert code == ExitCode.USAGE
    assert "services are changed on their own machine" in err
    monkeypatch.setenv("SPECDASH_URL", "ssh://far")
    code, _, err = say("apply", "LLAMA_DRAFT_MAX=4", "--dry-run")
    assert code == ExitCode.SERVICE
    assert "no backend to change" in err


def test_a_target_of_another_machine_changes_nothing_here() -> None:
    config = config_file()
    config.parent.mkdir(parents=True)
    config.write_text('[[target]]\nname = "far"\nurl = "http://far:8080"\n')
    code, _, err = say("apply", "--target", "far", "LLAMA_DRAFT_MAX=4")
    assert code == ExitCode.USAGE
    assert "services are changed on their own machine" in err


def test_without_an_apply_there_is_nothing_to_list_or_to_go_back_to() -> None:
    assert say("applies") == (ExitCode.OK, "nothing was applied yet\n", "")
    assert say("applies", "--json") == (ExitCode.OK, "[]\n", "")
    code, _, err = say("rollback", "--yes")
    assert (code, "no apply is in force that could be rolled back" in err) == (ExitCode.BAD_INPUT, True)


def test_the_list_tells_number_outcome_downtime_changes_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "8")
    good = ApplyRecord(1, 1e9, 1e9 + 1, ApplyKind.APPLY, ApplyOutcome.APPLIED, (change,), downtime_s=0.412)
    bad = ApplyRecord(
        2,
        1e9,
        1e9,
        ApplyKind.APPLY,
        ApplyOutcome.ROLLED_BACK,
        (change,),
        "fast",
        ApplyStep.PROBE,
        "a first completion broke off",
    )
    for apply_record in (good, bad):
        append_record(applies_file(os.environ), apply_record)
    code, out, _ = say("applies", "-n", "1", "--json")
    assert code == ExitCode.OK
    assert [load["number"] for load in json.loads(out)] == [2]
    assert main(["applies"]) == ExitCode.OK
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["number", "when", "kind", "outcome"]
    assert first.split("  ")[-1] == "LLAMA_DRAFT_MAX 4 -> 8"
    assert "0.41 s" in first
    assert second.endswith("profile fast: LLAMA_DRAFT_MAX 4 -> 8 [probe: a first completion broke off]")
    assert "--" in second
    assert len({line.index("apply") for line in (first, second)}) == 1


@with_engine
def test_a_dry_run_shows_the_plan_and_touches_nothing(rig: Rig) -> None:
    before = rig.file().read_bytes()
    keys = ("LLAMA_API_KEY=hush-hush", "PROXY_UPSTREAM_API_KEY=hush-hush")
    done = rig.command("apply", "--dry-run", "LLAMA_DRAFT_MAX=8", *keys)
    assert done.returncode == ExitCode.OK, done.stderr
    for words in (
        "backend: swap the engine of the backend",
        '-LLAMA_DRAFT_MAX="4"',
        "+LLAMA_DRAFT_MAX=8",
        "+ --spec-draft-n-max 8",
        "LLAMA_DRAFT_MAX: read by",
    ):
        assert words in done.stdout
    assert "hush" not in done.stdout + done.stderr
    refused = rig.command("apply", "--dry-run", "LLAMA_DRAFT_MAX=0")
    assert refused.returncode == ExitCode.REFUSED
    assert "refused: nothing will be changed" in refused.stdout
    data = json.loads(rig.command("apply", "--dry-run", "--json", "LLAMA_DRAFT_MAX=8").stdout)
    assert data["refused"] is False
    assert data["changes"] == [{"role": "backend", "key": "LLAMA_DRAFT_MAX", "before": "4", "after": "8"}]
    assert rig.file().read_bytes() == before
    assert rig.records() == ()


@with_engine
def test_a_dry_run_names_a_change_that_was_cut_short(rig: Rig) -> None:
    plan = plan_apply(rig.deployment, {Role.BACKEND: {"LLAMA_DRAFT_MAX": "6"}}, env=rig.env)
    cut = Journal(1, ApplyKind.APPLY, time.time(), 0, 0.0, ApplyStep.WRITE, plan.edits)
    write_note(apply_journal_file(rig.env), cut)
    done = rig.command("apply", "--dry-run", "LLAMA_DRAFT_MAX=8")
    assert done.returncode == ExitCode.OK
    assert "LLAMA_DRAFT_MAX 4 -> 6 was cut short" in done.stderr
    assert rig.apply("LLAMA_DRAFT_MAX=8").outcome is ApplyOutcome.APPLIED
    rig.assert_settled()


@with_engine
def test_a_signal_before_the_change_is_sent_leaves_a_word_and_the_settings(rig: Rig) -> None:
    process, controller = apply_on_a_terminal(rig, "LLAMA_DRAFT_MAX=8")
    read_until(controller, b"Apply this? [y/N]")
    process.send_signal(signal.SIGTERM)
    read_until(controller, b"specdash: interrupted: nothing was changed")
    assert process.wait(10) == ExitCode.INTERRUPTED
    os.close(controller)
    rig.assert_settled(version=rig.good_backend)


@with_engine
def test_without_a_terminal_and_without_yes_nothing_is_done(rig: Rig) -> None:
    done = rig.command("apply", "LLAMA_DRAFT_MAX=8")
    assert done.returncode == ExitCode.USAGE
    assert "+LLAMA_DRAFT_MAX=8" in done.stdout
    assert "needs --yes" in done.stderr
    rig.assert_settled(version=rig.good_backend)


@with_engine
def test_each_end_has_its_exit_code_and_one_json_object_on_stdout(rig: Rig) -> None:
    before = len(rig.records())
    assert_each_end_has_its_code_and_json(rig, rig.command)
    assert len(json.loads(rig.command("applies", "--json").stdout)) == before + 3


@with_engine
def test_text_tells_each_step_the_end_and_the_log_lines_that_show_why(rig: Rig) -> None:
    good = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=8")
    assert [line.split()[0] for line in good.stderr.splitlines() if line.startswith("  ")] == [
        *("lock", "preflight", "backup", "hold", "drain", "write"),
        *("restart", "health", "speculation", "probe", "resume", "request", "settle", "record"),
    ]
    assert "applied: LLAMA_DRAFT_MAX 4 -> 8 (apply" in good.stdout
    bad = rig.command("apply", "--yes", *misbehaving(rig.home, "exits"))
    assert "| srv  llama_server: failed to load the model of the test" in bad.stderr
    assert "failed at health and was rolled back, everything is as it was before" in bad.stderr


@with_engine
def test_rollback_undoes_the_last_and_then_the_one_before(rig: Rig) -> None:
    for number in ("6", "7"):
        assert rig.command("apply", "--yes", f"LLAMA_DRAFT_MAX={number}").returncode == 0
    assert rig.command("rollback", "--yes").returncode == 0
    assert rig.values()["LLAMA_DRAFT_MAX"] == "6"
    done = rig.command("rollback", "--yes", "--json")
    assert json.loads(done.stdout)["kind"] == "rollback"
    rig.assert_settled(version=rig.good_backend)


@with_engine
def test_a_second_apply_is_told_who_holds_the_lock(rig: Rig) -> None:
    first = rig.start_command("apply", "--yes", "--health-timeout", "5", *misbehaving(rig.home, "deaf"))
    assert first.stderr is not None
    until_said(first, "restart")
    second = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=8")
    assert second.returncode == ExitCode.CONFLICT
    assert "another change is under way: apply " in second.stderr
    first.communicate(timeout=60)
    assert first.returncode == ExitCode.ROLLED_BACK
    rig.assert_settled(version=rig.good_backend)


def until_said(process: subprocess.Popen[str], step: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.split()[:1] == [step]:
            return
    pytest.fail(f"it ended before {step}")


@with_engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_rolls_back_and_a_second_one_does_not_stop_that(rig: Rig, number: int) -> None:
    process = rig.start_command("apply", "--yes", "--json", *misbehaving(rig.home, "deaf"))
    until_said(process, "restart")
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.ROLLED_BACK, err
    record = json.loads(out)
    assert (record["outcome"], record["failed_step"], record["reason"]) == (
        "rolled back",
        "health",
        "it was interrupted",
    )
    assert "already rolling back, this does not stop it" in err
    rig.assert_settled(version=rig.good_backend)


def apply_on_a_terminal(rig: Rig, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "specdash", "apply", *words]
    process = subprocess.Popen(
        command, env=rig.env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    return process, controller


@with_engine
def test_a_terminal_that_goes_away_is_no_reason_to_leave_things_half_way(rig: Rig) -> None:
    """The terminal's end is a SIGHUP and a dead stderr at once."""
    process, controller = apply_on_a_terminal(rig, "--yes", *misbehaving(rig.home, "deaf"))
    read_until(controller, b"health")
    os.close(controller)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) != 0
    # The runner rolls back without its client.
    until(lambda: bool(rig.records()) and not apply_journal_file(rig.env).exists(), 60)
    rig.assert_settled(version=rig.good_backend)
    assert rig.records()[-1].outcome is ApplyOutcome.ROLLED_BACK


@with_engine
@pytest.mark.parametrize(("answer", "applied"), [(b"n\n", False), (b"y\n", True)])
def test_on_a_terminal_it_asks(rig: Rig, answer: bytes, *, applied: bool) -> None:
    process, controller = apply_on_a_terminal(rig, "LLAMA_DRAFT_MAX=8")
    read_until(controller, b"Apply this? [y/N]")
    os.write(controller, answer)
    read_until(controller, b"applied:" if applied else b"nothing was changed")
    assert process.wait(60) == 0
    os.close(controller)
    assert rig.values()["LLAMA_DRAFT_MAX"] == ("8" if applied else "4")


@with_engine
def test_a_profile_is_applied_by_name_and_words_win_over_it(rig: Rig) -> None:
    profile: Path = rig.home / ".config/specdash/profiles/mine.toml"
    profile.parent.mkdir(parents=True, exist_ok=True)
    saved = 'name = "mine"\nsummary = "mine"\n\n[backend]\nLLAMA_DRAFT_MAX = "7"\nLLAMA_DRAFT_P_MIN = "0.5"\n'
    profile.write_text(saved, encoding="utf-8")
    done = rig.command("apply", "--profile", "mine", "LLAMA_DRAFT_MAX=9", "--yes", "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["profile"] == "mine"
    assert (rig.values()["LLAMA_DRAFT_MAX"], rig.values()["LLAMA_DRAFT_P_MIN"]) == ("9", "0.5")
    unknown = rig.command("apply", "--profile", "nobody-has-this", "--yes")
    assert unknown.returncode != ExitCode.OK
    assert "nobody-has-this" in unknown.stderr


@pytest.mark.parametrize("command", [("apply", "LLAMA_DRAFT_MAX=3"), ("rollback",)])
def test_an_interrupt_before_the_change_is_sent_says_that_nothing_was_changed(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    change_begun.clear()
    monkeypatch.setattr("specdash.cli.changes.apply_run.deployment_of", interrupted)
    code, out, err = say(*command)
    assert (code, out, err) == (ExitCode.INTERRUPTED, "", "specdash: interrupted: nothing was changed\n")
