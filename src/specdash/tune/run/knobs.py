"""From a point of the search space to settings of the backend's env file, and from the settings in force to a point.

A point that is the one in force changes nothing, not even its spelling. Any other one spells its knobs out: as
`LLAMA_DRAFT_*`, which move the same knob of every type, where there is one type; in a chain, as the engine's own
variables of the type that drafts with a model. Other knobs of n-gram types stay as they are. A knob that is None is
left to the engine's default.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from specdash.backend import settings as extra_args
from specdash.backend.settings import DEFAULT, BackendSettings
from specdash.bench.engines import with_machine_keys
from specdash.core.errors import InputError, UsageError
from specdash.core.parameter_catalogue import BY_FLAG, BY_NAME, SHORTHANDS
from specdash.core.parameters import ValueKind
from specdash.core.speculation import KNOBS, NO_SPECULATION, SPEC_TYPES, SpecType, parse_chain, spec_type
from specdash.tune.model.problem import Point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.llama.gguf import GgufFacts

SPEC_TYPE = "LLAMA_SPEC_TYPE"
_TYPE = "llama_spec_type"
_NGRAM = "ngram"


def settings_in_force(values: Mapping[str, str], env: Mapping[str, str] = os.environ) -> BackendSettings:
    """What an env file's values mean, chosen types included. Raises `SpecdashError`."""
    from specdash.backend.auto import settings_of

    return settings_of(with_machine_keys(values, env), env)


def point_of(settings: BackendSettings) -> Point:
    """The point in force. Raises `InputError` for a chain whose knobs one point cannot hold."""
    types = _checked(settings.spec_types)
    item = _moved(types)
    if item is None or item.max_parameter is None:
        return Point(types)
    longest = int(settings.value(item.max_parameter) or 0)
    if not item.name.startswith(_NGRAM):
        gate = float(settings.value(item.p_min_parameter or "") or 0.0)
        return Point(types, longest, int(settings.value(item.min_parameter or "") or 0) or None, gate)
    held = settings.parameters.get(item.min_parameter or "")
    is_default = held is None or held.source == DEFAULT or held.value == BY_NAME[item.min_parameter or ""].default
    return Point(types, longest, None if held is None or is_default else int(held.value))


