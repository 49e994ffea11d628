"""What speaks against a change of a slot is said before anything is sent; looking changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from specdash.control import slots
from specdash.control.slots import SlotAction
from specdash.core.errors import InputError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.target import Target
from support.fault_upstream import FaultUpstream
from support.tiny_models import write_llama, write_mamba
from support.upstream_script import Script, error, loading, unauthorised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = "/models/scripted.gguf"
SAVED = {"id_slot": 0, "filename": "f", "n_saved": 59, "n_written": 8, "timings": {"save_ms": 0.2}}
NO_ACTIONS = error(
    501, "This server does not support slots action. Start it with `--slot-save-path`", "not_supported_error"
)


def says(value: Any) -> Script:
    return Script(body=json.dumps(value).encode())


def slot(number: int, *, busy: bool = False, tokens: int | None = 59) -> dict[str, Any]:
    held = {"n_prompt_tokens": tokens, "id_task": 3} if tokens is not None else {}
    return {"id": number, "n_ctx": 2048, "speculative": False, "is_processing": busy, **held}


def props(**more: Any) -> Script:
    return says({"default_generation_settings": {"n_ctx": 2048}, "total_slots": 2, "model_path": MODEL, **more})


@pytest.fixture
def server() -> Iterator[FaultUpstream]:
    with FaultUpstream() as upstream:
        upstream.routes = {
            "/props": props(),
            "/slots": says([slot(0), slot(1, tokens=None)]),
            "/slots/0": says(SAVED),
            "/slots/1": says(SAVED),
        }
        yield upstream


@pytest.fixture
def target(server: FaultUpstream) -> Target:
    return Target(server.url)


def asked(server: FaultUpstream, path: str) -> list[Any]:
    return [item.body for item in server.calls if item.path == path]


class TestListing:
    def test_each_slot_with_what_it_holds(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots"] = says([slot(0, busy=True), slot(1, tokens=None)])
        _, found = slots.look(target)
        assert found is not None
        held = [(one.id, one.is_processing, one.n_prompt_tokens) for one in found.slots]
        assert held == [(0, True, 59), (1, False, None)]

    def test_a_router_names_those_of_its_models_that_have_slots(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/props"] = props(role="router")
        with pytest.raises(RefusedError, match="none of its models is in memory: a request to one loads it"):
            slots.look(target)
        states = {"a": "loaded", "b": "unloaded", "c": "sleeping"}
        server.routes["/models"] = says(
            {"data": [{"id": name, "status": {"value": state}} for name, state in states.items()]}
        )
        with pytest.raises(RefusedError, match="in memory by --model: a, c"):
            slots.look(target)
        server.routes["/props"] = error(400, "model is not loaded", "x")
        with pytest.raises(RefusedError, match="model is not loaded; name one of its models in memory"):
            slots.look(Target(server.url, model="b"))

    @pytest.mark.parametrize(
        ("path", "answer", "kind", "words"),
        [
            ("/props", unauthorised(), InputError, "--api-key-env"),
            ("/props", loading(), UnreachableError, "is not ready: Loading model"),
            ("/slots", says({}), RefusedError, "is this llama-server"),
            ("/slots", error(501, "disabled", "x"), RefusedError, "--no-slots"),
        ],
    )
    def test_a_refusal_is_one_line_with_the_way_out(
        self, path: str, answer: Script, kind: type[SpecdashError], words: str, server: FaultUpstream, target: Target
    ) -> None:
        server.routes[path] = answer
        with pytest.raises(kind, match=words):
            slots.look(target)

    def test_the_key_is_sent_and_never_told(self, server: FaultUpstream) -> None:
        server.routes["/slots"] = error(500, "what is sesame", "x")
        with pytest.raises(RefusedError) as refusal:
            slots.look(Target(server.url, api_key="sesame"))
        assert "sesame" not in str(refusal.value)
        assert server.calls[-1].headers["authorization"] == "Bearer sesame"


class TestRefusedBeforehand:
    """llama.cpp b11434 itself would take the slot modulo their number, wait for a busy one, or abort."""

    @pytest.mark.parametrize("number", [-1, 2, 7])
    def test_a_slot_that_is_not_there(self, number: int, server: FaultUpstream, target: Target) -> None:
        with pytest.raises(UsageError, match="2 slots, 0 to 1"):
            slots.plan(target, SlotAction.ERASE, number)
        assert not asked(server, f"/slots/{number}")

    def test_saving_a_slot_that_holds_nothing(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots"] = says([slot(0, tokens=0), slot(1)])
        with pytest.raises(RefusedError, match="holds nothing"):
            slots.plan(target, SlotAction.SAVE, 0, "f")

    @pytest.mark.parametrize("action", [SlotAction.SAVE, SlotAction.ERASE])
    def test_a_sleeping_server(self, action: SlotAction, server: FaultUpstream, target: Target) -> None:
        server.routes["/props"] = props(is_sleeping=True)
        with pytest.raises(RefusedError, match="sleeps"):
            slots.plan(target, action, 0, "f")
        assert {item.path for item in server.calls} == {"/props"}

    @pytest.mark.parametrize("name", ["", "/etc/passwd", "..", "x..y", "a\\b", "a:b", "a\x00b", " a", "a.", "n" * 300])
    def test_a_name_that_is_no_plain_file_name(self, name: str, server: FaultUpstream, target: Target) -> None:
        for action in (SlotAction.SAVE, SlotAction.RESTORE):
            with pytest.raises(UsageError):
                slots.plan(target, action, 0, name)
        assert not server.calls

    def test_a_server_that_was_started_without_the_flag(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots/0"] = NO_ACTIONS
        with pytest.raises(RefusedError, match="set LLAMA_SLOT_SAVE_PATH in its env file"):
            slots.plan(target, SlotAction.ERASE, 0)


class TestRestore:
    def test_a_line_says_what_a_file_that_does_not_fit_may_do(self, target: Target) -> None:
        (warning,) = slots.plan(target, SlotAction.RESTORE, 1, "f").warnings
        assert warning == "if the file is cut off or of another model, llama-server may end, or empty the slot"

    @pytest.mark.parametrize("build", ["b11434-abc", "b10000"])
    def test_recurrent_memory_wants_unchecked_where_slot_files_carry_no_checkpoints(
        self, build: str, server: FaultUpstream, target: Target, tmp_path: Path
    ) -> None:
        model = write_mamba(tmp_path / "mamba.gguf")
        server.routes["/props"] = props(model_path=str(model), build_info=build)
        with pytest.raises(RefusedError, match=r"no context checkpoints.*recurrent memory.*--unchecked"):
            slots.plan(target, SlotAction.RESTORE, 0, "f")
        assert slots.plan(target, SlotAction.RESTORE, 0, "f", unchecked=True).warnings

    @pytest.mark.parametrize(
        ("write", "build"),
        [(write_mamba, "b11549-abc"), (write_mamba, "b0-unknown"), (write_mamba, None), (write_llama, "b11434-abc")],
    )
    def test_other_builds_and_models_are_restored(
        self, write: Any, build: str | None, server: FaultUpstream, target: Target, tmp_path: Path
    ) -> None:
        known = {"build_info": build} if build is not None else {}
        server.routes["/props"] = props(model_path=str(write(tmp_path / "m.gguf")), **known)
        assert slots.plan(target, SlotAction.RESTORE, 0, "f").question

    def test_a_sleeping_server_is_woken_only_by_the_restore_itself(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/props"] = props(is_sleeping=True)
        plan = slots.plan(target, SlotAction.RESTORE, 0, "f")
        assert any("woken" in warning for warning in plan.warnings)
        assert {item.path for item in server.calls} == {"/props"}

    def test_a_refused_restore_says_that_the_slot_is_empty_now(self, server: FaultUpstream, target: Target) -> None:
        plan = slots.plan(target, SlotAction.RESTORE, 0, "f")
        server.routes["/slots/0"] = error(400, "Unable to restore slot", "x")
        with pytest.raises(RefusedError, match="the slot is empty now"):
            slots.carry_out(plan)

    def test_a_server_that_breaks_off_may_have_crashed(self, server: FaultUpstream, target: Target) -> None:
        plan = slots.plan(target, SlotAction.RESTORE, 0, "f")
        server.routes["/slots/0"] = Script(drops=True)
        with pytest.raises(UnreachableError, match="crashed"):
            slots.carry_out(plan)


class TestSaving:
    def test_the_model_of_a_router_goes_into_the_body_too(self, server: FaultUpstream) -> None:
        slots.carry_out(slots.plan(Target(server.url, model="a"), SlotAction.SAVE, 0, "f"))
        assert asked(server, "/slots/0")[-1] == {"filename": "f", "model": "a"}

    def test_a_slot_that_turned_out_empty_is_no_saved_slot(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots/0"] = says({**SAVED, "n_saved": 0})
        with pytest.raises(RefusedError, match="held nothing"):
            slots.carry_out(slots.plan(target, SlotAction.SAVE, 0, "f"))

    def test_erase_needs_no_name_and_says_how_much_it_was(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots/0"] = says({"id_slot": 0, "n_erased": 59})
        assert slots.carry_out(slots.plan(target, SlotAction.ERASE, 0)).sentence == "slot 0 erased: 59 tokens"
