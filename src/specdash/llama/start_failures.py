"""Why llama.cpp ended, aborted, or runs without speculation, from what it printed.

One table, `FAILURES` (`start_failure_table`), has every way that is known: how it shows, how it ends, and what to do.
`explain` finds the row that a log speaks of, `unspoken` the ways of which no log says a word.

Source: llama.cpp b11434 and b11549, tried on the real servers; GPU memory from the format strings of the source.
"""

from __future__ import annotations

import re
import signal
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from specdash.core.speculation import NO_SPECULATION, SPEC_TYPES, spec_type
from specdash.llama.log_grammar import LINE_CLASSES
from specdash.llama.log_reading import ANSI, read_line
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# The table of `start_failures`: every way llama.cpp is known to end, abort, or run without speculation, as data.

MOST_GENERAL = "other_exit"
"""The row that the last error line of a server that ended falls into, where no other does."""


class ServerEnd(StrEnum):
    """What becomes of the server."""

    EXIT = "exit"
    """It ends by itself, nearly always with exit code 1."""
    ABORT = "abort"
    """It is ended by a signal of its own making (SIGABRT), or by one of the system's."""
    WITHOUT = "runs without speculation"
    REQUEST = "fails requests"
    """It goes on; a request fails."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One way to fail.

    `patterns` are regular expressions; all of them must fit a line each. What their named groups capture fills the
    braces of `because` (a clause: "it ended because ...") and of `fix`. `classes` are line classes of
    `llama.log_grammar` that stand for it where no row's patterns fit. A row with neither is found by other means: by
    the parameters (`unspoken`) or by the exit code.
    """

    id: str
    what: str
    """What it is, in words: for lists and documents."""
    ends: ServerEnd
    because: str
    fix: str
    patterns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


_INIT = r"failed to initialize speculative decoding context: "
_PATH = r"'(?P<path>[^'\n]*)'"
_FAMILY = "use a draft model of the target's family and tokenizer (`specdash gguf MODEL --draft DRAFT` compares them)"

SYNTHETIC: tuple[KnownFailure, ...] = (
    KnownFailure(
        "synth_both",
        "synthetic acceptance by length and by rates at once",
        ServerEnd.EXIT,
        "--spec-synth-len and --spec-synth-rates exclude each other",
        "give one of them",
        (r"synthetic acceptance length and rates are mutually exclusive",),
    ),
    KnownFailure(
        "synth_count",
        "synthetic acceptance rates for another draft length",
        ServerEnd.EXIT,
        "--spec-synth-rates must have {want} values, one for each token of the longest draft, and has {got}",
        "give {want} values, or set LLAMA_DRAFT_MAX={got}",
        (r"synthetic acceptance rates must contain (?P<want>\d+) values?, got (?P<got>\d+)",),
    ),
    KnownFailure(
        "synth_increasing",
        "synthetic acceptance rates that rise",
        ServerEnd.EXIT,
        "--spec-synth-rates rise: a later token cannot be accepted more often than one before it",
        "give them in falling order",
        (r"synthetic acceptance rates must be monotonically non-increasing",),
    ),
    KnownFailure(
        "synth_range",
        "synthetic acceptance rates that are no probabilities",
        ServerEnd.EXIT,
        "--spec-synth-rates must be between 0 and 1",
        "correct the values",
        (r"synthetic acceptance rates must be finite and within",),
    ),
    KnownFailure(
        "synth_length",
        "a synthetic accepted length that the drafts cannot have",
        ServerEnd.EXIT,
        "--spec-synth-len must be between 1 and {most}, the longest draft and the target's own token",
        "correct it, or draft longer",
        (r"synthetic acceptance length must be finite and within \[1, (?P<most>\d+)\]",),
    ),
    KnownFailure(
        "synth_no_tokens",
        "synthetic acceptance of drafts of no tokens",
        ServerEnd.EXIT,
        "synthetic acceptance needs drafts of one token at least",
        "set LLAMA_DRAFT_MAX to 1 or more",
        (r"synthetic acceptance requires at least one speculative token",),
    ),
    KnownFailure(
        "synth_without",
        "synthetic acceptance without speculation",
        ServerEnd.EXIT,
        "synthetic acceptance was asked for, and nothing speculates",
        "set LLAMA_SPEC_TYPE and what it needs, or remove --spec-synth-len and --spec-synth-rates",
        (r"synthetic acceptance requires an initialized speculative decoding context",),
    ),
)

