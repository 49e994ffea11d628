"""How many small faults in a package its tests notice: the mutation score, of a sample drawn with a seed.

`make mutation`. In a copy of the tree, tests are collected and run once, to see which of them reach which line; then
each mutant gets a process of its own, forked from there, in which one function's code is exchanged. What a test starts
as a program of its own runs without the mutant (what it forks runs with it), property tests draw few examples, and
deployments begin with a scripted server: the score is a lower bound.

Not mutmut, which passes over decorated functions (every property), nor cosmic-ray, which edits the working tree and
starts pytest anew for each mutant: neither draws a sample, nor picks tests by line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, NamedTuple

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
QUICK = "not slow and not engine and not llama_server and not tmux and not systemd"
SUITES = {
    "insight": (QUICK, ["tests/insight"]),
    "control/apply": (
        "not llama_server and not tmux and not systemd and not podman",
        [
            *("tests/control/test_apply.py", "tests/control/test_apply_preconditions.py"),
            *("tests/control/test_apply_records.py", "tests/control/test_apply_settle.py"),
            *("tests/control/test_console.py", "tests/control/test_journal.py", "tests/control/test_key_reach.py"),
            *("tests/control/test_proxy_gate.py", "tests/control/test_recover_faults.py"),
            *("tests/control/test_verify.py", "tests/bench/test_beds.py"),
        ],
    ),
    "proxy/guardrails": (
        QUICK,
        ["tests/proxy/guardrails", "tests/proxy/test_pipeline.py", "tests/proxy/test_filters.py"],
    ),
}
"""Marks and tests of each package."""

OPERATORS = (
    "Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In, "
    "Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Div, Mod Mult, And Or, Or And"
)
"""Each operator, and what it is exchanged for."""

SWAPS = {old: new for old, *new in ([getattr(ast, name) for name in row.split()] for row in OPERATORS.split(","))}
_ENDS_S = 20.0


class Mutant(NamedTuple):
    """One fault: the `choice`-th change of the `number`-th node of the module's syntax."""

    path: Path
    function: str
    number: int
    choice: int


def changes(node: ast.AST) -> list[tuple[str, object]]:
    """What may be changed at a node: its field and the new value."""
    match node:
        case ast.Compare(ops=[operator]):
            return [("ops", [swap()]) for swap in SWAPS[type(operator)]]
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator):
            return [("op", swap()) for swap in SWAPS.get(type(operator), ())]
        case ast.UnaryOp(op=ast.Not()):
            return [("operand", ast.UnaryOp(ast.Not(), node.operand))]
        case ast.If() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            return [("test", ast.UnaryOp(ast.Not(), node.test))]
        case ast.Constant(value=bool()):
            return [("value", not node.value)]
        case ast.Constant(value=int() | float() as value):
            return [("value", value + 1)]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [("value", ast.Constant(None))]
        case ast.Expr(value=ast.Call()):
            return [("value", ast.Constant(None))]
    return []


