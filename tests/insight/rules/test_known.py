"""What rules read from a server's command line and its totals."""

from collections.abc import Iterable

import pytest

from insight.rules.judging import OK, Watch, rule
from specdash.core.readings import ProcessTree, Slot, Slots
from specdash.core.records import Symptom
from specdash.insight.rules.catalogue import Limits
from specdash.insight.rules.known import flag, more_context
from specdash.insight.rules.scene import RuleScene


def seen(*command: str, slots: Slots | None = None) -> RuleScene:
    """The scene of a server with this command line."""
    scenes: list[RuleScene] = []

    def judge(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        del limits
        scenes.append(scene)
        return ()

    watch = Watch([rule(judge)])
    watch.look(process=ProcessTree(10, command=("llama-server", *command)), slots=slots or Slots(()), health=OK)
    return scenes[-1]


@pytest.mark.parametrize(
    ("command", "value"),
    [
        (("-c", "4096"), "4096"),
        (("--ctx-size", "4096"), "4096"),
        (("--ctx-size=4096", "--jinja"), "4096"),
        (("-c", "4096", "-c", "8192"), "8192"),
        (("-c", "--jinja"), ""),
        (("-c",), ""),
        (("--jinja", "4096"), None),
    ],
)
def test_a_flag_has_the_value_that_llama_server_gives_it(command: tuple[str, ...], value: str | None) -> None:
    assert flag(seen(*command), "-c", "--ctx-size") == value


@pytest.mark.parametrize(
    ("command", "context"),
    [(("-c", "4096"), "8192"), ((), "12288"), (("--kv-unified",), "8192"), (("-c", "0"), "12288")],
)
def test_more_context_is_twice_what_all_slots_have(command: tuple[str, ...], context: str) -> None:
    slots = Slots((Slot(0, is_processing=False, n_ctx=4096), Slot(1, is_processing=False, n_ctx=2048)))
    fix = more_context(seen(*command, slots=slots))
    assert fix == (("LLAMA_CTX_SIZE", context),)
    assert more_context(seen(*command[:1])) == ()