DRAFTS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "draft_missing",
        "the draft model's file is not there",
        ServerEnd.EXIT,
        "the draft model {path} does not exist",
        "correct LLAMA_DRAFT_MODEL",
        (r"failed to load draft model, " + _PATH, r"failed to open GGUF file '[^'\n]*' \(No such file or directory\)"),
    ),
    KnownFailure(
        "draft_broken",
        "the draft model's file is broken",
        ServerEnd.EXIT,
        "the draft model {path} could not be loaded: {said}",
        "download or convert it again (`specdash gguf FILE` tells what is wrong)",
        (
            r"failed to load draft model, " + _PATH,
            (
                r"(?P<said>tensor '[^'\n]*' data is not within the file bounds.*|invalid magic characters.*|"
                r"wrong number of tensors.*|unknown model architecture.*|missing tensor.*|key not found in model.*)"
            ),
        ),
    ),
    KnownFailure(
        "mtp_no_heads",
        "draft-mtp on a model without prediction layers",
        ServerEnd.EXIT,
        "draft-mtp needs prediction (nextn) layers, and the model has none",
        "use another LLAMA_SPEC_TYPE, or a model with such layers (`specdash gguf FILE` names its heads)",
        (r"failed to create MTP context",),
    ),
    KnownFailure(
        "draft_load_failed",
        "the draft model could not be loaded",
        ServerEnd.EXIT,
        "the draft model could not be loaded ({line})",
        "see the lines before it in the log; `specdash gguf FILE` checks the file",
        (r"failed to load draft model|failed to create draft context",),
    ),
)

WITHOUT: tuple[KnownFailure, ...] = (
    KnownFailure(
        "vocab_mismatch",
        "the draft model has another vocabulary than the target",
        ServerEnd.WITHOUT,
        "the draft model's vocabulary is not the target's",
        _FAMILY,
        (
            (
                r"the target and draft vocabs are not compatible|"
                r"draft (?:model )?vocab\w* (?:type |special tokens )?must|"
                r"draft model (?:special|bos|eos) tokens must match|is not compatible with the target model"
            ),
        ),
        ("vocab_mismatch",),
    ),
    KnownFailure(
        "eagle3_wrong_draft",
        "draft-eagle3 with a draft that is no EAGLE-3 head",
        ServerEnd.WITHOUT,
        "draft-eagle3 needs a draft that reads 3 layers, and this one reads {got}",
        "name an EAGLE-3 draft made for this model, or set LLAMA_SPEC_TYPE to the type the draft is made for",
        (_INIT + r"draft model is not eagle3 \(expected 3 extract layers, got (?P<got>\d+)",),
    ),
    KnownFailure(
        "draft_not_given",
        "a type that needs a draft model, and none is given",
        ServerEnd.WITHOUT,
        "{type} needs a draft model, and none is given",
        "set LLAMA_DRAFT_MODEL, or an n-gram type",
        (_INIT + r"(?P<type>[\w-]+) requires a draft context",),
    ),
    KnownFailure(
        "draft_sequences",
        "the draft's context has another number of sequences than the server has slots",
        ServerEnd.WITHOUT,
        "the draft's context is made for another number of slots",
        "give LLAMA_PARALLEL a number; it is an error of this build otherwise",
        (r"number of sequences is incompatible with the speculative n_seq|n_seq mismatch",),
    ),
    KnownFailure(
        "spec_unsupported",
        "the model's context cannot take tokens back",
        ServerEnd.WITHOUT,
        "this model's context cannot take rejected tokens back",
        "set LLAMA_SPEC_TYPE=none, or use another model or build",
        (r"speculative decoding (?:is )?not supported",),
        ("spec_unsupported",),
    ),
    KnownFailure(
        "no_implementations",
        "nothing that drafts is left in the chain",
        ServerEnd.WITHOUT,
        "no type in the chain could be used",
        "name one type, and what it needs, in LLAMA_SPEC_TYPE",
        (_INIT + r"no implementations? specified",),
    ),
    KnownFailure(
        "spec_init_failed",
        "speculation could not be set up",
        ServerEnd.WITHOUT,
        "speculation could not be set up: {said}",
        "mend what the line names, and start again; `specdash preflight` checks the settings",
        (_INIT + r"(?P<said>.*)",),
        ("spec_init_failed", "draft_load_failed"),
    ),
    KnownFailure(
        "none_in_chain",
        "`none` beside other types",
        ServerEnd.WITHOUT,
        "the chain {chain} has 'none' in it, which disables all of it without a word",
        "remove 'none' from LLAMA_SPEC_TYPE",
    ),
    KnownFailure(
        "draft_without_type",
        "a draft model without a type",
        ServerEnd.WITHOUT,
        "a draft model is given ({draft}) and no type that uses it: it is loaded, and does nothing",
        "set LLAMA_SPEC_TYPE=draft-simple, or the type the draft is made for",
    ),
)

