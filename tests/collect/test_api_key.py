"""An API key comes from the variable or the file that the user names, and every fault of either is one clear line."""

from pathlib import Path

import pytest

from specdash.collect.api_key import key_file_warning, resolve_api_key
from specdash.core.errors import InputError


def test_the_variable_goes_before_the_first_key_of_the_file_and_without_either_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# ours\n\n  K2  \nK3\n")
    assert resolve_api_key("MY_KEY", "/no/such/file", {"MY_KEY": " K1\n"}) == "K1"
    assert resolve_api_key(None, str(file), {}) == "K2"
    assert resolve_api_key(None, None, {"LLAMA_API_KEY": "K"}) is None


def test_a_variable_that_is_missing_or_empty_is_named() -> None:
    for env in ({}, {"MY_KEY": "  "}):
        with pytest.raises(InputError, match=r"MY_KEY .*not set or empty"):
            resolve_api_key("MY_KEY", None, env)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"\n# nothing\n", "holds no key"), (b"\xff\xfe", "not a text file")],
)
def test_a_file_that_is_missing_empty_or_no_text_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"{file}.*{words}"):
        resolve_api_key(None, str(file), {})


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", "nul\0"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve_api_key("MY_KEY", None, {"MY_KEY": key})
    assert key not in str(refused.value)


def test_a_key_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert key_file_warning(None) is key_file_warning(str(file)) is None
    file.write_text("K")
    for mode, warns in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        file.chmod(mode)
        assert ("chmod 600" in (key_file_warning(str(file)) or "")) is warns
