"""What is written: lines, keys, values, knobs that nothing reads, and sizes against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.auto import longest_asked, slots_asked
from specdash.backend.engines import listed_names
from specdash.backend.rules import error, warning
from specdash.core import envfile
from specdash.core.changes import Role
from specdash.core.env_edit import close_key, parameter_of
from specdash.core.parameter_catalogue import REMOVED_KEYS
from specdash.core.proxy_parameters import NO_TLS, no_tls
from specdash.core.removed import REMOVED_SETTINGS
from specdash.core.speculation import KNOBS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.backend.plan import Circumstances, Plan
    from specdash.core.errors import Finding

_READ_BY_ENGINE = frozenset(
    (
        *("LLAMA_CACHE", "LLAMA_TRACE", "LLAMA_SET_ROWS", "LLAMA_GRAPH_REUSE_DISABLE", "LLAMA_GRAPH_INPUT_DEBUG"),
        *("LLAMA_KV_CACHE_DEBUG", "LLAMA_OFFLINE", "LLAMA_LOG_FILE"),
    )
)
"""Variables that llama.cpp reads without an option of that name."""
_PREFIXES = ("LLAMA_", "PROXY_")
_USUAL_BATCH = 2048


def env_lines(values: Mapping[str, str], around: Circumstances) -> Iterator[Finding]:
    """Lines of the env file as it is that cannot be read, and values that an env file cannot hold."""
    data = b""
    try:
        data = around.env_file.read_bytes() if around.env_file is not None else b""
    except (FileNotFoundError, ValueError):
        pass
    except OSError as failed:
        what = f"{around.env_file}: {failed.strerror or failed}"
        yield error("env-file", what, fix="make it a file you can read")
    for entry in envfile.parse(envfile.decode(data)).entries:
        if (problem := entry.problem) is not None:
            message = f"{around.env_file}:{entry.line}: {problem.what}"
            yield error("env-line", message, problem.key, problem.fix or "mend the line")
    for key, text in values.items():
        if (problem := envfile.name_problem(key) or envfile.value_problem(key, text)) is not None:
            yield error("env-value", problem.what, key, problem.fix)


def unknown_keys(role: Role, values: Mapping[str, str], around: Circumstances) -> Iterator[Finding]:
    """Keys of the other service, keys that were removed, and those that neither the catalogue nor the engine's own help
    names."""
    backend = role is Role.BACKEND
    other = Role.PROXY if backend else Role.BACKEND
    for key in [key for key, text in values.items() if text.strip()]:
        if parameter_of(role, key) is not None or key in REMOVED_KEYS or key in _READ_BY_ENGINE:
            continue
        listed = frozenset[str]()
        close = close_key(role, key)
        if not backend and key in NO_TLS:
            yield error("tls", no_tls(key), key, "remove it")
        elif key.startswith(_PREFIXES) and parameter_of(other, key) is not None:
            fix = f"remove it from the {role}'s env file: `specdash apply --service {role} --unset {key}`"
            yield warning("unknown-key", f"{key} is the {other}'s: the {role} does not read it", key, fix)
        elif not backend and key in REMOVED_SETTINGS:
            yield warning("removed-key", f"{key} was removed and is ignored", key, REMOVED_SETTINGS[key])
        elif key.startswith("LLAMA_" if backend else "PROXY_") or (close and not backend):
            if backend and key in (listed := listed_names(values, around.base)):
                continue
            what = "a known key and is passed on unread" if backend else "a setting of this proxy: it is ignored"
            # What the engine could not be asked about, it may read.
            unsure = key.startswith("LLAMA_ARG_") and not listed
            wrong = key in around.changed and not around.back and not unsure
            otherwise = "docs/settings.md lists those that are" if wrong and backend else "" if backend else "remove it"
            fix = f"did you mean {close}?" if close else otherwise
            yield (error if wrong else warning)("unknown-key", f"{key} is not {what}", key, fix)


def unused_knobs(plan: Plan) -> Iterator[Finding]:
    """`LLAMA_DRAFT_*` that no type of the chain has."""
    for key in KNOBS:
        text = plan.values.get(key, "")
        if text and not plan.settings.spec_types:
            fix = f"set {plan.settings.spec_setting('TYPE')}, or remove {key}"
            yield warning("no-effect", f"{key}={text} has no effect: no speculation is configured", key, fix)
        for kind in plan.settings.kinds if text else ():
            if kind.knob(key) is not None:
                continue
            fixed = kind.fixed_draft_length
            known = [name for name in KNOBS if kind.knob(name) is not None]
            why = "there is no such knob" if known else f"it has no knob, its draft length is {fixed}"
            fix = f"it has {' and '.join(known)}" if known else "ngram-mod has knobs"
            yield warning("no-effect", f"{key}={text} has no effect on {kind.name}: {why}", key, fix)


def batch_size(plan: Plan) -> Iterator[Finding]:
    """Every slot adds its sampled token and its draft to one batch, and llama.cpp aborts where one does not fit.

    server-context.cpp of b11549: GGML_ASSERT(add_ok && "batch must be large enough to hold the sampled and draft
    tokens"). With several slots it happens only when they draft at once, with all clients connected.
    """
    if not plan.settings.kinds:
        return
    longest = longest_asked(plan.settings, plan.draft)
    slots, batch = slots_asked(plan.settings).sequences, plan.settings.number("batch-size")
    needed = slots * (longest + 1)
    if batch < needed:
        many = f"{slots} slots with " if slots > 1 else ""
        message = (
            f"{plan.named('batch-size')}: {many}drafts of up to {longest} tokens and the token before need {needed}"
        )
        fix = f"set {plan.named('batch-size', max(needed, _USUAL_BATCH))}, or draft shorter"
        yield error("batch", f"{message}: the server would abort", plan.source("batch-size"), fix)


RULES = (unused_knobs, batch_size)