ABORTS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "dflash_wrong_draft",
        "draft-dflash or draft-dspark with a draft that is none",
        ServerEnd.ABORT,
        "draft-dflash and draft-dspark need a draft model made for them, and this one reads no layers of the target",
        "name such a draft, or set LLAMA_SPEC_TYPE=draft-simple",
        (r'DFlash model has no target_layer_ids|GGML_ASSERT\(.*"DFlash requires ctx_tgt and ctx_dft',),
    ),
    KnownFailure(
        "draft_of_other_model",
        "a draft that reads layers the target does not have, or of another width",
        ServerEnd.ABORT,
        "the draft model is made for another model ({said})",
        "use a draft made for this model",
        (
            (
                r"(?P<said>GGML_ASSERT\(lid <= model\.hparams\.n_layer\(\)\)|layer input tensor is null|"
                r"target layer (?:id )?\d+ (?:input not extracted|exceeds target n_layer \d+)|"
                r"get_sub_batch: failed to add embedding at index \d+|"
                r"MTP input row width must match the target h_nextn width)"
            ),
        ),
    ),
    KnownFailure(
        "draft_extra_tokens",
        "a draft drafted a token that the target does not have",
        ServerEnd.ABORT,
        "the draft model drafted token {token}, which the target does not have",
        _FAMILY,
        (r"get_sub_batch: failed to add token (?P<token>\d+) at index",),
    ),
    KnownFailure(
        "recurrent_draft",
        "a recurrent draft for a model with a KV cache, at its first rejected token",
        ServerEnd.ABORT,
        "a rejected draft could not be taken back: the memory of the draft model (a recurrent one) cannot be cut",
        "use a draft model without recurrent layers",
        (r"failed to remove sequence \d+ with p0=-?\d+, p1=-?\d+",),
    ),
    KnownFailure(
        "n_max_zero",
        "drafts of no tokens, at the first request",
        ServerEnd.ABORT,
        "the longest draft is 0 tokens (--spec-draft-n-max 0), which aborts the server at its first request",
        "set LLAMA_DRAFT_MAX to 1 or more; LLAMA_SPEC_TYPE=none switches speculation off",
        (r"GGML_ASSERT\(n_outputs_max <= cparams\.n_outputs_max\)",),
    ),
    KnownFailure(
        "batch_small",
        "a batch without room for the drafts of all slots",
        ServerEnd.ABORT,
        "a batch has no room for the drafts of all slots, which aborts the server at the first long draft",
        "raise --batch-size to slots x (longest draft + 1) or more, or draft shorter",
        (r"batch must be large enough to hold the sampled and draft tokens",),
    ),
    KnownFailure(
        "lookup_cache",
        "a lookup cache file that cannot be read",
        ServerEnd.ABORT,
        "a lookup cache of ngram-cache cannot be read",
        "correct the path, or remove --lookup-cache-static and --lookup-cache-dynamic",
        (r"failed to open (?:static|dynamic) lookup cache|Couldn't read (?:static|dynamic) lookup cache",),
        ("lookup_cache_failed",),
    ),
)


_A = r'error while handling (?P<kind>argument|environment variable) "(?P<name>[^"]+)": '
_SMALLER = "shorten LLAMA_CTX_SIZE, use a smaller or more quantised model or draft, or offload fewer layers"

