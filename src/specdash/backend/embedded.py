"""Backend settings as `xllamacpp.CommonParams`, and the child process that runs that server.

The parent renders the settings to plain assignments (`assignments`) and hands them to `python -m
specdash.backend.embedded` in one environment variable; the child applies them and serves until it is told to stop.
Secrets travel in variables of their own, so that the assignments may be printed.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.backend.binary import ESSENTIAL, LACKS, Engine, lack, secrets
from specdash.backend.rules import error, warning
from specdash.core.parameter_catalogue import ENGINE
from specdash.core.speculation import SPEC_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.backend.settings import BackendSettings
    from specdash.core.errors import Finding

PACKAGE = "xllamacpp"
ASSIGNMENTS_VARIABLE = "SPECDASH_XLLAMACPP_PARAMS"
API_KEY_VARIABLE = "LLAMA_API_KEY"
AUTOMATIC_SLOTS = 4
"""Slots llama-server takes for `--parallel -1`, with one unified cache (tools/server/server.cpp)."""
_TYPES = "speculative.types"
_USE_THE_BINARY = "remove it, or set LLAMA_BIN to a llama-server binary (LLAMA_ENGINE=llama-server)"
_INSTEAD = {
    "device": "set CUDA_VISIBLE_DEVICES instead (0: the first GPU, -1: the CPU), or LLAMA_BIN to a llama-server"
}
"""What to do where the package lacks a parameter, by its name, if not `_USE_THE_BINARY`."""
_STOP_SECONDS = 2
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RANDOM_SEED = 2**32 - 1


class Assignment(Struct, frozen=True):
    """`params.<path> = value`, where `name` is the catalogue's parameter; `value` is what JSON can hold."""

    name: str
    path: str
    value: Any

    @property
    def text(self) -> str:
        """As `show` prints it."""
        return f"{self.path} = {json.dumps(self.value)}"


class EmbeddedFit(Struct, frozen=True):
    """The assignments for one version of the package, and what of the settings is not among them."""

    assignments: list[Assignment] = field(default_factory=list)
    lacks: list[Finding] = field(default_factory=list)


def capabilities(version: str) -> Engine:
    """What the package has: the attributes and spec types of the catalogue, which a test compares with its own."""
    attributes = frozenset(parameter.attribute for parameter in ENGINE if parameter.attribute is not None)
    return Engine(PACKAGE, version, attributes | {_TYPES}, spec_types=tuple(kind.name for kind in SPEC_TYPES))


def fit(settings: BackendSettings) -> EmbeddedFit:
    """The assignments and everything that the package lacks of the settings, in the order of the catalogue."""
    found = EmbeddedFit()
    for parameter in ENGINE:
        assigned = settings.parameters.get(parameter.name)
        if assigned is None:
            continue
        if parameter.attribute is None:
            instead = _INSTEAD.get(parameter.name, _USE_THE_BINARY)
            found.lacks.extend(lack(parameter, assigned, "xllamacpp has no such parameter", instead))
            continue
        value = not assigned.value if parameter.inverted else assigned.value
        found.assignments.extend(_expand(parameter.name, parameter.attribute, value))
    if settings.spec_types:
        found.assignments.append(Assignment("spec-type", _TYPES, list(settings.spec_types)))
    for word in settings.extra_args[:1]:
        message = f"LLAMA_EXTRA_ARGS: xllamacpp has no parameter for {word!r}"
        found.lacks.append(error(LACKS, message, "LLAMA_EXTRA_ARGS", _USE_THE_BINARY))
    for key in settings.native:
        message = f"{key} has no effect: xllamacpp does not read it"
        found.lacks.append(warning(LACKS, message, key, "use llama-server for it"))
    return found


def environment(settings: BackendSettings) -> dict[str, str]:
    """Variables the child needs. Holds secrets: never print it unmasked."""
    plain = [[row.name, row.path, row.value] for row in fit(settings).assignments]
    return {**settings.environment, **secrets(settings), ASSIGNMENTS_VARIABLE: json.dumps(plain)}


def _expand(name: str, path: str, value: Any) -> list[Assignment]:
    if name == "parallel" and value == -1:
        return [Assignment(name, path, AUTOMATIC_SLOTS), Assignment(name, "kv_unified", value=True)]
    if name == "timeout":
        return [Assignment(name, path, value), Assignment(name, "timeout_write", value)]
    if name == "seed" and value == -1:
        return [Assignment(name, path, _RANDOM_SEED)]
    return [Assignment(name, path, value)]


