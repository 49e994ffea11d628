"""docs/rules.md, from the catalogue of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.rules.catalogue import FAMILIES, runbook, shipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.insight.rules.catalogue import Rule

_INTRODUCTION = """\
# Alert rules

Every rule, generated from the catalogue by `python tools/make_docs.py`; do not edit. The dashboard judges them each
time it polls the server, `specdash check` from cron and CI ([check](scripting.md#specdash-check));
`specdash check --list-rules` prints them with the limits in force.

- **Severity.** A notice is worth knowing; a warning needs attention today; a critical alert needs it now.
- **Raised** when the symptom has lasted for the time given, and over once it has been gone for the time given.
- **Held back**: for 10 s after a server has started, rules that judge its work pause; so do rules marked "at work
  only" while nothing runs. A rule without data neither raises nor ends an alert; after 10 minutes without data it
  ends. While specdash itself gets no CPU, rules that judge a silence pause.
- **While settings are tried** (`tune`, `bench ab|sweep|matrix` on the service), restarts and failed starts are
  expected and not counted, and rules marked "not judged while settings are tried" pause.
- **Explains**: of several active alerts, the one that explains the others is named as the likely cause.
- **Fix**: the tune screen takes it as a pending change. Nothing is ever applied by itself.

## Your own limits

In `rules.toml` beside config.toml, or the file named by `--rules FILE`, `SPECDASH_RULES` or `rules` in config.toml.
It may change the limits, severity and times of a rule, or switch it off; an unknown name is an error.

```toml
[slot_hung]
limits.prefill_s = 600        # prompts of 200k tokens on a slow machine

[gpu_throttled]
severity = "notice"
raise_after_s = 60

[gpu_lost]
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
    specs = shipped()
    parts = [_INTRODUCTION]
    for family in FAMILIES:
        parts.append(f"## {_FAMILIES[family]}")
        parts += [_rule(spec) for spec in specs if spec.family == family]
    return "\n\n".join(parts) + "\n"


def _rule(spec: Rule) -> str:
    lines = [f"### {spec.id}", "", f"**{spec.title}**, {spec.severity}. {spec.meaning}"]
    general = runbook(spec)
    if general.checks:
        lines.append(f"- check: {'; '.join(_code(check) for check in general.checks)}")
    if general.remedy:
        lines.append(f"- remedy: {general.remedy}")
    parts = [f"raised {_after(spec.raise_after_s)}, over {_after(spec.clear_after_s)}{_when(spec)}"]
    if spec.limits:
        parts.append("limits " + ", ".join(f"`{name} = {value:g}`" for name, value in spec.limits.items()))
    if spec.explains:
        parts.append("explains " + ", ".join(f"[{explain}](#{explain})" for explain in spec.explains))
    return "\n".join([*lines, f"- {'; '.join(parts)}"])


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


def _when(spec: Rule) -> str:
    words = []
    if not spec.while_idle:
        words.append("at work only")
    if spec.hold_back:
        words.append("held back while the server settles")
    if not spec.in_trials:
        words.append("not judged while settings are tried")
    if spec.of_drafts:
        words.append("over when the server is started again or does not speculate")
    if spec.needs:
        words.append(f"needs {', '.join(spec.needs)}")
    if spec.counters:
        words.append(f"counts {', '.join(spec.counters)}")
    return "".join(f"; {word}" for word in words)
