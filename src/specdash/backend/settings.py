"""From a backend env to one typed configuration: what is set, from which key, and what was warned about on the way.

Precedence, for every parameter: a flag in `LLAMA_EXTRA_ARGS`, then our key, then llama.cpp's own `LLAMA_ARG_*`, then
the default. The result is the same for both engines; `backend.binary` and `backend.embedded` render it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.errors import InputError, Problem
from specdash.core.parameter_catalogue import (
    BY_FLAG,
    BY_KEY,
    BY_NAME,
    ENGINE,
    IGNORED_KEYS,
    PASSED_ON,
    REMOVED_FLAGS,
    REMOVED_KEYS,
    SHORTHANDS,
)
from specdash.core.parameters import Parameter, Scalar, ValueKind
from specdash.core.paths import state_dir
from specdash.core.speculation import KNOBS, NO_SPECULATION, SpecType, is_auto, parse_chain, spec_type
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from collections.abc import Mapping

# LLAMA_EXTRA_ARGS: split as a shell would, known flags kept apart from the rest, removed flags refused.

SOURCE = "LLAMA_EXTRA_ARGS"
_CHAIN = "llama_spec_type"


def setting(source: str, parameter: Parameter, value: Scalar | None) -> str:
    """A value as it is written, for messages: `KEY=VALUE`, or the flag inside LLAMA_EXTRA_ARGS, which is not to be
    overwritten as a whole."""
    text = "" if value is None else parameter.text(value)
    if source != SOURCE:
        return f"{source}={text}"
    if parameter.kind is ValueKind.SWITCH:
        return f"{(parameter.flags if value else (*parameter.off_flags, *parameter.flags))[0]} in {SOURCE}"
    return f"{parameter.flags[0]} {text} in {SOURCE}"


def parse(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Of the value of `LLAMA_EXTRA_ARGS`, the texts of known parameters by name, and the arguments that no catalogue
    entry covers, with their values, in their order.

    Raises `InputError` for bad quoting, removed flags and missing values."""
    try:
        words = shlex.split(text)[::-1]
    except ValueError:
        what = "a backslash ends it" if text.endswith("\\") else "a quote is not closed"
        raise InputError(f"{SOURCE}: {what}", "close the quote", key=SOURCE) from None
    known: dict[str, str] = {}
    rest: list[str] = []
    while words:
        word = words.pop()
        flag = canonical(word)
        if flag in REMOVED_FLAGS:
            raise InputError(f"{SOURCE}: llama.cpp removed {word}", f"use {REMOVED_FLAGS[flag]}", key=SOURCE)
        if flag not in BY_FLAG and flag not in SHORTHANDS:
            rest.append(word)
            continue
        given = dict(SHORTHANDS.get(flag, {}))
        if flag in BY_FLAG:
            parameter, on = BY_FLAG[flag]
            if parameter.kind is not ValueKind.SWITCH and not words:
                raise InputError(f"{SOURCE}: {word} needs a value", key=SOURCE)
            given[parameter.name] = ("1" if on else "0") if parameter.kind is ValueKind.SWITCH else words.pop()
        # As llama.cpp does: the last one wins, but spec types add up.
        if _CHAIN in given and _CHAIN in known:
            given[_CHAIN] = f"{known[_CHAIN]},{given[_CHAIN]}"
        known |= given
    return known, tuple(rest)


def canonical(word: str) -> str:
    """`word` as the catalogue spells flags: llama-server takes '_' for '-' in long flags."""
    return word.replace("_", "-") if word.startswith("--") else word


class SpecTypeChoice(Struct, frozen=True):
    """The spec types that `LLAMA_SPEC_TYPE=auto` stands for, and why. `uses_draft`: a draft model given is loaded."""

    types: tuple[str, ...]
    because: str
    uses_draft: bool = True

    @property
    def chain(self) -> str:
        """The types as the key has them."""
        return ",".join(self.types) or NO_SPECULATION