ARGUMENTS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "argument_removed",
        "a flag or variable that llama.cpp removed",
        ServerEnd.EXIT,
        "llama.cpp removed the {kind} {name}",
        "{instead}",
        (_A + r"the argument has been removed\. (?P<instead>use .*)",),
    ),
    KnownFailure(
        "spec_type_unknown",
        "a type of speculation that this build does not know",
        ServerEnd.EXIT,
        "this build knows no speculative type {type}",
        "use one of: {types}",
        (_A + r"unknown speculative type: (?P<type>.*)",),
    ),
    KnownFailure(
        "argument_range",
        "a value outside the range of its flag",
        ServerEnd.EXIT,
        "{name} is out of range: {said}",
        "correct the value",
        (_A + r"(?P<said>.*must be.*)",),
    ),
    KnownFailure(
        "device_unknown",
        "a device that this build, or this machine, does not have",
        ServerEnd.EXIT,
        "there is no device {device} for {name}",
        "`llama-server --list-devices` names them; `specdash doctor` tells why a GPU is missing",
        (_A + r"invalid device: (?P<device>.*)",),
    ),
    KnownFailure(
        "argument_value",
        "a value that cannot be read",
        ServerEnd.EXIT,
        "llama.cpp does not take the value of {name} ({said})",
        "correct the value",
        (_A + r"(?P<said>.*)",),
    ),
    KnownFailure(
        "argument_unknown",
        "a flag that this build does not know",
        ServerEnd.EXIT,
        "this build knows no argument {name}",
        "remove it, or use the name that `llama-server --help` has",
        (r"error: invalid argument: (?P<name>\S.*)",),
    ),
    KnownFailure(
        "setting_refused",
        "a setting that the xllamacpp package refuses",
        ServerEnd.EXIT,
        "the package does not take {name} ({said})",
        "correct the value, or use the llama-server binary",
        (r"error: cannot set (?P<name>.*) to .*: (?P<said>.*)",),
    ),
    KnownFailure(
        "cannot_run",
        "the program cannot be run",
        ServerEnd.EXIT,
        "{said}",
        "correct LLAMA_BIN, or install the libraries it needs",
        (r"(?P<said>error while loading shared libraries: .*|error: \S+ cannot be run: .*)",),
    ),
    KnownFailure(
        "bind",
        "the port is in use, or the address is not this machine's",
        ServerEnd.EXIT,
        "it could not listen on {host}:{port}",
        "stop whoever has the port (`ss -ltnp`), or set another LLAMA_PORT or LLAMA_HOST",
        (r"couldn't bind HTTP server socket, hostname: (?P<host>[^,\n]*), port: (?P<port>\d+)",),
        ("bind_failed",),
    ),
    KnownFailure(
        "no_tls",
        "TLS from a build without it",
        ServerEnd.EXIT,
        "a certificate is set, and this build has no TLS",
        "use a llama-server that was built with OpenSSL, or remove LLAMA_ARG_SSL_CERT_FILE and LLAMA_ARG_SSL_KEY_FILE",
        (r"the server is built without SSL support",),
    ),
)

MEMORY: tuple[KnownFailure, ...] = (
    KnownFailure(
        "gpu_memory",
        "the GPU's memory is out",
        ServerEnd.EXIT,
        "device {device} has no {mib} MiB left",
        _SMALLER,
        (r"allocating (?P<mib>[\d.]+) MiB on device (?P<device>\d+): \w*Malloc failed",),
    ),
    KnownFailure(
        "gpu_memory_running",
        "the GPU's memory ran out while it ran",
        ServerEnd.ABORT,
        "the GPU's memory ran out",
        _SMALLER,
        (r"(?:CUDA|ROCm|MUSA) error: out of memory",),
        ("gpu_out_of_memory",),
    ),
    KnownFailure(
        "gpu_error",
        "the GPU reported an error",
        ServerEnd.ABORT,
        "the GPU reported: {said}",
        "update the driver and llama.cpp, and look at `dmesg` for Xid lines: it is a bug, or the hardware",
        (r"(?:CUDA|ROCm|MUSA) error:? (?P<said>.*)",),
        ("cuda_error",),
    ),
    KnownFailure(
        "compute_buffer",
        "no room to compute a batch in",
        ServerEnd.EXIT,
        "the room to compute a batch in could not be allocated",
        f"lower --ubatch-size, or {_SMALLER}",
        (r"failed to allocate (?:compute|graph)",),
        ("compute_buffer_failed",),
    ),
    KnownFailure(
        "kv_cache",
        "no room for the KV cache",
        ServerEnd.EXIT,
        "the KV cache could not be allocated",
        _SMALLER,
        (r"failed to allocate buffer for kv cache|failed to allocate buffer for (?:rs|recurrent)",),
    ),
    KnownFailure(
        "memory",
        "memory could not be allocated",
        ServerEnd.EXIT,
        "memory could not be allocated ({line})",
        _SMALLER,
        (r"failed to allocate \S+ buffer of size \d+|unable to allocate \S+ buffer|std::bad_alloc",),
        ("alloc_failed",),
    ),
)