def within(node: ast.AST, name: str = "", function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """All nodes, each with the outermost function whose body it is in; no annotations, decorators or defaults."""
    yield node, function
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = f"{name}.{node.name}".strip(".")
        function = function or ("" if isinstance(node, ast.ClassDef) else name)
        children: list[object] = list(node.body)
    else:
        fields = [value for field, value in ast.iter_fields(node) if field != "annotation"]
        children = [item for value in fields for item in (value if isinstance(value, list) else [value])]
    for child in children:
        # `strict` of zip is a check on the program itself.
        if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
            yield from within(child, name, function)


def mutants(folder: Path) -> list[Mutant]:
    """All that may be drawn of a package."""
    return [
        Mutant(path, function, number, choice)
        for path in sorted(folder.rglob("*.py"))
        for number, (node, function) in enumerate(within(ast.parse(path.read_text(encoding="utf-8"))))
        if function
        for choice in range(len(changes(node)))
    ]


def planted(mutant: Mutant) -> tuple[list[CodeType], ast.AST, str]:
    """The code of the module's functions with the fault in it; where it is, and what was changed."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    node = list(within(tree))[mutant.number][0]
    before = ast.unparse(node).splitlines()[0]
    setattr(node, *changes(node)[mutant.choice])
    after = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    codes = [compile(tree, mutant.path, "exec")]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return [code for code in codes if code.co_qualname == mutant.function], node, f"{before}  ->  {after}"


def place(code: CodeType) -> tuple[str, str, int]:
    """What tells one function from all others."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Runner:
    """Takes the place of pytest's loop over the tests."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.folder = options, ROOT / "src/specdash" / options.package
        self.data, self.times = work / "coverage", work / "times"
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if watching := coverage.Coverage.current():
            watching.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if coverage.Coverage.current():
            with self.times.open("a") as file:
                file.write(f"{report.duration if report.passed else math.inf} {report.nodeid}\n")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import hypothesis  # pytest rewrites parts of it, so it comes after

        for item in session.items:
            test = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
            if usual := getattr(test, "_hypothesis_internal_use_settings", None):
                few = hypothesis.settings(usual, max_examples=min(usual.max_examples, self.options.examples))
                test._hypothesis_internal_use_settings = few  # type: ignore[union-attr]  # noqa: SLF001
        gc.unfreeze()  # collecting froze what it made
        for function in gc.get_objects():
            if type(function) is FunctionType:
                self.functions[place(function.__code__)].append(function)
        gc.freeze()
        if not session.testsfailed:
            self.measure(session)
        return True

    def passed(self, session: pytest.Session, items: list[pytest.Item], most_s: float, codes: list[CodeType]) -> bool:
        """Whether all tests pass in a process of their own, with functions' new code, in that time."""
        if pid := os.fork():
            return self.ended(pid, most_s) == 0
        failed, watch = True, coverage.Coverage(data_file=self.data, source=[str(self.folder)])
        try:
            signal.signal(signal.SIGXCPU, lambda *_: pytest.exit("out of time"))
            for code in codes:
                for function in self.functions[place(code)]:
                    function.__code__ = code
            if not codes:
                watch.start()
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if codes and session.testsfailed:
                    break
            failed = bool(session.testsfailed)
        finally:
            with contextlib.suppress(BaseException):
                session._setupstate.teardown_exact(None)  # noqa: SLF001
            if not codes:
                watch.stop()
                watch.save()
            os._exit(failed)

    def ended(self, pid: int, most_s: float) -> int:
        """How a process ended; one that takes longer is asked to end, for what it has started, and then killed."""
        until = time.monotonic() + most_s
        for number in (signal.SIGXCPU, signal.SIGKILL):
            while time.monotonic() < until:
                if (end := os.waitpid(pid, os.WNOHANG)) != (0, 0):
                    return end[1]
                time.sleep(0.005)
            os.kill(pid, number)
            until += _ENDS_S
        return os.waitpid(pid, 0)[1]

    def measure(self, session: pytest.Session) -> None:
        """The sample, mutant by mutant, in the order drawn, until the time is up."""
        if not (self.options.again and self.data.exists()):
            self.times.write_text("")
            # Quick ones first: the time for this may be up before all were run.
            items = sorted(session.items, key=lambda item: item.get_closest_marker("slow") is not None)
            self.passed(session, items, 60 * self.options.first_minutes, [])
        reached, took = coverage.CoverageData(str(self.data)), defaultdict[str, float](float)
        reached.read()
        for row in self.times.read_text().splitlines():
            duration, nodeid = row.split(" ", 1)
            took[nodeid] += float(duration)
        everything = mutants(self.folder)
        drawn = random.Random(self.options.seed).sample(everything, min(self.options.sample, len(everything)))
        end, count, killed = time.monotonic() + 60 * self.options.minutes, 0, 0
        for mutant in drawn:
            codes, node, change = planted(mutant)
            lines = range(node.lineno, (node.end_lineno or 0) + 1)  # type: ignore[attr-defined]
            where = f"{mutant.path.relative_to(ROOT)}:{lines[0]}"
            if time.monotonic() > end or self.options.within not in where:
                continue
            tests = reached.contexts_by_lineno(str(mutant.path))
            names = {name for line in lines for name in tests.get(line, ()) if 0 < took[name] < math.inf}
            telling = dict.fromkeys(names, 0.0)  # a test that reaches lines of the function that few reach comes first
            for line in {line for code in codes for *_, line in code.co_lines() if line in tests}:
                for name in names.intersection(tests[line]):
                    telling[name] += 1 / len(tests[line])
            chosen, budget = set[str](), self.options.seconds
            for name in sorted(names, key=lambda name: -telling[name] / (0.1 + took[name])):
                if took[name] <= budget:
                    chosen.add(name)
                    budget -= took[name]
            by_file = defaultdict[str, list[pytest.Item]](list)
            for item in session.items:
                if item.nodeid in chosen:
                    by_file[item.nodeid.partition("::")[0]].append(item)
            # A file whose tests take little comes first; its tests stay together, for what they share.
            files = sorted(by_file.values(), key=lambda items: sum(took[item.nodeid] for item in items))
            items = [item for items in files for item in items]
            caught = bool(items) and not self.passed(session, items, 30 + 3 * (self.options.seconds - budget), codes)
            count, killed = count + 1, killed + caught
            if not caught:
                report(
                    f"{where}: {change}  [{mutant.function}; {len(items)} of {len(names)} tests; {killed} of {count}]"
                )
        share, spread = killed / count, 1.96**2 / count
        middle, reach = share + spread / 2, math.sqrt(share * (1 - share) * spread + spread**2 / 4)
        low, high = (middle - reach) / (1 + spread), (middle + reach) / (1 + spread)  # Wilson's, 95 %
        score = f"{killed} of {count} mutants killed, {share:.1%} [{low:.1%}, {high:.1%}]"
        report(f"{self.options.package}: {score}; drawn from {len(everything)} with seed {self.options.seed}")


TERMINAL = os.dup(1)


def report(line: str) -> None:
    """To the terminal, past pytest's capture."""
    os.write(TERMINAL, f"{line}\n".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Mutation score of a package.")
    parser.add_argument("package", choices=SUITES)
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--minutes", type=float, default=30, help="what was not tried by then is no part of the sample")
    parser.add_argument("--first-minutes", type=float, default=25, help="which tests reach which line: seen in that")
    parser.add_argument("--seconds", type=float, default=10, help="time of the tests for one mutant, at most")
    parser.add_argument("--examples", type=int, default=25, help="drawn by a property test for one mutant, at most")
    parser.add_argument("--tests", nargs="+", help="files or folders of tests, instead of the package's own")
    parser.add_argument("--within", default="", help="only at places (file:line) that have this in them")
    parser.add_argument("--again", action="store_true", help="which tests reach which line: as the last run saw it")
    options = parser.parse_args()
    copy = ROOT / ".cache/mutation/tree"
    if ROOT.parts[-3:] != copy.parts[-3:]:  # from a copy, so that the work can go on meanwhile
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"), symlinks=True)
        os.chdir(copy)
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "SPECDASH_SMALL_ENGINE": "1"}
        os.execve(sys.executable, [sys.executable, "tools/mutation.py", *sys.argv[1:]], environment)  # noqa: S606
    marks, paths = SUITES[options.package]
    work = ROOT.parent / options.package
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mu") as short:  # a socket's path has 107 letters at most
        arguments = ["-q", "-p", "no:cacheprovider", f"--basetemp={short}/t", "-m", marks, *(options.tests or paths)]
        pytest.main(arguments, plugins=[Runner(options, work)])