DEFAULT = "default"
FREE_PORT = ", a free port"
"""The note of a port that was chosen because the settings say 0."""
DRAFT_SOURCES = ("spec-draft-model", "spec-draft-hf")
MODEL_SOURCES = ("model", "model-url", "hf-repo", "docker-repo")
ROUTER_KEYS = ("LLAMA_ARG_MODELS_DIR", "LLAMA_ARG_MODELS_PRESET")
MACHINE_KEYS = ("LLAMA_ENGINE", "LLAMA_BIN")
"""Keys that say something about the machine, not about the service: the caller's environment may give them."""

ROLLBACK = "LLAMA_HYBRID_ROLLBACK_MODE"
_DEVICE_SAMPLING = "spec-draft-backend-sampling"


class ParameterValue(Struct, frozen=True):
    """The value of one parameter and where it came from: an env key, `LLAMA_EXTRA_ARGS`, or `default`.

    `note` is what became of it on the way, for people.
    """

    value: Scalar
    source: str
    note: str = ""

    @property
    def origin(self) -> str:
        """Source and note."""
        return f"{self.source}{self.note}"


class BackendSettings(Masked, Struct, frozen=True):
    """Everything needed to start the backend with either engine."""

    hidden = ("secrets",)

    parameters: dict[str, ParameterValue]
    """Engine parameters by name, the ones that are set and the ones that are always rendered."""
    spec_types: tuple[str, ...] = ()
    spec_source: str = DEFAULT
    engine: str = "auto"
    binary: str | None = None
    log_file: str | None = None
    log_max_mib: int = 256
    stop_timeout: float = 5.0
    start_probe: bool = True
    start_baseline: bool = True
    secrets: dict[str, str] = {}
    """Secret parameters by name; never in `parameters`."""
    extra_args: tuple[str, ...] = ()
    """Arguments of LLAMA_EXTRA_ARGS the catalogue does not know."""
    native: dict[str, str] = {}
    """`LLAMA_ARG_*` variables the catalogue does not know, for llama-server's own environment."""
    environment: dict[str, str] = {}
    """Other variables for the engine's environment, such as CUDA_VISIBLE_DEVICES and LLAMA_TRACE."""
    remarks: tuple[Problem, ...] = ()
    """What was found on the way that is no error."""
    undecided: bool = False
    """The spec types are left to specdash, which has not chosen yet (`backend.auto`)."""
    choice: SpecTypeChoice | None = None
    """What `auto` became."""

    @property
    def is_router(self) -> bool:
        """Whether it serves several models by name."""
        return not self.native.keys().isdisjoint(ROUTER_KEYS) or any(a.startswith("--models-") for a in self.extra_args)

    @property
    def no_probe(self) -> str | None:
        """Why the server cannot be asked for a completion, None when it can."""
        if self.is_router:
            return "a router serves models by name"
        reranks = self.native.get("LLAMA_ARG_RERANKING", "").lower() in ("1", "true", "on", "enabled")
        reranks = reranks or not {"--reranking", "--rerank"}.isdisjoint(self.extra_args)
        return "it serves embeddings only" if self.value("embeddings") else "it reranks only" if reranks else None

    def value(self, name: str) -> Scalar | None:
        """The value of an engine parameter: what was set, else its default."""
        assigned = self.parameters.get(name)
        return assigned.value if assigned is not None else BY_NAME[name].default

    def text(self, name: str) -> str | None:
        """The value of a textual parameter, None when it has none."""
        value = self.value(name)
        return str(value) if value not in (None, "") else None

    def number(self, name: str) -> int:
        """The value of a parameter that is a whole number."""
        return int(self.value(name) or 0)

    @property
    def kinds(self) -> list[SpecType]:
        """The chain, of types that the catalogue knows."""
        return [found for name in self.spec_types if (found := spec_type(name)) is not None]

    def log_path(self, base: Mapping[str, str]) -> str:
        """The file that the engine's output goes to."""
        log = self.log_file or state_dir(base) / "logs" / f"backend-{self.port}.log"
        return str(Path(log).expanduser().absolute())

    @property
    def model(self) -> str | None:
        """Path of the model file; None when the engine downloads the model itself."""
        return self.text("model")

    @property
    def draft_model(self) -> str | None:
        """Path of the draft model file that will be loaded, or None."""
        return self.text("spec-draft-model")

    @property
    def spec_key(self) -> str:
        """The key that names the spec types."""
        return "LLAMA_SPEC_TYPE" if self.spec_source == DEFAULT else self.spec_source

    def spec_setting(self, chain: str | None = None) -> str:
        """The spec types as they are set, or another chain in their place, for messages."""
        return setting(self.spec_key, BY_KEY["LLAMA_SPEC_TYPE"], ",".join(self.spec_types) if chain is None else chain)

    @property
    def host(self) -> str:
        """The first address the server listens on."""
        return (self.text("host") or "127.0.0.1").split(",")[0]

    @property
    def port(self) -> int:
        """The port the server listens on; 0 until one is chosen."""
        return self.number("port")

    @property
    def url(self) -> str:
        """Base address for a client on this machine."""
        prefix = (self.text("api-prefix") or "").rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}{prefix}"

    @property
    def api_key_file(self) -> str | None:
        """The file that holds the keys clients may send, one a line."""
        file = self.text("api-key-file")
        return os.path.abspath(file) if file else None  # noqa: PTH100 - the path is a text here

    @property
    def certificate(self) -> str | None:
        """The certificate file that the server serves TLS with; None without TLS, which needs its key as well."""
        certificate, key = self.text("ssl-cert-file"), self.text("ssl-key-file")
        return os.path.abspath(certificate) if certificate and key else None  # noqa: PTH100 - the path is a text here

    def with_value(self, name: str, value: Scalar, source: str, note: str = "") -> BackendSettings:
        """The same settings with one engine parameter changed."""
        changed = ParameterValue(value=value, source=source, note=note)
        return replace(self, parameters={**self.parameters, name: changed})