MODELS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "model_missing",
        "the model's file is not there",
        ServerEnd.EXIT,
        "the model file {path} does not exist",
        "correct LLAMA_MODEL",
        (r"failed to open GGUF file '(?P<path>[^'\n]*)' \(No such file or directory\)",),
    ),
    KnownFailure(
        "model_broken",
        "the model's file is broken, or of a kind that this build does not know",
        ServerEnd.EXIT,
        "the model could not be loaded: {said}",
        "download or convert it again, or update llama.cpp (`specdash gguf FILE` tells what is wrong)",
        (
            r"(?:error loading model: |gguf_init\w*: )(?P<said>(?!llama_model_loader: failed to load model from).*)",
            r"failed to load model|exiting due to model loading error",
        ),
    ),
    KnownFailure(
        "context_refused",
        "the model's context could not be made",
        ServerEnd.EXIT,
        "the model's context could not be made: {said}",
        "correct the settings that it names",
        (r"failed to initialize the context: (?P<said>.*)",),
    ),
    KnownFailure(
        "model_load_failed",
        "a model could not be loaded",
        ServerEnd.EXIT,
        "a model could not be loaded ({line})",
        "`specdash gguf FILE` checks the file; see the lines before it in the log",
        (),
        ("model_load_failed",),
    ),
)

OTHERS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "start_refused",
        "something else that llama.cpp names at its start",
        ServerEnd.EXIT,
        "{title} ({line})",
        "mend what the line names",
        (),
        ("adapter_failed", "template_invalid", "http_server_failed", "threads_failed"),
    ),
    KnownFailure(
        "assertion",
        "an assertion of llama.cpp failed",
        ServerEnd.ABORT,
        "an assertion of llama.cpp failed: {said}",
        "it is a bug, or a combination it does not support: try without speculation, then another build",
        (r"(?P<said>GGML_ASSERT\(.*)",),
        ("ggml_assert",),
    ),
    KnownFailure(
        "exception",
        "llama.cpp threw an exception",
        ServerEnd.ABORT,
        "llama.cpp threw: {said}",
        "mend what it names; otherwise it is a bug: try without speculation, then another build",
        (r"what\(\): +(?P<said>.*)",),
    ),
    KnownFailure(
        "other_abort",
        "llama.cpp aborted with words of its own",
        ServerEnd.ABORT,
        "llama.cpp aborted: {line}",
        "it is a bug, or a combination it does not support: try without speculation, then another build",
        (r"^\S*\.(?:cpp|cu|cuh|c|h|m):\d+: ",),
        ("aborted",),
    ),
    KnownFailure(
        "second_signal",
        "it was told to end twice",
        ServerEnd.EXIT,
        "somebody sent it a second signal to end",
        "nothing is wrong with it: start it again",
        (),
        ("interrupted_twice",),
    ),
    KnownFailure(
        MOST_GENERAL,
        "another error that it printed last",
        ServerEnd.EXIT,
        "{said}",
        "mend what the line names; the log has more",
    ),
    KnownFailure(
        "killed",
        "it was killed",
        ServerEnd.ABORT,
        "it was killed (SIGKILL): by the kernel when memory is out, unless somebody did",
        "`dmesg` tells; use a smaller model or context",
    ),
    KnownFailure(
        "wrong_cpu",
        "a build for another CPU",
        ServerEnd.ABORT,
        "it uses instructions that this CPU does not have (SIGILL)",
        "use a build for this CPU",
    ),
    KnownFailure(
        "crashed",
        "it crashed",
        ServerEnd.ABORT,
        "it crashed (an invalid memory access)",
        "it is a bug: try without speculation, then another build",
    ),
    KnownFailure(
        "aborted",
        "it aborted without a word",
        ServerEnd.ABORT,
        "it aborted and printed no reason",
        "try without speculation, then another build",
    ),
    KnownFailure(
        "spec_batch_index",
        "a request failed because the unified KV cache was nearly full (llama.cpp #24840)",
        ServerEnd.REQUEST,
        "the unified KV cache was nearly full: a draft did not fit into one piece of its batch (HTTP 500)",
        "raise LLAMA_CTX_SIZE, serve fewer slots, or give each its own cache (--no-kv-unified)",
        (r"speculative batch index \d+ is not inside the current sub-batch",),
    ),
)

