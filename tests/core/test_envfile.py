"""systemd's EnvironmentFile dialect, as systemd.exec(5) describes it and systemd 254 and later read it.

tests/control/test_env_systemd.py holds the same module against a real systemd.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.envfile import EnvFileError, decode, encode, parse, quote, read_values

NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)] + [chr(p << 16 | 0xFFFE | b) for p in range(17) for b in (0, 1)]
VALUES = st.text(st.characters(exclude_characters=["\0", *NONCHARACTERS], codec="utf-8"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("K=plain\n", "plain"),
        ("  K  =  around  \n", "around"),
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
        ("K=$HOME\n", "$HOME"),
        ("K=crlf\r\n", "crlf"),
        ("K='a'  'b'\n", "ab"),
        ("K='a'  b  'c'\n", "ab  'c'"),
        ("K=a\\\r\n", "a"),
        ("K=a\\\n", "a"),
        ("K=a\x0bb\x07\n", "a\x0bb\x07"),
        ("K=\ufeff \xa0\n", "\ufeff \xa0"),
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
        ('B="open\nC=1\n', r'x\.env:1: the " quote is never closed'),
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


@given(VALUES)
def test_a_quoted_value_is_read_back_exactly(value: str) -> None:
    assert parse(f"K={quote(value)}\nL=1\n").check("f").values == {"K": value, "L": "1"}
