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
LINES = st.sampled_from(
    [
        "A=1",
        "B='two\nlines'",
        "  A = 3 ",
        "C_1=x \\\n  y",
        "# A=9",
        "; c \\",
        "",
        "# c\\\\",
        "B=",
        "A=a\\",
        "B=\"\\$x\"'y'z",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n"])


def _odd(value: str) -> bool:
    return any(ord(char) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(char) <= 0xFDEF for char in value)


@st.composite
def texts(draw: st.DrawFn) -> str:
    end = draw(ENDS)
    text = "".join(line + end for line in draw(st.lists(LINES, max_size=6)))
    text = text.removesuffix(end) if draw(st.booleans()) else text
    assume(not any(entry.problem or entry.trap for entry in parse(text).entries))
    return text


def edited(text: str, **changes: str | None) -> str:
    return with_changes(parse(text), changes)


class TestSettingAKey:
    def test_replaces_its_value_and_keeps_every_other_character(self) -> None:
        assert edited(FILE, LLAMA_DRAFT_MAX="12") == FILE.replace("= 8 ", "= 12 ")

    def test_to_what_it_is_changes_nothing_however_it_is_written(self) -> None:
        text = "A=\"a\"'b' c\\\nd\nB=1"
        assert edited(text, A="abcd", B="1") == text

    def test_rewrites_the_last_assignment_the_one_that_counts(self) -> None:
        assert edited("A=1\nB=2\nA=3\n", A="4") == "A=1\nB=2\nA=4\n"

    def test_rewrites_a_value_of_several_lines_as_a_whole(self) -> None:
        assert edited("A='one\ntwo'\nB=x \\\n y\nC=1\n", A="1", B="2") == "A=1\nB=2\nC=1\n"

    def test_quotes_what_needs_it(self) -> None:
        assert edited("A=1\n", A="two words", B="it's $5") == "A='two words'\nB=\"it's \\$5\"\n"

    def test_can_set_the_empty_value(self) -> None:
        assert edited("A=1\nB=2\n", A="") == "A=\nB=2\n"

    def test_keeps_the_line_ends_of_the_file(self) -> None:
        assert edited("A=1\r\nB=2\r\n", A="3", C="4") == "A=3\r\nB=2\r\nC=4\r\n"

    def test_appends_a_key_that_is_not_there(self) -> None:
        assert edited(FILE, LLAMA_DRAFT_MIN="2") == FILE + "LLAMA_DRAFT_MIN=2\n"

    def test_to_an_empty_file(self) -> None:
        assert edited("", A="1") == "A=1\n"

    def test_appends_a_line_end_first_where_the_file_has_none(self) -> None:
        assert edited("A=1", B="2") == "A=1\nB=2\n"
        assert edited("A=1\\\n", B="2") == "A=1\\\n\nB=2\n"
        assert edited("A=1\\", B="2") == "A=1\\\n\nB=2\n"

    def test_takes_no_notice_of_the_key_in_a_comment(self) -> None:
        assert edited("#A=1\n", A="2") == "#A=1\nA=2\n"


class TestRemovingAKey:
    def test_removes_all_its_assignments_so_that_none_comes_back(self) -> None:
        assert edited("A=1\n# c\nA=2\nB=3\nA='x\ny'", A=None) == "# c\nB=3\n"

    def test_that_is_not_there_changes_nothing(self) -> None:
        assert edited(FILE, NOT_THERE=None) == FILE


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("A=1\nnonsense\n", "line 2: no '='"),
            ("A='open\n", "line 1: the ' quote"),
            ("A=\udcff\n", "line 1: is not"),
            ("A=1\n# c \\\nB=1\n", "line 2: the comment ends in a backslash"),
        ],
    )
    def test_a_file_with_a_line_that_systemd_would_not_read(self, text: str, message: str) -> None:
        with pytest.raises(EnvFileError, match=message):
            edited(text, B="2")

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("a\0", "NUL in the value of A"),
            ("a\x07", r"control character U\+0007 in the value of A"),
            ("a\r\n", r"control character U\+000D in the value of A"),
            ("\x7f", r"control character U\+007F"),
            ("\ud800", "is not UTF-8 text in the value of A"),
            ("\uffff", r"noncharacter U\+FFFF in the value of A"),
            (131070 * "x", "longer than"),
        ],
    )
    def test_a_value_that_some_systemd_would_drop(self, value: str, message: str) -> None:
        with pytest.raises(EnvFileError, match=message):
            edited(FILE, A=value)

    @pytest.mark.parametrize("key", ["", "1A", "A B", "A-B", "export A", "Ä", "A=", "A\n"])
    def test_a_name_that_systemd_would_drop(self, key: str) -> None:
        with pytest.raises(EnvFileError, match=r"is not a variable name|knows no 'export'"):
            with_changes(parse(FILE), {key: "1"})


