"""Which of the changed keys count at once, and which with a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend import auto
from specdash.backend.auto import cells_asked, read_settings, slots_asked, used_devices
from specdash.backend.capabilities import listed_names
from specdash.backend.settings import DEFAULT, MACHINE_KEYS, BackendSettings, change, setting
from specdash.backend.settings import SOURCE as EXTRA_ARGS
from specdash.control.preflight.context import unread
from specdash.control.preflight.memory import cached_engine
from specdash.core import envfile
from specdash.core.changes import Role
from specdash.core.env_edit import close_key, key_help, parameter_of
from specdash.core.errors import InputError, Problem, ProblemKind, Severity, SpecdashError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME, IGNORED_KEYS, REMOVED_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.speculation import SpecType, detected_type, spec_type
from specdash.llama.gguf import GgufError, cached_facts
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.control.preflight.context import Findings, PreflightContext
    from specdash.core.parameters import Parameter, Scalar
    from specdash.llama.gguf import GgufFacts
    from specdash.llama.memory import SlotLayout


# What the rules about a backend look at: its settings, and the facts of its model files.


@dataclass(frozen=True, slots=True)
class BackendSubject:
    """One backend. `model` and `draft` are None where there is no such file, or it has a finding already."""

    values: Mapping[str, str]
    context: PreflightContext
    settings: BackendSettings
    dropped: frozenset[str]
    model: GgufFacts | None = None
    draft: GgufFacts | None = None

    def source(self, name: str) -> str:
        """The key that sets an engine parameter, or its own key where it has its default."""
        assigned = self.settings.parameters.get(name)
        if assigned is None or assigned.source == DEFAULT:
            return BY_NAME[name].key
        return assigned.source

    def named(self, name: str) -> str:
        """An engine parameter as it is set, for messages."""
        return setting(self.source(name), BY_NAME[name], self.settings.value(name))

    def change(self, name: str, value: Scalar) -> str:
        """An engine parameter with another value, written where it is set now: what a fix tells to set."""
        return change(self.source(name), BY_NAME[name], value)

    def place(self, name: str) -> str:
        """Where an engine parameter is set, for fixes that name no value: its key, or its flag in LLAMA_EXTRA_ARGS."""
        source = self.source(name)
        return f"{BY_NAME[name].flags[0]} in {source}" if source == EXTRA_ARGS else source

    def spec_change(self, chain: str) -> str:
        """The same for the spec types."""
        return self.settings.spec_change(chain)

    def number(self, name: str) -> int:
        """The value of a parameter that is a whole number."""
        return int(self.settings.value(name) or 0)

    def readable(self, *names: str) -> bool:
        """Whether nothing that sets these parameters was left out for its bad value."""
        parameters = [BY_NAME[name] for name in names]
        if self.dropped.intersection(key for parameter in parameters for key in parameter.keys):
            return False
        lost = self.values.get(EXTRA_ARGS, "") if EXTRA_ARGS in self.dropped else ""
        words = lost.replace("=", " ").split()
        return not any(flag in words for parameter in parameters for flag in (*parameter.flags, *parameter.off_flags))

    @property
    def spec_types(self) -> list[SpecType]:
        """The chain, of types that the catalogue knows."""
        return [found for name in self.settings.spec_types if (found := spec_type(name)) is not None]

    @property
    def spec_key(self) -> str:
        """The key that names the spec types."""
        source = self.settings.spec_source
        return source if source in self.values else "LLAMA_SPEC_TYPE"

    @property
    def slots(self) -> SlotLayout:
        """The slots and how they share the cache."""
        return slots_asked(self.settings)

    @property
    def cells(self) -> int:
        """Length of one cache in tokens."""
        return cells_asked(self.settings, self.model)


# Every value by itself, keys nobody reads, and what the backend's own reading of its env refuses or warns about.

_PLACEHOLDER = "model.gguf"
_SAID_ELSEWHERE = (ProblemKind.NO_EFFECT, ProblemKind.UNKNOWN_KEY)
"""Remarks of the settings that rules of their own say better."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings as far as they can be read. `dropped` are keys that were left out because their value is an error:
    a rule that depends on one of them says nothing."""

    settings: BackendSettings | None
    dropped: frozenset[str]


def read_values(values: Mapping[str, str], context: PreflightContext, out: Findings) -> ReadSettings:
    """Read the wanted values, adding a finding for each that cannot be meant."""
    env = {key: text for key, text in values.items() if text != ""}
    for key in MACHINE_KEYS:
        if key not in env and context.base.get(key):
            env[key] = context.base[key]
    say_empty(values, BY_KEY, out)
    dropped: set[str] = set()
    for key, instead in REMOVED_KEYS.items():
        if key in IGNORED_KEYS and key in env:
            said = f"{key}={env.pop(key)}: llama.cpp ignores it without a word"
            out.warning("removed-key", said, key=key, fix=f"use {instead}")
        elif key in env:
            out.error("removed-key", f"{key}={env.pop(key)}: llama.cpp removed it", key=key, fix=f"use {instead}")
            dropped.add(key)
    _unknown(env, context, out)
    for key in [key for key in env if key in BY_KEY]:
        parameter = BY_KEY[key]
        try:
            parameter.parse(env[key], key)
        except InputError as error:
            out.of(Severity.ERROR, "value", error.problem, fix=f"allowed: {parameter.allowed}")
            dropped.add(key)
            del env[key]
    return _settings(env, dropped, context, out)


def _settings(env: dict[str, str], dropped: set[str], context: PreflightContext, out: Findings) -> ReadSettings:
    settings, problems = _read_around(env, context)
    for problem in problems:
        if not problem.follows & dropped:
            out.of(Severity.ERROR, "settings", problem, fix="correct the value")
        dropped.update(filter(None, [problem.key]))
    for remark in settings.remarks if settings is not None else ():
        if remark.kind not in _SAID_ELSEWHERE:
            out.of(Severity.WARNING, "settings", remark)
    return ReadSettings(settings, frozenset(dropped))


def _read_around(env: dict[str, str], context: PreflightContext) -> tuple[BackendSettings | None, list[Problem]]:
    """The settings, read without the keys of each problem that is in their way, and these problems.

    None where a problem is of no key that could be left out.
    """
    problems: list[Problem] = []
    while True:
        try:
            settings = read_settings(
                env, detect=_detect, look=auto.look, on_gpu=lambda settings: _on_gpu(settings, context)
            )
        except InputError as error:
            problems.append(error.problem)
            key = error.problem.key
            if key in [problem.key for problem in problems[:-1]]:
                return None, problems
            if key == "LLAMA_MODEL" and key not in env:
                env[key] = _PLACEHOLDER
            elif key is None or env.pop(key, None) is None:
                return None, problems
        else:
            return settings, problems


def _detect(path: str) -> SpecType | None:
    try:
        facts = cached_facts(path)
    except GgufError:
        # The file has a finding of its own: that it names no type is not the trouble.
        return spec_type("draft-simple")
    return detected_type(facts.draft_architecture, facts.nextn_layers)


def _on_gpu(settings: BackendSettings, context: PreflightContext) -> bool:
    """Whether the server would use a GPU, as `backend run` finds it; by NVML alone where no engine may be asked."""
    if not context.probe_engine:
        return settings.value("gpu-layers") != 0 and settings.value("device") != "none" and context.gpus() is not None
    try:
        return bool(used_devices(settings, cached_engine(settings), context.base))
    except (SpecdashError, ValueError, OSError):
        return False


def say_empty(values: Mapping[str, str], known: Mapping[str, Parameter], out: Findings) -> None:
    """A key without a value counts as not set, which is not what an empty field looks like."""
    for key in [key for key, text in values.items() if not text.strip() and key in known]:
        parameter = known[key]
        default = "nothing" if parameter.default in (None, "") else f"its default, {parameter.text(parameter.default)},"
        said = f"{key} is empty, which counts as not set: {default} is in force"
        out.warning("empty", said, key=key, fix=f"give it a value, or remove it (-{key})")


_READ_BY_ENGINE = frozenset(
    {
        "LLAMA_CACHE",
        "LLAMA_TRACE",
        "LLAMA_SET_ROWS",
        "LLAMA_GRAPH_REUSE_DISABLE",
        "LLAMA_GRAPH_INPUT_DEBUG",
        "LLAMA_KV_CACHE_DEBUG",
        "LLAMA_OFFLINE",
        "LLAMA_LOG_FILE",
    }
)
"""Variables that llama.cpp reads without an option of that name."""


def _unknown(env: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
    for key in env:
        if parameter_of(Role.BACKEND, key) is not None:
            continue
        if key in PROXY_KEYS:
            said = f"{key} is the proxy's: the backend does not read it"
            out.warning("unknown-key", said, key=key, fix=unread(Role.BACKEND, key))
            continue
        if key.startswith("LLAMA_ARG_") and context.probe_engine and key in listed_names(env, context.base):
            continue
        close = close_key(Role.BACKEND, key)
        if close is not None or key.startswith("LLAMA_"):
            fix = f"did you mean {close}?" if close else ""
            found = f"{key} is not a known key and is passed on unread"
            if key in context.changed and not context.back and not _may_be_read(key, context, env):
                out.error("unknown-key", found, key=key, fix=fix or "see `specdash keys`")
            else:
                out.warning("unknown-key", found, key=key, fix=fix)


def _may_be_read(key: str, context: PreflightContext, env: Mapping[str, str]) -> bool:
    """Whether llama.cpp may read a variable that is none of its listed ones: it could not be asked for them, or looks
    there without an option."""
    if key in _READ_BY_ENGINE:
        return True
    return key.startswith("LLAMA_ARG_") and not (context.probe_engine and listed_names(env, context.base))


# Lines of the env file that cannot be read, and values that an env file cannot hold.


def check_env_lines(values: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
    """Add what is to be said of the file as it is now, and of the wanted values."""
    _file(context, out)
    for key, text in values.items():
        if (problem := envfile.name_problem(key) or envfile.value_problem(key, text)) is not None:
            out.error("env-value", problem.what, key=key, fix=problem.fix)


def _file(context: PreflightContext, out: Findings) -> None:
    try:
        data = context.env_file.read_bytes()
    except (FileNotFoundError, ValueError):
        return
    except OSError as error:
        out.error("env-file", f"{context.env_file}: {error.strerror or error}", fix="make it a file you can read")
        return
    for entry in envfile.parse(envfile.decode(data)).entries:
        if entry.problem is not None:
            where = f"{context.env_file}:{entry.line}: "
            out.of(Severity.ERROR, "env-line", entry.problem, where=where, fix="mend the line")


def check_restart(role: Role, context: PreflightContext, out: Findings) -> None:
    """Add how the changed keys take effect."""
    later: list[str] = []
    at_once: list[str] = []
    for key in sorted(context.changed):
        known = key_help(key)
        needs = known.restart if known is not None else role is Role.BACKEND
        (later if needs else at_once).append(key)
    for keys, how in ((later, f"a restart of the {role}"), (at_once, "a reload (SIGHUP), without a restart")):
        if keys:
            verb = "takes" if len(keys) == 1 else "take"
            said = f"{', '.join(keys)} {verb} effect with {how}"
            out.info("restart", said, key=keys[0] if len(keys) == 1 else None)
