"""From a backend env to one typed configuration: what is set, from which key, and what was warned about on the way.

Precedence, for every parameter: a flag in `LLAMA_EXTRA_ARGS`, then our key, then llama.cpp's own `LLAMA_ARG_*`, then
the default. The result is the same for both engines; `backend.binary` and `backend.embedded` render it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, SecretStr

from specdash.backend import extra_args
from specdash.backend.choices import Choice, Decision
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME, ENGINE, IGNORED_KEYS, REMOVED_KEYS
from specdash.core.parameters import Kind, Parameter, Scalar
from specdash.core.passed_on_parameters import BY_KEY as PASSED_ON
from specdash.core.speculation import KNOBS, NO_SPECULATION, SpecType, is_auto, parse_chain, spec_type

DEFAULT = "default"
DRAFT_SOURCES = ("spec-draft-model", "spec-draft-hf")
MODEL_SOURCES = ("model", "model-url", "hf-repo", "docker-repo")
ROUTER_KEYS = ("LLAMA_ARG_MODELS_DIR", "LLAMA_ARG_MODELS_PRESET")
MACHINE_KEYS = ("LLAMA_ENGINE", "LLAMA_BIN")
"""Keys that say something about the machine, not about the service: the caller's environment may give them."""

_DEVICE_SAMPLING = "spec-draft-backend-sampling"

DraftDetector = Callable[[str], SpecType | None]


class Assigned(BaseModel):
    """The value of one parameter and where it came from: an env key, `LLAMA_EXTRA_ARGS`, or `default`."""

    model_config = ConfigDict(frozen=True)

    value: Scalar
    source: str


