"""The prefix-cache view on real servers: what it says equals the sum of what the answers themselves say."""

from pathlib import Path
from typing import Any

import pytest

from specdash.insight.picture import PrefixCachePicture
from support import tiny_models
from support.faults import BreakableServer, Watched, watched
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

WORDS = tiny_models.SENTENCE


def talk(seed: int, length: int) -> str:
    """The start of a conversation of its own."""
    return " ".join(WORDS[(5 * seed + (7 + seed) * number) % len(WORDS)] for number in range(length))


def ask(server: BreakableServer, prompt: str) -> Any:
    """The timings of one short answer."""
    return server.complete(prompt, 8, cache_prompt=True)["timings"]


def seen(watching: Watched, requests: int) -> PrefixCachePicture:
    """The view, once it has all requests and the counters of all."""

    def view() -> PrefixCachePicture:
        return watching.picture().views.prefix_cache

    until(lambda: len(view().requests) == requests)
    return view()


@pytest.mark.parametrize("verbosity", ["3", "4"])
def test_what_was_cached_is_what_the_answers_say(verbosity: str, tmp_path: Path) -> None:
    model = tiny_models.write_llama(tmp_path / "m.gguf")
    with BreakableServer(tmp_path, "-lv", verbosity, model=model) as server, watched(server.target) as watching:
        until(lambda: watching.state.counters.last is not None)
        assert watching.picture().views.prefix_cache.verdict.startswith("no prompt seen")
        told = [ask(server, talk(1, 60 + 20 * turn)) for turn in range(5)]
        found = seen(watching, 5)
        until(lambda: watching.picture().views.prefix_cache.lifetime_share is not None)
        assert sorted((request.cached_tokens, request.processed_tokens) for request in found.requests) == sorted(
            (entry["cache_n"], entry["prompt_n"]) for entry in told
        )
        cached, processed = (sum(entry[name] for entry in told) for name in ("cache_n", "prompt_n"))

        held = told[-1]["cache_n"] + told[-1]["prompt_n"] + 7

        def counted() -> bool:
            view = watching.picture().views.prefix_cache
            most = max((slot.tokens or 0 for slot in view.slots), default=0)
            return (view.cached, view.basis, most) == (cached, "counters", held)

        until(counted)
        found = watching.picture().views.prefix_cache
        assert found.processed == processed
        assert found.lifetime_share == pytest.approx(cached / (cached + processed))
        assert (found.warm, found.cold) == (sum(entry["cache_n"] >= entry["prompt_n"] for entry in told), 1)


def test_conversations_that_take_turns_in_one_slot_find_theirs_in_the_prompt_cache(tmp_path: Path) -> None:
    model = tiny_models.write_llama(tmp_path / "m.gguf")
    with BreakableServer(tmp_path, "-np", "1", model=model) as server, watched(server.target) as watching:
        told = [ask(server, talk(seed, 100 + 20 * turn)) for turn in range(3) for seed in (1, 2)]
        found = seen(watching, 6)
        assert all(entry["cache_n"] > entry["prompt_n"] for entry in told[2:])
        assert (found.saves or 0) >= 4
        assert (found.hits or 0) >= 4
        assert found.entries is not None
        assert found.limit_mib == 8192.0
        assert found.unknown == ""


def test_a_recurrent_model_that_goes_back_too_far_reads_its_prompt_from_the_start(tmp_path: Path) -> None:
    model = tiny_models.write_mamba(tmp_path / "m.gguf")
    flags = ("-np", "1", "--cache-ram", "0", "--ctx-checkpoints", "0")
    with BreakableServer(tmp_path, *flags, model=model) as server, watched(server.target) as watching:
        whole = talk(1, 100)
        ask(server, whole)
        assert ask(server, whole[: len(whole) // 2] + " previous")["cache_n"] == 0
        found = seen(watching, 2)
        assert found.full_reprocessed == 1
        assert "because no checkpoint was available" in found.verdict
