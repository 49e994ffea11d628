"""The table of findings in `findings.txt`: a line of settings, and under it every finding about them.

`backend` or `proxy` begins a case; `[changed]` says that every key is changed, `[back]` that an older version is put
back, `[gpus A,B]` gives the free MiB of the GPUs. `%name` is the model of that name, `|` a space; after ` / ` come the
settings of the other service. Main memory, which every backend is measured against, is left out where it suffices.
`FREEZE=1` writes the findings anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.backend.plan import Circumstances, judge
from specdash.core.changes import Role
from specdash.core.readings import Gpu, Gpus

if TYPE_CHECKING:
    from backend.judgement.conftest import Machine
    from specdash.core.errors import Finding

TABLE = Path(__file__).with_name("findings.txt")
MIB = 1024**2
_CASE = re.compile(r"(backend|proxy)((?: \[[^]]*\])*)( .*?)?( /.*)?$")
_PORT = "48131"


def _values(words: str | None, models: dict[str, str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in (words or "").removeprefix(" /").split())
    return {key: re.sub(r"%([\w-]+)", lambda name: models[name[1]], text).replace("|", " ") for key, _, text in pairs}


def _findings(case: str, models: dict[str, str], context: Circumstances, machine: Machine) -> tuple[Finding, ...]:
    match = _CASE.match(case)
    assert match is not None, case
    role, options = Role(match[1]), match[2] or ""
    values, other = _values(match[3], models), _values(match[4], models)
    usual = {"LLAMA_MODEL": models["llama"], "LLAMA_CTX_SIZE": "4096", "LLAMA_PORT": _PORT}
    wanted = {**(usual if role is Role.BACKEND else {"PROXY_PORT": _PORT}), **values}
    if match[4] is not None:
        base = (
            {"LLAMA_PORT": "48132", "LLAMA_MODEL": models["llama"]} if role is Role.PROXY else {"PROXY_PORT": "48132"}
        )
        context = replace(context, other={**base, **other})
    changed = frozenset(values) if "[changed]" in options or "[back]" in options else frozenset()
    context = replace(context, changed=changed, back="[back]" in options)
    machine.gpus(None)
    if (gpus := re.search(r"\[gpus ([\d,]+)\]", options)) is not None:
        free = [int(word) * MIB for word in gpus[1].split(",")]
        seen = Gpus(tuple(Gpu(n, f"G{n}", f"GPU-{n}", None, None, 0, size, size, processes=())
                          for n, size in enumerate(free)))  # fmt: skip
        machine.gpus(seen)
    return judge(role, wanted, context)


def _lines(case: str, models: dict[str, str], context: Circumstances, machine: Machine, folder: Path) -> list[str]:
    names = sorted(((path, f"%{name}") for name, path in models.items()), key=lambda pair: -len(pair[0]))
    lines = []
    for row in _findings(case, models, context, machine):
        if (row.rule, row.severity) == ("host-memory", "info"):
            continue
        text = f"  {row.severity} {row.rule} {row.key or '-'}: {row.message}{f' -> {row.fix}' if row.fix else ''}"
        for path, name in names:
            text = text.replace(path, name)
        text = text.replace(str(folder), "%folder")
        if "main memory" in text or row.rule == "memory":
            text = re.sub(r"\d[\d.]* [KMGT]?i?B\b(?! a token)", "N B", text)
            text = re.sub(r"LLAMA_CTX_SIZE=\d+ or less", "LLAMA_CTX_SIZE=N or less", text)
        lines.append(text)
    return lines


def test_every_finding_is_as_the_table_says(
    models: dict[str, str], context: Circumstances, machine: Machine, tmp_path: Path
) -> None:
    written = TABLE.read_text(encoding="utf-8").splitlines()
    found = []
    for line in written:
        if not line.startswith("  "):
            found.append(line)
            if line and not line.startswith("#"):
                found += _lines(line, models, context, machine, tmp_path)
    if os.environ.get("FREEZE"):
        TABLE.write_text("\n".join(found) + "\n", encoding="utf-8")
    else:
        assert found == written
