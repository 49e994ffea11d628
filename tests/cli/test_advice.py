"""Advice is what works: commands, options, keys and pages that specdash names exist, and what a message says to run
does what the message promised."""

import argparse
import ast
import importlib
import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.backend.launch import free_port
from specdash.backend.rules import values as value_rules
from specdash.cli.commands import COMMANDS, DEFAULT_COMMAND, MACHINE_OPTIONS
from specdash.cli.main import HELP, CommandParser
from specdash.collect.run_records import live_backends, live_proxies
from specdash.control.deployment import find_deployment
from specdash.core.changes import Role
from specdash.core.config import resolve
from specdash.core.env_edit import with_changes
from specdash.core.envfile import parse
from specdash.core.errors import ExitCode, UsageError
from specdash.core.parameter_catalogue import BY_KEY, PASSED_ON, REMOVED_KEYS
from specdash.core.paths import backend_env_file, proxy_env_file
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.proxy_parameters import NO_TLS
from specdash.core.removed import removed_command
from specdash.tui.action_table import ACTIONS, SHOWN
from support.asking import ask, healthy
from support.engines import llama_server_binary
from support.place import START_S, Place, place
from support.router import running_router
from support.waiting import until

__all__ = ["place"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src/specdash"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACES = {command.name: command.module for command in COMMANDS}
KEYS = {*BY_KEY, *PASSED_ON, *PROXY_KEYS, *REMOVED_KEYS, *NO_TLS, *value_rules._READ_BY_ENGINE}
FILLED = "\0"
"""Stands for what an f-string fills in."""
CANDIDATES = ("1", "backend", "status", "apply", "services", "http://127.0.0.1:1", "LLAMA_DRAFT_MAX=4", "")
"""What a placeholder may stand for; one of them must do."""
NAMES = "|".join((*PLACES, HELP))
WORDS = rf"specdash (?:(?:{NAMES}|{FILLED})(?![\w/-])|--?[a-z])"
QUOTED = re.compile(rf"`\$? ?({WORDS}[^`]*)`")
NAMED_OPTION = re.compile(r"[Ss]tart specdash with (--[a-z-]+)")
PROSE = re.compile(rf"(?:^|\n|: )\s*(?:[-$] )?({WORDS}[^\n]*)")


def command_of(line: str) -> str:
    """The command at the beginning of a line of prose or of a terminal."""
    return re.split(
        r"[.,;:)]+(?:\s|$)|  +| \(|\s[|#>&]|, | for | with \d| on the | as a | says | prints ", line, maxsplit=1
    )[0]


def strings(file: Path) -> Iterator[str]:
    """Every text of a module, of an f-string with `FILLED` where something is filled in; of docstrings, those that are
    runbooks."""
    inner: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and file.parent.name != "rules":
            inner.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def texts() -> Iterator[tuple[str, str]]:
    for file in sorted(SOURCES.rglob("*.py")):
        yield from ((str(file.relative_to(ROOT)), text) for text in strings(file))
    yield from ((str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in PAGES)


def printed() -> list[tuple[str, str]]:
    """Where, and the command, of all that are printed anywhere."""
    found: dict[tuple[str, str], None] = {}
    for where, text in texts():
        text = re.sub(r"\{\w+\}", FILLED, text)
        commands = [" ".join(command.split()) for command in QUOTED.findall(text)]
        unquoted = re.sub(r"`[^`\n]*`", "", text)
        commands += [command_of(command) for command in PROSE.findall(unquoted)]
        found |= dict.fromkeys((where, command) for command in commands)
    return list(found)


@cache
def parser(name: str) -> argparse.ArgumentParser:
    made = CommandParser(prog=f"specdash {name}", allow_abbrev=False)
    importlib.import_module(PLACES[name]).configure(made)
    return made


def alternatives(word: str) -> tuple[str, ...]:
    """What a word may stand for: a placeholder of capitals, what is filled in, one of several."""
    word = word.strip("[]")
    if FILLED in word:
        return tuple(word.replace(FILLED, text) for text in CANDIDATES)
    return (word, *CANDIDATES) if re.fullmatch(r"[A-Z_]+|…", word) else (word,)


def complaint(words: list[str]) -> str | None:
    """What the command line parser has against these words."""
    words = words[1:] if words[:1] == [HELP] else words
    for option in MACHINE_OPTIONS:
        at = words.index(option) if option in words else len(words)
        if option == "--on" or "@" in "".join(words[at + 1 : at + 2]):
            words = words[:at] + words[at + 2 :]
    name, rest = (words[0], words[1:]) if words and words[0][:1] != "-" else (DEFAULT_COMMAND, words)
    if (instead := removed_command((name, *rest))) is not None:
        return instead
    if name not in PLACES:
        return f"no command {name}"
    if rest in (["--help"], ["--version"]):
        return None
    try:
        parser(name).parse_args(rest)
    except UsageError as error:
        return str(error)
    except SystemExit:
        return None
    return None


def fails(command: str) -> str | None:
    """Why no filling of the command's placeholders is one; None where one is."""
    command = re.sub(r" \| [^\]]*\]", "]", command).partition(" > ")[0]
    words, found = shlex.split(command)[1:], ""
    one_of_each = [word.split("|") if "|" in word else [word] for word in words]
    for chosen in itertools.product(*one_of_each):
        ways = (complaint([word for word in way if word]) for way in itertools.product(*map(alternatives, chosen)))
        first = why = next(ways)
        while why is not None and (why := next(ways, "")) != "":
            pass
        found = found if why is None else str(first)
    return found or None


NAMES_OF_FAMILIES = re.compile("the following arguments are required|expected one argument")
"""A page may name a command without the arguments it wants; a message may not."""
NO_COMMANDS = {("src/specdash/proxy/http/status.py", "specdash proxy"): "the name that the proxy gives itself"}


def test_every_printed_command_is_one_that_the_parser_takes() -> None:
    commands = printed()
    assert len(commands) > 200
    for where, command in commands:
        why = fails(command)
        named = where.endswith(".md") and why is not None and NAMES_OF_FAMILIES.search(why)
        assert why is None or named or (where, command) in NO_COMMANDS, f"{where}: {command}: {why}"


def test_every_option_that_specdash_is_to_be_started_with_exists() -> None:
    named = {(where, option) for where, text in texts() for option in NAMED_OPTION.findall(text)}
    assert len(named) > 5
    for where, option in named:
        assert complaint([option, "1"]) is None, f"{where}: {option}"


def test_every_key_of_an_env_file_that_a_message_names_exists() -> None:
    for file in sorted(SOURCES.rglob("*.py")):
        for text in strings(file):
            for key in re.findall(r"(?<![\w$])(?:LLAMA|PROXY)_[A-Z0-9_]*[A-Z0-9](?![\w*])", text):
                assert key in KEYS or file.name == "removed.py", f"{file}: {key}: {text}"


def test_every_page_that_a_message_names_is_there() -> None:
    for where, text in texts():
        for page in re.findall(r"docs/[\w-]+\.md", text):
            assert (ROOT / page).is_file(), f"{where}: {page}"


# Keys of the dashboard: code names an action by its id, so that a user's own key is shown; pages name the shipped keys.

ACTION_IDS = frozenset(action.id for action in ACTIONS)
SHOWN_KEYS = frozenset(SHOWN.get(key, key) for action in ACTIONS for key in action.keys)
KEY = re.compile(r"`([A-Za-z]|[?/:,.\[\]<>!$]|space|enter|esc|tab|shift\+tab|pgup|pgdn|ctrl\+[a-z])`")
NO_KEYS = {("docs/history.md", "Z"): "the letter of a time zone"}
PRESSED = re.compile(r"\b[Pp]ress(?:es)? [`'\"]?([^\s`'\",;.]+)")


def test_every_action_whose_key_a_message_names_exists() -> None:
    named: set[str] = set()
    for file in sorted((SOURCES / "tui").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Subscript) or not ast.unparse(node.value).endswith("keys"):
                continue
            parts = node.slice.values if isinstance(node.slice, ast.JoinedStr) else [node.slice]
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if all(isinstance(text, str) for text in texts):
                named.add("".join(map(str, texts)))
            elif len(texts) > 1:
                pattern = "".join(".+" if text is None else re.escape(str(text)) for text in texts)
                assert any(re.fullmatch(pattern, action) for action in ACTION_IDS), f"{file}: {ast.unparse(node)}"
    named -= {"space", "enter"}  # a prompt's own, while it has the keyboard
    assert len(named) > 20
    assert named <= ACTION_IDS


def test_every_key_that_a_text_names_is_one_of_the_dashboard() -> None:
    found = [(where, key) for where, text in texts() for key in KEY.findall(text)]
    assert len(found) > 60
    for where, key in found:
        assert key in SHOWN_KEYS or (where, key) in NO_KEYS, f"{where}: {key}"


def test_no_message_says_to_press_a_key_that_a_user_may_have_changed() -> None:
    pressed = {(where, key) for where, text in texts() for key in PRESSED.findall(text)}
    assert {key for where, key in pressed if where.startswith("src/specdash/tui")} <= {FILLED, "the"}
    for where, key in pressed:
        if where.endswith(".md") and len(key) == 1:
            assert key in SHOWN_KEYS, f"{where}: {key}"


# What a message says to run is read where it is printed, and run as it is.


@dataclass(frozen=True)
class Situation:
    """`make` brings it about, `told` is the command that prints the advice, which `advice` finds; `promise` is what it
    must have done then."""

    name: str
    told: str
    advice: str
    promise: Callable[[Place], object]
    make: Callable[[Place], object] = lambda _: None


def serves(place: Place) -> None:
    until(lambda: healthy(place.backend_url) and bool(live_backends(place.env)), START_S, lambda: place.said)


def proxy_serves(place: Place) -> None:
    until(lambda: healthy(place.proxy_url) and bool(live_proxies(place.env)), START_S, lambda: place.said)


def both_run(place: Place) -> None:
    place.up()
    place.ready()


def died_with_its_record(place: Place) -> None:
    process = place.up("backend")
    serves(place)
    pids = [process.pid, live_backends(place.env)[0].pid]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.wait(60)
    until(lambda: not healthy(place.backend_url), START_S)


def env_files_elsewhere(place: Place) -> None:
    for role, file in ((Role.BACKEND, backend_env_file(place.env)), (Role.PROXY, proxy_env_file(place.env))):
        there = file.with_name(f"my {role}.env")
        file.rename(there)
        place.env[f"SPECDASH_{role.upper()}_ENV_FILE"] = str(there)


def key_of_the_proxy(place: Place) -> None:
    both_run(place)
    with backend_env_file(place.env).open("a", encoding="utf-8") as file:
        file.write("PROXY_LOOP_BREAKER=1\n")


SITUATIONS = (
    Situation("no backend runs", "services start backend", r"`specdash (up backend)` starts it", serves),
    Situation("no proxy runs", "services restart proxy", r"`specdash (up proxy)` starts it", proxy_serves),
    Situation(
        "env files elsewhere", "services logs backend", r"`specdash (up backend[^`]+)`", serves, env_files_elsewhere
    ),
    Situation(
        "killed, its run record left",
        "services start backend",
        r"`specdash (up backend)`",
        serves,
        died_with_its_record,
    ),
    Situation(
        "a key of the proxy in the backend's file",
        "preflight --service backend",
        r"`specdash (apply [^`]+)`",
        lambda place: "PROXY_LOOP_BREAKER" not in backend_env_file(place.env).read_text(encoding="utf-8"),
        key_of_the_proxy,
    ),
    Situation("an apply that is not there", "rollback 99", r"`specdash (applies)` lists", lambda _: True, both_run),
)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_what_a_message_says_to_run_does_what_it_promises(situation: Situation, place: Place) -> None:
    situation.make(place)
    told = place.command(*shlex.split(situation.told))
    (advice,) = set(re.findall(situation.advice, told.stdout + told.stderr)) or [told.stdout + told.stderr]
    words = shlex.split(advice)
    if words[0] == "up":
        place.start(*words)
    else:
        done = place.command(*words, *(["--yes"] if words[0] == "apply" else []))
        assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert situation.promise(place) in (None, True)


@pytest.mark.parametrize("role", Role)
def test_a_port_that_is_taken_is_left_by_the_setting_that_the_message_names(role: Role, place: Place) -> None:
    file = backend_env_file(place.env) if role is Role.BACKEND else proxy_env_file(place.env)
    url = place.backend_url if role is Role.BACKEND else place.proxy_url
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
        told = place.command("up", str(role))
        assert told.returncode == ExitCode.PORT_IN_USE, told.stderr
        (key,) = set(re.findall(r"is in use.*; stop .*, or set another (\w+)", told.stdout + told.stderr))
        free = free_port("127.0.0.1")
        values = {key: str(free)}
        file.write_text(with_changes(parse(file.read_text(encoding="utf-8")), values), encoding="utf-8")
        place.up(str(role))
        live = live_backends if role is Role.BACKEND else live_proxies
        until(lambda: any(record.url.endswith(f":{free}") for record in live(place.env)), START_S, lambda: place.said)


@pytest.mark.engine
def test_a_demo_without_a_terminal_is_the_command_that_it_names(place: Place) -> None:
    told = place.command("demo")
    assert told.returncode == ExitCode.USAGE
    (advice,) = re.findall(r"use `specdash ([^`]+)` in scripts", told.stderr)
    done = place.command(*advice.split(), "--seconds", "3")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "verdict" in done.stdout


@pytest.mark.llama_server
def test_what_is_said_of_a_router_leads_to_one_of_its_models_and_loads_none(place: Place, tmp_path: Path) -> None:
    with running_router(tmp_path) as router:
        asked = ("slots", "--url", router.url)
        assert "none of its models is in memory" in place.command(*asked).stderr
        assert "none of its models is in memory" in place.command(*asked, "--model", "beta").stderr
        assert set(router.states().values()) == {"unloaded"}
        router.use("alpha")
        (model,) = re.findall(r"by --model: (\w+)", place.command(*asked).stderr)
        assert place.command(*asked, "--model", model).returncode == ExitCode.OK
        (option,) = re.findall(r"for another: (--model) NAME", place.command("doctor", "--url", router.url).stdout)
        assert "is a router" not in place.command("doctor", "--url", router.url, option, model).stdout
        told = place.command("baseline", "record", "--url", router.url)
        (advice,) = re.findall(r"`specdash (\w+)` lists them", told.stderr)
        own = [row.split()[0] for row in place.command(advice).stdout.splitlines() if f" {model} " in row]
        words = ("--context", "256", "--concurrency", "1", "--requests", "2", "--limit", "5")
        measured = place.command("baseline", "record", "--url", own[0], *words)
        # The tiny model on a busy machine may be too uneven to be measured.
        assert measured.returncode in (ExitCode.OK, ExitCode.BAD_INPUT)
        assert "speculates: measured by completions" in measured.stderr
        assert router.states() == {"alpha": "loaded", "beta": "unloaded", "broken": "unloaded"}


@pytest.mark.llama_server
def test_what_doctor_names_is_there_once_it_is_switched_on_and_a_sleeping_server_is_not_woken(
    place: Place, tmp_path: Path
) -> None:
    model, draft = bundled_model(TARGET_MODEL), bundled_model(DRAFT_MODEL)
    port, log = free_port("127.0.0.1"), tmp_path / "server.log"
    plain = [llama_server_binary(), "-m", str(model), "-md", str(draft), "--spec-type", "draft-simple", "-c", "2048"]
    plain += ["--port", str(port), "--sleep-idle-seconds", "2"]
    url = f"http://127.0.0.1:{port}"

    def asked(*more: str, trace: str = "0") -> str:
        """What doctor says of a server with these arguments, after it has drafted and fallen asleep."""
        env = {**os.environ, "LLAMA_TRACE": trace}
        process = subprocess.Popen([*plain, *more], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: healthy(url), START_S)
            ask(f"{url}/completion", {"prompt": "the speculative decoder", "n_predict": 32}, timeout=60)
            until(lambda: ask(f"{url}/props")["is_sleeping"], START_S)
            done = place.command("doctor", "--url", url, *(["--log", str(log)] if more else []))
            assert done.returncode == ExitCode.OK
            assert "asking would wake the server" in done.stdout
            assert ask(f"{url}/props")["is_sleeping"]
            return done.stdout
        finally:
            process.terminate()
            process.wait(30)

    first = asked()
    assert re.findall(r"start llama-server with (--\S+)", first) == ["--metrics", "--log-file"]
    second = asked("--metrics", "--log-file", str(log))
    assert re.findall(r"start llama-server with (\S+ ?\d?)", second) == ["LLAMA_TRACE=1 ", "-lv 4"]
    third = asked("--metrics", "--log-file", str(log), "-lv", "4", trace="1")
    assert "start llama-server" not in third


def test_adopt_is_named_for_a_server_that_could_be_adopted_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert f"`specdash services adopt --url {here}`" in why_not(here)
    assert "`specdash targets`" in why_not(here)
    assert "--on USER@HOST" in why_not("http://gpu-box.example:8080")


def why_not(url: str) -> str:
    return find_deployment(resolve({}, {}, None, "config.toml"), os.environ, url=url).missing[Role.BACKEND]
