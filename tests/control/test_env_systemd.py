"""A real systemd and `core.envfile` read the same values, from files made by hand, by chance, and by our edits.

Every file is one instance of a oneshot template unit that dumps its environment, and one `systemctl start` starts them
all. Files with a comment that ends in a backslash, which goes on in the next line before systemd 254, are left out.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from specdash.core.env_edit import with_changes
from specdash.core.envfile import EnvFileError, decode, encode, parse
from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from support.systemd_user import UserManager

pytestmark = pytest.mark.systemd

UNIT = """[Service]
Type=oneshot
EnvironmentFile={directory}/%i.env
ExecStart=/usr/bin/env -0
StandardOutput=truncate:{directory}/%i.out
"""
BY_HAND = [
    b"",
    b"K=it\\'s\nL=a\\ \nM=\\ a\nN= \\\n a\n",
    b"K=first \\\nsecond\nL=\"first \\\nsecond\"\nM='first \\\nsecond'\n",
    b"K=\"line 1\nline 2\"\nL='x\ty\nz'\n",
    b"K=crlf\r\nL='crlf'  \r\n\r\n# c\r\nM=3\r\n",
    b"K=1\rL=2\r",
    b"K=a\\\r\nL=1\n",
    b"K=a\\\n",
    b"K=a\\",
    b"K=1\nK=2\nL=3\nK=\n",
    b"# c \\\nK=1\nL=1\n",
    b"# c\\",
    b"K=1\n# caf\xe9\nL=1\n",
    "K=äöü€🙂\nL=\xa0x\xa0\nM=\ufeffx\u2028\x85\n".encode(),
    b"K=a\x0bb\x0cc\nL='\x01\x1b\x7f'\n",
    b"HOME=/x\nPATH=/y\nk_1=lower\n_=under\n",
    b"K=" + 131069 * b"x" + b"\n",
]
REFUSED = [
    b"K=a\xef\xbf\xbeb\nL=1\n",
    "K=\ufdd0\nL=1\n".encode(),
    "K=\U0010ffff\nL=1\n".encode(),
    b"K=\xff\nL=1\n",
    b"K=\xed\xa0\x80\nL=1\n",
    b"\xff=1\nL=1\n",
    b"# nul \0\nL=1\n",
    b"L=1\nK=\0\n",
    b"K=" + 131070 * b"x" + b"\nL=1\n",
]
DROPPED = [b"export K=1", b"1K=1", b"K L=1", b"K-L=1", b"K", b"=K=1", b"='", "Ä=1".encode(), b"\xef\xbb\xbfK=1"]
BEGINNINGS = ["K=", "L=", " K\t= ", "K='", 'L="', "# ", ";", "", " \t"]
PIECES = ["a", "ü", " ", "\t", "\\", "\\\\", "\\\n", "'", '"', "' '", "$", "`", "#", ";", "=", '\\"', "\r"]
ENDS = ["\n", "\n", "\r\n", "'\n", '"\n', "\\\n", ""]
CHARACTERS = "abcXYZ019 \t\n'\"\\$`#;=%~*?[]{}()<>|&!-+:,./@_\xa0ü€🙂\u2028"


def by_chance(chance: random.Random) -> str:
    return "".join(
        chance.choice(BEGINNINGS) + "".join(chance.choices(PIECES, k=chance.randint(0, 6))) + chance.choice(ENDS)
        for _ in range(chance.randint(1, 6))
    )


class Systemd:
    """Asks a real systemd what env files mean."""

    def __init__(self, manager: UserManager, directory: Path) -> None:
        self._manager = manager
        self._directory = directory
        directory.mkdir()
        (manager.units / "dump@.service").write_text(UNIT.format(directory=directory), encoding="utf-8")
        manager.systemctl("daemon-reload")
        self._count = 0
        self._base = self.environments([b""])[0] or {}

    def environments(self, files: Sequence[bytes]) -> list[dict[str, str] | None]:
        """The whole environment of a unit with each file; None where systemd does not start it."""
        names = [str(self._count + at) for at in range(len(files))]
        self._count += len(files)
        for name, data in zip(names, files, strict=True):
            (self._directory / f"{name}.env").write_bytes(data)
        self._start(names, 25)
        # On a busy machine one of many is not started in time; what systemd does not take, it does not take again.
        self._start([name for name in names if self._dumped(name) is None], 1)
        return [self._dumped(name) for name in names]

    def _start(self, names: Sequence[str], at_once: int) -> None:
        for at in range(0, len(names), at_once):
            self._manager.systemctl(
                "start", *(f"dump@{name}.service" for name in names[at : at + at_once]), check=False
            )

    def values(self, files: Sequence[bytes]) -> list[dict[str, str] | None]:
        """What each file sets."""
        return [
            None if found is None else {k: v for k, v in found.items() if self._base.get(k) != v and k not in VOLATILE}
            for found in self.environments(files)
        ]

    def _dumped(self, name: str) -> dict[str, str] | None:
        output = self._directory / f"{name}.out"
        data = output.read_bytes() if output.exists() else b""
        pairs = (decode(part).partition("=") for part in data.split(b"\0") if part)
        return {key: value for key, _, value in pairs} or None


VOLATILE = ("INVOCATION_ID", "SYSTEMD_EXEC_PID")


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    directory = tmp_path_factory.mktemp("systemd")
    with running_user_manager(directory / "home") as manager:
        yield Systemd(manager, directory / "files")


def test_files_made_by_hand_mean_the_same(systemd: Systemd) -> None:
    for data, found in zip(BY_HAND, systemd.values(BY_HAND), strict=True):
        file = parse(decode(data))
        if any(entry.trap for entry in file.entries):
            continue
        assert not [entry.problem for entry in file.entries if entry.problem], data[:60]
        assert found == file.values, data[:60]


def test_what_systemd_refuses_is_a_problem(systemd: Systemd) -> None:
    for data, found in zip(REFUSED, systemd.values(REFUSED), strict=True):
        assert found is None, data[:60]
        assert [entry.problem for entry in parse(decode(data)).entries if entry.problem], data[:60]


def test_a_line_that_systemd_drops_is_a_problem_and_the_rest_is_read(systemd: Systemd) -> None:
    files = [line + b"\nOTHER=1\n" for line in DROPPED]
    for data, found in zip(files, systemd.values(files), strict=True):
        file = parse(decode(data))
        assert found == {"OTHER": "1"} == file.values, data
        assert file.entries[0].problem is not None


def test_edited_files_have_the_wanted_values(systemd: Systemd) -> None:
    chance = random.Random(6)
    wanted: list[dict[str, str]] = []
    texts: list[str] = []
    while len(texts) < 300:
        before = parse(by_chance(chance))
        changes = {
            key: None if chance.random() < 0.3 else "".join(chance.choices(CHARACTERS, k=chance.randint(0, 12)))
            for key in chance.sample(["K", "L", "NEW"], chance.randint(1, 3))
        }
        try:
            after = with_changes(before, changes)
        except EnvFileError:
            continue
        wanted.append({key: value for key, value in {**before.values, **changes}.items() if value is not None})
        texts.append(after)
    for text, expected, found in zip(texts, wanted, systemd.values([encode(text) for text in texts]), strict=True):
        assert found == expected, text
