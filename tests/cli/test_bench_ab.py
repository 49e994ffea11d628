"""`specdash bench ab|sweep|matrix` as an operator uses them, on real engines and real services."""

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from specdash.backend import demo
from specdash.cli.main import main
from specdash.core.errors import ExitCode
from specdash.core.paths import trial_file
from support.deployment import Rig
from support.outside import say
from support.waiting import until

QUICK = ("--each", "2", "--max-tokens", "32", "--class", "pattern")
ONCE = ("--each", "1", "--max-tokens", "16", "--class", "pattern")


def env_file(directory: Path, **more: str) -> str:
    file = directory / "backend.env"
    text = demo.env_text(port=1, log=directory / "server.log", spec_types=("draft-simple",), engine="xllamacpp")
    file.write_text(text + "".join(f"{key}={value}\n" for key, value in more.items()), encoding="utf-8")
    return str(file)


def ran(*words: str, code: int = ExitCode.OK) -> Any:
    found, out, _ = say("bench", *words, "--json")
    assert found == code
    return json.loads(out)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("ab",), "two configurations"),
        (("ab", "none"), "two configurations"),
        (("ab", "none", "no-such-profile"), "no-such-profile"),
        (("ab", "--preset", "uap", "none"), "--preset"),
        (("ab", "none", "current", "--rounds", "0"), "--rounds 0"),
        (("ab", "none", "PROXY_PORT=1"), "PROXY_PORT"),
        (("ab", "none", "current", "--service", "--env-file", "x"), "--env-file"),
        (("ab", "none", "current", "--env-file", "/no/such"), "/no/such"),
        (("ab", "none", "current", "--class", "poetry"), "poetry"),
        (("ab", "none", "current", "--resume", "/no/such"), "/no/such"),
        (("sweep",), "--grid"),
        (("sweep", "--grid", "LLAMA_DRAFT_MAX"), "LLAMA_DRAFT_MAX"),
        (("sweep", "--grid", "LLAMA_DRAFT_MAX=0"), "below 1"),
        (("sweep", "--grid", "LLAMA_DRAFT_MAX=5000,6000"), "LLAMA_DRAFT_MAX=5000: must be from 1 to 1024"),
        (("ab", "none", "LLAMA_DRAFT_MAX=0"), "LLAMA_DRAFT_MAX=0: must be from 1 to 1024"),
        (("ab", "none", "long:LLAMA_DRAFT_MAX=abc"), "LLAMA_DRAFT_MAX=abc: not a whole number"),
        (("matrix",), "--drafter"),
        (("matrix", "--drafter", "x=/no/such.gguf"), "/no/such.gguf"),
        (("matrix", "--drafter", "none,none"), "twice"),
    ],
)
def test_what_cannot_be_meant_is_named_before_anything_is_started(
    words: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words if "--env-file" in words or "--service" in words else (*words, "--env-file", env_file(tmp_path))
    assert main(["bench", *given]) in (ExitCode.USAGE, ExitCode.BAD_INPUT)
    assert named in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestBesideTheService:
    def test_a_real_difference_is_found_and_equals_are_not_told_apart(self, tmp_path: Path) -> None:
        """On one thread, drafts of 16 tokens cost several times what they save: none is far faster."""
        many = (*QUICK, "--rounds", "6", "--out", str(tmp_path / "out"))
        words = ("current", "none", "current", "--env-file", env_file(tmp_path, LLAMA_DRAFT_MAX="16"), *many)
        report = ran("ab", *words)
        by_name = {comparison["name"]: comparison for comparison in report["comparisons"]}
        assert by_name["none"]["verdict"] == "real: faster", report["comparisons"]
        assert by_name["current (2)"]["verdict"] in ("within noise", "the same"), report["comparisons"]
        assert report["winner"] == "none"
        assert {"report.md", "report.json", "boots.jsonl"} <= {path.name for path in (tmp_path / "out").iterdir()}

    def test_when_nothing_starts_there_is_no_recommendation_and_it_fails(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        broken = ("a:LLAMA_MODEL=/no/a.gguf", "b:LLAMA_MODEL=/no/b.gguf")
        assert main(["bench", "ab", *broken, "--env-file", env_file(tmp_path), *QUICK]) == ExitCode.FAILED
        said = capsys.readouterr()
        assert "nothing was measured" in said.err
        assert "faster" not in said.out.replace("nothing was found to be faster", "")

    def test_when_only_one_starts_there_is_nothing_to_compare_and_it_fails(self, tmp_path: Path) -> None:
        words = ("none", "broken:LLAMA_DRAFT_MODEL=/no/such.gguf", "--env-file", env_file(tmp_path), *QUICK)
        out = tmp_path / "out"
        code, _, err = say("bench", "ab", *words, "--rounds", "1", "--out", str(out))
        assert code == ExitCode.FAILED
        assert "only none could be measured, so there is nothing to compare it with: " in err
        assert "/no/such.gguf" in (out / "report.md").read_text(encoding="utf-8")
        assert "By class" not in (out / "report.md").read_text(encoding="utf-8")

    def test_a_sweep_goes_on_where_it_was_and_refuses_other_conditions(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        grid = (
            "--grid",
            "LLAMA_DRAFT_MAX=2,4",
            "--grid",
            "LLAMA_DRAFT_MIN=0,3",
            "--env-file",
            env_file(tmp_path),
            *ONCE,
        )
        report = ran("sweep", *grid, "--out", str(out))
        assert report["candidates"] == 3
        assert len(report["left_out"]) == 1
        lines = (out / "boots.jsonl").read_bytes().splitlines(keepends=True)
        (out / "boots.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:20])
        again = ran("sweep", *grid, "--resume", str(out))
        assert len(again["ranked"]) == len(report["ranked"])
        kept = (out / "boots.jsonl").read_bytes().splitlines(keepends=True)
        assert kept[:2] == lines[:2]
        assert len(kept) == len(lines)
        code, _, err = say("bench", "sweep", *grid, "--each", "2", "--resume", str(out))
        assert code == ExitCode.REFUSED
        assert "other conditions" in err

    def test_a_matrix_tells_what_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        draft = demo.bundled_model(demo.DRAFT_MODEL)
        drafters = f"none,demo={draft},bad={env_file(tmp_path)}"
        report = ran(
            "matrix", "--drafter", drafters, "--runs", "2", "--env-file", env_file(tmp_path), *ONCE,
            "--class", "coding",
        )  # fmt: skip
        cells = {(cell["drafter"], cell["class"]): cell for cell in report["cells"]}
        assert len(cells) == 3 * 3
        assert cells["demo", "coding"]["acceptance"]["count"] == 2
        assert cells["none", "coding"]["acceptance"] is None
        assert cells["none", "coding"]["decode_tokens_per_s"]["count"] == 2
        assert "GGUF" in cells["bad", "coding"]["refused"]


def begun(rig: Rig, *words: str) -> subprocess.Popen[str]:
    """A command that has brought its first configuration into force."""
    process = rig.start_command("bench", *words, "--service", "--yes", "--each", "6", "--max-tokens", "256")
    until(lambda: trial_file(rig.env).exists() and rig.file().read_bytes() != rig.good_backend, 60)
    return process


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestOnTheService:
    def test_it_compares_and_leaves_the_service_as_it_was(self, rig: Rig) -> None:
        done = rig.command("bench", "ab", "none", "current", "--rounds", "2", "--service", "--yes", *QUICK, "--json")
        assert done.returncode == ExitCode.OK, done.stderr
        report = json.loads(done.stdout)
        assert [configuration["boots"] for configuration in report["configurations"]] == [2, 2]
        assert not trial_file(rig.env).exists()
        rig.assert_settled(version=rig.good_backend)

    def test_signals_without_end_neither_stop_nor_hold_up_what_puts_the_service_back(self, rig: Rig) -> None:
        """They come at every moment of it, also just as one of its many short waits is over."""
        process = begun(rig, "ab", "none", "LLAMA_DRAFT_MAX=2", "--rounds", "20")
        ended = threading.Event()

        def storm() -> None:
            while not ended.wait(0.003):
                process.send_signal(signal.SIGINT)

        pressing = threading.Thread(target=storm)
        pressing.start()
        try:
            _, said = process.communicate(timeout=60)
        finally:
            ended.set()
            pressing.join()
        # The last ones may find it at its very end, with nothing left to do.
        assert process.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT), said
        assert not trial_file(rig.env).exists()
        rig.assert_settled(version=rig.good_backend)

    def test_what_a_kill_leaves_is_put_back_without_a_command_and_the_next_run_finds_it(self, rig: Rig) -> None:
        out = rig.home / "out"
        process = begun(rig, "sweep", "--grid", "LLAMA_DRAFT_MAX=1,2,3,5,6,7", "--out", str(out))
        process.kill()
        process.communicate(timeout=30)
        until(lambda: not trial_file(rig.env).exists(), 30)
        rig.assert_settled(version=rig.good_backend)
        assert (out / "boots.jsonl").exists()
        done = rig.command("bench", "ab", "none", "current", "--rounds", "1", "--service", "--yes", *QUICK)
        assert done.returncode == ExitCode.OK, done.stderr
        rig.assert_settled(version=rig.good_backend)

    def test_without_consent_nothing_is_touched(self, rig: Rig) -> None:
        done = rig.command("bench", "ab", "none", "current", "--service", *QUICK)
        assert done.returncode == ExitCode.USAGE
        assert rig.records() == () or rig.file().read_bytes() == rig.good_backend
        rig.assert_settled(version=rig.good_backend)
