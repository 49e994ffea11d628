"""`specdash parse-log`, as it is run."""

import bz2
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.main import main
from specdash.llama.log import WARNING_CLASSES
from support.outside import say

LOGS = Path(__file__).parents[1] / "data" / "logs"


def parse_log(*args: str) -> dict[str, Any]:
    code, out, _ = say("parse-log", *args, "--json")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    return report


def piped(data: bytes) -> Any:
    """The report on what comes by standard input."""
    command = [sys.executable, "-m", "specdash", "parse-log", "-", "--json"]
    return json.loads(subprocess.run(command, input=data, capture_output=True, timeout=60, check=True).stdout)


class TestJson:
    def test_has_the_fields_of_the_contract(self) -> None:
        report = parse_log(str(LOGS / "mamba_draft75_lv3_trace1.log"))
        assert report["schema"] == "specdash.parse-log/1"
        assert (report["lines"], report["unrecognised"]) == (66, 0)
        assert {key: report["steps"][key] for key in ("accepted", "generated", "replays")} == {
            "accepted": 80,
            "generated": 144,
            "replays": 18,
        }
        first = report["requests"][0]
        assert {key: first[key] for key in CONTRACT} == {
            "slot": 0,
            "task": 0,
            "prompt_tokens": 122,
            "prompt_ms": 31.41,
            "decode_tokens": 60,
            "decode_ms": 106.86,
            "draft_generated": 72,
            "draft_accepted": 40,
            "cancelled": False,
        }
        assert first["steps"] == {"count": 9, "accepted": 40, "generated": 72, "replays": 9}
        warning = report["warnings"]["normal"]
        assert (warning["count"], warning["first"], warning["last"]) == (1, 0.046765, 0.046765)
        assert warning["sample"] == "0.00.046.765 W srv    load_model: LLAMA_TRACE = 1"

    def test_has_checkpoints_and_prompt_reuse(self) -> None:
        report = parse_log(str(LOGS / "qwen35_mtp_np2_lv4.log"))
        created = next(
            item for item in report["checkpoints"] if (item["kind"], item["action"]) == ("context", "created")
        )
        assert created["count"] == 7
        assert report["prompt_cache"]["prompts"] == 4
        assert report["prompt_cache"]["reused_tokens"] == 26
        assert report["prompt_cache"]["reused_share"] == pytest.approx(26 / 341)

    def test_says_null_for_what_the_log_does_not_tell(self) -> None:
        report = parse_log(str(LOGS / "cancel_and_sigterm.log"))
        cancelled, unfinished = report["requests"]
        assert (cancelled["cancelled"], cancelled["decode_ms"], cancelled["draft_accepted"]) == (True, None, None)
        assert (unfinished["finished"], unfinished["cancelled"]) == (False, False)
        assert report["totals"]["acceptance"] is None
        assert report["server"]["build"] is None

    def test_of_an_empty_file_has_no_lines(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty.log"
        empty.touch()
        report = parse_log(str(empty))
        assert (report["lines"], report["requests"], report["warnings"]) == (0, [], {})

    @pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
    def test_is_json_for_every_log(self, path: Path) -> None:
        report = parse_log(str(path))
        assert all(set(request) >= CONTRACT for request in report["requests"])
        assert all({"count", "first", "last", "sample"} <= set(warning) for warning in report["warnings"].values())


CONTRACT = {
    "slot",
    "task",
    "prompt_tokens",
    "prompt_ms",
    "decode_tokens",
    "decode_ms",
    "draft_generated",
    "draft_accepted",
    "cancelled",
}


class TestText:
    @pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
    def test_is_short_and_printable_for_every_log(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["parse-log", str(path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) < 60
        assert all(line.isprintable() for line in lines)

    def test_tells_requests_acceptance_and_warnings(self) -> None:
        text = say("parse-log", str(LOGS / "llama_ctxshift_draft75.log"))[1]
        assert "requests: 1 (1 completed, 0 cancelled, 0 failed, 0 unfinished)" in text
        assert "507/711 (71.3 %)" in text
        assert "warning: context_shift x4, 0.473 s to 1.691 s" in text


class TestInput:
    def test_standard_input_is_a_file_too(self) -> None:
        assert piped((LOGS / "router.log").read_bytes())["lines"] == 70

    @pytest.mark.parametrize(
        ("name", "reason"), [("nowhere.log", "No such file or directory"), (".", "is a directory")]
    )
    def test_that_cannot_be_read_is_one_clear_line(
        self, name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        code, _, error = say("parse-log", name)
        assert code == 3
        assert error.count("\n") == 1
        assert error.startswith("specdash: log file ")
        assert reason in error

    @pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
    def test_that_is_compressed_names_the_way_in(self, packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
        file = tmp_path / "server.log.1"
        file.write_bytes(packed((LOGS / "router.log").read_bytes()))
        code, out, err = say("parse-log", str(file))
        assert (code, out, "`zcat FILE | specdash parse-log -`" in err) == (3, "", True)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_that_may_not_be_read_is_one_clear_line(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret.log"
        secret.touch(mode=0o000)
        code, _, err = say("parse-log", str(secret))
        assert code == 3
        assert "Permission denied" in err

    def test_a_reader_that_goes_away_is_no_error(self) -> None:
        command = f"{sys.executable} -m specdash parse-log {LOGS / 'http_misc.log'} --json | head -c 100"
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False)
        assert done.stderr == b""


def test_the_manual_names_every_warning_class_and_field() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "parse-log.md").read_text()
    report = parse_log(str(LOGS / "qwen35_mtp_np2_lv4.log"))
    names = [*WARNING_CLASSES, *report, *report["requests"][0], *report["prompt_cache"], *report["totals"]]
    names += [*report["server"], *report["statistics"]["draft-mtp"]]
    assert [name for name in names if not re.search(rf"`{name}(`|\[\]|\{{)", manual)] == []


def test_a_request_names_the_start_of_the_server_that_served_it() -> None:
    def start(build: int, accepted: int) -> str:
        slot = "slot print_timing: id  0 | task 4 |"
        return (
            "0.00.001.000 I srv  llama_server: initializing ...\n"
            f"0.00.002.000 I cmn  common_init_: build {build} (45cac74d9) with GNU 12.2.0 for Linux x86_64\n"
            "0.00.100.000 I slot launch_slot_: id  0 | task 4 | processing task, is_child = 0\n"
            f"0.09.463.231 I {slot}        eval time =    1000.00 ms /   101 tokens (    2.82 ms per token)\n"
            f"0.09.463.339 I {slot} draft acceptance = 0.5 ({accepted} accepted /   100 generated), mean len =  6.61\n"
            "0.09.463.400 I slot release: id  0 | task 4 | stop processing: n_tokens = 5, truncated = 0\n"
        )

    log = (start(9234, 64) + start(9235, 24)).encode()
    found = piped(log)["requests"]
    assert [(request["instance"], request["build"], request["draft_accepted"]) for request in found] == [
        (1, "9234", 64),
        (2, "9235", 24),
    ]
    command = [sys.executable, "-m", "specdash", "parse-log", "-"]
    text = subprocess.run(command, input=log, capture_output=True, timeout=60, check=True).stdout.decode()
    assert "start 1 (build 9234): 1 request, decode 100.0 tok/s, accepted 64/100 (64.0 %)" in text
    assert "start 2 (build 9235): 1 request, decode 100.0 tok/s, accepted 24/100 (24.0 %)" in text


def test_the_cause_of_an_end_comes_last() -> None:
    _, out, _ = say("parse-log", str(LOGS / "flag_md_missing.log"))
    assert out.splitlines()[-1] == "cause: the draft model /nonexistent.gguf does not exist; correct LLAMA_DRAFT_MODEL"
