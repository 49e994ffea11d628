"""Backend settings as `xllamacpp.CommonParams`, and the child process that runs that server.

The parent renders the settings to plain assignments (`fit`) and hands them to `python -m
specdash.backend.embedded` in one environment variable; the child applies them and serves until a signal ends it.
Secrets travel in variables of their own, so that the assignments may be printed.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.backend.binary import ESSENTIAL, LACKS, Engine, lack, secrets
from specdash.backend.rules import error, warning
from specdash.core.parameter_catalogue import ENGINE
from specdash.core.speculation import SPEC_TYPES

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings
    from specdash.core.errors import Finding

PACKAGE = "xllamacpp"
ASSIGNMENTS_VARIABLE = "SPECDASH_XLLAMACPP_PARAMS"
API_KEY_VARIABLE = "LLAMA_API_KEY"
_OF_MINUS_ONE = {"parallel": 4, "seed": 2**32 - 1}
"""What llama-server takes for -1: automatic slots, with one unified cache (tools/server/server.cpp), and any seed."""
_TYPES = "speculative.types"
_USE_THE_BINARY = "remove it, or set LLAMA_BIN to a llama-server binary (LLAMA_ENGINE=llama-server)"
_STOP_SECONDS = 2
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def capabilities(version: str) -> Engine:
    """What the package has: the attributes and spec types of the catalogue, which a test compares with its own."""
    attributes = frozenset(parameter.attribute for parameter in ENGINE if parameter.attribute is not None)
    return Engine(PACKAGE, version, attributes | {_TYPES}, spec_types=tuple(kind.name for kind in SPEC_TYPES))


def fit(settings: BackendSettings) -> tuple[list[tuple[str, str, Any]], list[Finding]]:
    """The assignments, and everything that the package lacks of the settings, in the order of the catalogue. Of an
    assignment the parameter's name, the path of the attribute, and a value that JSON can hold."""
    assignments: list[tuple[str, str, Any]] = []
    lacks: list[Finding] = []
    for parameter in ENGINE:
        assigned = settings.parameters.get(parameter.name)
        if assigned is None:
            continue
        if parameter.attribute is None:
            lacks.extend(lack(parameter, assigned, "xllamacpp has no such parameter", _USE_THE_BINARY))
            continue
        name, value = parameter.name, not assigned.value if parameter.inverted else assigned.value
        taken = _OF_MINUS_ONE.get(name, value) if value == -1 else value
        assignments.append((name, parameter.attribute, taken))
        if name == "parallel" and value == -1:
            assignments.append((name, "kv_unified", True))
        elif name == "timeout":
            assignments.append((name, "timeout_write", value))
    if settings.spec_types:
        assignments.append(("spec-type", _TYPES, list(settings.spec_types)))
    for word in settings.extra_args[:1]:
        message = f"LLAMA_EXTRA_ARGS: xllamacpp has no parameter for {word!r}"
        lacks.append(error(LACKS, message, "LLAMA_EXTRA_ARGS", _USE_THE_BINARY))
    for key in settings.native:
        message = f"{key} has no effect: xllamacpp does not read it"
        lacks.append(warning(LACKS, message, key, "use llama-server for it"))
    return assignments, lacks


def environment(settings: BackendSettings) -> dict[str, str]:
    """Variables the child needs. Holds secrets: never print it unmasked."""
    return {**settings.environment, **secrets(settings), ASSIGNMENTS_VARIABLE: json.dumps(fit(settings)[0])}


_WORDS = {"flash-attn": {"on": "enabled", "off": "disabled"}, "load-mode": {"dio": "direct_io"}}
"""Values that the package calls otherwise, by parameter."""


def apply(params: Any, name: str, path: str, value: Any) -> None:
    """Set one attribute of `params`, converted to the type that it has."""
    *parents, last = path.split(".")
    owner = functools.reduce(getattr, parents, params)
    now = getattr(owner, last)
    if name in ("chat-template-file", "api-key-file"):
        value = Path(value).read_text(encoding="utf-8")
    if name == "api-key-file":
        lines = map(str.strip, value.splitlines())
        value = [line for line in lines if line and not line.startswith("#")]
    elif name == "slot-save-path":
        # As llama-server's own parser does: the library puts file names right behind it.
        if not Path(value).is_dir():
            raise NotADirectoryError(f"{value} is no directory")
        value = value.rstrip("/") + "/"
    elif name == "spec-type":
        value = [_member(type(now[0]), word) for word in value]
    elif isinstance(value, str) and isinstance(now, Enum):
        value = _member(type(now), _WORDS.get(name, {}).get(value, value))
    elif isinstance(value, str) and isinstance(now, bool):
        value = value in ("on", "probabilistic")
    elif isinstance(value, str) and isinstance(now, list | set):
        value = [part for part in value.split(",") if part]
    if name in ("tensor-split", "spec-synth-rates"):
        value = [float(part) for words in value for part in words.split("/")]
        value += now[len(value) :]
    setattr(owner, last, set(value) if isinstance(now, set) else value)


def _member(kind: type[Enum], word: str) -> Enum:
    ending = f"_{word.upper().replace('-', '_').replace('+', '_')}"
    found = next((member for name, member in kind.__members__.items() if name.endswith(ending)), None)
    if found is None:
        raise AttributeError(f"the package has no {kind.__name__} {word}")
    return found


def main() -> None:
    """Run the server described by the environment until SIGTERM or SIGINT; exits with 1 when it cannot start."""
    plain = json.loads(os.environ.pop(ASSIGNMENTS_VARIABLE))
    # While the model loads nothing is there to be shut down in order: the default action ends the process at once.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    import xllamacpp

    params = xllamacpp.CommonParams()
    for name, path, value in plain:
        try:
            apply(params, name, path, value)
        except (AttributeError, OSError, TypeError, ValueError) as error:
            # A newer package may have renamed what it can also do without.
            needed = not isinstance(error, AttributeError) or name in ESSENTIAL or name.startswith("spec-")
            word = "error" if needed else "warning"
            print(f"{word}: cannot set {path} to {value!r}: {error}", file=sys.stderr, flush=True)
            if needed:
                sys.exit(1)
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
    # A stop signal is heard whichever of the library's threads the kernel gives it to.
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    os.read(readable, 1)
    # A client that stays connected keeps the destructor waiting, holding the interpreter lock; the kernel's alarm ends
    # the process then, and so does a second signal.
    for number in (*_STOP_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(_STOP_SECONDS)
    del server
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
