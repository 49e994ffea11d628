"""What a turn of nothing but reasoning shows."""

from __future__ import annotations

import pytest

from specdash.proxy.answer.repair import fallback_text
from specdash.proxy.settings import ProxySettings, settings_from_env

THOUGHT = " <think>\nI should  read\n\tthe file.</think> <Thinking>Then</THINKING> fix it.\n"


def settings(mode: str, longest: int = 240) -> ProxySettings:
    return settings_from_env({
        "PROXY_STREAM_REASONING_FALLBACK": mode,
        "PROXY_STREAM_REASONING_MAX_CHARS": str(longest),
    })  # fmt: skip


def test_off_shows_nothing_and_is_the_default() -> None:
    assert fallback_text(THOUGHT, settings("off")) == ""
    assert fallback_text(THOUGHT, settings_from_env({})) == ""


def test_visible_shows_the_reasoning_itself() -> None:
    assert fallback_text(THOUGHT, settings("visible")) == THOUGHT


def test_sanitized_is_one_line_without_tags() -> None:
    assert fallback_text(THOUGHT, settings("sanitized")) == "I should read the file. Then fix it."


@pytest.mark.parametrize(("longest", "shown"), [(4, "abcd"), (3, "abc..."), (1, "a...")])
def test_sanitized_is_cut_at_the_limit(longest: int, shown: str) -> None:
    assert fallback_text("abcd", settings("sanitized", longest)) == shown


@pytest.mark.parametrize("mode", ["off", "sanitized", "visible"])
def test_no_reasoning_is_no_text(mode: str) -> None:
    assert fallback_text("", settings(mode)) == ""
    assert fallback_text("<think>\n</think>", settings("sanitized")) == ""
