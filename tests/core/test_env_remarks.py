"""What is remarked of the lines of an env file: unknown keys, values that cannot be meant, settings without effect."""

import pytest

from specdash.core.changes import Role
from specdash.core.env_edit import check_value, remarks, unknown
from specdash.core.envfile import parse
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.parameter_catalogue import PASSED_ON
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS

BACKEND, PROXY = Role.BACKEND, Role.PROXY
REMOVED = "bad value: LLAMA_ARG_DRAFT_MAX: llama.cpp removed this variable; use LLAMA_DRAFT_MAX"


def remarked(text: str, role: Role = BACKEND) -> list[str]:
    return list(remarks(role, parse(text)).values())


@pytest.mark.parametrize(
    ("role", "text", "remark"),
    [
        (BACKEND, "LLAMA_PARALLEL=1\nLLAMA_PARALLEL=2\n", "ineffective: line 2 sets it again"),
        (BACKEND, "LLAMA_DRAFT_MX=8\n", "unknown: not a known key; did you mean LLAMA_DRAFT_MAX?"),
        (BACKEND, "LLAMA_ABCDEFG=8\n", "unknown: not a known key"),
        (BACKEND, "PROXY_PORT=8\n", "unknown: the proxy's: the backend does not read it"),
        (BACKEND, "LLAMA_DRAFT_MAX=lots\n", "bad value: LLAMA_DRAFT_MAX=lots: not a whole number"),
        (BACKEND, "LLAMA_DRAFT_MAX=0\n", "bad value: LLAMA_DRAFT_MAX=0: must be from 1 to 1024 tokens"),
        (BACKEND, "LLAMA_SPEC_TYPE=ngram-mud\n", "bad value: LLAMA_SPEC_TYPE=ngram-mud: unknown speculative type"),
        (BACKEND, "LLAMA_ARG_DRAFT_MAX=8\n", REMOVED),
        (BACKEND, "LLAMA_ALIAS=\n", "ineffective: an empty value is as none"),
        (BACKEND, "LLAMA_ARG_PORT=1\nLLAMA_PORT=2\n", "ineffective: LLAMA_PORT wins"),
        (PROXY, "PROXY_PROT=1\n", "unknown: not a known key; did you mean PROXY_PORT?"),
        (PROXY, "LLAMA_PORT=1\n", "unknown: the backend's: the proxy does not read it"),
        (PROXY, "ABC=1\n", "unknown: not a key of the proxy, which does not read it"),
    ],
)
def test_a_line_that_is_not_what_it_seems_has_a_remark(role: Role, text: str, remark: str) -> None:
    (only,) = remarked(text, role)
    assert remark in only


def test_there_are_none_of_what_is_read_or_may_be() -> None:
    meant = (
        "LLAMA_SPEC_TYPE=ngram-mod\nCUDA_VISIBLE_DEVICES=0\nLLAMA_ARG_NUMA=isolate\nLLAMA_ARG_NO_KV_OFFLOAD=yes, do\n"
    )
    assert remarked(f"{meant}HF_TOKEN=x\n# LLAMA_DRAFT_MX=8\nnonsense\n") == []
    assert remarked("PROXY_PORT=4000\nLLAMA_CPP_BASE=http://127.0.0.1:1/v1\n", PROXY) == []


def test_none_holds_a_secret() -> None:
    text = "LLAMA_API_KEY=sk-1\nLLAMA_API_KEY=sk-1\nLLAMA_API_KY=sk-1\nPROXY_API_KEY=sk-1\n"
    assert "sk-1" not in "".join(remarked(text) + remarked(text, PROXY))


@pytest.mark.parametrize(("role", "keys"), [(BACKEND, {**BACKEND_KEYS, **PASSED_ON}), (PROXY, PROXY_KEYS)])
def test_every_declared_key_is_known_and_may_be_empty(role: Role, keys: dict[str, object]) -> None:
    assert [key for key in keys if unknown(role, key) is not None] == []
    for key in keys:
        check_value(role, key, "")


@pytest.mark.parametrize(
    ("role", "key", "good", "bad"),
    [
        (BACKEND, "LLAMA_SPEC_TYPE", "auto", "auto,ngram-mod"),
        (BACKEND, "LLAMA_ARG_NUMA", "isolate", "x"),
        (PROXY, "PROXY_PORT", "4000", "70000"),
        (PROXY, "PROXY_PORT", "1", " "),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(role: Role, key: str, good: str, bad: str) -> None:
    check_value(role, key, good)
    with pytest.raises(InputError, match=key):
        check_value(role, key, bad)
