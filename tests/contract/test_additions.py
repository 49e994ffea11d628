"""What is declared once is seen everywhere: one entry, added to a copy of the program, and everything that reads it.

The entry stands in the file that CONTRIBUTING.md names; nothing else of the copy is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from specdash.backend.demo import TARGET_MODEL, bundled_model

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODEL = bundled_model(TARGET_MODEL)


@dataclass(frozen=True)
class Copy:
    """A copy of the program that may be changed."""

    home: Path

    def add(self, entry: Entry) -> None:
        path = self.home / "src/specdash" / entry.file
        text = path.read_text()
        assert not entry.before or text.count(entry.before) == 1, (entry, text.count(entry.before))
        path.write_text(text.replace(entry.before, entry.text + entry.before) if entry.before else text + entry.text)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = (str(self.home / name) for name in ("src", "tools"))
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(self.home), "COLUMNS": "200"},
        )

    def run(self, *arguments: str) -> str:
        """What a command prints, on both streams."""
        done = self.python("-m", "specdash", *arguments)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def page(self, name: str) -> str:
        """A page of docs/ as it would be written now."""
        done = self.python("-c", f"import pages; print(pages.PAGES[{name!r}]())")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def env_file(self, *lines: str) -> str:
        path = self.home / "llama.env"
        path.write_text("".join(f"{line}\n" for line in (f"LLAMA_MODEL={MODEL}", *lines)))
        return str(path)

    def preflight(self, *lines: str) -> str:
        return self.run("preflight", "--service", "backend", "--env-file", self.env_file(*lines))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return Copy(tmp_path)


class Entry(NamedTuple):
    """What is added to a file of the program, and the text that it goes before (none: at the end)."""

    file: str
    before: str
    text: str


@dataclass(frozen=True)
class Addition:
    """What is added, and who must see it: what they print before is without it, and after with it."""

    entries: tuple[Entry, ...]
    sees: dict[str, tuple[Callable[[Copy], str], str]]
    """By who looks: what it prints, and the pattern that is in there only after the entry was made."""


def parsed(copy: Copy) -> str:
    log = copy.home / "server.log"
    log.write_text("0.00.294.000 W srv  update_slots: the moon is full, slots = 3\n")
    return copy.run("parse-log", str(log))


def printed(program: str) -> Callable[[Copy], str]:
    def look(copy: Copy) -> str:
        done = copy.python("-c", program)
        return done.stdout + done.stderr

    return look


SETTING_FROM_THE_ENVIRONMENT = """
import os
os.environ["SPECDASH_TIDE_TABLE"] = "south"
from specdash.cli.main import main
main(["config", "show"])
"""
RECORDED_READING = """
from specdash.core.readings import Reading, Source
from specdash.core.sources import decode, encode
print(decode(encode(Reading.known(Source("tides"), 1.0, 7))))
"""
PLACES_OF_PANELS = """
from specdash.tui.layout import arrange
print(list(arrange(200, 60, {})))
"""
GUARDRAIL_LINE = """
from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.core.proxy_lines import note_text, parse_line
level, text = note_text(Guardrail("tide_table"), GuardrailAction.APPLIED, {"height": 3})
print(text, parse_line(text, 1.0))
"""

SLOTS_FULL_WORDS = """
[slots_full]
title = "Every slot is at work"
severity = "warning"
raise_after_s = 300
meaning = "The next request waits."
checks = ["specdash slots list"]
remedy = "More slots."
limits = { slots = 2 }
"""
SLOTS_FULL = """

def slots_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    slots = scene.picture.backend.slots or ()
    if len(slots) >= limits["slots"] and all(slot.phase is not SlotPhase.IDLE for slot in slots):
        yield Symptom(f"all {len(slots)} slots are at work")
"""
NGRAM_TIDE = """\
    _ngram(
        "ngram-tide",
        "drafts what comes with the tide",
        "the answer ebbs and flows",
        max_parameter="spec-ngram-mod-n-max",
    ),
"""
FULL_MOON = """\
    LineClass("full_moon", "the moon is full", anywhere("the moon is full, slots = {slots:d}"), WARNING, "It passes."),