class BackendSettings(BaseModel):
    """Everything needed to start the backend with either engine."""

    model_config = ConfigDict(frozen=True)

    parameters: dict[str, Assigned]
    """Engine parameters by name, the ones that are set and the ones that are always rendered."""
    spec_types: tuple[str, ...] = ()
    spec_source: str = DEFAULT
    engine: str = "auto"
    binary: str | None = None
    log_file: str | None = None
    log_max_mib: int = 256
    stop_timeout: float = 5.0
    start_probe: bool = True
    trace: str = "1"
    rollback_mode: str | None = None
    secrets: dict[str, SecretStr] = {}
    """Secret parameters by name; never in `parameters`."""
    extra_args: tuple[str, ...] = ()
    """Arguments of LLAMA_EXTRA_ARGS the catalogue does not know."""
    native: dict[str, str] = {}
    """`LLAMA_ARG_*` variables the catalogue does not know, for llama-server's own environment."""
    environment: dict[str, str] = {}
    """Other variables of the env file, such as CUDA_VISIBLE_DEVICES."""
    warnings: tuple[str, ...] = ()
    undecided: bool = False
    """The spec types are left to specdash, which has not chosen yet (`backend.auto`)."""
    decisions: tuple[Decision, ...] = ()
    """What `auto` became."""

    def value(self, name: str) -> Scalar | None:
        """The value of an engine parameter: what was set, else its default."""
        assigned = self.parameters.get(name)
        return assigned.value if assigned is not None else BY_NAME[name].default

    def text(self, name: str) -> str | None:
        """The value of a textual parameter, None when it has none."""
        value = self.value(name)
        return str(value) if value not in (None, "") else None

    @property
    def model(self) -> str | None:
        """Path of the model file; None when the engine downloads the model itself."""
        return self.text("model")

    @property
    def draft_model(self) -> str | None:
        """Path of the draft model file that will be loaded, or None."""
        return self.text("spec-draft-model")

    @property
    def spec_setting(self) -> str:
        """The spec types as they are set, for messages."""
        return extra_args.setting(self._spec_source, BY_KEY["LLAMA_SPEC_TYPE"], ",".join(self.spec_types))

    def spec_change(self, chain: str) -> str:
        """Other spec types, written where they are set now: what a fix tells to set."""
        return extra_args.change(self._spec_source, BY_KEY["LLAMA_SPEC_TYPE"], chain)

    @property
    def _spec_source(self) -> str:
        parameter = BY_KEY["LLAMA_SPEC_TYPE"]
        return self.spec_source if self.spec_source in (extra_args.SOURCE, *parameter.keys) else parameter.key

    @property
    def host(self) -> str:
        """The first address the server listens on."""
        return (self.text("host") or "127.0.0.1").split(",")[0]

    @property
    def port(self) -> int:
        """The port the server listens on; 0 until one is chosen."""
        return int(self.value("port") or 0)

    @property
    def url(self) -> str:
        """Base address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return f"http://{host}:{self.port}"

    def with_value(self, name: str, value: Scalar, source: str) -> BackendSettings:
        """The same settings with one engine parameter changed."""
        return self.model_copy(update={"parameters": {**self.parameters, name: Assigned(value=value, source=source)}})


def settings_from_env(
    env: Mapping[str, str], detect: DraftDetector | None = None, choice: Choice | None = None
) -> BackendSettings:
    """Read a backend env. `detect` tells the spec type the engine would pick from a draft model file, if it can.

    `choice` is what `LLAMA_SPEC_TYPE=auto` stands for; without one, such settings are `undecided`.
    Raises `InputError` naming the key, its value and what to write instead.
    """
    return _Reader(env, detect, choice).settings()


class _Reader:
    def __init__(self, env: Mapping[str, str], detect: DraftDetector | None, choice: Choice | None) -> None:
        self.env = {key: value for key, value in env.items() if value != ""}
        self.detect = detect
        self.choice = choice
        self.decisions: list[Decision] = []
        self.undecided = False
        self.extra = extra_args.parse(self.env.get(extra_args.SOURCE, ""))
        self.warnings: list[str] = list(self.extra.remarks)
        self.assigned: dict[str, Assigned] = {}
        self.secrets: dict[str, SecretStr] = {}

    def settings(self) -> BackendSettings:
        for key, instead in REMOVED_KEYS.items():
            if key in self.env and key not in IGNORED_KEYS:
                raise InputError(f"{key}={self.env[key]}: llama.cpp removed this variable; use {instead}")
            if (text := self.env.pop(key, None)) is not None:
                self.warnings.append(f"{key}={text} has no effect: llama.cpp ignores it without a word; use {instead}")
        for parameter in ENGINE:
            self._assign(parameter)
        self._require_model()
        types, spec_source = self._speculation()
        self._draft_knobs(types)
        self._check_lengths(types)
        self._keep_slots_apart(types)
        self._warn_of_dark_panels()
        native, environment = self._others()
        return BackendSettings(
            parameters={p.name: self.assigned[p.name] for p in ENGINE if p.name in self.assigned},
            spec_types=tuple(t.name for t in types),
            spec_source=spec_source,
            engine=str(self._ours("LLAMA_ENGINE") or "auto"),
            binary=self._ours_text("LLAMA_BIN"),
            log_file=self._ours_text("LLAMA_LOG_FILE"),
            log_max_mib=int(self._ours("LLAMA_LOG_MAX_MIB") or 0),
            stop_timeout=float(self._ours("LLAMA_STOP_TIMEOUT") or 0),
            start_probe=str(self._ours("LLAMA_START_PROBE")) != "0",
            trace=str(self._ours("LLAMA_TRACE")),
            rollback_mode=self._rollback_mode(),
            secrets=self.secrets,
            extra_args=self.extra.rest,
            native=native,
            environment=environment,
            warnings=tuple(self.warnings),
            undecided=self.undecided,
            decisions=tuple(self.decisions),
        )

    def _lookup(self, parameter: Parameter) -> tuple[str, str] | None:
        """Text and source of a parameter, the winner named and the losers warned about."""
        found = [(self.env[key], key) for key in parameter.keys if key in self.env]
        if parameter.name in self.extra.known:
            found.insert(0, (self.extra.known[parameter.name], extra_args.SOURCE))
        if parameter.kind is Kind.SWITCH:
            found += [("0", no) for key in parameter.native_keys if (no := _negated(key)) in self.env]
        for text, source in found[1:]:
            if text != found[0][0]:
                shown = source if parameter.secret else f"{source}={text}"
                self.warnings.append(f"{shown} is ignored: {found[0][1]} wins")
        return found[0] if found else None

    def _assign(self, parameter: Parameter) -> None:
        found = self._lookup(parameter)
        if found is None:
            if parameter.always and parameter.default is not None:
                self.assigned[parameter.name] = Assigned(value=parameter.default, source=DEFAULT)
        elif parameter.secret:
            self.secrets[parameter.name] = SecretStr(found[0])
        else:
            text, source = found
            named = f"{source} {parameter.flags[0]}" if source == extra_args.SOURCE else source
            value = parameter.parse(text, named)
            if parameter.kind is Kind.PATH:
                value = os.path.expanduser(str(value))  # noqa: PTH111 - the path stays as the user spelled it
            self.assigned[parameter.name] = Assigned(value=value, source=found[1])

    def _ours(self, key: str) -> Scalar | None:
        parameter = BY_KEY[key]
        found = self._lookup(parameter)
        return parameter.default if found is None else parameter.parse(*found)

    def _ours_text(self, key: str) -> str | None:
        value = self._ours(key)
        return None if value is None else str(value)

    def _require_model(self) -> None:
        router = any(key in self.env for key in ROUTER_KEYS) or any(a.startswith("--models-") for a in self.extra.rest)
        if not router and not any(name in self.assigned for name in MODEL_SOURCES):
            raise InputError("LLAMA_MODEL is not set: name the GGUF file to run")

    def _speculation(self) -> tuple[tuple[SpecType, ...], str]:
        found = self._lookup(BY_KEY["LLAMA_SPEC_TYPE"])
        drafts = [self.assigned[name] for name in DRAFT_SOURCES if name in self.assigned]
        if found is None:
            return self._detected(drafts)
        if is_auto(found[0]):
            return self._chosen(found[1]), found[1]
        types = parse_chain(*found)
        if not any(t.reads_draft_model for t in types):
            self._drop_drafts(f"{found[1]}={found[0]} drafts without a model")
        self._check_drafts(types, f"{found[1]}={found[0]}")
        return types, found[1]

    def _chosen(self, source: str) -> tuple[SpecType, ...]:
        """What `auto` stands for; nothing while that is not decided."""
        if self.choice is None:
            self.undecided = True
            return ()
        types = parse_chain(",".join(self.choice.types) or NO_SPECULATION, source)
        if not self.choice.uses_draft:
            self._drop_drafts(f"{source}=auto does without: {self.choice.because}")
        self.decisions.append(Decision("spec-type", ",".join(self.choice.types) or NO_SPECULATION, self.choice.because))
        return types

    def _drop_drafts(self, why: str) -> None:
        for name in DRAFT_SOURCES:
            draft = self.assigned.pop(name, None)
            if draft is not None:
                self.warnings.append(f"{draft.source} is not loaded: {why}; it would only take memory")

    def _check_drafts(self, types: tuple[SpecType, ...], said: str) -> None:
        drafts = [self.assigned[name] for name in DRAFT_SOURCES if name in self.assigned]
        if len(drafts) > 1:
            named = " and ".join(f"{one.source}={one.value}" for one in drafts)
            raise InputError(f"{named} both name a draft model; remove one")
        has_draft = bool(drafts)
        for one in types:
            if one.needs_draft_model and not has_draft:
                raise InputError(f"{said}: {one.name} needs a draft model; set LLAMA_DRAFT_MODEL")
        users = [t.name for t in types if t.reads_draft_model]
        if len(users) > 1:
            # llama.cpp b11549, every such pair tried: no start, an abort, or HTTP 500 for every request.
            raise InputError(
                f"{said}: {' and '.join(users)} share one draft model, and the server does not start, aborts, or fails "
                f"every request; use one of them (n-gram types go with any)"
            )

    def _detected(self, drafts: list[Assigned]) -> tuple[tuple[SpecType, ...], str]:
        if not drafts:
            return (), DEFAULT
        draft = drafts[0]
        here = "spec-draft-model" in self.assigned and len(drafts) == 1
        detected = self.detect(str(draft.value)) if self.detect is not None and here else None
        if detected is None:
            fix = "set LLAMA_SPEC_TYPE=draft-simple (or auto, or none)" if here else "set LLAMA_SPEC_TYPE"
            raise InputError(
                f"{draft.source} is set but LLAMA_SPEC_TYPE is not: the server would load the draft model and not "
                f"speculate; {fix}"
            )
        return (detected,), f"detected from {draft.source}"

    def _draft_knobs(self, types: tuple[SpecType, ...]) -> None:
        for key in KNOBS:
            value = self._ours(key)
            if value is None:
                continue
            targets = {t.name: t.knob(key) for t in types}
            deaf = [name for name, target in targets.items() if target is None]
            if self.undecided:
                continue
            if not targets:
                self.warnings.append(f"{key} has no effect: no speculation is configured")
            elif deaf:
                self.warnings.append(_deaf_warning(key, deaf))
            for target in filter(None, targets.values()):
                self._assign_knob(key, value, target)

    def _assign_knob(self, key: str, value: Scalar, target: str) -> None:
        held = self.assigned.get(target)
        if held is not None and held.source == extra_args.SOURCE:
            self.warnings.append(f"{key} does not set --{target}: {extra_args.SOURCE} wins")
            return
        if held is not None and held.value != value and held.source != key:
            self.warnings.append(f"{held.source}={held.value} is ignored: {key} wins")
        checked = BY_NAME[target].parse(str(value), key)
        self.assigned[target] = Assigned(value=checked, source=key)

    def _check_lengths(self, types: tuple[SpecType, ...]) -> None:
        for one in types:
            least = one.min_parameter or one.floor_parameter
            if one.max_parameter is None or least is None:
                continue
            longest, shortest = self._held(one.max_parameter), self._held(least)
            high, low = int(longest.value), int(shortest.value)
            if low <= high:
                continue
            if shortest.source == DEFAULT:
                source = f"default {low}, lowered to {longest.source}"
                self.assigned[least] = Assigned(value=high, source=source)
                self.warnings.append(
                    f"--{least} is lowered from its default {low} to {high}: "
                    f"otherwise {one.name} would discard every draft"
                )
                continue
            raise InputError(
                f"{_named(least, shortest)} is above {_named(one.max_parameter, longest)}: {one.name} would discard "
                "every draft; "
                "lower the minimum or raise the maximum"
            )

    def _keep_slots_apart(self, types: tuple[SpecType, ...]) -> None:
        mixing = [one.name for one in types if one.mixes_slots]
        if not mixing or self._held("parallel").value == 1:
            return
        sampling = self._held(_DEVICE_SAMPLING)
        if sampling.source == DEFAULT:
            source = f"{DEFAULT}, off for {mixing[0]} with several slots"
            self.assigned[_DEVICE_SAMPLING] = Assigned(value=False, source=source)
        elif sampling.value:
            self.warnings.append(
                f"{sampling.source} samples drafts on the device: with {mixing[0]}, slots that draft at once get the "
                "drafts of one of them; remove it, or set LLAMA_PARALLEL=1"
            )

    def _held(self, name: str) -> Assigned:
        return self.assigned.get(name) or Assigned(value=BY_NAME[name].default or 0, source=DEFAULT)

    def _warn_of_dark_panels(self) -> None:
        for name in ("metrics", "slots"):
            held = self.assigned[name]
            if held.value is False:
                self.warnings.append(f"{held.source} turns /{name} off: specdash cannot show what it reads there")

    def _rollback_mode(self) -> str | None:
        mode = self._ours_text("LLAMA_HYBRID_ROLLBACK_MODE")
        if mode is not None:
            self.warnings.append(
                f"LLAMA_HYBRID_ROLLBACK_MODE={mode} is handed to the engine, but only patched builds read it; "
                "stock llama.cpp chooses between state rollback and checkpoints by itself"
            )
        return mode

    def _others(self) -> tuple[dict[str, str], dict[str, str]]:
        native: dict[str, str] = {}
        environment: dict[str, str] = {}
        negations = {_negated(key) for key in BY_KEY if key.startswith("LLAMA_ARG_")}
        for key, value in self.env.items():
            if key in BY_KEY or key in negations:
                continue
            if not key.startswith("LLAMA_"):
                environment[key] = value
                continue
            if key.startswith("LLAMA_ARG_"):
                native[key] = value
            else:
                environment[key] = value
            if key not in PASSED_ON:
                self.warnings.append(_unknown_warning(key))
            elif any(extra_args.canonical(word) in PASSED_ON[key].flags for word in self.extra.rest):
                self.warnings.append(f"{key}={value} is ignored: {extra_args.SOURCE} wins")
        return native, environment


def _negated(key: str) -> str:
    return key.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)


def _named(name: str, assigned: Assigned) -> str:
    if assigned.source == DEFAULT:
        return f"the default {assigned.value}"
    return extra_args.setting(assigned.source, BY_NAME[name], assigned.value)


def _deaf_warning(key: str, names: list[str]) -> str:
    notes = []
    for name in names:
        found = spec_type(name)
        fixed = found.fixed_draft_length if found is not None and key == "LLAMA_DRAFT_MAX" else None
        notes.append(f"{name} (its draft length is fixed at {fixed})" if fixed is not None else name)
    return f"{key} has no effect on {', '.join(notes)}: there is no such knob"


def _unknown_warning(key: str) -> str:
    known = [*BY_KEY, *PASSED_ON]
    close = difflib.get_close_matches(key, [name for name in known if name != key], n=1, cutoff=0.75)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{key} is not a known key and is passed on unread{hint}"
