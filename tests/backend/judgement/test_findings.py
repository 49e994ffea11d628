"""One setting, one finding: rule, severity, key, and words of what is said and of the way out.

`%name` in a value stands for the path of the model of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from backend.judgement.conftest import Check

    Row = tuple[str, str, str, str | None, str, str]

_EAGLE = "LLAMA_DRAFT_MODEL=%eagle3 LLAMA_SPEC_TYPE=draft-simple"
_PRUNE = "PROXY_CONTEXT_PRUNE_TARGET_FRACTION=0.8 PROXY_CONTEXT_PRUNE_THRESHOLD=0.7"
_SIMPLE = "LLAMA_DRAFT_MODEL=%draft LLAMA_SPEC_TYPE=draft-simple"
_SWAPPED = "LLAMA_MODEL=%draft LLAMA_DRAFT_MODEL=%llama LLAMA_SPEC_TYPE=draft-simple"
_TYPE, _DRAFT, _LONGEST = "LLAMA_SPEC_TYPE", "LLAMA_DRAFT_MODEL", "LLAMA_DRAFT_MAX"
_UNSURE = "LLAMA_DRAFT_MODEL=%dspark-unsure LLAMA_SPEC_TYPE=draft-dspark"
_CAST = "LLAMA_ARG_CACHE_TYPE_V"

# fmt: off
BACKEND: list[Row] = [
    ("LLAMA_DRAFT_MAX=0", "value", "error", _LONGEST, "LLAMA_DRAFT_MAX=0", ""),
    ("LLAMA_DRAFT_P_MIN=1.5", "value", "error", "LLAMA_DRAFT_P_MIN", "LLAMA_DRAFT_P_MIN=1.5", "allowed: "),
    ("LLAMA_DRAFT_P_MIN=nan", "value", "error", "LLAMA_DRAFT_P_MIN", "LLAMA_DRAFT_P_MIN=nan", "allowed: "),
    ("LLAMA_ARG_FLASH_ATTN=maybe", "value", "error", "LLAMA_ARG_FLASH_ATTN", "maybe is not allowed", "use one of: on"),
    ("LLAMA_ARG_KV_UNIFIED=2", "value", "error", "LLAMA_ARG_KV_UNIFIED", "=2 is not allowed", "use 1 or 0"),
    ("LLAMA_PORT=65536", "value", "error", "LLAMA_PORT", "LLAMA_PORT=65536", "allowed: "),
    ("LLAMA_GPU_LAYERS=most", "value", "error", "LLAMA_GPU_LAYERS", "LLAMA_GPU_LAYERS=most", "allowed: "),
    (f"{_SIMPLE} LLAMA_DRAFT_MAX=4 LLAMA_ARG_SPEC_DRAFT_N_MIN=9", "settings", "error", "LLAMA_ARG_SPEC_DRAFT_N_MIN",
     "LLAMA_ARG_SPEC_DRAFT_N_MIN=9 is above LLAMA_DRAFT_MAX=4", "lower the minimum or raise the maximum"),
    (f"{_SIMPLE} LLAMA_DRAFT_MAX=x LLAMA_DRAFT_MIN=9", "value", "error", _LONGEST, "not a whole number", ""),
    ("LLAMA_MODEL=", "settings", "error", "LLAMA_MODEL", "LLAMA_MODEL is not set", "set LLAMA_MODEL to a .gguf file"),
    ("LLAMA_SPEC_TYPE=draft-simple", "settings", "error", _TYPE, "draft-simple needs a draft model", "set LLAMA_"),
    ("LLAMA_SPEC_TYPE=none,ngram-mod", "settings", "error", _TYPE, "'none' would silently disable", "remove one or"),
    ("LLAMA_EXTRA_ARGS=--draft-max|5", "settings", "error", "LLAMA_EXTRA_ARGS", "removed --draft-max", "use "),
    ("LLAMA_EXTRA_ARGS=--ctx-size", "settings", "error", "LLAMA_EXTRA_ARGS", "needs a value", "correct the value"),
    ("LLAMA_EXTRA_ARGS=--alias|'x", "settings", "error", "LLAMA_EXTRA_ARGS", "quote is not closed", "close the quote"),
    ("LLAMA_DRAFT_MODEL=%draft", "settings", "error", _DRAFT, "LLAMA_SPEC_TYPE is not", "LLAMA_SPEC_TYPE=draft-simple"),
    *((f"LLAMA_DRAFT_MODEL=%draft LLAMA_SPEC_TYPE={chain}", "settings", "error", _TYPE, "share one draft", "use one")
      for chain in ("draft-simple,draft-mtp", "draft-simple,draft-eagle3", "draft-dflash,draft-dspark")),
    ("LLAMA_SPEC_TYPE=ngram-mod LLAMA_DRAFT_P_MIN=0.5", "no-effect", "warning", "LLAMA_DRAFT_P_MIN", "",
     "LLAMA_DRAFT_MAX and LLAMA_DRAFT_MIN work"),
    ("LLAMA_SPEC_TYPE=ngram-simple LLAMA_DRAFT_MIN=8", "no-effect", "warning", "LLAMA_DRAFT_MIN", "",
     "LLAMA_DRAFT_MAX works"),
    ("LLAMA_SPEC_TYPE=ngram-mod LLAMA_ARG_SPEC_DRAFT_N_MAX=8", "no-effect", "warning", "LLAMA_ARG_SPEC_DRAFT_N_MAX", "",
     "LLAMA_DRAFT_MAX sets it for the types in force"),
    ("LLAMA_SPEC_TYPE=none LLAMA_DRAFT_MAX=8", "no-effect", "warning", _LONGEST, "", "set LLAMA_SPEC_TYPE"),
    ("PROXY_PORT=1", "unknown-key", "warning", "PROXY_PORT", "is the proxy's", "--service backend --unset PROXY_PORT"),
    ("LLAMA_DRAFT_MODEL=%other-word LLAMA_SPEC_TYPE=draft-simple", "vocabulary", "error", _DRAFT,
     "token 280 is '▁zebra', in the model '▁large'; the server would run without speculation", ""),
    (_SWAPPED, "draft-size", "warning", _DRAFT, "", "exchange LLAMA_DRAFT_MODEL and LLAMA_MODEL"),
    (_EAGLE, "draft-architecture", "warning", None, "", "set LLAMA_SPEC_TYPE=draft-eagle3"),
    ("LLAMA_DRAFT_MODEL=%dspark LLAMA_SPEC_TYPE=draft-dflash", "draft-architecture", "warning", None, "",
     "set LLAMA_SPEC_TYPE=draft-dspark"),
    ("LLAMA_DRAFT_MODEL=%dflash LLAMA_SPEC_TYPE=draft-dspark", "draft-architecture", "warning", None, "",
     "set LLAMA_SPEC_TYPE=draft-dflash"),
    ("LLAMA_DRAFT_MODEL=%dflash LLAMA_SPEC_TYPE=draft-dflash LLAMA_DRAFT_MAX=8", "block-size", "warning", _LONGEST,
     "7 counts", ""),
    ("LLAMA_DRAFT_MODEL=%dspark LLAMA_SPEC_TYPE=draft-dspark LLAMA_DRAFT_MAX=9", "block-size", "warning", _LONGEST,
     "8 counts", ""),
    (f"{_UNSURE} LLAMA_DRAFT_P_MIN=0.5", "confidence-head", "error", "LLAMA_DRAFT_P_MIN", "", "LLAMA_DRAFT_P_MIN=0,"),
    ("LLAMA_MODEL=%mamba LLAMA_SPEC_TYPE=ngram-mod", "checkpoints", "info", None, "", ""),
    ("LLAMA_MODEL=%qwen35-mtp LLAMA_SPEC_TYPE=ngram-mod", "checkpoints", "info", None, "", ""),
    ("LLAMA_MODEL=%qwen35-mtp LLAMA_DRAFT_MODEL=%draft LLAMA_SPEC_TYPE=draft-mtp", "nextn-layers", "error", None, "",
     "remove LLAMA_DRAFT_MODEL: the model has its own"),
    ("LLAMA_CTX_SIZE=511", "context", "warning", None, "leaves a slot 511 tokens (the engine rounds up to 512)", ""),
    ("LLAMA_CTX_SIZE=4096 LLAMA_PARALLEL=16", "context", "warning", None, "out to 16 slots, leaves a slot 256", ""),
    ("LLAMA_CTX_SIZE=40000", "context", "warning", None, "above the 32768 tokens", ""),
    ("LLAMA_CTX_SIZE=70000 LLAMA_PARALLEL=2", "context", "warning", None, "above the 32768 tokens", ""),
    ("LLAMA_PARALLEL=-1", "parallel", "info", None, "4 slots", ""),
    ("LLAMA_DRAFT_MODEL=%short LLAMA_SPEC_TYPE=draft-simple", "draft-context", "warning", None,
     "trained on 1024 tokens, a slot has 4096", ""),
    (f"{_CAST}=q8_0 LLAMA_ARG_FLASH_ATTN=off", "cache-type", "error", _CAST, "LLAMA_ARG_FLASH_ATTN=off", ""),
    ("LLAMA_SPEC_TYPE=auto LLAMA_DRAFT_MODEL=%draft", "auto", "info", _TYPE,
     "LLAMA_SPEC_TYPE=auto is draft-simple here: the draft model is an ordinary one", ""),
    ("LLAMA_MODEL=%qwen35-mtp LLAMA_SPEC_TYPE=auto", "auto", "info", _TYPE, "auto is ngram-mod here", ""),
    ("LLAMA_MODEL=%qwen35-mtp LLAMA_SPEC_TYPE=draft-mtp", "small-mtp", "warning", _TYPE, "", "use ngram-mod, or "),
    ("LLAMA_CTX_SIZE=auto", "auto", "info", "LLAMA_CTX_SIZE", "main memory", ""),
    ("LLAMA_MODEL=/nowhere.gguf LLAMA_CTX_SIZE=auto LLAMA_SPEC_TYPE=auto", "file", "error", "LLAMA_MODEL",
     "/nowhere.gguf: no such file", "correct the path in LLAMA_MODEL"),
]
PROXY: list[Row] = [
    ("PROXY_LOOP_WINDOW=1", "value", "warning", "PROXY_LOOP_WINDOW", "the default, 6, is in force", ""),
    ("PROXY_MAX_CONNECTIONS=0", "value", "error", "PROXY_MAX_CONNECTIONS", "", ""),
    ("PROXY_OTEL=on", "removed-key", "warning", "PROXY_OTEL", "was removed", "specdash export"),
    ("PROXY_LOOP_BREAKR=1", "unknown-key", "warning", None, "", "did you mean PROXY_LOOP_BREAKER?"),
    ("LLAMA_MODEL=x", "unknown-key", "warning", "LLAMA_MODEL", "is the backend's", "--unset LLAMA_MODEL"),
    (_PRUNE, "relation", "warning", None, "PROXY_CONTEXT_PRUNE_TARGET_FRACTION=0.8", ""),
    ("PROXY_HOLD_LIMIT=0", "relation", "warning", None, "", ""),
    ("PROXY_TOOL_NARROWING=on PROXY_TOOL_NARROWING_KEEP=12", "relation", "warning", None, "", ""),
    *((f"LLAMA_CPP_BASE={base}", "upstream", "error", None, "is no URL", "use one such as")
      for base in ("localhost:8080", "ftp://x/v1", "http://", "http://[::")),
    ("PROXY_PORT=4555 LLAMA_CPP_BASE=http://localhost:4555/v1", "upstream", "error", None, "ask itself", ""),
]
SILENT = [
    ("LLAMA_DRAFT_MAX=8|", "value"),
    (f"{_SIMPLE},ngram-mod LLAMA_DRAFT_MAX=64", "no-effect"),
    (_SIMPLE, "draft-size"),
    ("LLAMA_DRAFT_MODEL=%dflash LLAMA_SPEC_TYPE=draft-dflash LLAMA_DRAFT_MAX=7", "block-size"),
    ("LLAMA_DRAFT_MODEL=%dspark LLAMA_SPEC_TYPE=draft-dspark LLAMA_DRAFT_MAX=8", "block-size"),
    (f"{_UNSURE} LLAMA_DRAFT_P_MIN=0", "confidence-head"),
    ("LLAMA_DRAFT_MODEL=%dspark LLAMA_SPEC_TYPE=draft-dspark LLAMA_DRAFT_P_MIN=0.5", "confidence-head"),
    ("LLAMA_MODEL=%qwen35-mtp LLAMA_SPEC_TYPE=draft-mtp", "checkpoints"),
    ("LLAMA_SPEC_TYPE=ngram-mod", "checkpoints"),
    ("LLAMA_CTX_SIZE=0", "context"),
    ("LLAMA_CTX_SIZE=65536 LLAMA_PARALLEL=2", "context"),
    ("LLAMA_CTX_SIZE=2048 LLAMA_PARALLEL=8 LLAMA_ARG_KV_UNIFIED=1", "context"),
    ("LLAMA_PORT=0", "port-owner"),
    ("LLAMA_ARG_BATCH=4", "batch"),
]
# fmt: on


def _wanted(words: str, models: dict[str, str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words.split())
    return {key: models[text[1:]] if text[:1] == "%" else text.replace("|", " ") for key, _, text in pairs}


@pytest.mark.parametrize(("words", "rule", "severity", "key", "said", "fix"), [*BACKEND, *PROXY])
def test_a_setting_has_its_finding(
    words: str,
    rule: str,
    severity: str,
    key: str | None,
    said: str,
    fix: str,
    backend: Check,
    proxy: Check,
    models: dict[str, str],
) -> None:
    is_proxys = (words, rule, severity, key, said, fix) in PROXY
    found = (proxy if is_proxys else backend)(_wanted(words, models))
    row = found.one(rule)
    assert (row.severity, key in (None, row.key)) == (severity, True), row
    assert said in row.message
    assert fix in row.fix
    assert found.errors == ([row] if severity == "error" else [])


@pytest.mark.parametrize(("words", "rule"), SILENT)
def test_what_is_as_it_should_be_has_none(words: str, rule: str, backend: Check, models: dict[str, str]) -> None:
    found = backend(_wanted(words, models))
    assert not found.of(rule)
    assert not found.errors
