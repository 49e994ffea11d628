"""Keys from config.toml, and a dashboard on a real terminal with them."""

import os
import sys
from collections.abc import Sequence

import pytest

from specdash.cli.options import resolved_settings
from specdash.core import paths
from specdash.core.errors import InputError
from specdash.tui.action_table import read_keys
from support.pseudo_terminal import PseudoTerminal

WATCH = [sys.executable, "-m", "specdash", "--url", "http://127.0.0.1:9"]


def configure(text: str) -> None:
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def ids() -> dict[str, Sequence[str]]:
    return {action.id: action.keys for action in read_keys(resolved_settings(None)["keys"]).actions}


def test_the_users_keys_are_taken_and_those_that_lead_out_are_kept() -> None:
    assert ids()["palette"] == ("colon", "ctrl+p")
    configure('[keys]\nquit = "Q"\nmove.down = "j,ctrl+n"\n"log.find" = "?, é"\nhelp = "f1"\n')
    keys = ids()
    assert keys["quit"] == ("Q", "ctrl+q", "ctrl+c")
    assert keys["move.down"] == ("j", "ctrl+n")
    assert keys["log.find"][0] == "question_mark"


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
    with pytest.raises(InputError) as raised:
        ids()
    name, value = (part.strip(' "') for part in line.split("="))
    assert all(part in str(raised.value) for part in (str(paths.config_file()), name, value, said))


def test_keys_of_screens_that_never_meet_may_be_the_same() -> None:
    configure('[keys]\n"tuner.start" = "f"\n')
    assert ids()["tuner.start"] == ("f",) == ids()["log.filter"]


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
