"""`specdash keys`, and a dashboard on a real terminal with keys from config.toml."""

import json
import os
import sys
from collections.abc import Sequence

import pytest

from specdash.core import paths
from support.outside import say
from support.pseudo_terminal import PseudoTerminal

WATCH = [sys.executable, "-m", "specdash", "--url", "http://127.0.0.1:9"]


def configure(text: str) -> None:
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def ids(*words: str) -> dict[str, Sequence[str]]:
    code, out, _ = say("keys", "--json", *words)
    assert code == 0
    return {row["id"]: row["keys"] for row in json.loads(out)["keys"]}


def test_it_lists_every_action_with_its_id_its_keys_and_what_it_does() -> None:
    code, out, _ = say("keys")
    assert code == 0
    assert "pause" in out
    assert any(line.split()[:3] == ["log.find", "/", "overview"] for line in out.splitlines())
    assert ids()["palette"] == ["colon", "ctrl+p"]


def test_it_shows_the_users_keys_and_keeps_those_that_lead_out() -> None:
    configure('[keys]\nquit = "Q"\nmove.down = "j,ctrl+n"\n"log.find" = "?, é"\nhelp = "f1"\n')
    keys = ids()
    assert keys["quit"] == ["Q", "ctrl+q", "ctrl+c"]
    assert keys["move.down"] == ["j", "ctrl+n"]
    assert keys["log.find"][0] == "question_mark"
    _, out, _ = say("keys", "--json")
    assert next(row for row in json.loads(out)["keys"] if row["id"] == "quit")["default_keys"][0] == "q"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('pauze = "p"', "there is no action 'pauze'; did you mean 'pause'?"),
        ('pause = "hyper+p"', "'hyper+p' is no key"),
        ('pause = "shift+p"', "a capital is written 'P'"),
        ('pause = "ctrl+i"', "terminals send ctrl+i as tab"),
        ('pause = ""', "a key is missing"),
        ("pause = 3", 'must be keys in one text, such as "space,p"'),
        ('pause = "ctrl+c"', "ctrl+c does the same everywhere"),
        ('pause = "p"', "p on the overview screen is the key of proxy"),
        ('"tune.apply" = "x"', "x on the tune screen is the key of tune.unset"),
    ],
)
def test_a_line_that_cannot_be_meant_ends_with_one_error_that_names_file_id_and_value(line: str, said: str) -> None:
    configure(f"[keys]\n{line}\n")
    code, _, err = say("keys")
    name, value = (part.strip(' "') for part in line.split("="))
    assert code == 3
    assert len(err.splitlines()) == 1
    assert all(part in err for part in (str(paths.config_file()), name, value, said)), err


def test_keys_of_screens_that_never_meet_may_be_the_same() -> None:
    configure('[keys]\n"tuner.start" = "f"\n')
    assert ids()["tuner.start"] == ["f"] == list(ids()["log.filter"])


def test_a_dashboard_on_a_terminal_has_the_users_keys() -> None:
    configure('[keys]\nquit = "Z"\ntune = "ctrl+t"\n')
    with PseudoTerminal(WATCH, env=dict(os.environ), size=(120, 36)) as terminal:
        terminal.wait_for("Z quit")
        assert "ctrl+t tune" in terminal.text
        terminal.press(b"q")
        terminal.press(b"\x14")
        terminal.wait_for("↑↓ setting")
        terminal.press(b"Z")
        assert terminal.wait_exit() == 0


def test_a_dashboard_does_not_open_with_keys_that_cannot_be_meant() -> None:
    configure('[keys]\nquit = "p"\n')
    with PseudoTerminal(WATCH, env=dict(os.environ)) as terminal:
        assert terminal.wait_exit() == 3
        terminal.read(0.1)
        assert "keys: quit = 'p': p on the overview screen is the key of proxy" in terminal.text
