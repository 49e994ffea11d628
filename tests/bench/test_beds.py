"""Where configurations are tried: every boot a start, and the service in the end as it was, whatever happened."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specdash.backend import demo
from specdash.bench.compare.beds import OwnBed, ServiceBed
from specdash.bench.load.samples import BootFailedError
from specdash.control.change import Apply
from specdash.control.plan import ApplyOptions, plan_rollback
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyProgress, ApplyStep, StepState
from specdash.core.errors import ConflictError, InputError
from specdash.core.paths import trial_file
from support.asking import ask, healthy
from support.deployment import Rig, running_deployment
from support.help_engine import scripted_engine
from support.waiting import until

OFF = {"LLAMA_SPEC_TYPE": "none"}
SHORT = {"LLAMA_DRAFT_MAX": "2"}


def bed_on(rig: Rig, **more: object) -> ServiceBed:
    options = ApplyOptions(drain_timeout_s=10, health_timeout_s=30)
    return ServiceBed(rig.deployment, options, env=rig.env, **more)  # type: ignore[arg-type]


def pid_of(rig: Rig) -> int:
    engine = rig.engine()
    assert engine is not None
    return engine.pid


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    """The services on a scripted engine, which starts in a tenth of the time."""
    with running_deployment("scripted") as item:
        yield item


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestTheServiceBed:
    def test_brings_each_configuration_into_force_over_the_original_and_the_original_back(self, rig: Rig) -> None:
        bed = bed_on(rig)
        with bed.boot({**OFF, "LLAMA_DRAFT_MODEL": ""}) as place:
            assert place.url == rig.backend_url
            assert place.key == "secret-of-the-rig"
            assert rig.values()["LLAMA_SPEC_TYPE"] == "none"
            assert "LLAMA_DRAFT_MODEL" not in rig.values()
        with bed.boot(SHORT):
            assert rig.values()["LLAMA_SPEC_TYPE"] == "draft-simple"
            assert rig.values()["LLAMA_DRAFT_MAX"] == "2"
            assert "LLAMA_DRAFT_MODEL" in rig.values()
            assert rig.file().read_text(encoding="utf-8").startswith("# On trial (bench, 2,")
        bed.restore()
        bed.restore()
        rig.assert_settled(version=rig.good_backend)
        assert not trial_file(rig.env).exists()

    def test_starts_anew_also_what_runs_already(self, rig: Rig) -> None:
        bed = bed_on(rig)
        seen = [pid_of(rig)]
        for _ in range(2):
            with bed.boot({}):
                seen.append(pid_of(rig))
        bed.restore()
        assert len(set(seen)) == 3
        rig.assert_settled(version=rig.good_backend)

    @pytest.mark.parametrize("way", ["exits", "no-drafts"])
    def test_reports_a_configuration_that_does_not_come_up_and_goes_on(self, rig: Rig, way: str) -> None:
        broken = scripted_engine(rig.home, way)
        bed = bed_on(rig)
        with bed.boot(OFF):
            pass
        with pytest.raises(BootFailedError), bed.boot(broken):
            pytest.fail("it came up")
        with bed.boot(SHORT):
            assert rig.values()["LLAMA_DRAFT_MAX"] == "2"
        bed.restore()
        rig.assert_settled(version=rig.good_backend)

    def test_reports_what_preflight_refuses_without_touching_anything(self, rig: Rig) -> None:
        before = pid_of(rig)
        bed = bed_on(rig)
        with pytest.raises(BootFailedError, match="no-such"), bed.boot({"LLAMA_SPEC_TYPE": "no-such"}):
            pytest.fail("it came up")
        bed.restore()
        assert pid_of(rig) == before
        rig.assert_settled(version=rig.good_backend)

    def test_is_undone_by_rollback_as_if_it_had_never_been(self, rig: Rig) -> None:
        rig.apply("LLAMA_DRAFT_MAX=3")
        kept = rig.file().read_bytes()
        bed = bed_on(rig)
        with bed.boot(OFF):
            pass
        with bed.boot(SHORT):
            pass
        bed.restore()
        assert rig.file().read_bytes() == kept
        assert bed.records[-1].kind is ApplyKind.ROLLBACK
        (edit,) = plan_rollback(rig.deployment, env=rig.env).edits
        assert edit.new == rig.good_backend

    def test_keeps_every_other_apply_and_trial_away_while_it_lasts(self, rig: Rig) -> None:
        bed = bed_on(rig)
        with bed.boot(OFF):
            with pytest.raises(ConflictError, match="is trying settings"):
                rig.apply("LLAMA_DRAFT_MAX=3")
            with pytest.raises(ConflictError, match="is trying settings"), bed_on(rig).boot(SHORT):
                pytest.fail("a second trial")
        bed.restore()
        assert rig.apply("LLAMA_DRAFT_MAX=3").outcome is ApplyOutcome.APPLIED

    def test_leaves_a_file_that_somebody_else_has_changed(self, rig: Rig) -> None:
        bed = bed_on(rig)
        with bed.boot(OFF):
            theirs = rig.file().read_bytes() + b"# theirs\n"
            rig.file().write_bytes(theirs)
        with pytest.raises(ConflictError, match="edited"), bed.boot(SHORT):
            pytest.fail("theirs was overwritten")
        bed.restore()
        until(lambda: not trial_file(rig.env).exists())
        assert rig.file().read_bytes() == theirs

    @pytest.mark.parametrize(
        ("step", "state"),
        [
            (ApplyStep.DRAIN, StepState.RUNNING),
            (ApplyStep.RESTART, StepState.RUNNING),
            (ApplyStep.HEALTH, StepState.DONE),
            (ApplyStep.RECORD, StepState.DONE),
        ],
    )
    def test_can_be_cancelled_at_any_step_of_a_boot(self, rig: Rig, step: ApplyStep, state: StepState) -> None:
        under_way: list[Apply] = []

        @contextlib.contextmanager
        def guard(apply: Apply) -> Iterator[None]:
            under_way.append(apply)
            yield

        def cancel(progress: ApplyProgress) -> None:
            if progress.step is step and progress.state is state:
                thread = threading.Thread(target=under_way[0].cancel)
                thread.start()
                thread.join()

        bed = bed_on(rig, on_progress=cancel, guard=guard)
        with pytest.raises(KeyboardInterrupt), bed.boot(OFF):
            pytest.fail("it went on")
        bed.restore()
        rig.assert_settled(version=rig.good_backend)


def env_file(directory: Path) -> str:
    file = directory / "backend.env"
    text = demo.env_text(port=1, log=directory / "server.log", spec_types=("draft-simple",), engine="xllamacpp")
    file.write_text(text, encoding="utf-8")
    return str(file)


def engines_of_ours() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "embedded" in " ".join(child.cmdline())}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(120)
class TestTheOwnBed:
    def test_starts_an_engine_of_its_own_for_each_configuration(self, tmp_path: Path) -> None:
        bed = OwnBed(env_file(tmp_path), tmp_path)
        drafts = []
        for configuration in ({}, OFF):
            with bed.boot(configuration) as place:
                drafts.append(ask(f"{place.url}/slots")[0]["speculative"])
            assert not healthy(place.url)
        bed.restore()
        assert drafts == [True, False]
        assert engines_of_ours() == set()

    def test_says_why_a_configuration_does_not_come_up(self, tmp_path: Path) -> None:
        bed = OwnBed(env_file(tmp_path), tmp_path)
        text = str(tmp_path / "backend.env")
        for configuration, said in (
            ({"LLAMA_SPEC_TYPE": "no-such"}, "no-such"),
            ({"LLAMA_MODEL": text}, "GGUF"),
            ({"LLAMA_ARG_CHAT_TEMPLATE": "{% for"}, "ended with exit code 1"),
        ):
            with pytest.raises(BootFailedError, match=said), bed.boot(configuration):
                pytest.fail("it came up")
        assert engines_of_ours() == set()

    def test_tells_a_crash_of_the_engine_from_an_error_of_its_user(self, tmp_path: Path) -> None:
        bed = OwnBed(env_file(tmp_path), tmp_path)
        with pytest.raises(InputError, match="mine"), bed.boot({}):
            raise InputError("mine")
        with pytest.raises(BootFailedError, match="ended with"), bed.boot({}):
            self._its_engine_dies()

    def _its_engine_dies(self) -> None:
        for pid in engines_of_ours():
            psutil.Process(pid).kill()
        raise InputError("it broke off")
