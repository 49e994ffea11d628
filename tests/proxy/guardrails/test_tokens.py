from __future__ import annotations

import pytest

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails.history import LEAST_CAP, max_tokens
from specdash.proxy.settings import ProxySettings, settings_from_env
from support.histories import request, tools, user

FLOOR = settings_from_env({"PROXY_MAX_TOKENS_FLOOR": "16384"})
DEFAULT = settings_from_env({})


def sent(
    requested: int,
    *,
    prompt: int = 0,
    window: int | None = None,
    with_tools: bool = False,
    settings: ProxySettings = DEFAULT,
) -> int:
    asked = request([user("hi")], max_tokens=requested, tools=tools("Read") if with_tools else ())
    found, note = max_tokens(asked, prompt, window, settings)
    assert (note is None) == (found == requested)
    if note is not None:
        assert (note.guardrail, note.action) == (Guardrail.MAX_TOKENS, GuardrailAction.APPLIED)
        assert note.facts == {"requested": requested, "sent": found}
    return found


@pytest.mark.parametrize(
    ("requested", "with_tools", "expected"),
    [
        (1, False, 1),
        (512, False, 512),
        (513, False, 16384),
        (1, True, 1),
        (64, True, 64),
        (65, True, 16384),
        (4096, True, 16384),
        (32_000, True, 32_000),
    ],
)
def test_the_floor_lifts_all_but_tiny_probes(requested: int, with_tools: bool, expected: int) -> None:
    assert sent(requested, with_tools=with_tools, settings=FLOOR) == expected


@pytest.mark.parametrize(
    ("requested", "prompt", "window", "expected"),
    [
        (32_000, 10_000, 100_000, 32_000),
        (32_000, 80_000, 100_000, 18_000),
        (32_000, 8_000, 10_000, 1744),
        (32_000, 99_000, 100_000, LEAST_CAP),
        (32_000, 200_000, 100_000, LEAST_CAP),
        (500, 99_900, 100_000, 500),
        (32_000, 80_000, None, 32_000),
        (32_000, 80_000, 0, 32_000),
    ],
)
def test_the_cap_is_what_the_window_has_left(requested: int, prompt: int, window: int | None, expected: int) -> None:
    assert sent(requested, prompt=prompt, window=window) == expected
