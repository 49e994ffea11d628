"""What specdash is from outside, as plain data that can be compared: options, exit codes, shapes of JSON.

`FREEZE=1 pytest tests/contract` writes what is there now as what shall be there: for an addition, which the
diff then shows; what is taken away breaks somebody's script.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.commands import COMMANDS
from specdash.cli.main import CommandParser, main

_KINDS = {bool: "boolean", int: "number", float: "number", str: "string"}


def frozen(path: Path, now: Any) -> Any:
    """What `path` says; with FREEZE=1 it says `now` from then on."""
    if os.environ.get("FREEZE") == "1":
        path.write_text(json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def commands() -> str:
    """Every command and action on a line of its own, with its arguments below: `--flag`, `--option=`, `--maybe=?`,
    `--choice={a|b}`, `PLACE*`, and `!` behind what has to be given."""
    lines = []
    for command in COMMANDS:
        parser = CommandParser(prog=f"specdash {command.name}", description=command.help, allow_abbrev=False)
        importlib.import_module(command.module).configure(parser)
        lines += _arguments(command.name, parser)
    return "\n".join(lines) + "\n"


def _arguments(name: str, parser: argparse.ArgumentParser) -> list[str]:
    words: list[str] = []
    below: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below += [line for part, sub in action.choices.items() for line in _arguments(f"{name} {part}", sub)]
        elif not isinstance(action, argparse._HelpAction):
            words.append(_argument(action))
    wrapped = textwrap.wrap("  ".join(sorted(words)), 116, break_on_hyphens=False, break_long_words=False)
    return [name, *(f"    {line}" for line in wrapped), *below]


def _argument(action: argparse.Action) -> str:
    takes = "" if action.nargs is None else str(action.nargs)
    if action.choices is not None:
        takes = f"{{{'|'.join(sorted(map(str, action.choices)))}}}{takes}"
    name = "|".join(action.option_strings)
    text = action.dest.upper() + takes if not name else name if action.nargs == 0 else f"{name}={takes}"
    return f"{text}!" if action.required else text


def say(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def ran(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The same with these variables, in the form of a process that has ended."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        return subprocess.CompletedProcess(words, *say(*words))


def shape(value: Any) -> dict[str, Any]:
    """The form of a JSON value: `keys` of an object, `every` value of one whose keys are data (numbers, paths, names of
    models), `items` of an array, and what a plain value `is`. Null, which anything may be, has none."""
    if isinstance(value, dict):
        if value and not all(key.isidentifier() for key in value):
            return {"every": merged([shape(item) for item in value.values()])}
        return {"keys": {key: shape(item) for key, item in value.items()}}
    if isinstance(value, list):
        return {"items": merged([shape(item) for item in value])}
    return {} if value is None else {"is": [_KINDS[type(value)]]}


def merged(forms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The form that all of these are instances of: of an object, the keys that each has."""
    form: dict[str, Any] = {}
    if any("every" in known for known in forms):
        forms = [_of_every_key(known) for known in forms]
    if objects := [known["keys"] for known in forms if "keys" in known]:
        common = set.intersection(*(set(keys) for keys in objects))
        form["keys"] = {key: merged([keys[key] for keys in objects]) for key in common}
    for part in ("every", "items"):
        if inner := [known[part] for known in forms if part in known]:
            form[part] = merged(inner)
    if plain := {kind for known in forms for kind in known.get("is", ())}:
        form["is"] = sorted(plain)
    return form


def _of_every_key(form: dict[str, Any]) -> dict[str, Any]:
    """The form with its keys taken for data."""
    rest = {part: known for part, known in form.items() if part != "keys"}
    return {**rest, "every": merged([*form["keys"].values()])} if "keys" in form else form


def missing(promised: dict[str, Any], shown: dict[str, Any], at: str = "") -> list[str]:
    """What is promised and not there: a key that went, or a kind of value that nobody expects. More keys are none."""
    if not promised or not shown:
        return []
    if "every" in promised or "every" in shown:
        promised, shown = _of_every_key(promised), _of_every_key(shown)
    breaches = [f"{at} has {part} now" for part in shown if part not in promised]
    breaches += [f"{at} is {kind}" for kind in shown.get("is", ()) if kind not in promised.get("is", (kind,))]
    for part in ("every", "items"):
        if part in promised and part in shown:
            breaches += missing(promised[part], shown[part], f"{at}[]")
    if "keys" in promised and "keys" in shown:
        for key, form in promised["keys"].items():
            name = f"{at}.{key}"
            breaches += missing(form, shown["keys"][key], name) if key in shown["keys"] else [name]
    return breaches
