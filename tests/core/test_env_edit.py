"""Editing an env file: only what was asked for changes, and every version of systemd reads it so."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specdash.core.env_edit import masked_diff, with_changes
from specdash.core.envfile import EnvFileError, parse

FILE = """\
# The backend.
LLAMA_MODEL=/m/a.gguf

  LLAMA_DRAFT_MAX = 8   \t
; tuned in March
MY_OWN='kept "as is"'
"""
KEYS = st.sampled_from(["A", "B", "C_1"])
VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"], codec="utf-8") | st.sampled_from("\t\n'\"\\$`#= "))
WANTED = st.dictionaries(KEYS, st.none() | VALUES.filter(lambda value: not _odd(value)), max_size=3)
LINES = ["A=1", "B='two\nlines'", "  A = 3 ", "C_1=x \\\n  y", "# A=9", "; c \\", "", "# c\\\\", "B=", "A=a\\",
         "B=\"\\$x\"'y'z"]  # fmt: skip


def _odd(value: str) -> bool:
    return any(ord(char) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(char) <= 0xFDEF for char in value)


@st.composite
def texts(draw: st.DrawFn) -> str:
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = "".join(line + end for line in draw(st.lists(st.sampled_from(LINES), max_size=6)))
    text = text.removesuffix(end) if draw(st.booleans()) else text
    assume(not any(entry.problem or entry.trap for entry in parse(text).entries))
    return text


def edited(text: str, **changes: str | None) -> str:
    return with_changes(parse(text), changes)


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        # The value is replaced, and every other character kept, however the file is written.
        (FILE, {"LLAMA_DRAFT_MAX": "12"}, FILE.replace("= 8 ", "= 12 ")),
        ("A=\"a\"'b' c\\\nd\nB=1", {"A": "abcd", "B": "1"}, "A=\"a\"'b' c\\\nd\nB=1"),
        ("A=1\nB=2\n", {"A": ""}, "A=\nB=2\n"),
        ("A=1\n", {"A": "two words", "B": "it's $5"}, "A='two words'\nB=\"it's \\$5\"\n"),
        ("A='one\ntwo'\nB=x \\\n y\nC=1\n", {"A": "1", "B": "2"}, "A=1\nB=2\nC=1\n"),
        # Of several assignments the last counts.
        ("A=1\nB=2\nA=3\n", {"A": "4"}, "A=1\nB=2\nA=4\n"),
        # A key that is not there is appended, after a line end where there is none.
        (FILE, {"LLAMA_DRAFT_MIN": "2"}, FILE + "LLAMA_DRAFT_MIN=2\n"),
        ("", {"A": "1"}, "A=1\n"),
        ("#A=1\n", {"A": "2"}, "#A=1\nA=2\n"),
        ("A=1\r\nB=2\r\n", {"A": "3", "C": "4"}, "A=3\r\nB=2\r\nC=4\r\n"),
        ("A=1", {"B": "2"}, "A=1\nB=2\n"),
        ("A=1\\\n", {"B": "2"}, "A=1\\\n\nB=2\n"),
        ("A=1\\", {"B": "2"}, "A=1\\\n\nB=2\n"),
        # A key is removed with all its assignments, so that none comes back.
        ("A=1\n# c\nA=2\nB=3\nA='x\ny'", {"A": None}, "# c\nB=3\n"),
        (FILE, {"NOT_THERE": None}, FILE),
    ],
)
def test_an_edit(text: str, changes: dict[str, str | None], expected: str) -> None:
    assert edited(text, **changes) == expected


@pytest.mark.parametrize(
    ("text", "key", "value", "message"),
    [
        ("A=1\nnonsense\n", "B", "2", "line 2: no '='"),
        ("A=1\n# c \\\nB=1\n", "B", "2", "line 2: the comment ends in a backslash"),
        (FILE, "A", "a\0", "NUL in the value of A"),
        (FILE, "A", "a\r\n", r"control character U\+000D in the value of A"),
        (FILE, "A", "\x7f", r"control character U\+007F"),
        (FILE, "A B", "1", "is not a variable name"),
        (FILE, "A\n", "1", "is not a variable name"),
    ],
)
def test_what_some_systemd_would_drop_is_refused(text: str, key: str, value: str, message: str) -> None:
    with pytest.raises(EnvFileError, match=message):
        edited(text, **{key: value})


@given(texts(), WANTED)
def test_any_edit_is_read_back_as_wanted_by_every_version_and_made_twice_changes_nothing_more(
    text: str, wanted: dict[str, str | None]
) -> None:
    before = parse(text)
    once = with_changes(before, wanted)
    after = parse(once)
    expected = {**before.values, **wanted}
    assert after.values == {key: value for key, value in expected.items() if value is not None}
    assert not any(entry.trap for entry in after.entries)
    assert with_changes(after, wanted) == once


@given(texts(), KEYS, st.none() | VALUES.filter(lambda value: not _odd(value)))
def test_an_edit_changes_only_the_lines_of_its_key(text: str, key: str, value: str | None) -> None:
    changed = edited(text, **{key: value})
    if value is not None and key not in parse(text).values:
        assert changed.startswith(text)
        return
    before, after = (
        [entry.raw for entry in parse(version).entries if entry.key != key and entry.raw.strip()]
        for version in (text, changed)
    )
    assert after == before


class TestMaskedDiff:
    def test_shows_what_changed_with_its_neighbours(self) -> None:
        shown = ["--- x.env\tbefore", "+++ x.env\tafter", "@@ -2,3 +2,3 @@", " B=2", " C=3", "-D=4", "+D=5"]
        assert masked_diff("A=1\nB=2\nC=3\nD=4\n", "A=1\nB=2\nC=3\nD=5\n", "x.env") == shown
        assert masked_diff(FILE, FILE, "x.env") == []

    @pytest.mark.parametrize(
        ("before", "after", "shown"),
        [
            # That a secret changed, and not to what.
            ("LLAMA_API_KEY=sk-old\n", "LLAMA_API_KEY='sk new\nsecond'\n", "-LLAMA_API_KEY=*** +LLAMA_API_KEY=***"),
            ("", "# the key to a good draft is p_min\n", "+# the key to a good draft is p_min"),
            ("", "A='\x1b[2J'\n", r"+A='\x1b[2J'"),
        ],
    )
    def test_shows_what_may_be_seen(self, before: str, after: str, shown: str) -> None:
        assert " ".join(masked_diff(before, after, "x.env")[3:]) == shown

    @pytest.mark.parametrize(
        "line",
        [
            "LLAMA_API_KEY=sk-1",
            "# LLAMA_API_KEY=sk-1",
            "# LLAMA_API_KEY sk-1",
            ";my password: sk-1",
            "export PROXY_API_KEY=sk-1",
            "PROXY_API_KEY='sk-1\nsk-1",
            "A='open\nPROXY_API_KEY=sk-1\nB=1",
            "LLAMA_EXTRA_ARGS='--metrics --api-key sk-1 --port 1'",
            "LLAMA_EXTRA_ARGS=\"--api_key 'sk-1 sk-1'\"",
            "# --hf-token sk-1",
            "LLAMA_CPP_BASE=http://me:sk-1@127.0.0.1:1/v1",
            "LLAMA_API_KEY=sk-\\\nsk-1",
        ],
    )
    def test_masks_a_secret_wherever_it_stands(self, line: str) -> None:
        shown = "\n".join(masked_diff("", line + "\n", "x.env") + masked_diff(line, "A=1\n", "x.env"))
        assert "sk-1" not in shown
        assert "***" in shown
