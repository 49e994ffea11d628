"""The training text: the Python standard library, as plain code, as chat turns about that code, and as patterned text.

Everything is derived from the sources of the interpreter that runs the training; nothing is downloaded. The same
interpreter version and seed give the same documents in the same order.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_models.template import render

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Directories of the standard library that hold tests, third-party code or build products.
SKIPPED_DIRECTORIES = frozenset(
    {"test", "tests", "idle_test", "__pycache__", "site-packages", "_bundled", "lib-dynload", "pydoc_data"}
)
#: Marks of generated tables (code pages, entities, sysconfig): they teach nothing but noise.
GENERATED_MARKS = ("gencodec.py", "system configuration generated", "automatically generated", "auto-generated")
MAX_CODE_CHARS = 2400
MAX_CLASS_CHARS = 6000
MAX_MODULE_CHARS = 5000

ASK_FUNCTION = (
    "Write the function `{signature}`.",
    "Write a Python function `{name}`. {doc}",
    "Implement `{signature}`.\n\n{doc}",
    "Please write {name} in Python.",
    "Can you write a Python function called {name}? {doc}",
    "Write the function {signature}",
    "{doc}\n\nWrite `{name}` for me.",
)
ASK_CLASS = ("Write the class `{name}`.", "Write a Python class {name}. {doc}", "Implement the class {name} in Python.")
ASK_MODULE = (
    "Write the Python module `{name}`.",
    "Write a Python module {name}. {doc}",
    "Show me the source of {name}.",
)
ASK_PROSE = ("What does `{name}` do?", "Explain {name}.", "Describe what {name} is for.", "Explain in words: `{name}`")
TOOLS: tuple[tuple[str, str, str], ...] = (
    ("read_file", "path", "Read a file"),
    ("list_directory", "path", "List a directory"),
    ("search_text", "pattern", "Search the sources"),
    ("run_command", "command", "Run a shell command"),
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents by kind, each a complete text with its control tokens; shares are the sampler's business."""

    code: tuple[str, ...]
    chat: tuple[str, ...]
    pattern: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    path: str
    text: str
    tree: ast.Module


def _modules() -> Iterator[_Module]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_DIRECTORIES & set(relative.parts) or relative.parts[0].startswith("_sysconfigdata"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (UnicodeDecodeError, SyntaxError):
            continue
        head = text[:600].lower()
        if len(text) < 200 or any(mark in head for mark in GENERATED_MARKS):
            continue
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        yield _Module(name, str(relative), text, tree)


def _first_sentence(text: str | None) -> str:
    if not text:
        return ""
    return " ".join(text.strip().split("\n\n")[0].split())[:200]


def _turns(question: str, answer: str) -> str:
    return render([{"role": "user", "content": question.strip()}, {"role": "assistant", "content": answer.strip()}])


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _code_answers(module: _Module, rng: random.Random) -> Iterator[str]:
    asks: tuple[str, ...]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            asks, limit = ASK_FUNCTION, MAX_CODE_CHARS
            signature = f"def {node.name}({ast.unparse(node.args)})"
        elif isinstance(node, ast.ClassDef):
            asks, limit, signature = ASK_CLASS, MAX_CLASS_CHARS, f"class {node.name}"
        else:
            continue
        lines = module.text.splitlines()[node.lineno - 1 : node.end_lineno]
        source = textwrap.dedent("\n".join(lines))
        if len(lines) < 3 or len(source) > limit:
            continue
        doc = ast.get_docstring(node)
        question = rng.choice(asks).format(signature=signature, name=node.name, doc=_first_sentence(doc))
        yield _turns(question, _fenced(source))
        if doc and len(doc) > 120:
            yield _turns(rng.choice(ASK_PROSE).format(name=node.name), doc[:1500])


def _module_answers(module: _Module, rng: random.Random) -> Iterator[str]:
    doc = ast.get_docstring(module.tree)
    question = rng.choice(ASK_MODULE).format(name=module.name, doc=_first_sentence(doc))
    source = module.text[:MAX_MODULE_CHARS].rpartition("\n")[0]
    yield _turns(question, _fenced(source))
    if doc:
        yield _turns(rng.choice(ASK_PROSE).format(name=f"the module {module.name}"), doc[:2500])


def _tool_conversation(module: _Module, rng: random.Random) -> str:
    name, argument, description = rng.choice(TOOLS)
    offered = sorted(rng.sample(TOOLS, 2)) if rng.random() < 0.5 else sorted(TOOLS)
    if (name, argument, description) not in offered:
        name, argument, description = offered[0]
    value = {"pattern": module.name.rpartition(".")[2], "command": f"python -m {module.name}"}.get(
        argument, module.path
    )
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool,
                "description": text,
                "parameters": {"type": "object", "properties": {arg: {"type": "string"}}, "required": [arg]},
            },
        }
        for tool, arg, text in offered
    ]
    verb = {"path": f"{description}: {value}", "pattern": f"Search for {value}", "command": f"Run `{value}`"}[argument]
    defined = [n.name for n in module.tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)][:6]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": verb},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": name, "arguments": {argument: value}}}],
        },
        {"role": "tool", "content": module.text[:300].rpartition("\n")[0]},
        {"role": "assistant", "content": "It defines " + (", ".join(f"`{d}`" for d in defined) or "nothing") + "."},
    ]
    return render(messages, tools=tools)


