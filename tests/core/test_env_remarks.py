"""What is said of the lines of an env file: unknown keys, values that cannot be meant, settings without effect."""

import pytest

from specdash.core.changes import Role
from specdash.core.env_edit import check_value, remarks, unknown
from specdash.core.envfile import parse
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.parameter_catalogue import PASSED_ON
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS


def said(text: str, role: Role = Role.BACKEND) -> list[str]:
    return list(remarks(role, parse(text)).values())


class TestRemarks:
    @pytest.mark.parametrize(
        ("text", "note"),
        [
            ("LLAMA_PARALLEL=1\nLLAMA_PARALLEL=2\n", "ineffective: line 2 sets it again"),
            ("LLAMA_DRAFT_MX=8\n", "unknown: not a known key; did you mean LLAMA_DRAFT_MAX?"),
            ("LLAMA_ABCDEFG=8\n", "unknown: not a known key"),
            ("PROXY_PORT=8\n", "unknown: the proxy's: the backend does not read it"),
            ("LLAMA_DRAFT_MAX=lots\n", "bad value: LLAMA_DRAFT_MAX=lots: not a whole number"),
            ("LLAMA_DRAFT_MAX=0\n", "bad value: LLAMA_DRAFT_MAX=0: must be from 1 to 1024 tokens"),
            ("LLAMA_SPEC_TYPE=ngram-mud\n", "bad value: LLAMA_SPEC_TYPE=ngram-mud: unknown speculative type"),
            (
                "LLAMA_ARG_DRAFT_MAX=8\n",
                "bad value: LLAMA_ARG_DRAFT_MAX: llama.cpp removed this variable; use LLAMA_DRAFT_MAX",
            ),
            ("LLAMA_ALIAS=\n", "ineffective: an empty value is as none"),
            ("LLAMA_ARG_PORT=1\nLLAMA_PORT=2\n", "ineffective: LLAMA_PORT wins"),
        ],
    )
    def test_of_one_line(self, text: str, note: str) -> None:
        (only,) = said(text)
        assert note in only

    @pytest.mark.parametrize(
        "text",
        [
            "LLAMA_SPEC_TYPE=ngram-mod\nLLAMA_DRAFT_MAX=8\n",
            "CUDA_VISIBLE_DEVICES=0\nLLAMA_ARG_NUMA=isolate\nLLAMA_ARG_NO_KV_OFFLOAD=yes please\nHF_TOKEN=x\n",
            "# LLAMA_DRAFT_MX=8\nnonsense\n",
        ],
    )
    def test_there_are_none_of_what_is_read_or_may_be(self, text: str) -> None:
        assert said(text) == []

    def test_the_proxy_reads_its_own_keys_only(self) -> None:
        assert said("PROXY_PORT=4000\nLLAMA_CPP_BASE=http://127.0.0.1:1/v1\n", Role.PROXY) == []
        assert said("PROXY_PROT=1\n", Role.PROXY) == ["unknown: not a known key; did you mean PROXY_PORT?"]
        assert said("LLAMA_PORT=1\n", Role.PROXY) == ["unknown: the backend's: the proxy does not read it"]
        assert said("ABC=1\n", Role.PROXY) == ["unknown: not a key of the proxy, which does not read it"]

    def test_no_secret_is_told(self) -> None:
        text = "LLAMA_API_KEY=sk-1\nLLAMA_API_KEY=sk-1\nLLAMA_API_KY=sk-1\nPROXY_API_KEY=sk-1\n"
        assert "sk-1" not in "".join(said(text) + said(text, Role.PROXY))


class TestCheckValue:
    @pytest.mark.parametrize("key", ["LLAMA_DRAFT_MAX", "LLAMA_SPEC_TYPE", "LLAMA_ANYTHING", "CUDA_VISIBLE_DEVICES"])
    def test_an_empty_value_is_as_none(self, key: str) -> None:
        check_value(Role.BACKEND, key, "")

    def test_a_value_that_can_be_meant_is_taken(self) -> None:
        check_value(Role.BACKEND, "LLAMA_SPEC_TYPE", "ngram-mod,draft-simple")
        check_value(Role.BACKEND, "LLAMA_SPEC_TYPE", "auto")
        check_value(Role.BACKEND, "LLAMA_ARG_NUMA", "isolate")
        check_value(Role.PROXY, "PROXY_PORT", "4000")

    @pytest.mark.parametrize(
        ("role", "key", "value"),
        [(Role.BACKEND, "LLAMA_ARG_NUMA", "x"), (Role.PROXY, "PROXY_PORT", "70000"), (Role.PROXY, "PROXY_PORT", " ")],
    )
    def test_one_that_cannot_is_refused(self, role: Role, key: str, value: str) -> None:
        with pytest.raises(InputError, match=key):
            check_value(role, key, value)


@pytest.mark.parametrize(("role", "keys"), [(Role.BACKEND, {**BACKEND_KEYS, **PASSED_ON}), (Role.PROXY, PROXY_KEYS)])
def test_no_declared_key_is_unknown(role: Role, keys: dict[str, object]) -> None:
    assert [key for key in keys if unknown(role, key) is not None] == []
