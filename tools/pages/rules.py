"""docs/rules.md, from the catalogue of rules."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from specdash.insight.rules.catalogue import FAMILIES, runbook, shipped
from specdash.system.text import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.insight.rules.catalogue import RuleSpec

_INTRODUCTION = """\
# Alert rules

Every rule, generated from the catalogue by `python tools/make_docs.py`; do not edit. The dashboard judges
them at every look at the server, `specdash check` from cron and CI ([check.md](check.md)); `specdash check
--list-rules` prints them with the limits in force.

- **Severity.** A notice is worth knowing and needs nobody; a warning needs somebody today; a critical one now.
- **Raised** when the symptom was there at every look for so long, and over when it was gone for so long. Severity
  rises at once and falls as slowly as the alert clears.
- **Held back**: while the server loads or was restarted, and for 10 s after it, rules that judge its work are not
  judged, nor are those marked "at work only" while nothing runs. What cannot be judged, also because a source is
  silent, neither begins nor ends; an alert that could not be judged for 10 minutes is over.
- **Where specdash itself gets no CPU** ([specdash_starved](#specdash_starved)), what rests on silence is not judged:
  `server_hung` (but for a process that a signal stopped), `slot_hung`, `busy_too_long`, and of `backend_down`,
  `port_taken` and `proxy_down` what rests on time alone.
- **Refuted**: an alert that is over and was never so, as was seen since, stays in the list with the reason in its
  evidence. It is no cause of anything, and `specdash check --for` does not count it.
- **Runbooks** are printed with the address, port, process and folder of the case; what is not known stays a word in
  capitals, as below.
- **While settings are tried** (`specdash tune`, `bench ab`, `bench sweep`, `bench matrix` on the service): restarts and
  starts that fail are the trial's, and are not counted. Rules marked "not judged while settings are tried" judge what
  the settings do, and are not judged then, nor afterwards as far back as they look (`window_s`); those with a time wait
  so long. All others go on as ever: GPU, memory of the machine, disk, hangs, errors that clients get. Where the process
  that tries has died, everything is judged again.
- **Explains**: where several alerts are active, the one that explains the others is named as the likely cause.
- **Fix**: where an alert has one, the tune screen takes it as a pending change, and `specdash check -v` prints the
  command. Nothing is ever applied by itself.

## Your own limits

In `rules.toml` beside config.toml, or a file named by `--rules FILE`, `SPECDASH_RULES` or `rules` in config.toml. It
may change the limits, severity and times of a rule, or switch it off; a name that is not known is an error. Editors
complete and check it by its schema: `specdash schema rules.toml > ~/.config/specdash/rules.schema.json`.

```toml
#:schema ./rules.schema.json
[slot_hung]
limits.prefill_s = 600        # prompts of 200k tokens on a slow machine

[gpu_throttled]
severity = "notice"
raise_after_s = 60

[restarted]
enabled = false
```"""

_FAMILIES: Mapping[str, str] = {
    "availability": "Availability: is it there, and does it work",
    "speculation": "Speculation: does it pay",
    "memory": "Memory: KV cache, checkpoints, prompt cache",
    "answers": "Answers: what clients get, and the proxy",
    "machine": "Machine: GPU and host",
}


def page() -> str:
    """The whole page."""
    specs = [rule.spec for rule in shipped()]
    parts = [_INTRODUCTION, *_overview(specs)]
    for family in FAMILIES:
        parts.append(f"## {_FAMILIES[family]}")
        parts += [_rule(spec) for spec in specs if spec.family == family]
    return "\n\n".join(parts) + "\n"


def _overview(specs: Iterable[RuleSpec]) -> Iterable[str]:
    rows = ((f"[`{spec.id}`](#{spec.id})", spec.severity, spec.title) for spec in specs)
    yield "## All rules\n\n" + markdown_table([("rule", "severity", "title"), *rows])


def _rule(spec: RuleSpec) -> str:
    lines = [f"### {spec.id}", "", f"**{spec.title}**, {spec.severity}. {spec.meaning}", ""]
    general = runbook(spec)
    lines += [f"- check: {_code(check)}" for check in general.checks]
    if general.remedy:
        lines.append(f"- remedy: {general.remedy}")
    lines.append(f"- raised {_after(spec.raise_after_s)}, over {_after(spec.clear_after_s)}{_when(spec)}")
    if spec.limits:
        lines.append("- limits: " + ", ".join(f"`{name} = {value:g}`" for name, value in spec.limits.items()))
    if spec.explains:
        lines.append("- explains: " + ", ".join(f"[{explain}](#{explain})" for explain in spec.explains))
    return "\n".join(lines)


def _code(check: str) -> str:
    """A check that is a command and nothing else, as code."""
    command = check.split(" ", 1)[0]
    known = (
        "specdash",
        "ps",
        "kill",
        "dmesg",
        "nvidia-smi",
        "ss",
        "curl",
        "free",
        "top",
        "journalctl",
        "timedatectl",
        "df",
    )
    is_command = command in known and not any(mark in check for mark in (":", ",", "   "))
    return f"`{check}`" if is_command else check


def _after(seconds: float) -> str:
    return f"after {seconds:g} s" if seconds else "at once"


def _when(spec: RuleSpec) -> str:
    words = []
    if not spec.while_idle:
        words.append("at work only")
    if spec.hold_back:
        words.append("held back while the server settles")
    if spec.trial_s is not None:
        words.append(
            "not judged while settings are tried"
            if spec.trial_s == inf
            else f"while settings are tried, after {spec.trial_s:g} s"
        )
    if spec.ends_with_server:
        words.append("over when the server is started anew")
    if spec.needs:
        words.append(f"needs {', '.join(spec.needs)}")
    if spec.counters:
        words.append(f"counts {', '.join(spec.counters)}")
    return "".join(f"; {word}" for word in words)