def _enum(enum: str, prefix: str) -> Callable[[Any, Any], Any]:
    def convert(xllamacpp: Any, value: Any) -> Any:
        member = str(value).upper().replace("-", "_").replace("+", "_")
        return getattr(getattr(xllamacpp, enum), prefix + member)

    return convert


_KV_TYPE = _enum("ggml_type", "GGML_TYPE_")
_SPEC_TYPE = _enum("common_speculative_type", "COMMON_SPECULATIVE_TYPE_")
_FLASH_ATTN = {"on": "enabled", "off": "disabled"}
_CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "spec-type": lambda x, value: [_SPEC_TYPE(x, name) for name in value],
    "cache-type-k": _KV_TYPE,
    "cache-type-v": _KV_TYPE,
    "spec-draft-type-k": _KV_TYPE,
    "spec-draft-type-v": _KV_TYPE,
    "flash-attn": lambda x, value: _enum("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_")(
        x, _FLASH_ATTN.get(value, value)
    ),
    "tensor-split": lambda x, value: _shares(x, value),
    "split-mode": _enum("llama_split_mode", "LLAMA_SPLIT_MODE_"),
    "load-mode": lambda x, value: _enum("llama_load_mode", "LLAMA_LOAD_MODE_")(
        x, "direct_io" if value == "dio" else value
    ),
    "alias": lambda _, value: {name for name in value.split(",") if name},
    "host": lambda _, value: value.split(","),
    "fit": lambda _, value: value == "on",
    "spec-draft-sampling": lambda _, value: value == "probabilistic",
    "spec-synth-rates": lambda _, value: [float(rate) for rate in value.split(",")],
    "chat-template-file": lambda _, value: Path(value).read_text(encoding="utf-8"),
    "api-key-file": lambda _, value: _keys(value),
    "slot-save-path": lambda _, value: _directory(value),
}


def _shares(xllamacpp: Any, text: str) -> list[float]:
    shares = [float(part) for part in text.replace("/", ",").split(",")]
    length = len(xllamacpp.CommonParams().tensor_split)
    return [*shares, *[0.0] * (length - len(shares))]


def _directory(path: str) -> str:
    """As llama-server's own parser does: the library puts file names right behind it."""
    if not Path(path).is_dir():
        raise NotADirectoryError(f"{path} is no directory")
    return path if path.endswith("/") else f"{path}/"


def _keys(path: str) -> list[str]:
    lines = (line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def apply(xllamacpp: Any, params: Any, name: str, path: str, value: Any) -> None:
    """Set one attribute of `params`, converted to what the package wants there."""
    convert = _CONVERTERS.get(name)
    *parents, last = path.split(".")
    owner = functools.reduce(getattr, parents, params)
    setattr(owner, last, convert(xllamacpp, value) if convert is not None else value)


def _serve(xllamacpp: Any, plain: list[list[Any]]) -> int:
    params = xllamacpp.CommonParams()
    for name, path, value in plain:
        try:
            apply(xllamacpp, params, name, path, value)
        except (AttributeError, OSError, TypeError, ValueError) as error:
            # A newer package may have renamed what it can also do without.
            needed = not isinstance(error, AttributeError) or name in ESSENTIAL or name.startswith("spec-")
            word = "error" if needed else "warning"
            print(f"{word}: cannot set {path} to {value!r}: {error}", file=sys.stderr, flush=True)
            if needed:
                return 1
    if os.environ.get(API_KEY_VARIABLE):
        params.api_keys = [*params.api_keys, *os.environ[API_KEY_VARIABLE].split(",")]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        # Why it failed may still be with the log thread (common/log.cpp), whose destructor writes it out: only
        # an exit that runs destructors keeps it. The alarm bounds them.
        signal.alarm(_STOP_SECONDS)
        sys.exit(1)
    _wait_for_stop()
    # A client that stays connected keeps the destructor waiting, holding the interpreter lock; the kernel's alarm ends
    # the process then, and so does a second signal.
    for number in (*_STOP_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(_STOP_SECONDS)
    del server
    return 0


def _wait_for_stop() -> None:
    """Sleep until a stop signal arrives, whichever of the library's threads the kernel gives it to."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    while not select.select([readable], [], [])[0]:
        pass


def main() -> int:
    """Run the server described by the environment until SIGTERM or SIGINT; exits with 1 when it cannot start."""
    plain = json.loads(os.environ.pop(ASSIGNMENTS_VARIABLE))
    # While the model loads nothing is there to be shut down in order: the default action ends the process at once.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    import xllamacpp

    code = _serve(xllamacpp, plain)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
