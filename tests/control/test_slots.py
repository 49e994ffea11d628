"""What speaks against a change of a slot is said before anything is sent; looking changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.control import slots
from specdash.control import slots as slot_files
from specdash.control.slots import SavedSlot, SlotAction, read_saved, remember
from specdash.core.errors import InputError, NotWrittenError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.target import Target
from support.fault_upstream import FaultUpstream
from support.tiny_models import write_llama, write_mamba
from support.upstream_script import Script, error, loading, unauthorised

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        found = slots.list_slots(target)
        assert [(slot_holding.id, slot_holding.busy, slot_holding.tokens) for slot_holding in found.slots] == [
            (0, True, 59),
            (1, False, None),
        ]

    def test_a_sleeping_server_is_not_woken(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/props"] = props(is_sleeping=True)
        found = slots.list_slots(target)
        assert (found.asleep, found.slots) == (True, ())
        assert not asked(server, "/slots")

    def test_a_router_wants_a_model_named(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/props"] = props(role="router")
        with pytest.raises(RefusedError, match="--model"):
            slots.list_slots(target)

    @pytest.mark.parametrize(
        ("path", "answer", "kind", "words"),
        [
            ("/props", unauthorised(), InputError, "--api-key-env"),
            ("/props", loading(), RefusedError, "loads its model"),
            ("/props", says([]), UnreachableError, "is this llama-server"),
            ("/slots", says({}), UnreachableError, "is this llama-server"),
            ("/slots", error(501, "disabled", "x"), RefusedError, "--no-slots"),
            ("/props", error(400, "model is not loaded", "x"), RefusedError, "model is not loaded"),
        ],
    )
    def test_a_refusal_is_one_line_with_the_way_out(
        self, path: str, answer: Script, kind: type[SpecdashError], words: str, server: FaultUpstream, target: Target
    ) -> None:
        server.routes[path] = answer
        with pytest.raises(kind, match=words):
            slots.list_slots(target)

    def test_the_key_is_sent_and_never_told(self, server: FaultUpstream) -> None:
        server.routes["/slots"] = error(500, "what is sesame", "x")
        with pytest.raises(RefusedError) as refusal:
            slots.list_slots(Target(server.url, api_key="sesame"))
        assert "sesame" not in str(refusal.value)
        assert server.calls[-1].headers["authorization"] == "Bearer sesame"


class TestRefusedBeforehand:
    """llama.cpp b11434 itself would take the slot modulo their number, wait for a busy one, or abort."""

    @pytest.mark.parametrize("number", [-1, 2, 7, 10**6])
    @pytest.mark.parametrize("action", list(SlotAction))
    def test_a_slot_that_is_not_there(
        self, number: int, action: SlotAction, server: FaultUpstream, target: Target
    ) -> None:
        with pytest.raises(UsageError, match="2 slots, 0 to 1"):
            slots.plan(target, action, number, "f")
        assert not asked(server, f"/slots/{number}")

    @pytest.mark.parametrize("action", list(SlotAction))
    def test_a_busy_slot(self, action: SlotAction, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots"] = says([slot(0, busy=True), slot(1)])
        with pytest.raises(RefusedError, match="slot 0 is busy"):
            slots.plan(target, action, 0, "f")
        assert not asked(server, "/slots/0")

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

    @pytest.mark.parametrize("action", list(SlotAction))
    def test_a_server_without_a_place_for_them_names_flag_and_key(
        self, action: SlotAction, server: FaultUpstream, target: Target
    ) -> None:
        server.routes["/slots/0"] = NO_ACTIONS
        with pytest.raises(RefusedError, match=r"501.*--slot-save-path.*LLAMA_SLOT_SAVE_PATH"):
            slots.plan(target, action, 0, "f")

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "a/b",
            "/etc/passwd",
            "..",
            ".",
            "../x",
            "x..y",
            "a\\b",
            "a:b",
            "a\x00b",
            "a\nb",
            " a",
            "a ",
            "a.",
            "n" * 300,
        ],
    )
    def test_a_name_that_is_no_plain_file_name(self, name: str, server: FaultUpstream, target: Target) -> None:
        for action in (SlotAction.SAVE, SlotAction.RESTORE):
            with pytest.raises(UsageError):
                slots.plan(target, action, 0, name)
        assert not server.calls

    @given(st.text(min_size=1, max_size=40))
    def test_a_name_that_is_taken_never_leaves_its_directory(self, name: str) -> None:
        try:
            taken = slots.check_name(name)
        except UsageError:
            return
        assert taken == name
        assert (Path("/saved") / taken).parent == Path("/saved")


class TestRestore:
    """Only what was saved from here, of this model, and is whole, is certain not to end the server."""

    @pytest.fixture
    def directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(slot_files, "save_directory", lambda *_: tmp_path)
        return tmp_path

    @pytest.fixture
    def saved(self, directory: Path, target: Target) -> SavedSlot:
        (directory / "f").write_bytes(b"qsgg" + b"x" * 60)
        at = (directory / "f").stat().st_mtime
        record = SavedSlot("f", at, target.url, tokens=59, bytes=64, model=MODEL, directory=str(directory))
        assert remember(record) == ()
        return record

    def test_what_was_saved_here_of_this_model_is_restored_without_a_warning(
        self, saved: SavedSlot, target: Target
    ) -> None:
        assert slots.plan(target, SlotAction.RESTORE, 1, "f").warnings == ()

    def test_of_another_model_it_is_refused(self, saved: SavedSlot, target: Target) -> None:
        remember(replace(saved, model="/models/other.gguf"))
        with pytest.raises(RefusedError, match=r"other\.gguf"):
            slots.plan(target, SlotAction.RESTORE, 1, "f")

    def test_a_file_that_was_cut_off_is_refused(self, saved: SavedSlot, directory: Path, target: Target) -> None:
        (directory / "f").write_bytes(b"qsgg" + b"x" * 20)
        with pytest.raises(RefusedError, match="24 of the 64 bytes"):
            slots.plan(target, SlotAction.RESTORE, 1, "f")

    def test_a_file_that_is_no_saved_slot_is_refused(self, directory: Path, target: Target) -> None:
        (directory / "g").write_bytes(b"GGUF and so on")
        with pytest.raises(RefusedError, match="no saved slot"):
            slots.plan(target, SlotAction.RESTORE, 1, "g")

    def test_more_tokens_than_a_slot_has_room_for_are_refused(self, saved: SavedSlot, target: Target) -> None:
        remember(replace(saved, tokens=2049))
        with pytest.raises(RefusedError, match="room for 2048"):
            slots.plan(target, SlotAction.RESTORE, 0, "f")

    def test_a_file_that_is_not_there_is_bad_input(self, directory: Path, target: Target) -> None:
        with pytest.raises(InputError, match="no such file"):
            slots.plan(target, SlotAction.RESTORE, 0, "f")

    @pytest.mark.parametrize("size", [None, 128])
    def test_a_file_that_somebody_else_wrote_is_refused_unless_it_may_be_unchecked(
        self, size: int | None, saved: SavedSlot, directory: Path, target: Target
    ) -> None:
        name = "f" if size else "theirs"
        (directory / name).write_bytes(b"qsgg" + b"x" * (size or 1))
        with pytest.raises(RefusedError, match=r"not saved by specdash.*--unchecked"):
            slots.plan(target, SlotAction.RESTORE, 0, name)
        (warning,) = slots.plan(target, SlotAction.RESTORE, 0, name, unchecked=True).warnings
        assert "llama.cpp can end" in warning

    def test_with_attention_alone_it_is_a_warning(
        self, directory: Path, server: FaultUpstream, target: Target, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        (directory / "theirs").write_bytes(b"qsgg")
        model = write_llama(tmp_path_factory.mktemp("m") / "m.gguf")
        server.routes["/props"] = props(model_path=str(model))
        (warning,) = slots.plan(target, SlotAction.RESTORE, 0, "theirs").warnings
        assert "the slot ends up empty" in warning
        model = write_mamba(model.with_name("mamba.gguf"))
        server.routes["/props"] = props(model_path=str(model))
        with pytest.raises(RefusedError, match="--unchecked"):
            slots.plan(target, SlotAction.RESTORE, 0, "theirs")

    def test_a_sleeping_server_is_woken_only_by_the_restore_itself(
        self, saved: SavedSlot, server: FaultUpstream, target: Target
    ) -> None:
        server.routes["/props"] = props(is_sleeping=True)
        plan = slots.plan(target, SlotAction.RESTORE, 0, "f")
        assert any("woken" in warning for warning in plan.warnings)
        assert {item.path for item in server.calls} == {"/props"}

    def test_a_refused_restore_says_that_the_slot_is_empty_now(
        self, saved: SavedSlot, server: FaultUpstream, target: Target
    ) -> None:
        plan = slots.plan(target, SlotAction.RESTORE, 0, "f")
        server.routes["/slots/0"] = error(400, "Unable to restore slot", "x")
        with pytest.raises(RefusedError, match="the slot is empty now"):
            slots.carry_out(plan)

    def test_a_server_that_breaks_off_may_have_crashed(
        self, saved: SavedSlot, server: FaultUpstream, target: Target
    ) -> None:
        plan = slots.plan(target, SlotAction.RESTORE, 0, "f")
        server.routes["/slots/0"] = Script(drops=True)
        with pytest.raises(UnreachableError, match="crashed"):
            slots.carry_out(plan)


class TestSaving:
    def test_the_model_of_a_router_goes_into_the_body_too(self, server: FaultUpstream) -> None:
        slots.save(Target(server.url, model="a"), 0, "f")
        assert asked(server, "/slots/0")[-1] == {"filename": "f", "model": "a"}

    def test_what_was_saved_is_remembered_with_its_model(self, server: FaultUpstream, target: Target) -> None:
        done = slots.save(target, 0, "f")
        assert (done.tokens, done.bytes, done.warnings) == (59, 8, ())
        (record,) = read_saved()
        assert (record.filename, record.url, record.tokens, record.model) == ("f", target.url, 59, MODEL)
        assert slots.list_slots(target).files == (record,)
        slots.save(target, 0, "f")
        assert len(read_saved()) == 1

    def test_an_unseen_directory_is_said(self, target: Target) -> None:
        (warning,) = slots.plan(target, SlotAction.SAVE, 0, "f").warnings
        assert "cannot be seen from here" in warning

    def test_a_slot_that_turned_out_empty_is_no_saved_slot(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots/0"] = says({**SAVED, "n_saved": 0})
        with pytest.raises(RefusedError, match="held nothing"):
            slots.save(target, 0, "f")
        assert read_saved() == ()

    def test_erase_needs_no_name_and_says_how_much_it_was(self, server: FaultUpstream, target: Target) -> None:
        server.routes["/slots/0"] = says({"id_slot": 0, "n_erased": 59})
        assert slots.erase(target, 0).sentence == "slot 0 erased: 59 tokens"


class TestWriting:
    """The server writes beside the file's place; the old file stays until the new one is whole."""

    def write(self, directory: Path, data: bytes, size: int | None) -> str | None:
        with slot_files.SlotSave(directory, "f") as writing:
            (directory / writing.name).write_bytes(data)
            return writing.finish(size)

    def test_a_whole_file_takes_the_place_of_the_old_one_readable_by_its_owner_alone(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"old")
        assert self.write(tmp_path, b"new!", 4) == str(tmp_path / "f")
        assert (tmp_path / "f").read_bytes() == b"new!"
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
        assert [path.name for path in tmp_path.iterdir()] == ["f"]

    def test_a_file_that_is_not_whole_leaves_the_old_one_and_no_rest(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"old")
        with pytest.raises(NotWrittenError, match="3 of 4 bytes"):
            self.write(tmp_path, b"new", 4)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"old")]

    def test_an_interrupted_save_leaves_nothing(self, tmp_path: Path) -> None:
        def interrupted() -> None:
            with slot_files.SlotSave(tmp_path, "f") as writing:
                (tmp_path / writing.name).write_bytes(b"half")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert list(tmp_path.iterdir()) == []

    def test_a_server_that_wrote_elsewhere_is_found_out(self, tmp_path: Path) -> None:
        with pytest.raises(NotWrittenError, match="no such file"), slot_files.SlotSave(tmp_path, "f") as writing:
            writing.finish(4)

    def test_a_save_under_way_is_no_saved_slot_in_the_list(self, tmp_path: Path, target: Target) -> None:
        with slot_files.SlotSave(tmp_path, "f") as writing:
            (tmp_path / writing.name).write_bytes(b"qsgg")
            (tmp_path / "other").write_bytes(b"qsgg")
            assert [saved_slot.filename for saved_slot in slot_files.saved_slots(target, tmp_path)] == ["other"]


@given(st.builds(SavedSlot, st.text(), st.floats(0, 1e12), st.text(), st.none() | st.integers(0)))
def test_a_record_survives_its_line(record: SavedSlot) -> None:
    assert SavedSlot.from_json(record.to_json()) == record


@pytest.mark.parametrize("line", ["", "{}", "[]", "null", '{"filename": 3, "at": 1}', '{"filename": "f", "at": "x"}'])
def test_a_line_that_is_no_record_is_none(line: str) -> None:
    assert SavedSlot.from_json(line) is None
