"""What a turn has cost, also where the upstream does not tell."""

from support.fault_upstream import FaultUpstream
from support.proxy_ways import Way, turn
from support.upstream_script import answers

UNTOLD = {"usage": False, "timings": False, "progress": ()}


def test_an_upstream_that_tells_nothing_gets_an_estimate_that_says_so(way: Way, upstream: FaultUpstream) -> None:
    before = len(way.proxy.events("request"))
    for words in (1, 2000):
        upstream.scripts.append(answers("Hello", **UNTOLD))
        told = way.ask(turn("word " * words))
        assert told.message is not None
        tokens = told.message["usage"]["input_tokens"]
        assert words <= tokens <= 4 * words + 50
        event = way.proxy.wait_events(before + (1 if words == 1 else 2))[-1]
        assert (event["prompt_tokens"], event["prompt_estimated"]) == (tokens, True)
        assert "cached_tokens" not in event