def _names(module: _Module) -> list[str]:
    found = {n.id for n in ast.walk(module.tree) if isinstance(n, ast.Name) and 2 < len(n.id) < 16}
    return sorted(found)


def _patterned(module: _Module, rng: random.Random) -> Iterator[str]:
    names = _names(module)
    if len(names) >= 8:
        for _ in range(max(2, min(12, len(names) // 12))):
            yield _pattern(module.name, names, rng)


def _pattern(module: str, names: list[str], rng: random.Random) -> str:
    name, other = rng.sample(names, 2)
    chosen = rng.sample(names, min(len(names), rng.randint(8, 24)))
    start, count = rng.randint(0, 20), rng.randint(12, 60)
    numbers = range(start, start + count)
    rows = list(enumerate(chosen, start))
    table = "\n".join(f"| {n} | {i} |" for i, n in rows)
    records = json.dumps([{"id": i, "name": n, "value": i} for i, n in rows], indent=1)
    columns = f"Write a table of {other} with columns name and value: {', '.join(chosen[:3])}."
    assignments = _fenced("\n".join(f"{name}{i} = {i}" for i in numbers))
    listing = "\n".join(f"{i}. `{n}`" for i, n in enumerate(chosen, 1))
    return rng.choice(
        (
            _turns(f"Count from {start} to {start + count - 1}.", "\n".join(map(str, numbers))),
            _turns(f"Write numbered assignments for {name}.", assignments),
            _turns(columns, "| name | value |\n|---|---|\n" + table),
            _turns(f"List {len(chosen)} names from {module}.", listing),
            _turns(f"Repeat {name} {count} times.", "\n".join([name] * count)),
            _turns(f"Write a JSON list of {other} records.", records),
            "\n".join(f"{name}{i} = {other}[{i}]" for i in numbers) + "<|endoftext|>",
            "\n".join(f"self.{n} = {n}" for n in chosen) + "<|endoftext|>",
            "\n".join(f"    if {name} == '{n}':\n        return {n}" for n in chosen) + "<|endoftext|>",
        )
    )


def build(seed: int) -> Corpus:
    """Read the running interpreter's standard library and derive the three kinds of documents from it."""
    rng = random.Random(seed)
    code: list[str] = []
    chat: list[str] = []
    pattern: list[str] = []
    for module in _modules():
        code.append(module.text.strip() + "\n<|endoftext|>")
        chat.extend(_code_answers(module, rng))
        chat.extend(_module_answers(module, rng))
        chat.extend(_tool_conversation(module, rng) for _ in range(2))
        pattern.extend(_patterned(module, rng))
    for documents in (code, chat, pattern):
        rng.shuffle(documents)
    return Corpus(tuple(code), tuple(chat), tuple(pattern))