FAILURES: tuple[KnownFailure, ...] = (*ARGUMENTS, *SYNTHETIC, *DRAFTS, *ABORTS, *MEMORY, *MODELS, *WITHOUT, *OTHERS)
"""Every way; where a log fits several, the first row is the cause."""


BY_ID: dict[str, KnownFailure] = {failure.id: failure for failure in FAILURES}
FALSE_ALARM_CLASSES = frozenset({"ctx_other_missing", "extra_model_unmeasured"})
"""Line classes of which llama.cpp itself says that they are normal, although it prints them as errors."""
_LONGEST = 4096
_MOST = 2000
_LAST = 200
"""Lines at the end of an output that tell whether the server ended: a backtrace may come last."""
_ENDING = frozenset({ServerEnd.EXIT, ServerEnd.ABORT})
_ENDED = re.compile(
    r"exiting due to|^error while |^error: |GGML_ASSERT|terminate called|^\S+\.(?:cpp|cu|c|h):\d+: |CUDA error|"
    r"couldn't bind HTTP server socket|ggml_abort"
)
_ERROR = re.compile(r"\s*(?:[\d.]+\s+)?E\s|error: ")
_HARMLESS = re.compile(r"task id = |speculative decoding context|vocabs are not compatible|got exception")


@dataclass(frozen=True, slots=True)
class StartFailure:
    """What went wrong in one run. `because` and `fix` are sentences without a full stop; `line` is the line of the log
    that says so, "" where none does."""

    id: str
    because: str
    fix: str
    ends: ServerEnd
    line: str = ""


def explain(lines: Iterable[str], exit_code: int | None) -> StartFailure | None:
    """The cause that the lines of one server's output tell of, or None.

    `exit_code`: of a server that has ended, negative for a signal as in `subprocess`; a server that ended well has no
    cause. None: it runs, as far as is known: what makes it run without speculation, or fail requests, is a cause, and
    what ended it only where its last lines say that it did.
    """
    if exit_code == 0:
        return None
    said = [text for line in lines if (text := _clean(line)) and not false_alarm(text)][-_MOST:]
    if exit_code is None and not any(_ENDED.search(line) for line in said[-_LAST:]):
        return _best([failure for failure in FAILURES if failure.ends not in _ENDING], said)
    found = _best([failure for failure in FAILURES if failure.ends in _ENDING], said)
    if found is None:
        return (_by_code(exit_code) if exit_code is not None else None) or _last_error(said)
    if found.id == "synth_without":
        # It is the consequence of something that alone would not have ended it.
        cause = _best([failure for failure in FAILURES if failure.ends is ServerEnd.WITHOUT and failure.patterns], said)
        if cause is not None:
            return StartFailure(found.id, f"{found.because}: {cause.because}", cause.fix, found.ends, cause.line)
    return found


def out_of_memory(lines: Iterable[str]) -> bool:
    """Whether the lines of one server's output say that memory ran out. A GPU's error alone does not."""
    rows = [row for row in MEMORY if row.id != "gpu_error"]
    return _best(rows, [_clean(line) for line in lines]) is not None


def unspoken(parameters: Mapping[str, str]) -> StartFailure | None:
    """Why a server that was started with these speculation parameters (name without dashes) does not speculate, where
    it says nothing of it itself; None where the parameters give no reason."""
    chain = parameters.get("spec-type")
    draft = parameters.get("spec-draft-model") or parameters.get("spec-draft-hf")
    if chain is None:
        if draft is None:
            return None
        return _row("draft_without_type", {"draft": draft})
    names = [part.strip() for part in chain.split(",") if part.strip()]
    if NO_SPECULATION in names and len(names) > 1:
        return _row("none_in_chain", {"chain": chain})
    if draft is None:
        needs = [item.name for name in names if (item := spec_type(name)) is not None and item.needs_draft_model]
        if needs:
            return _row("draft_not_given", {"type": needs[0]})
    return None


