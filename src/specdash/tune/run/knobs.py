"""From a point of the search space to settings of the backend's env file, and from the settings in force to a point.

A point that is the one in force changes nothing, not even its spelling. Any other one spells its knobs out: as
`LLAMA_DRAFT_*`, which move the same knob of every type, where there is one type; where a model and an n-gram type draft
in one chain, as the engine's own variables and, for n-gram types, which have none, as flags in `LLAMA_EXTRA_ARGS`.
A knob that is None is left to the engine's default.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

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
_SIZES = {"ngram-mod": "spec-ngram-mod-n-match"}


class ChainChoice(Struct, frozen=True):
    """A chain of types that could be tried on a model, and why, or why not."""

    types: tuple[str, ...]
    fits: bool
    because: str

    @property
    def name(self) -> str:
        """As `LLAMA_SPEC_TYPE` has it."""
        return ",".join(self.types) or NO_SPECULATION


def size_parameter(item: SpecType) -> str | None:
    """The engine parameter for the length of the n-gram that an n-gram type looks up."""
    if not item.name.startswith(_NGRAM) or item.max_parameter is None:
        return None
    return _SIZES.get(item.name, f"spec-{item.name}-size-n")


def settings_in_force(values: Mapping[str, str], env: Mapping[str, str] = os.environ) -> BackendSettings:
    """What an env file's values mean, chosen types included. Raises `SpecdashError`."""
    from specdash.backend.launch import settings_of

    return settings_of(with_machine_keys(values, env), env)


def point_of(settings: BackendSettings) -> Point:
    """The point in force. Raises `InputError` for a chain whose knobs one point cannot hold."""
    types = _types(settings.spec_types)
    model, ngram = _drafter(types), _copier(types)
    found: dict[str, object] = {"types": tuple(kind.name for kind in types)}
    if model is not None:
        found |= {
            "n_max": _number(settings, model.max_parameter),
            "n_min": _number(settings, model.min_parameter) or None,
            "p_min": float(settings.value(model.p_min_parameter or "") or 0.0),
        }
    if ngram is not None and ngram.max_parameter is not None:
        found |= {
            "ngram_max": _number(settings, ngram.max_parameter),
            "ngram_min": _unless_default(settings, ngram.min_parameter),
            "ngram_size": _unless_default(settings, size_parameter(ngram)),
        }
    return Point(**found)  # type: ignore[arg-type]