def configuration(point: Point, values: Mapping[str, str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The keys to lay over `values`, the env file in force; an empty value unsets a key.

    Raises `SpecdashError` for values that mean nothing, `InputError` for a chain that a point cannot hold.
    """
    start = point_of(settings_in_force(values, env))
    if point == start:
        return {}
    wanted = spelled(point)
    turned = [name for item in (_moved(start.types), _moved(point.types)) if item for name in map(item.knob, KNOBS)]
    names = {_TYPE, *(name for name in turned if name is not None)}
    held = values.get(extra_args.SOURCE, "")
    extra = _without_flags(held, names)
    if extra != held:
        wanted[extra_args.SOURCE] = extra
    keys = {key for name in names for key in BY_NAME[name].keys} | set(KNOBS)
    cleared = {key: "" for key in keys if values.get(key) and key not in wanted}
    return {**cleared, **{key: text for key, text in wanted.items() if values.get(key) != text}}


def spelled(point: Point) -> dict[str, str]:
    """What a point sets, by key."""
    found = {SPEC_TYPE: ",".join(_checked(point.types)) or NO_SPECULATION}
    item = _moved(point.types)
    for key, value in zip(KNOBS, (point.n_max, point.n_min, point.p_min or None), strict=True):
        name = item.knob(key) if item is not None else None
        if name is not None and value is not None:
            found[key if len(point.types) == 1 else BY_NAME[name].keys[0]] = f"{value:g}"
    return found


def untunable(types: Sequence[str]) -> str | None:
    """Why a chain has no knob to turn, in words; None when it has one."""
    item = _moved(types)
    if item is None:
        return "speculation is off, so there is no knob to turn"
    if item.max_parameter is not None:
        return None
    fixed = item.fixed_draft_length
    length = f": its drafts have {fixed} tokens, always" if fixed is not None else ""
    return f"{','.join(types)} has no knob to turn{length}"


def choices(settings: BackendSettings, model: GgufFacts | None, draft: GgufFacts | None) -> dict[tuple[str, ...], str]:
    """Every type, alone, and why it cannot draft for the model that the settings name, with its draft where one is
    given; empty where it can. Then ngram-mod before each that drafts with a model."""
    from specdash.core.errors import Severity
    from specdash.llama.draft_fit import draft_misfits

    found: dict[tuple[str, ...], str] = {}
    hidden = settings.text("spec-draft-hf") is not None
    for item in SPEC_TYPES:
        misfits = draft_misfits(item, model, draft)
        why = next((row.said for row in misfits if row.severity is Severity.ERROR), "")
        if item.needs_draft_model and draft is None and not hidden:
            why = "no draft model is given (LLAMA_DRAFT_MODEL)"
        elif item.name == "ngram-cache":
            why = "it drafts from a lookup cache file, and has no knob"
        found[item.name,] = why
    models = [name for (name,), why in found.items() if not why and not name.startswith(_NGRAM)]
    if found["ngram-mod",] == "":
        pairs = [[item.name for item in SPEC_TYPES if item.name in ("ngram-mod", name)] for name in models]
        found |= {tuple(pair): "" for pair in pairs}
    return found


def allowed_chains(text: str | None, start: Point, known: Mapping[tuple[str, ...], str]) -> tuple[tuple[str, ...], ...]:
    """The chains to choose from: the one in force and none at all; with `text` also those of `--allow-types`.

    `all` stands for all that fit; else chains separated by blanks or `;`, the types of one by commas or `+`. Raises
    `UsageError` for what does not fit, and where there is nothing to choose from.
    """
    chains: list[tuple[str, ...]] = [start.types, ()]
    fitting = [types for types, why in known.items() if not why]
    if text is not None and text.strip().lower() == "all":
        chains += fitting
    elif text is not None:
        for word in text.replace(";", " ").split():
            try:
                types = _checked([item.name for item in parse_chain(word.replace("+", ","), "--allow-types")])
            except InputError as error:
                raise UsageError(str(error)) from None
            for name in types:
                if why := known.get((name,), "not known"):
                    raise UsageError(f"--allow-types {name}: {why}")
            chains.append(types)
    chains = list(dict.fromkeys(chains))
    reason = untunable(start.types)
    if reason is not None and not [types for types in chains if types and types != start.types]:
        options = ", ".join(",".join(types) for types in fitting if types != start.types)
        raise UsageError(f"nothing to tune: {reason}; allow other types with --allow-types all, or some of: {options}")
    return tuple(chains)


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    """The chain. Raises `InputError` for one whose types cannot be tuned apart."""
    for family in (_NGRAM, "draft"):
        several = [name for name in names if name.startswith(family)]
        if len(several) > 1:
            raise InputError(
                f"{SPEC_TYPE}={','.join(names)}: {' and '.join(several)} in one chain cannot be tuned apart; keep one "
                "of them"
            )
    return tuple(names)


def _moved(types: Sequence[str]) -> SpecType | None:
    return spec_type(Point(tuple(types)).moved or "")


def _without_flags(text: str, names: set[str]) -> str:
    """LLAMA_EXTRA_ARGS without the flags of these parameters, and without flags that stand for several."""
    extra_args.parse(text)
    words, kept, at = shlex.split(text), [], 0
    while at < len(words):
        flag = extra_args.canonical(words[at])
        known = BY_FLAG.get(flag)
        takes = 1 if known is None or known[0].kind is ValueKind.SWITCH else 2
        if flag not in SHORTHANDS and (known is None or known[0].name not in names):
            kept += words[at : at + takes]
        at += takes
    return text if len(kept) == len(words) else shlex.join(kept)