"""

ADDITIONS = {
    "a command": Addition(
        (
            Entry(
                "cli/commands.py",
                '    Command("config", "config"',
                '    Command("tides", "bench.bench_live", "when the tide is high"),\n',
            ),
        ),
        {
            "help": (lambda copy: copy.run("--help"), r"tides +when the tide is high"),
            "its own help": (lambda copy: copy.run("help", "tides"), r"usage: specdash tides"),
            "a slip of the hand": (lambda copy: copy.run("tidse"), r"tides"),
        },
    ),
    "a setting": Addition(
        (
            Entry(
                "core/config.py",
                '    Setting("url", _text',
                '    Setting("tide_table", _text, "north", "which tides to show", "NAME"),\n',
            ),
        ),
        {
            "config show": (lambda copy: copy.run("config", "show"), r"tide_table"),
            "the schema of config.toml": (lambda copy: copy.run("schema", "config.toml"), r"which tides to show"),
            "the environment": (printed(SETTING_FROM_THE_ENVIRONMENT), r"tide_table.*south"),
        },
    ),
    "an env key": Addition(
        (
            Entry(
                "core/parameter_catalogue.py",
                '    _row(_I, "--parallel -np"',
                '    _row(_I, "--tide-height", "LLAMA_TIDE", None, "height of the tide", 1, (0, 9)),\n',
            ),
        ),
        {
            "preflight, of its range": (lambda copy: copy.preflight("LLAMA_TIDE=12"), r"LLAMA_TIDE.*\b9\b"),
            "docs/settings.md": (lambda copy: copy.page("settings.md"), r"LLAMA_TIDE.*height of the tide"),
            "the schema of profiles": (
                lambda copy: copy.run("schema", "profile.toml"),
                r"height of the tide: .*, 0 to 9",
            ),
            "backend show": (
                lambda copy: copy.run("backend", "show", "--env-file", copy.env_file("LLAMA_TIDE=3")),
                r"LLAMA_TIDE.*left out",
            ),
        },
    ),
    "a spec type": Addition(
        (Entry("core/speculation.py", '    _ngram(\n        "ngram-map-k",\n', NGRAM_TIDE),),
        {
            "docs/spec-types.md": (lambda copy: copy.page("spec-types.md"), r"drafts what comes with the tide"),
            "preflight, of a chain": (
                lambda copy: copy.preflight("LLAMA_SPEC_TYPE=ngram-tied"),
                r"ngram-tide, ngram-map-k,",
            ),
        },
    ),
    "a log line": Addition(
        (Entry("llama/log_grammar/trouble_lines.py", '    LineClass(\n        "context_exceeded",\n', FULL_MOON),),
        {"parse-log": (parsed, r"1 lines, 0 not understood")},
    ),
    "an alert rule, its words and its judgement": Addition(
        (Entry("insight/rules/memory.toml", "", SLOTS_FULL_WORDS), Entry("insight/rules/memory.py", "", SLOTS_FULL)),
        {
            "check --list-rules": (lambda copy: copy.run("check", "--list-rules"), r"slots_full"),
            "docs/rules.md": (lambda copy: copy.page("rules.md"), r"Every slot is at work"),
        },
    ),
    "a source, its name and its values": Addition(
        (
            Entry("core/readings.py", '    HEALTH = "health"\n', '    TIDES = "tides"\n'),
            Entry("core/sources.py", "    Source.HEALTH: ", "    Source.TIDES: SourceSpec(int),\n"),
        ),
        {"the record": (printed(RECORDED_READING), r"Reading\(source=.*tides.*value=7")},
    ),
    "a panel, its words and its place": Addition(
        (
            Entry("tui/layout.py", '    ACCEPTANCE = "acceptance"\n', '    TIDES = "tides"\n'),
            Entry(
                "tui/layout.py",
                '        PanelSpec(PanelId.PREFILL, "2"',
                '        PanelSpec(PanelId.TIDES, "T", "Tides", "When the tide is high."),\n',
            ),
            Entry("tui/layout.py", ")\n\n\ndef arrange(", "    PanelRow(4, 1, ((PanelId.TIDES, 1),)),\n"),
        ),
        {
            "docs/keys.md": (lambda copy: copy.page("keys.md"), r"Tides.*When the tide is high"),
            "the overview": (printed(PLACES_OF_PANELS), r"PanelId.TIDES"),
        },
    ),
    "a guardrail, its name and its headline": Addition(
        (
            Entry("core/proxy_events.py", '    SUPPLEMENT = "supplement"\n', '    TIDE_TABLE = "tide_table"\n'),
            Entry(
                "core/proxy_lines.py",
                '    Guardrail.SUPPLEMENT: "AGENTIC SUPPLEMENT"',
                '    Guardrail.TIDE_TABLE: "TIDE TABLE",\n',
            ),
        ),
        {"its line, written and read": (printed(GUARDRAIL_LINE), r"TIDE TABLE.*GuardrailEvent\(.*tide_table")},
    ),
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_an_entry_is_made_in_one_place_and_seen_wherever_it_is_read(name: str, copy: Copy) -> None:
    addition = ADDITIONS[name]
    before = {who: look(copy) for who, (look, _) in addition.sees.items()}
    for entry in addition.entries:
        copy.add(entry)
    for who, (look, pattern) in addition.sees.items():
        assert not re.search(pattern, before[who]), (who, before[who])
        after = look(copy)
        assert re.search(pattern, after), (who, after)