def false_alarm(line: str) -> bool:
    """Whether a line looks like an error and is none."""
    if "requires ctx_other" not in line and "measure the memory of the extra model" not in line:
        return False
    return _class_of(line.encode()) in FALSE_ALARM_CLASSES


def _best(rows: Sequence[KnownFailure], said: Sequence[str]) -> StartFailure | None:
    """The first row, in the table's order, that the lines fit."""
    text = "\n".join(said)
    for row in rows:
        fields = _fields(row, text)
        if fields is not None:
            return _made(row, fields)
    classes: dict[str, str] = {}
    for line in said:
        classes.setdefault(_class_of(line.encode("utf-8", "replace")), line)
    for row in rows:
        for kind in row.classes:
            if kind in classes:
                known = LINE_CLASSES[kind]
                fields = {"title": known.title, "note": known.note.rstrip("."), "line": classes[kind]}
                return _made(row, fields)
    return None


def _last_error(said: Sequence[str]) -> StartFailure | None:
    """The last line printed as an error that is not about a request or about speculation, which end no server."""
    for line in reversed(said):
        if _ERROR.match(line) and not _HARMLESS.search(line):
            return _row(MOST_GENERAL, {"said": message(line), "line": line})
    return None


def _fields(known_failure: KnownFailure, text: str) -> dict[str, str] | None:
    """What the patterns of a row capture; None when one of them is in no line."""
    fields: dict[str, str] = {}
    for pattern in known_failure.patterns:
        match = _compiled(pattern).search(text)
        if match is None:
            return None
        fields |= {key: value for key, value in match.groupdict().items() if value is not None}
        fields.setdefault("line", _line_at(text, match.start()))
    return fields if known_failure.patterns else None


def _row(name: str, fields: Mapping[str, str]) -> StartFailure:
    return _made(BY_ID[name], fields)


def _made(known_failure: KnownFailure, fields: Mapping[str, str]) -> StartFailure:
    shown = {key: value.strip()[:200] for key, value in fields.items()}
    because, fix = known_failure.because, known_failure.fix
    if known_failure.id == "spec_type_unknown" and (known := spec_type(shown.get("type", ""))) is not None:
        fix = f"today it is called {known.name}"
    elif "{types}" in fix:
        shown["types"] = ", ".join([NO_SPECULATION, *(kind.name for kind in SPEC_TYPES)])
    for key, value in shown.items():
        because, fix = because.replace(f"{{{key}}}", value), fix.replace(f"{{{key}}}", value)
    return StartFailure(
        known_failure.id, because.rstrip("."), fix.rstrip("."), known_failure.ends, shown.get("line", "")
    )


def _by_code(exit_code: int) -> StartFailure | None:
    """What the exit code alone tells."""
    code = exit_code - 128 if exit_code > 128 else -exit_code if exit_code < 0 else None
    row = {
        signal.SIGKILL: "killed",
        signal.SIGILL: "wrong_cpu",
        signal.SIGSEGV: "crashed",
        signal.SIGBUS: "crashed",
        signal.SIGABRT: "aborted",
    }.get(signal.Signals(code) if code in {int(number) for number in signal.Signals} else signal.SIGTERM)
    return _row(row, {}) if code is not None and row is not None else None


def message(line: str) -> str:
    """A line without its clock, level and function names."""
    return re.sub(r"^\s*(?:[\d.]+\s+)?[DIWE]\s+(?:(?:srv|slot|spec|cmn|que)\s+)?(?:[\w()~<>]+:\s+){0,2}", "", line)


def _clean(line: str) -> str:
    text = line[:_LONGEST]
    if "\x1b" in text:
        text = ANSI.sub(b"", text.encode("utf-8", "replace")).decode("utf-8", "replace")
    text = text.rstrip()
    return "" if text.startswith("# CMD:") else text.replace('\\"', '"')


def _line_at(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]


def _class_of(line: bytes) -> str:
    return read_line(line[:_LONGEST]).line_class.id


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)
