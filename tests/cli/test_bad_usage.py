"""Bad usage: one clear line that names the thing and what to do, the documented exit code, and no traceback."""

import re
import subprocess
from pathlib import Path

import pytest

from specdash.core.errors import ExitCode
from support.fault_server import free_port
from support.outside import ran


def complaint(done: subprocess.CompletedProcess[str], code: ExitCode) -> str:
    """The one line on stderr."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("specdash: ")
    return lines[0]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("wach",), "did you mean 'watch'"),
        (("--colour",), "--colour"),
        (("snapshot", "--jsn"), "--jsn"),
        (("snapshot", "--wait", "soon"), "--wait"),
        (("snapshot", "--wait", "-1"), "--wait -1"),
        (("snapshot", "--url", "http://"), "http://"),
        (("snapshot", "--url", "ftp://host"), "ftp"),
        (("demo", "--spec-type", "draft-mtp"), "changes LLAMA_SPEC_TYPE"),
        (("demo", "--seconds", "0", "--headless"), "--seconds 0"),
        (("demo", "--engine", "vllm"), "vllm"),
        (("backend",), "run,show"),
        (("parse-log",), "FILE"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_named(argv: tuple[str, ...], named: str) -> None:
    assert named.lower() in complaint(ran(*argv), ExitCode.USAGE).lower()


@pytest.mark.parametrize("command", ["watch", "demo"])
def test_a_dashboard_without_a_terminal_says_so(command: str) -> None:
    assert "terminal" in complaint(ran(command), ExitCode.USAGE)


NOBODY = "http://nobody"
"""Stands for a URL at which nobody answers."""
REFUSED: dict[str, str] = {
    "autotune --acceptance 1.5": "--acceptance 1.5",
    "autotune --rollback nan": "--rollback nan",
    "autotune --draft-max 0": "--draft-max 0",
    "autotune --draft-min 20": "--draft-min 20",
    "backend run --no-such-option": "--no-such-option",
    "backend walk": "walk",
    "simulate --draft-p-min -1": "--draft-p-min -1: must be 0 to 1",
    "simulate --steps 0": "--steps 0: must be 1 to 1000000",
    "simulate --steps 1234567": "--steps 1234567: must be 1 to 1000000",
    "simulate --trace calm": "calm",
    "baseline": "record,list",
    "baseline record --context many": "--context many",
    "baseline record --tokens 3": "--tokens 3",
    "baseline record --in-place": "--in-place was removed",
    "bench live --runs 0": "--runs 0: must be 1 to",
    "bench live --max-tokens 1": "--max-tokens 1: must be 2 to",
    "bench live --concurrency 0": "--concurrency 0: must be 1 to",
    "bench live --rate 0": "--rate 0: must be 0.001 to",
    "bench live --rate nan": "--rate nan: must be",
    "bench live --constant": "--constant says how requests come at a rate",
    "bench live --rate 1 --concurrency 2": "not allowed with argument",
    "bench live --class poetry": "no prompts of class 'poetry'",
    "bench live --url ftp://x": "the scheme must be http or https",
    "bench live --temperature -1": "--temperature -1: must be 0 to",
    "bench soak --turns 0": "--turns 0",
    "bench soak --timeout 0": "--timeout 0",
    "bench soak --demo --url x": "--demo",
    "bench soak --key-env NO_KEY_X": "NO_KEY_X",
    "bench soak --for soon": "soon",
    "bench soak --for 40d": "40d",
    "bench soak --for 1h --turns 2": "--turns",
    "bench soak --pid 99999999": "99999999",
    "doctor --nonsense": "--nonsense",
    "doctor --url ftp://x": "ftp",
    "doctor --url http://127.0.0.1:9 --proxy-url ftp://x": "ftp",
    "repro-empty --turns 1": "--turns 1",
    "repro-empty --tool-chars 0": "--tool-chars 0",
    "repro-empty --max-tokens 0": "--max-tokens 0",
    "repro-empty --env-file f": "--env-file was removed",
    "bench replay s.jsonl --env-file f": "--env-file was removed",
    "smoke -n 0": "-n 0",
    "smoke --max-tokens 1": "--max-tokens 1",
    "smoke --timeout 0": "--timeout 0",
    "tune --restarts 2": "--restarts 2: must be 3 to 1000",
    "tune --each 1": "--each 1: must be 2 to 1000",
    "tune --tokens 0": "--tokens 0: must be 16",
    "tune --minutes 0": "--minutes 0: must be 0.1",
    "tune --minutes nan": "--minutes nan: must be 0.1",
    "tune --seed -5": "--seed -5: must be 0 to 4294967294",
    "tune --free-vram -1": "--free-vram -1: must be 0 to 10000000",
    "tune --env-file x": "add --beside",
    "tune --beside --env-file x --apply": "leave one of them out",
    "tune --status --dry-run": "exclude each other",
    "verify --tokens 1": "--tokens 1",
    "verify --parallel 0": "--parallel 0",
    "verify --runs 99": "--runs 99",
    "verify --epsilon -1": "--epsilon -1",
    "verify --url http://x --set LLAMA_DRAFT_MAX=3": "leave --url out",
    "verify --baseline-url http://x --baseline LLAMA_MODEL=3": "leave --baseline-url out",
}
NOT_THERE: dict[str, tuple[str, ExitCode]] = {
    "doctor --api-key-env NO_SUCH_VARIABLE": ("NO_SUCH_VARIABLE", ExitCode.BAD_INPUT),
    "doctor --url http://127.0.0.1:9 --proxy-key-env NO_SUCH_VARIABLE": ("NO_SUCH_VARIABLE", ExitCode.BAD_INPUT),
    "doctor --url http://127.0.0.1:9 --proxy-log journal:-x": ("journal:-x", ExitCode.BAD_INPUT),
    f"repro-empty --url {NOBODY}": ("does not answer", ExitCode.UNREACHABLE),
    f"smoke --url {NOBODY}": ("does not answer", ExitCode.UNREACHABLE),
    "verify --prompts /nonexistent": ("/nonexistent", ExitCode.BAD_INPUT),
    "verify --env-file /nonexistent": ("/nonexistent", ExitCode.BAD_INPUT),
    "verify --profile no-such": ("", ExitCode.BAD_INPUT),
    f"verify --url {NOBODY}": ("left no record", ExitCode.BAD_INPUT),
    f"verify --baseline-url {NOBODY} --url http://127.0.0.1:1": ("does not answer", ExitCode.UNREACHABLE),
}


@pytest.mark.parametrize("words", [*REFUSED, *NOT_THERE])
def test_an_option_that_cannot_be_meant_and_what_is_not_there_are_named_in_one_line(words: str) -> None:
    named, code = NOT_THERE.get(words) or (REFUSED[words], ExitCode.USAGE)
    done = ran(*words.replace(NOBODY, f"http://127.0.0.1:{free_port()}").split())
    assert (done.returncode, done.stdout) == (code, "")
    lines = done.stderr.strip().splitlines()
    assert named in lines[-1]
    assert len(lines) == 1 or words.startswith("verify")


def test_a_broken_config_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "specdash").mkdir()
    (tmp_path / "specdash" / "config.toml").write_text("refresh = 9\n")
    line = complaint(ran("config", "show", XDG_CONFIG_HOME=str(tmp_path)), ExitCode.BAD_INPUT)
    assert "refresh = 9" in line
    assert "config.toml" in line


def test_no_server_anywhere_says_how_to_name_one() -> None:
    done = ran("snapshot", "--url", "http://127.0.0.1:9")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "DOWN" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_api_key_that_is_not_there_is_named_without_a_secret(tmp_path: Path) -> None:
    argv = ("snapshot", "--url", "http://127.0.0.1:9", "--api-key-env", "NOT_SET_ANYWHERE")
    assert "NOT_SET_ANYWHERE" in complaint(ran(*argv), ExitCode.BAD_INPUT)
    missing = str(tmp_path / "key")
    argv = ("snapshot", "--url", "http://127.0.0.1:9", "--api-key-file", missing)
    assert missing in complaint(ran(*argv), ExitCode.BAD_INPUT)


@pytest.mark.parametrize("words", [(), ("bench",), ("bench", "live"), ("proxy", "hold")])
def test_help_is_a_command_too(words: tuple[str, ...]) -> None:
    asked, told = ran("help", *words), ran(*words, "--help")
    assert (asked.returncode, asked.stderr) == (ExitCode.OK, "")
    assert asked.stdout == told.stdout


def test_help_on_what_is_no_command_suggests_one() -> None:
    assert "did you mean 'bench'" in complaint(ran("help", "bnech"), ExitCode.USAGE)
    assert "did you mean 'help'" in complaint(ran("hlep"), ExitCode.USAGE)


def test_what_an_action_does_not_know_points_to_its_own_help() -> None:
    done = ran("bench", "live", "--each", "3")
    assert "see `specdash bench live --help`" in complaint(done, ExitCode.USAGE)


def test_the_options_that_the_readme_names_are_options() -> None:
    """Of the dashboard, whose command needs no name."""
    from specdash.cli import watch
    from specdash.cli.main import CommandParser
    from specdash.cli.on import taken_from

    parser = CommandParser(prog="specdash")
    watch.configure(parser)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^specdash (--.+?)(?:  |$)", readme, re.MULTILINE)
    assert lines
    for line in lines:
        parser.parse_args(taken_from(line.split())[1])
