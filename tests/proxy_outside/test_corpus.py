"""The corpus of hostile and of broken answers, through the real proxy in each mode; docs/proxy.md has the rates."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fault_upstream import FaultUpstream
from support.proxy_corpus import Transcript, change, escape, transcripts
from support.proxy_process import ProxyProcess
from support.proxy_ways import Way
from support.upstream_script import with_

DOCS = Path(__file__).parents[2] / "docs" / "proxy.md"
HEALTHY, BROKEN = transcripts("healthy"), transcripts("broken")
MODES = {"default stream": ("plain", True), "strict stream": ("strict", True), "whole answer": ("plain", False)}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, upstream: FaultUpstream) -> tuple[str, Way]:
    """A mode's name, and the way to ask in it."""
    del upstream
    fixture, stream = MODES[request.param]
    return request.param, Way(request.getfixturevalue(fixture), stream=stream, held_back=fixture == "strict")


def rates(name: str) -> tuple[str, str]:
    """What the docs say of a mode: healthy answers passed unchanged, broken ones caught."""
    row = re.search(rf"^\| {name} \| ([^|]*) \| ([^|]*) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    return row[1], row[2]


@pytest.mark.timeout(120)
def test_every_healthy_answer_passes_unchanged(mode: tuple[str, Way], upstream: FaultUpstream) -> None:
    name, way = mode
    changed = {
        transcript.name: found for transcript in HEALTHY if (found := change(way, upstream, transcript)) is not None
    }
    assert changed == {}
    assert rates(name)[0] == f"{len(HEALTHY) - len(changed)} of {len(HEALTHY)}"


@pytest.mark.timeout(120)
def test_every_broken_answer_is_caught(mode: tuple[str, Way], upstream: FaultUpstream) -> None:
    name, way = mode
    escaped = {
        transcript.name: found for transcript in BROKEN if (found := escape(way, upstream, transcript)) is not None
    }
    assert escaped == {}
    assert rates(name)[1] == f"{len(BROKEN) - len(escaped)} of {len(BROKEN)}"


def test_the_corpus_is_large_and_names_what_is_hard() -> None:
    assert len(HEALTHY) >= 60
    assert len(BROKEN) >= 30
    names = [transcript.name for transcript in (*HEALTHY, *BROKEN)]
    assert len(set(names)) == len(names)
    assert all(transcript.why for transcript in (*HEALTHY, *BROKEN))


CUT = [transcript for transcript in (*HEALTHY, *BROKEN) if len(transcript.text) < 400]


@pytest.mark.parametrize("proxy", ["plain", "strict"])
@given(transcript=st.sampled_from(CUT), size=st.integers(2, 60))
def test_how_the_upstream_is_cut_makes_no_difference(
    request: pytest.FixtureRequest, upstream: FaultUpstream, proxy: str, transcript: Transcript, size: int
) -> None:
    asked: ProxyProcess = request.getfixturevalue(proxy)
    script = with_(transcript.script, timings=False, progress=())
    bodies = []
    for split in (0, 1, size):
        upstream.forget()
        upstream.otherwise = with_(script, split=split)
        bodies.append(asked.messages({**transcript.body, "stream": True}).body)
    bodies = [re.sub(rb'"(?:request_id|id)":"(?:req|msg|toolu)_[^"]*"', b"", body) for body in bodies]
    # How many pings came is a matter of time.
    bodies = [body.replace(b'event: ping\ndata: {"type":"ping"}\n\n', b"") for body in bodies]
    # message_start tells the prompt's size as far as it is known by then: an answer of one piece brings it along.
    bodies = [re.sub(rb'"usage":\{[^}]*\}', b"", body, count=1) for body in bodies]
    assert bodies[0] == bodies[1] == bodies[2]
