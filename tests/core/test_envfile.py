"""systemd's EnvironmentFile dialect, as systemd.exec(5) describes it and systemd 254 and later read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.envfile import EnvFileError, parse, quote

VALUES = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("K=plain\n", "plain"),
        ("K=no newline at the end", "no newline at the end"),
        ("  K  =  around  \n", "around"),
        ("K=\n", ""),
        ("K=two  words \t\n", "two  words"),
        ("K='single $x \\n \"q\"'\n", 'single $x \\n "q"'),
        ('K="double \\" \\\\ \\$ \\` \\n"\n', 'double " \\ $ ` \\n'),
        ("K='a'\"b\" c\n", "abc"),
        ('K=a"b"\n', 'a"b"'),
        ("K=it\\'s\n", "it's"),
        ("K=a\\ \n", "a "),
        ("K=first \\\nsecond\n", "first second"),
        ('K="first \\\nsecond"\n', "first second"),
        ('K="line 1\nline 2"\n', "line 1\nline 2"),
        ("K=a # not a comment\n", "a # not a comment"),
        ("K=a=b\n", "a=b"),
        ("K=$HOME\n", "$HOME"),
        ("K=crlf\r\n", "crlf"),
    ],
)
def test_a_value_is_read_as_systemd_reads_it(text: str, value: str) -> None:
    assert parse(text).check("f").values == {"K": value}


def test_comments_and_blank_lines_are_no_assignments() -> None:
    assert parse("# a=b\n; c=d\n\n   \n  # e=f\nK=1\n").check("f").values == {"K": "1"}


def test_a_backslash_does_not_continue_a_comment() -> None:
    assert parse("# comment \\\nK=1\n").values == {"K": "1"}


def test_the_last_assignment_wins_and_its_line_is_known() -> None:
    file = parse("K=1\nL=2\nK=3\n")
    assert file.values == {"K": "3", "L": "2"}
    assert file.line_of("K") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nno assignment here\n", r"x\.env:2: no '=' in 'no assignment here'"),
        ("A=1\n\nB='open\n", r"x\.env:3: the ' quote is never closed"),
        ('B="open\nC=1\n', r'x\.env:1: the " quote is never closed'),
        ("export A=1\n", r"x\.env:1: 'export A': systemd knows no 'export'; write A=value"),
        ("1A=2\n", r"x\.env:1: '1A' is not a variable name"),
        ("A='1\n2'\nbad\n", r"x\.env:3: no '='"),
    ],
)
def test_what_systemd_would_drop_without_a_word_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(EnvFileError, match=message):
        parse(text).check("x.env")


@given(st.text())
def test_any_text_is_parsed_without_losing_a_character(text: str) -> None:
    assert parse(text).text == text


@given(VALUES)
def test_a_quoted_value_is_read_back_exactly(value: str) -> None:
    assert parse(f"K={quote(value)}\nL=1\n").check("f").values == {"K": value, "L": "1"}