class TestAnyEdit:
    @given(texts(), WANTED)
    def test_is_read_back_as_wanted_by_every_version_and_sets_no_new_trap(
        self, text: str, wanted: dict[str, str | None]
    ) -> None:
        before = parse(text)
        try:
            after = parse(with_changes(before, wanted))
        except EnvFileError:
            assert any(entry.trap for entry in before.entries)
            return
        expected = {**before.values, **wanted}
        assert after.values == {key: value for key, value in expected.items() if value is not None}
        assert not any(entry.trap for entry in after.entries)

    @given(texts(), KEYS, VALUES.filter(lambda value: not _odd(value)))
    def test_changes_only_the_line_of_its_key(self, text: str, key: str, value: str) -> None:
        before = parse(text)
        changed = edited(text, **{key: value})
        after, kept = parse(changed), [entry.raw for entry in before.entries]
        if key not in before.values:
            assert changed.startswith(text)
            return
        at = max(at for at, entry in enumerate(before.entries) if entry.key == key)
        written = [entry.raw for entry in after.entries]
        assert written[:at] == kept[:at]
        assert written[len(written) - len(kept) + at + 1 :] == kept[at + 1 :]

    @given(texts(), KEYS)
    def test_removing_leaves_all_other_entries_as_they_are(self, text: str, key: str) -> None:
        left = [entry.raw for entry in parse(edited(text, **{key: None})).entries if entry.raw.strip()]
        assert left == [entry.raw for entry in parse(text).entries if entry.key != key and entry.raw.strip()]

    @given(texts(), WANTED)
    def test_made_twice_changes_nothing_more(self, text: str, wanted: dict[str, str | None]) -> None:
        try:
            once = with_changes(parse(text), wanted)
        except EnvFileError:
            return
        assert with_changes(parse(once), wanted) == once


class TestMaskedDiff:
    def test_shows_what_changed_with_its_neighbours(self) -> None:
        assert masked_diff("A=1\nB=2\nC=3\nD=4\n", "A=1\nB=2\nC=3\nD=5\n", "x.env") == [
            "--- x.env\tbefore",
            "+++ x.env\tafter",
            "@@ -2,3 +2,3 @@",
            " B=2",
            " C=3",
            "-D=4",
            "+D=5",
        ]

    def test_is_empty_where_nothing_differs(self) -> None:
        assert masked_diff(FILE, FILE, "x.env") == []

    def test_shows_that_a_secret_changed_and_not_to_what(self) -> None:
        lines = masked_diff("LLAMA_API_KEY=sk-old\n", "LLAMA_API_KEY='sk new\nsecond'\n", "x.env")
        assert lines[3:] == ["-LLAMA_API_KEY=***", "+LLAMA_API_KEY=***"]

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

    def test_leaves_plain_comments_readable(self) -> None:
        assert masked_diff("", "# the key to a good draft is p_min\n", "x.env")[3:] == [
            "+# the key to a good draft is p_min"
        ]

    def test_lets_no_control_character_reach_the_terminal(self) -> None:
        assert masked_diff("", "A='\x1b[2J'\n", "x.env")[3:] == [r"+A='\x1b[2J'"]
