"""Every way to speculate that the engine offers, asked one after the other and four at once: are the counters exact?

The models draft what their successor tables say (`gpu.counts`), so each answer's drafted and accepted tokens are known
beforehand, and everybody who tells of them must agree: the answers, /metrics, the log, and specdash.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu.counts import TOGETHER, read_counts
from gpu.report import Check
from specdash.backend.binary import from_help, parse_help
from specdash.core.speculation import spec_type
from specdash.llama.server_answers import parse_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu.counts import Case, Request
    from gpu.kit import Kit, Server
    from gpu.report import Report

GIGABYTES = 1.0
SLOT_CONTEXT = 4096
CANCELLED_AFTER = 20
"""Lines of a streamed answer that are read before its client goes away."""
IDLE_S = 20.0
FIRST = 4
"""Cases that are tried in any time; the others as long as there is some."""
TIME_S, CPU_TIME_S = 130.0, 25.0
LIMIT_S = 150.0
SAMPLES = 5
_GRAVE = ("other_error", "other_warning")
_REPLAYS = "checkpoint + replay"


@dataclass(slots=True)
class Unknown:
    """Lines of the engine's logs that specdash does not understand."""

    lines: int = 0
    count: int = 0
    grave: Counter[str] = field(default_factory=Counter)
    """By class, of warnings and errors."""
    samples: list[str] = field(default_factory=list)
    """Masked; the grave ones first."""

    def add(self, log: dict[str, Any]) -> None:
        """Another log, as `parse-log --json` tells of it."""
        self.lines += log["lines"]
        self.count += log["unrecognised"]
        tallies = {kind: log["warnings"][kind] for kind in _GRAVE if kind in log["warnings"]}
        self.grave.update({kind: tally["count"] for kind, tally in tallies.items()})
        grave = [mask(tally["sample"]) for tally in tallies.values()]
        others = [mask(line) for line in log["unrecognised_samples"]]
        self.samples = list(dict.fromkeys((*grave, *self.samples, *others)))

    def tell(self, report: Report) -> None:
        """The findings."""
        told = {kind: self.grave[kind] for kind in _GRAVE}
        shown = "; ".join(self.samples[:SAMPLES])
        what = "no warning or error of the engine at verbosity 5 is unknown to the log's reader"
        report.judge(what, not self.grave.total(), told, dict.fromkeys(_GRAVE, 0), "lines", shown)
        report.figure(f"lines of the engine's log that nobody knows, of {self.lines:,}", self.count, "lines", shown)


def run(kit: Kit, report: Report) -> None:
    """The check."""
    cases = read_counts(kit.kit / "models")
    offered = _offered(kit)
    unknown = Unknown()
    for name in sorted(offered - {name for case in cases for name in case.types.split(",")}):
        report.failed(f"{name} has a case in the kit", note="nobody said what this type of the engine counts")
    began = time.monotonic()
    for place, case in enumerate(cases):
        missing = [name for name in (case.target, case.draft) if name and not kit.model(name).exists()]
        if not set(case.types.split(",")) <= offered:
            report.skipped(f"{case.name}: counters", "the engine does not offer it")
        elif missing:
            report.skipped(f"{case.name}: counters", f"the kit has no model {' and '.join(missing)}")
        elif place >= FIRST and time.monotonic() - began > (CPU_TIME_S if kit.cpu else TIME_S):
            report.skipped(f"{case.name}: counters", "no time was left")
        else:
            with report.part(case.name):
                unknown.add(_try(kit, report, case, cancel=place == 0))
    unknown.tell(report)