def configuration(point: Point, values: Mapping[str, str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The keys to lay over `values`, the env file in force; an empty value unsets a key.

    Raises `SpecdashError` for values that mean nothing, `InputError` for a chain that a point cannot hold.
    """
    types = _types(point.types)
    settings = settings_in_force(values, env)
    if point == point_of(settings):
        return {}
    given = _given(point, types)
    wanted = {SPEC_TYPE: ",".join(kind.name for kind in types) or NO_SPECULATION, **_keys(types, given)}
    flags = {name: text for name, text in given.items() if _key(name) is None and name not in _by_knob(types)}
    names = {_TYPE, *(name for kind in types for name in _parameters(kind))}
    extra = _with_flags(values.get(extra_args.SOURCE, ""), names, flags)
    if extra != values.get(extra_args.SOURCE, ""):
        wanted[extra_args.SOURCE] = extra
    held = {key for name in names for key in BY_NAME[name].keys} | set(KNOBS)
    cleared = {key: "" for key in held if values.get(key) and key not in wanted}
    return {**cleared, **{key: text for key, text in wanted.items() if values.get(key) != text}}


def spelled(point: Point) -> dict[str, str]:
    """What a point sets, by key, or by flag where there is none: for people."""
    types = _types(point.types)
    given = _given(point, types)
    own = _by_knob(types)
    named = {own.get(name) or _key(name) or f"--{name}": text for name, text in given.items()}
    return {SPEC_TYPE: ",".join(kind.name for kind in types) or NO_SPECULATION, **named}


def untunable(types: Sequence[str]) -> str | None:
    """Why a chain has no knob to turn, in words; None when it has one."""
    if not types:
        return "speculation is off, so there is no knob to turn"
    chain = _types(types)
    if any(item.knob(key) is not None for item in chain for key in KNOBS):
        return None
    fixed = next((item.fixed_draft_length for item in chain if item.fixed_draft_length is not None), None)
    length = f": its drafts have {fixed} tokens, always" if fixed is not None else ""
    return f"{','.join(types)} has no knob to turn{length}"


def choices(settings: BackendSettings, model: GgufFacts | None, draft: GgufFacts | None) -> tuple[ChainChoice, ...]:
    """Every type, alone, and whether it can draft for the model that the settings name, with its draft where one is
    given; then an n-gram type before the one that drafts with a model."""
    from specdash.core.errors import Severity
    from specdash.llama.draft_fit import draft_misfits

    found = [ChainChoice((), True, "without drafts")]
    hidden = settings.text("spec-draft-hf") is not None
    for spec_kind in SPEC_TYPES:
        if spec_kind.needs_draft_model and draft is None and not hidden:
            found.append(ChainChoice((spec_kind.name,), False, "no draft model is given (LLAMA_DRAFT_MODEL)"))
            continue
        if spec_kind.name == "ngram-cache":
            found.append(ChainChoice((spec_kind.name,), False, "it drafts from a lookup cache file, and has no knob"))
            continue
        wrong = next(
            (row.said for row in draft_misfits(spec_kind, model, draft) if row.severity is Severity.ERROR), None
        )
        found.append(ChainChoice((spec_kind.name,), wrong is None, wrong or "it fits"))
    fitting = [choice.types[0] for choice in found if choice.fits and choice.types]
    models = [name for name in fitting if not name.startswith(_NGRAM)]
    if "ngram-mod" in fitting:
        found += [
            ChainChoice(tuple(kind.name for kind in SPEC_TYPES if kind.name in ("ngram-mod", name)), True, "both fit")
            for name in models
        ]
    return tuple(found)


def allowed_chains(text: str | None, start: Point, known: Sequence[ChainChoice]) -> tuple[tuple[str, ...], ...]:
    """The chains to choose from: the one in force and none at all; with `text` also those of `--allow-types`.

    `all` stands for all that fit; else chains separated by blanks or `;`, the types of one by commas or `+`. Raises
    `UsageError` for what does not fit, and where there is nothing to choose from.
    """
    chains: list[tuple[str, ...]] = [start.types, ()]
    fitting = [chain_choice.types for chain_choice in known if chain_choice.fits]
    if text is not None and text.strip().lower() == "all":
        chains += fitting
    elif text is not None:
        for word in text.replace(";", " ").split():
            try:
                types = tuple(item.name for item in parse_chain(word.replace("+", ","), "--allow-types"))
            except InputError as error:
                raise UsageError(str(error)) from None
            _check_allowed(types, known)
            chains.append(types)
    chains = list(dict.fromkeys(chains))
    if chains == [start.types] or (chains == [start.types, ()] and untunable(start.types) is not None):
        options = ", ".join(
            choice.name for choice in known if choice.fits and choice.types and choice.types != start.types
        )
        reason = untunable(start.types)
        raise UsageError(f"nothing to tune: {reason}; allow other types with --allow-types all, or some of: {options}")
    return tuple(chains)


def _check_allowed(types: tuple[str, ...], known: Sequence[ChainChoice]) -> None:
    _types(types)
    for name in types:
        chain_choice = next((row for row in known if row.types == (name,)), None)
        if chain_choice is None or not chain_choice.fits:
            raise UsageError(
                f"--allow-types {name}: {chain_choice.because if chain_choice is not None else 'not known'}"
            )


def _types(names: Sequence[str]) -> tuple[SpecType, ...]:
    types = tuple(found for name in names if (found := spec_type(name)) is not None)
    for family in (_NGRAM, "draft"):
        several = [kind.name for kind in types if kind.name.startswith(family)]
        if len(several) > 1:
            raise InputError(
                f"{SPEC_TYPE}={','.join(names)}: {' and '.join(several)} in one chain cannot be tuned apart; keep one "
                "of them"
            )
    return types


def _drafter(types: Sequence[SpecType]) -> SpecType | None:
    return next((kind for kind in types if not kind.name.startswith(_NGRAM)), None)


def _copier(types: Sequence[SpecType]) -> SpecType | None:
    return next((kind for kind in types if kind.name.startswith(_NGRAM)), None)


def _number(settings: BackendSettings, name: str | None) -> int | None:
    return None if name is None else int(settings.value(name) or 0)


def _unless_default(settings: BackendSettings, name: str | None) -> int | None:
    if name is None:
        return None
    held = settings.parameters.get(name)
    if held is None or held.source == DEFAULT or held.value == BY_NAME[name].default:
        return None
    return int(held.value)


def _parameters(item: SpecType) -> tuple[str, ...]:
    """The engine parameters that a point moves for a type."""
    names = (item.max_parameter, item.min_parameter, item.p_min_parameter, size_parameter(item))
    return tuple(name for name in names if name is not None)


def _given(point: Point, types: Sequence[SpecType]) -> dict[str, str]:
    """Engine parameters to the values that the point gives them."""
    found: dict[str, str | None] = {}
    for kind in types:
        copies = kind.name.startswith(_NGRAM)
        longest, least = (point.ngram_max, point.ngram_min) if copies else (point.n_max, point.n_min)
        found[kind.max_parameter or ""] = _text(longest)
        found[kind.min_parameter or ""] = _text(least)
        found[kind.p_min_parameter or ""] = None if copies or not point.p_min else f"{point.p_min:g}"
        found[size_parameter(kind) or ""] = _text(point.ngram_size) if copies else None
    return {name: text for name, text in found.items() if name and text is not None}


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _by_knob(types: Sequence[SpecType]) -> dict[str, str]:
    """Engine parameters that a `LLAMA_DRAFT_*` key moves, where it moves nothing else, to the key."""
    if len(types) != 1:
        return {}
    return {name: key for key in KNOBS if (name := types[0].knob(key)) is not None}


def _key(name: str) -> str | None:
    """The engine's own variable for a parameter."""
    return next(iter(BY_NAME[name].keys), None)


def _keys(types: Sequence[SpecType], given: Mapping[str, str]) -> dict[str, str]:
    own = _by_knob(types)
    found = {}
    for name, text in given.items():
        key = own.get(name) or _key(name)
        if key is not None:
            found[key] = text
    return found


def _with_flags(text: str, names: set[str], flags: Mapping[str, str]) -> str:
    """LLAMA_EXTRA_ARGS without the flags of these parameters, and with those that are given."""
    extra_args.parse(text)
    words, kept, at = shlex.split(text), [], 0
    while at < len(words):
        word = words[at]
        known = BY_FLAG.get(extra_args.canonical(word))
        takes = 1 if known is None or known[0].kind is ValueKind.SWITCH else 2
        gone = known is not None and known[0].name in names
        if extra_args.canonical(word) in SHORTHANDS:
            gone = True
        if not gone:
            kept += words[at : at + takes]
        at += takes
    if len(kept) == len(words) and not flags:
        return text
    return shlex.join([*kept, *(word for name, value in flags.items() for word in (BY_NAME[name].flags[0], value))])
