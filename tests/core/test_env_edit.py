"""Editing an env file: only what was asked for changes, and every version of systemd reads it so; and reading it.

The dialect is systemd's EnvironmentFile, as systemd.exec(5) describes it and systemd 254 and later read it:
tests/control/test_env_systemd.py holds the same module against a real systemd.
"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specdash.core.env_edit import masked_diff, with_changes
from specdash.core.envfile import EnvFileError, decode, encode, parse, quote, read_values

FILE = """\
# The backend.
LLAMA_MODEL=/m/a.gguf

  LLAMA_DRAFT_MAX = 8   \t
; tuned in March
MY_OWN='kept "as is"'
"""
KEYS = st.sampled_from(["A", "B", "C_1"])
ODD = [chr(c) for c in range(0xFDD0, 0xFDF0)] + [chr(p << 16 | 0xFFFE | b) for p in range(17) for b in (0, 1)]
PRINTED = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=ODD, codec="utf-8")
VALUES = st.text(PRINTED | st.sampled_from("\t\n'\"\\$`#= "))
WANTED = st.dictionaries(KEYS, st.none() | VALUES, max_size=3)
LINES = ["A=1", "B='two\nlines'", "  A = 3 ", "C_1=x \\\n  y", "# A=9", "; c \\", "", "# c\\\\", "B=", "A=a\\",
         "B=\"\\$x\"'y'z"]  # fmt: skip


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
        ("A=1\n", {"A": "two words", "B": "it's $5"}, "A='two words'\nB=\"it's \\$5\"\n"),
        ("A='one\ntwo'\nB=x \\\n y\nC=1\n", {"A": "1", "B": "2"}, "A=1\nB=2\nC=1\n"),
        # Of several assignments the last counts.
        ("A=1\nB=2\nA=3\n", {"A": "4"}, "A=1\nB=2\nA=4\n"),
        # A key that is not there is appended, after a line end where there is none.
        (FILE, {"LLAMA_DRAFT_MIN": "2"}, FILE + "LLAMA_DRAFT_MIN=2\n"),
        ("#A=1\n", {"A": "2"}, "#A=1\nA=2\n"),
        ("A=1\r\nB=2\r\n", {"A": "3", "C": "4"}, "A=3\r\nB=2\r\nC=4\r\n"),
        ("A=1\\\n", {"B": "2"}, "A=1\\\n\nB=2\n"),
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


@given(texts(), KEYS, st.none() | VALUES)
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
    @pytest.mark.parametrize(
        ("before", "after", "shown"),
        [
            (FILE, FILE, ""),
            ("A=1\nB=2\nC=3\nD=4\n", "A=1\nB=2\nC=3\nD=5\n", " B=2  C=3 -D=4 +D=5"),
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


ANY_VALUE = st.text(st.characters(exclude_characters=["\0", *ODD], codec="utf-8"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("  K  =  around  \n", "around"),
        ("K=two  words \t\n", "two  words"),
        ("K='single $x \\n \"q\"'\n", 'single $x \\n "q"'),
        ('K="double \\" \\\\ \\$ \\` \\n"\n', 'double " \\ $ ` \\n'),
        ("K='a'\"b\" c\n", "abc"),
        ('K=a"b"\n', 'a"b"'),
        ("K=it\\'s\n", "it's"),
        ("K=first \\\nsecond\n", "first second"),
        ('K="first \\\nsecond"\n', "first second"),
        ('K="line 1\nline 2"\n', "line 1\nline 2"),
        ("K=a # not a comment\n", "a # not a comment"),
        ("K=$HOME\n", "$HOME"),
        ("K=crlf\r\n", "crlf"),
        ("K='a'  'b'\n", "ab"),
        ("K='a'  b  'c'\n", "ab  'c'"),
        ("K=a\\\r\n", "a"),
        ("K=a\x0bb\x07\n", "a\x0bb\x07"),
        ("# a=b\n; c=d\n\n   \n  # e=f \\\nK=1\n", "1"),
        ("K=1\nK=3\n", "3"),
    ],
)
def test_a_value_is_read_as_systemd_reads_it(text: str, value: str) -> None:
    assert parse(text).check("f").values == {"K": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nno assignment here\n", r"x\.env:2: no '=' in the line; write KEY=value"),
        ("A=1\n\nB='open\n", r"x\.env:3: the ' quote is never closed"),
        ("export A=1\n", r"x\.env:1: 'export A': systemd knows no 'export'; write A=value"),
        ("1A=2\n", r"x\.env:1: '1A' is not a variable name"),
        ("A=1\n='\nB=2\n", r"x\.env:2: no '=' in the line"),
        ("\ufeffA=1\n", r"x\.env:1: the file begins with a byte order mark"),
        ("A=1\n# \0\n", r"x\.env:2: NUL in the line; systemd refuses the whole file"),
        ("A='\0'\n", r"x\.env:1: NUL in the value of A"),
        ("A=\ufffe\n", r"x\.env:1: has the noncharacter U\+FFFE in the value of A"),
        ("A=" + 131070 * "x" + "\n", r"x\.env:1: the value of A is longer than the 131069 bytes that Linux hands"),
    ],
)
def test_what_systemd_would_drop_without_a_word_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(EnvFileError, match=message):
        parse(text).check("x.env")


def test_bytes_that_are_no_utf_8_are_refused_in_a_value_and_kept_in_a_comment() -> None:
    assert read_values(b"# caf\xe9\nK=1\n", "f") == {"K": "1"}
    with pytest.raises(EnvFileError, match=r"f:2: is not UTF-8 text in the value of K"):
        read_values(b"# caf\xe9\nK=caf\xe9\n", "f")


@pytest.mark.parametrize(
    "line", ["KEY sk-1", "KEY: sk-1", "KEY=sk-1\0", "KEY=sk-1\ufffe", "KEY=sk-1\udc80", f"KEY={'sk-1' * 40000}"]
)
def test_a_complaint_holds_no_secret(line: str) -> None:
    with pytest.raises(EnvFileError) as caught:
        parse(line).check("f")
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "traps"),
    [("A=1\n# path\\\nB=2\n", [2]), ("# a\\\\\nB=2\n", []), ("# a\\\r\nB=2\r\n", []), ("# a\\x\nB=1\n", [])],
)
def test_a_comment_is_a_trap_where_older_systemd_continues_it(text: str, traps: list[int]) -> None:
    file = parse(text)
    assert file.values["B"]
    assert [entry.line for entry in file.entries if entry.trap] == traps


@given(st.binary())
def test_any_bytes_are_the_same_after_decoding_and_parsing(data: bytes) -> None:
    assert encode("".join(entry.raw for entry in parse(decode(data)).entries)) == data


@given(st.text("K=1#;\\'\" \t\n\r"))
def test_an_entry_knows_its_line_end_and_where_its_value_is(text: str) -> None:
    for entry in parse(text).entries:
        assert entry.raw.endswith(entry.newline)
        if entry.key is not None and entry.value is not None:
            start, stop = entry.span
            assert entry.raw[:start].strip(" \t\n\r").removesuffix("=").strip() == entry.key
            assert entry.raw[stop:].strip(" \t") == entry.newline
            assert parse(entry.raw[:start] + quote("new") + entry.raw[stop:]).values == {entry.key: "new"}


@given(ANY_VALUE)
def test_a_quoted_value_is_read_back_exactly(value: str) -> None:
    assert parse(f"K={quote(value)}\nL=1\n").check("f").values == {"K": value, "L": "1"}