def _offered(kit: Kit) -> set[str]:
    """The types that the engine's own help names, as specdash reads it."""
    text = subprocess.run([kit.llama_server, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    told = from_help("", parse_help(text)).spec_types
    return {known.name if (known := spec_type(name)) else name for name in told}


def _try(kit: Kit, report: Report, case: Case, *, cancel: bool) -> dict[str, Any]:
    """One case: ask, judge, and hand back what `parse-log` says of the whole log."""
    home = kit.home("matrix")
    with kit.backend(home, re.sub(r"\W+", "-", case.name), **_keys(kit, case)) as server:
        alone = [ask(server, request, case, slot=0) for request in case.alone]
        _judge_answers(report, f"{case.name}, one after the other", alone, case.alone)
        with ThreadPoolExecutor(TOGETHER) as pool:
            asked = [pool.submit(ask, server, request, case, slot) for slot, request in enumerate(case.together)]
            together = [answer.result() for answer in asked]
        _judge_answers(report, f"{case.name}, {TOGETHER} at once", together, case.together)
        told = {"/metrics": _scraped(server)}
        picture = kit.specdash(home, "snapshot", "--json", "--url", server.url).json()
        if cancel:
            _cancelled(server, case)
            with_cancelled = _scraped(server)
    log: dict[str, Any] = kit.specdash(home, "parse-log", "--json", str(server.log)).json()
    told |= _told_by_snapshot(picture)
    told |= _told_by_log(log, case, cancelled=cancel)
    known = _sum((*case.alone, *case.together))
    report.judge(
        f"{case.name}: /metrics, its positions, the snapshot and the log count the same",
        all(_is_like(entry, known) for entry in told.values()),
        told,
        known,
        note="drafted, accepted, verification steps, accepted by position; what a source does not tell is left out",
    )
    state = {
        "drafting": picture["drafting"]["state"],
        "types": sorted(picture["backend"]["speculation"]["types"] or ()),
        "rollback": picture["checkpoints"]["rollback"],
    }
    wanted = {"drafting": "speculating", "types": sorted(case.types.split(",")), "rollback": case.rollback}
    what = f"{case.name}: the snapshot says what speculates, and how it is taken back"
    report.judge(what, state == wanted, state, wanted)
    if cancel:
        steps = _steps(log)
        report.judge(
            f"{case.name}: of an answer whose client went away, /metrics has just the drafts of the log's steps",
            _is_like(steps, with_cancelled) and steps["drafted"] > known["drafted"] and log["totals"]["cancelled"] == 1,
            {**steps, "cancelled": log["totals"]["cancelled"]},
            {**with_cancelled, "cancelled": 1},
        )
    speeds = [round(statistics.median(entry["predicted_per_second"] for entry in asked)) for asked in (alone, together)]
    report.figure(
        f"{case.name}: acceptance; decode of one request, alone and beside {TOGETHER - 1}",
        [round(known["accepted"] / known["drafted"], 3) if known["drafted"] else None, *speeds],
        "share, tok/s, tok/s",
    )
    return log


def _keys(kit: Kit, case: Case) -> dict[str, object]:
    keys: dict[str, object] = {
        "LLAMA_MODEL": kit.model(case.target, GIGABYTES if case.widened else None),
        "LLAMA_SPEC_TYPE": case.types,
        "LLAMA_CTX_SIZE": SLOT_CONTEXT * TOGETHER,
        "LLAMA_PARALLEL": TOGETHER,
        "LLAMA_LOG_VERBOSITY": 5,
        # The counters shall be those of the check's requests alone.
        "LLAMA_START_PROBE": 0,
        "LLAMA_ARG_KV_UNIFIED": "on" if case.unified else "off",
    }
    if kit.cpu:
        keys["LLAMA_THREADS"] = 1
    if case.draft is not None:
        keys["LLAMA_DRAFT_MODEL"] = kit.model(case.draft)
    if case.longest is not None:
        keys["LLAMA_EXTRA_ARGS"] = f"--spec-draft-n-max {case.longest}"
    return keys


def ask(server: Server, request: Request, case: Case, slot: int) -> dict[str, Any]:
    """The `timings` of the answer to one request, from that slot."""
    wanted = {"prompt": request.prompt, "n_predict": case.tokens, "temperature": 0, "id_slot": slot}
    timings: dict[str, Any] = server.ask("/completion", wanted)["timings"]
    return timings


def _judge_answers(report: Report, what: str, timings: list[dict[str, Any]], requests: tuple[Request, ...]) -> None:
    told = [(timing.get("draft_n", 0), timing.get("draft_n_accepted", 0)) for timing in timings]
    known = [(request.drafted, request.accepted) for request in requests]
    report.judge(
        f"{what}: each answer drafted and accepted what the models make certain", told == known, told, known, "tokens"
    )


def _cancelled(server: Server, case: Case) -> None:
    """One more request, whose client goes away in the middle."""
    body = {"prompt": case.together[-1].prompt, "n_predict": SLOT_CONTEXT - 64, "temperature": 0, "stream": True}
    request = urllib.request.Request(server.url + "/completion", json.dumps(body).encode())  # noqa: S310 - as below
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
        for _ in range(CANCELLED_AFTER):
            answer.readline()
    until = time.monotonic() + IDLE_S
    while any(slot["is_processing"] for slot in server.ask("/slots")) and time.monotonic() < until:
        time.sleep(0.05)


def _scraped(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(server.url + "/metrics", timeout=20) as answer:  # noqa: S310 - our own server
        counters = parse_metrics(answer.read())
    return {
        "drafted": int(counters.draft_tokens or 0),
        "accepted": int(counters.accepted_tokens or 0),
        "steps": int(counters.verification_steps or 0),
        "positions": _trimmed(counters.accepted_per_position or ()),
    }


def _told_by_snapshot(picture: dict[str, Any]) -> dict[str, Any]:
    speculation, requests = picture["backend"]["speculation"], picture["log"]["requests"]
    return {
        "snapshot, of /metrics": {
            "drafted": speculation["draft_tokens_total"],
            "accepted": speculation["accepted_tokens_total"],
            "steps": speculation["verification_steps_total"],
            "positions": _trimmed(speculation["accepted_per_position"] or ()),
        },
        "snapshot, of the log's requests": {
            "drafted": sum(request["draft_generated"] or 0 for request in requests),
            "accepted": sum(request["draft_accepted"] or 0 for request in requests),
        },
    }


def _told_by_log(log: dict[str, Any], case: Case, *, cancelled: bool) -> dict[str, Any]:
    totals = log["totals"]
    told = {"log, requests": {"drafted": totals["draft_generated"] or 0, "accepted": totals["draft_accepted"] or 0}}
    if cancelled:
        return told
    told["log, steps"] = _steps(log)
    if case.rollback != _REPLAYS:
        # The server's own statistics count what is decoded again a second time.
        types = log["statistics"].values()
        drafted = sum(kind["tokens_generated"] for kind in types)
        told["log, statistics"] = {"drafted": drafted, "accepted": sum(kind["tokens_accepted"] for kind in types)}
    return told


def _steps(log: dict[str, Any]) -> dict[str, int]:
    steps = log["steps"]
    return {"drafted": steps["generated"], "accepted": steps["accepted"], "steps": steps["count"]}


def _sum(requests: Iterable[Request]) -> dict[str, Any]:
    every = tuple(requests)
    reach = max(len(request.at_position) for request in every)
    places = [
        sum(request.at_position[place] for request in every if place < len(request.at_position))
        for place in range(reach)
    ]
    return {
        "drafted": sum(request.drafted for request in every),
        "accepted": sum(request.accepted for request in every),
        "steps": sum(request.steps for request in every),
        "positions": places,
    }


def _is_like(told: dict[str, Any], known: dict[str, Any]) -> bool:
    return all(known[key] == value for key, value in told.items())


def _trimmed(places: Iterable[float]) -> list[int]:
    """Without the places at the end at which nothing was accepted."""
    found = [int(count) for count in places]
    while found and not found[-1]:
        found.pop()
    return found


def mask(line: str) -> str:
    """The shape of a line: no number, no path, and nothing from the first quote on, for that is somebody's text."""
    plain = re.split(r"[\"'`{]", line, maxsplit=1)[0]
    return re.sub(r"\d+", "0", re.sub(r"\S*/\S*", "PATH", plain)).strip()[:120]


CHECK = Check("matrix", "every way to speculate counts exactly, alone and in parallel", run, limit_s=LIMIT_S)