def settings_from_env(env: Mapping[str, str], choice: SpecTypeChoice | None = None) -> BackendSettings:
    """Read a backend env.

    `choice` is what `LLAMA_SPEC_TYPE=auto` stands for; without one, such settings are `undecided`.
    Raises `InputError` naming the key, its value and what to write instead.
    """
    return _SettingsReader(env, choice).settings()


def engine_settings(env: Mapping[str, str], base: Mapping[str, str]) -> BackendSettings:
    """Of a backend env only what says which engine runs, and where it finds its libraries and devices."""
    chosen = {key: base[key] for key in MACHINE_KEYS if base.get(key)}
    chosen |= {key: text for key, text in env.items() if text and (key in MACHINE_KEYS or not key.startswith("LLAMA_"))}
    return settings_from_env({**chosen, "LLAMA_MODEL": "model.gguf"})


class _SettingsReader:
    def __init__(self, env: Mapping[str, str], choice: SpecTypeChoice | None) -> None:
        self.env = {key: value for key, value in env.items() if value != ""}
        self.choice = choice
        self.extra, self.rest = parse(self.env.get(SOURCE, ""))
        self.knobs: dict[str, str] = {}
        self.remarks: list[Problem] = []
        self.assigned: dict[str, ParameterValue] = {}
        self.secrets: dict[str, str] = {}

    def settings(self) -> BackendSettings:
        for key in [key for key in REMOVED_KEYS if key in self.env]:
            ignored = key in IGNORED_KEYS
            fate = "ignores it without a word" if ignored else "removed it"
            what, fix = f"{key}={self.env.pop(key)}: llama.cpp {fate}", f"use {REMOVED_KEYS[key]}"
            problem = Problem(what, fix, key, is_removed=True)
            if not ignored:
                raise InputError(problem)
            self.remarks.append(problem)
        for name in DRAFT_SOURCES:
            self._assign(BY_NAME[name])
        types, spec_source, auto = self._speculation()
        # Each `LLAMA_DRAFT_*` is a key of the parameters that the types of the chain read for it, within its bounds.
        for key in KNOBS:
            self._ours(key)
        self.knobs = {target: key for key in KNOBS for kind in types if (target := kind.knob(key)) is not None}
        for parameter in ENGINE:
            if parameter.name not in DRAFT_SOURCES:
                self._assign(parameter)
        self._check_lengths(types)
        mixing = [kind.name for kind in types if kind.mixes_slots]
        if mixing and self._held("parallel").value != 1 and self._held(_DEVICE_SAMPLING).source == DEFAULT:
            note = f", off for {mixing[0]} with several slots"
            self.assigned[_DEVICE_SAMPLING] = ParameterValue(value=False, source=DEFAULT, note=note)
        for name in ("metrics", "slots"):
            held = self.assigned[name]
            if held.value is False:
                self._remark(f"{held.source} turns /{name} off: specdash cannot show what it reads there", held.source)
        native, environment = self._others()
        environment["LLAMA_TRACE"] = str(self._ours("LLAMA_TRACE"))
        mode = self._ours(ROLLBACK)
        if mode is not None:
            environment[ROLLBACK] = str(mode)
            stock = "but only patched builds read it; stock llama.cpp chooses by itself"
            self._remark(f"{ROLLBACK}={mode} is handed to the engine, {stock}", ROLLBACK)
        made = BackendSettings(
            parameters={p.name: self.assigned[p.name] for p in ENGINE if p.name in self.assigned},
            spec_types=tuple(t.name for t in types),
            spec_source=spec_source,
            engine=str(self._ours("LLAMA_ENGINE") or "auto"),
            binary=str(self._ours("LLAMA_BIN") or "") or None,
            log_file=str(self._ours("LLAMA_LOG_FILE") or "") or None,
            log_max_mib=int(self._ours("LLAMA_LOG_MAX_MIB") or 0),
            stop_timeout=float(self._ours("LLAMA_STOP_TIMEOUT") or 0),
            start_probe=str(self._ours("LLAMA_START_PROBE")) != "0",
            start_baseline=str(self._ours("LLAMA_START_BASELINE")) != "0",
            secrets=self.secrets,
            extra_args=self.rest,
            native=native,
            environment=environment,
            remarks=tuple(self.remarks),
            undecided=auto and self.choice is None,
            choice=self.choice if auto else None,
        )
        if not made.is_router and self.assigned.keys().isdisjoint(MODEL_SOURCES):
            what = "LLAMA_MODEL is not set: name the GGUF file to run"
            raise InputError(what, "set LLAMA_MODEL to a .gguf file", key="LLAMA_MODEL", text=what)
        return made

    def _remark(self, what: str, key: str | None = None, fix: str = "") -> None:
        self.remarks.append(Problem(what, fix, key))

    def _lookup(self, parameter: Parameter) -> tuple[str, str] | None:
        keys = (self.knobs.get(parameter.name, ""), *parameter.keys)
        found = [(self.env[key], key) for key in keys if key in self.env]
        if parameter.name in self.extra:
            found.insert(0, (self.extra[parameter.name], SOURCE))
        if parameter.kind is ValueKind.SWITCH:
            found += [("0", no) for key in parameter.keys if (no := negated(key)) != key and no in self.env]
        for text, source in found[1:]:
            if text != found[0][0]:
                shown = source if parameter.secret else f"{source}={text}"
                here = f" for {parameter.flags[0]}" if source in KNOBS else ""
                self._remark(f"{shown} is ignored{here}: {found[0][1]} wins", source)
        return found[0] if found else None

    def _assign(self, parameter: Parameter) -> None:
        found = self._lookup(parameter)
        if found is None:
            if parameter.always and parameter.default is not None:
                self.assigned[parameter.name] = ParameterValue(value=parameter.default, source=DEFAULT)
        elif parameter.secret:
            self.secrets[parameter.name] = found[0]
        else:
            text, source = found
            named = f"{source} {parameter.flags[0]}" if source == SOURCE else source
            value = parameter.parse(text, named)
            if parameter.kind is ValueKind.PATH:
                value = os.path.expanduser(str(value))  # noqa: PTH111 - the path stays as the user spelled it
            self.assigned[parameter.name] = ParameterValue(value=value, source=found[1])

    def _ours(self, key: str) -> Scalar | None:
        found = self._lookup(BY_KEY[key])
        return BY_KEY[key].default if found is None else BY_KEY[key].parse(*found)

    def _speculation(self) -> tuple[tuple[SpecType, ...], str, bool]:
        """The spec types, where they come from, and whether they are `auto`; draft models that they do not read are
        left out."""
        from specdash.backend.engines import listed_names

        found = self._lookup(BY_KEY["LLAMA_SPEC_TYPE"])
        drafts = [self.assigned[name] for name in DRAFT_SOURCES if name in self.assigned]
        if found is None and not drafts:
            return (), DEFAULT, False
        # A draft model is named to be used: without a type it is what it was made for.
        text, source = found or ("auto", "LLAMA_SPEC_TYPE")
        choice, auto = self.choice, is_auto(text)
        if auto and choice is None:
            return (), source, True
        if auto and choice is not None:
            text = choice.chain
            types = parse_chain(text, source)
            unread = "" if choice.uses_draft else f"{source}=auto does without: {choice.because}"
        else:
            # The engine is asked only about a type that is not in the catalogue.
            types = parse_chain(text, source, lambda name: name in listed_names(self.env))
            reads = any(kind.reads_draft_model or spec_type(kind.name) is None for kind in types)
            unread = "" if reads else f"{source}={text} drafts without a model"
        for name in DRAFT_SOURCES if unread else ():
            left_out = self.assigned.pop(name, None)
            if left_out is not None:
                what = f"{left_out.source} is not loaded: {unread}; it would only take memory"
                self._remark(what, left_out.source)
        drafts = [] if unread else drafts
        if len(drafts) > 1:
            named = " and ".join(f"{draft.source}={draft.value}" for draft in drafts)
            key, *also = (draft.source for draft in drafts)
            raise InputError(Problem(f"{named} both name a draft model", "remove one", key, also=tuple(also)))
        lacking = next((kind.name for kind in types if kind.needs_draft_model and not drafts), None)
        if lacking is not None:
            raise InputError(f"{source}={text}: {lacking} needs a draft model", "set LLAMA_DRAFT_MODEL", key=source)
        users = [kind.name for kind in types if kind.reads_draft_model]
        if len(users) > 1 and not auto:
            # llama.cpp b11549, every such pair tried: no start, an abort, or HTTP 500 for every request.
            fate = "the server does not start, aborts, or fails every request"
            what = f"{source}={text}: {' and '.join(users)} share one draft model, and {fate}"
            raise InputError(what, "use one of them (n-gram types go with any)", key=source)
        return types, source, auto

    def _check_lengths(self, types: tuple[SpecType, ...]) -> None:
        """A minimum above the maximum, which discards every draft, is refused; as a default it is lowered."""
        for kind in types:
            least = kind.min_parameter or kind.floor_parameter
            if kind.max_parameter is None or least is None:
                continue
            longest, shortest = self._held(kind.max_parameter), self._held(least)
            high, low = int(longest.value), int(shortest.value)
            if low > high and shortest.source == DEFAULT:
                note = f" {low}, lowered to {longest.origin}"
                self.assigned[least] = ParameterValue(value=high, source=DEFAULT, note=note)
            elif low > high:
                set_to = setting(longest.source, BY_NAME[kind.max_parameter], longest.value)
                most = f"the default {high}" if longest.source == DEFAULT else set_to
                above = f"{setting(shortest.source, BY_NAME[least], shortest.value)} is above {most}"
                also = () if longest.source == DEFAULT else (longest.source,)
                what, fix = f"{above}: {kind.name} would discard every draft", "lower the minimum or raise the maximum"
                raise InputError(Problem(what, fix, shortest.source, also=also))

    def _held(self, name: str) -> ParameterValue:
        return self.assigned.get(name) or ParameterValue(value=BY_NAME[name].default or 0, source=DEFAULT)

    def _others(self) -> tuple[dict[str, str], dict[str, str]]:
        native: dict[str, str] = {}
        environment: dict[str, str] = {}
        negations = {negated(key) for key in BY_KEY if key.startswith("LLAMA_ARG_")}
        for key, value in self.env.items():
            if key in BY_KEY or key in negations:
                continue
            (native if key.startswith("LLAMA_ARG_") else environment)[key] = value
            if key in PASSED_ON and any(canonical(word) in PASSED_ON[key].flags for word in self.rest):
                self._remark(f"{key}={value} is ignored: {SOURCE} wins", key)
        return native, environment


def negated(key: str) -> str:
    """The variable that switches the same off."""
    return key.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)
