"""Why a prompt was read again, from the server's own lines and the proxy's event."""

import pytest

from insight.views_data import NOW, WALL
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import Reading, Source
from specdash.core.target import Target
from specdash.insight.proxy.read_again import Reason, read_again
from specdash.insight.state import TargetState
from specdash.llama.log.parser import LogParser

BY_LIKENESS = (
    "0.00.507.060 I slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, "
    "f_sim_best = 0.900 (> 0.100 thold), f_keep = 1.000"
)
LEAST_USED = "0.00.507.060 I slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = 2953359661"
FULL = (
    "0.00.507.070 I srv   prompt_save:  - making room for prompt cache entry, removing oldest entry (size = 12.5 MiB)"
)
NO_CHECKPOINT = (
    "0.00.507.167 I slot   operator(): id  0 | task 2 | forcing full prompt re-processing due to lack of cache data "
    "(likely due to SWA or hybrid/recurrent memory, see https://github.com/ggml-org/llama.cpp/pull/13194)"
)
REQUEST = (
    "0.00.507.152 I slot launch_slot_: id  0 | task 2 | processing task, is_child = 0",
    "0.00.507.163 I slot   operator(): id  0 | task 2 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 3000",  # noqa: E501
    "0.00.507.173 I slot   operator(): id  0 | task 2 | cached n_tokens = 0, memory_seq_rm [0, end)",
    (
        "0.02.737.426 I slot print_timing: id  0 | task 2 | prompt eval time =    2000.00 ms /  3000 tokens "
        "(    0.67 ms per token,  1500.00 tokens per second)"
    ),
    (
        "0.02.737.437 I slot print_timing: id  0 | task 2 |        eval time =     221.19 ms /   200 tokens "
        "(    1.11 ms per token,   899.68 tokens per second)"
    ),
    "0.02.737.547 I slot      release: id  0 | task 2 | stop processing: n_tokens = 3199, truncated = 0",
)
"""3,000 tokens, all of them read."""


def sums(*lines: str, **proxy: object) -> tuple[tuple[Reason, int, float | None], ...]:
    """What the prefix cache says of these lines; `proxy` is what its event has of the prompt."""
    state = TargetState(Target("http://x"), wall_offset=lambda: WALL - NOW)
    state.apply(Reading.known(Source.LOG, NOW - 1, LogParser().feed("\n".join([*lines, ""]).encode())))
    if proxy:
        event = RequestEvent(WALL - 4, "s", "r", duration_s=3.0, prompt_tokens=3000, cached_tokens=0, **proxy)  # type: ignore[arg-type]
        state.apply(Reading.known(Source.PROXY_EVENTS, NOW - 1, ProxyEvents((event,))))
    found = state.picture(NOW, WALL).views.prefix_cache
    assert len(found.requests) == 1, "the proxy's and the log's are one request"
    assert (read_again(found.requests[0]) is None) is not bool(found.read_again)
    return tuple((one.reason, one.tokens, one.seconds) for one in found.read_again)


UNCHANGED = {"changed": "", "known_share": 0.9, "prefill_rate": 1500.0}


@pytest.mark.parametrize(
    ("lines", "proxy", "expected"),
    [
        ((BY_LIKENESS, REQUEST[0], NO_CHECKPOINT, *REQUEST[1:]), {}, [(Reason.CHECKPOINT, 2700, 1.8)]),
        # Another one took the slot of an unchanged prompt.
        ((FULL, LEAST_USED, *REQUEST), UNCHANGED, [(Reason.CACHE_FULL, 2700, 1.8)]),
        ((LEAST_USED, *REQUEST), UNCHANGED, [(Reason.SLOT, 2700, 1.8)]),
        # What changed, of which nothing was in the cache.
        ((LEAST_USED, *REQUEST), {**UNCHANGED, "changed": "system"}, [(Reason.SYSTEM, 2700, 1.8)]),
        ((LEAST_USED, *REQUEST), {**UNCHANGED, "changed": "message 3"}, [(Reason.MESSAGE, 2700, 1.8)]),
        # A first prompt was not read before.
        ((LEAST_USED, *REQUEST), {}, []),
    ],
)
def test_why_a_prompt_was_read_again(lines: tuple[str, ...], proxy: dict[str, object], expected: list[object]) -> None:
    assert list(sums(*lines, **proxy)) == expected
