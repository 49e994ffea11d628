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
    assert key_file_warning(None) is None
    assert key_file_warning(str(tmp_path / "no")) is None


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_variable_that_is_missing_or_empty_is_named(value: str | None) -> None:
    env = {} if value is None else {"MY_KEY": value}
    with pytest.raises(InputError, match=r"MY_KEY .*not set or empty"):
        resolve_api_key("MY_KEY", None, env)


def test_a_file_that_is_missing_empty_or_no_text_is_named(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n# nothing\n")
    binary.write_bytes(b"\xff\xfe")
    for file, words in ((tmp_path / "no", "No such file"), (tmp_path, "directory"), (empty, "holds no key"),
                        (binary, "not a text file")):  # fmt: skip
        with pytest.raises(InputError, match=words) as refused:
            resolve_api_key(None, str(file), {})
        assert str(file) in str(refused.value)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", "nul\0"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve_api_key("MY_KEY", None, {"MY_KEY": key})
    assert key not in str(refused.value)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True)])
def test_a_key_file_that_others_can_read_is_warned_of(tmp_path: Path, mode: int, warns: bool) -> None:
    file = tmp_path / "key"
    file.write_text("K")
    file.chmod(mode)
    warning = key_file_warning(str(file))
    assert (warning is not None) is warns
    assert warning is None or "chmod 600" in warning
