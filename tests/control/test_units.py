"""The text of our units: systemd reads back exactly the words that were meant, and finds nothing to complain about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdash.control.services.units import (
    BACKEND_UNIT,
    PROXY_SOCKET,
    PROXY_UNIT,
    UnitFacts,
    assignment,
    directives,
    expand,
    output_file,
    path_value,
    shown_words,
    split_words,
    unit_texts,
    version_of,
    word,
)
from specdash.core.errors import InputError
from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.systemd_user import UserManager

FACTS = UnitFacts(
    python="/opt/a b/100%/py$thon",
    backend_env="/home/m e/$HOME/50% \"x\" 'y' \\z.env",
    proxy_env="/home/ü/proxy.env",
    listen=("127.0.0.1:4000",),
    environment={"XDG_STATE_HOME": "/srv/s t/%h"},
)
TEXTS = st.text(
    st.one_of(
        st.sampled_from(" \t\n'\"\\%$;{}#@-+!:|=~x0ü"),
        st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"),
    ),
    min_size=1,
    max_size=12,
)
NAMES = st.text(
    st.one_of(st.sampled_from(" %$;{}#@-+!:|=~ü"), st.characters(categories=("L", "N", "P", "S"))),
    min_size=1,
    max_size=12,
).filter(lambda name: not set(name) & set("/\"'\\"))


def values(text: str, key: str) -> list[str]:
    return [value for _, name, value in directives(text) if name == key]


@given(TEXTS)
def test_a_word_is_read_back_as_it_was_meant(text: str) -> None:
    expanded = expand(word(text))
    assert expanded is not None
    found = split_words(expanded)
    assert found is not None
    assert [name.replace("$$", "$") for name in found] == [text]


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserManager]:
    with running_user_manager(tmp_path_factory.mktemp("home")) as user_manager:
        yield user_manager


@pytest.mark.parametrize("text", ["a\0b", "caf\udce9", "\ud800"])
def test_what_no_unit_file_can_say_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be a word"):
        word(text)
    with pytest.raises(InputError, match=r"V=.* cannot be given"):
        assignment("V", text)


@pytest.mark.parametrize("code", [0xFDD0, 0xFDEF, 0xFFFE, 0xFFFF, 0x1FFFE, 0x10FFFF])
def test_a_value_that_systemd_would_leave_out_is_refused(code: int) -> None:
    with pytest.raises(InputError, match=r"V=.* systemd takes no such characters"):
        assignment("V", f"a{chr(code)}")


@pytest.mark.systemd
@given(words=st.lists(TEXTS, min_size=1, max_size=8), value=TEXTS)
@example(words=["a\uffffb", "\ufdd0"], value="\ufdcf\ufdf0\ufffd\U0010fffd")
@example(words=["a"], value="\uffff")
def test_systemd_hands_over_words_and_variables_as_they_were_meant(
    manager: UserManager, tmp_path: Path, words: list[str], value: str
) -> None:
    out = tmp_path / "out.json"
    code = f"import json,os,sys; json.dump([sys.argv[1:], os.environ['V']], open({str(out)!r}, 'w'))"
    line = " ".join(word(name) for name in (sys.executable, "-I", "-S", "-c", code, *words))
    try:
        said = assignment("V", value)
    except InputError:
        return
    text = f"[Service]\nType=oneshot\nExecStart={line}\nEnvironment={said}\n"
    (manager.units / "words.service").write_text(text, encoding="utf-8")
    manager.systemctl("daemon-reload")
    manager.systemctl("start", "words.service")
    assert json.loads(out.read_text(encoding="utf-8")) == [words, value]


@pytest.mark.systemd
@given(name=NAMES)
def test_systemd_starts_a_program_wherever_it_lies_and_appends_to_the_file_meant(
    manager: UserManager, tmp_path: Path, name: str
) -> None:
    directory = tmp_path / f"d{name}d"
    directory.mkdir(exist_ok=True)
    program, log = directory / "echo", directory / "log"
    # A link: a script just written can still be open in a process that was forked meanwhile (ETXTBSY).
    program.symlink_to("/bin/echo")
    text = f"[Service]\nType=oneshot\nExecStart={word(str(program), program=True)} here\n"
    text += f"StandardOutput=append:{path_value(str(log))}\n"
    unit = manager.units / "program.service"
    unit.write_text(text, encoding="utf-8")
    manager.systemctl("daemon-reload")
    manager.systemctl("start", "program.service")
    assert shown_words([str(unit)]) == [str(program), "here"]
    assert output_file([str(unit)]) == log
    assert log.read_text(encoding="utf-8") == "here\n"
    shutil.rmtree(directory)


@pytest.mark.systemd
@pytest.mark.parametrize("log_dir", [None, "/var/tmp/l o g"])  # noqa: S108 - only named
def test_systemd_finds_nothing_to_complain_about(manager: UserManager, log_dir: str | None, tmp_path: Path) -> None:
    python = tmp_path / "a b %h $x" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    facts = UnitFacts(
        str(python),
        "/x y/100%.env",
        FACTS.proxy_env,
        ("127.0.0.1:4000", "[::1]:4000"),
        FACTS.environment,
        log_dir=log_dir,
        kill=shutil.which("kill") or "",
        find=shutil.which("find") or "",
        modprobe="/bin/true",
    )
    texts = unit_texts(facts)
    for name, text in texts.items():
        (manager.units / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [shutil.which("systemd-analyze") or "", "--user", "verify", *(str(manager.units / name) for name in texts)],
        env={**os.environ, **manager.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_unit_says_that_it_is_ours_and_nobody_elses_does() -> None:
    for text in unit_texts(FACTS).values():
        assert version_of(text) == 1
    assert version_of("[Unit]\nDescription=specdash unit, version 1\n") is None


def test_the_command_is_specdash_with_its_env_file(tmp_path: Path) -> None:
    for unit, command, env_file in (
        (BACKEND_UNIT, "backend", FACTS.backend_env),
        (PROXY_UNIT, "proxy", FACTS.proxy_env),
    ):
        (tmp_path / unit).write_text(unit_texts(FACTS)[unit], encoding="utf-8")
        words = shown_words([str(tmp_path / unit)]) or []
        assert [name.replace("$$", "$") for name in words] == [
            FACTS.python,
            "-m",
            "specdash",
            command,
            "run",
            "--env-file",
            env_file,
        ]


def test_a_reload_sends_the_signal_that_each_reads_its_env_file_on() -> None:
    texts = unit_texts(FACTS)
    assert values(texts[BACKEND_UNIT], "ExecReload") == ["/bin/kill -USR1 $MAINPID"]
    assert values(texts[PROXY_UNIT], "ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_what_a_restart_cannot_mend_is_not_restarted_and_crash_loops_end() -> None:
    for unit in (BACKEND_UNIT, PROXY_UNIT):
        text = unit_texts(FACTS)[unit]
        assert values(text, "Restart") == ["on-failure"]
        assert "3" in values(text, "RestartPreventExitStatus")[0].split()
        assert [key for section, key, _ in directives(text) if section == "Unit" and key.startswith("StartLimit")]


def test_a_stop_is_bounded_and_leaves_the_service_its_own_patience() -> None:
    facts = UnitFacts("/p", "/b", "/x", ("[::]:1",), backend_patience=60.5, proxy_patience=600)
    assert float(values(unit_texts(facts)[BACKEND_UNIT], "TimeoutStopSec")[0]) > 60.5 + 6
    assert float(values(unit_texts(facts)[PROXY_UNIT], "TimeoutStopSec")[0]) > 600 + 2


def test_nothing_is_kept_from_a_gpu() -> None:
    text = unit_texts(FACTS)[BACKEND_UNIT]
    for harmful in ("PrivateDevices", "DevicePolicy", "MemoryDenyWriteExecute", "ProtectHome", "ProtectSystem"):
        assert harmful not in text
    modprobe = UnitFacts("/p", "/b", "/x", ("[::]:1",), modprobe="/usr/bin/nvidia-modprobe")
    assert values(unit_texts(modprobe)[BACKEND_UNIT], "ExecStartPre") == ["-+/usr/bin/nvidia-modprobe -u -c=0"]


def test_the_socket_listens_on_every_address_and_keeps_a_long_queue() -> None:
    text = unit_texts(UnitFacts("/p", "/b", "/x", ("127.0.0.1:4000", "[::1]:4000")))[PROXY_SOCKET]
    assert values(text, "ListenStream") == ["127.0.0.1:4000", "[::1]:4000"]
    assert values(text, "Backlog") == ["1024"]


@pytest.mark.parametrize("path", ['/a"b', "/a'b", "/a\\b", "/a\nb"])
def test_a_program_that_systemd_would_not_run_is_refused(path: str) -> None:
    with pytest.raises(InputError):
        word(path, program=True)


@pytest.mark.parametrize("path", ["/a/b ", "/a\nb", "relative", "/a\\"])
def test_a_log_path_that_the_syntax_cannot_say_is_refused(path: str) -> None:
    with pytest.raises(InputError):
        path_value(path)


def test_directives_are_read_as_systemd_reads_them() -> None:
    text = "# no\n[Service]\n; no\nA = one\\\n  two\n\nB=\n[Other]\nA=x\n"
    assert directives(text) == [("Service", "A", "one two"), ("Service", "B", ""), ("Other", "A", "x")]


def test_words_are_split_where_systemd_splits_them() -> None:
    text = r"""a"b c"d --x='y z' 'q'r "" "p"'s'  \s\q end"""
    assert split_words(text) == ["ab cd", "--x=y z", "qr", "", "ps", " \\q", "end"]
    assert split_words("'open") is None


def test_a_drop_in_that_resets_the_command_counts(tmp_path: Path) -> None:
    unit, drop_in = tmp_path / "a.service", tmp_path / "b.conf"
    unit.write_text("[Service]\nExecStart=/bin/one a\n", encoding="utf-8")
    drop_in.write_text("[Service]\nExecStart=\nExecStart=%h/two 'b c'\n", encoding="utf-8")
    assert shown_words([str(unit), str(drop_in)], {"HOME": "/home/me"}) == ["/home/me/two", "b c"]
