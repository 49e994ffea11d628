"""The rows of servers among many, and which of a router's models is watched and answers."""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import NOW, OK, WALL, baseline, measured, row_of, server, tell
from specdash.core.readings import FailureKind, ModelStatus, Props, RouterModel, RouterModels
from specdash.core.records import Alert, AlertSeverity
from specdash.core.target import Target
from specdash.insight.fleet import FleetRow, rows_of, worst_first
from specdash.insight.picture import (
    AlertsPicture,
    BackendPicture,
    BackendState,
    Picture,
    SpeculationViews,
)
from specdash.insight.router import RouterModelPicture, RouterPicture, derive
from specdash.insight.speedup.verdict import Verdict, VerdictKind, verdict
from specdash.insight.state import TargetState

URL = "http://gpu1:8080"


def row(name: str, state: str = BackendState.LIVE, kind: VerdictKind = VerdictKind.PAYS, **fields: Any) -> FleetRow:
    return replace(FleetRow(name, URL, None, state, verdict=Verdict(kind, kind.upper())), **fields)


def test_the_cheap_picture_of_a_row_has_the_figures_of_the_dashboard() -> None:
    watched = tell(measured(row_of(20), (baseline(),)), NOW - 1, health=OK)
    dashboard, cheap = (watched.picture(NOW, WALL, 300.0, for_rules=for_rules) for for_rules in (False, True))
    own = rows_of(cheap, "gpu1")[0]
    judged = verdict(dashboard)
    assert judged.is_clear
    assert own.verdict is not None
    assert (own.verdict.kind, own.verdict.headline) == (judged.kind, judged.headline)
    accepted = dashboard.backend.speculation.acceptance
    assert own.acceptance == (accepted.window if accepted.window.value is not None else accepted.lifetime)
    assert (own.decode, own.prefill) == (dashboard.backend.decode, dashboard.backend.prefill)


def test_the_worst_comes_first_and_names_decide_between_equals() -> None:
    rows = [
        row("b-fine"),
        row("a-fine"),
        row("restarted", BackendState.RESTARTED),
        row("warned", warnings=1),
        row("costs", kind=VerdictKind.COSTS),
        row("critical", critical=1),
        row("down", BackendState.DOWN),
    ]
    order = ["down", "critical", "costs", "warned", "restarted", "a-fine", "b-fine"]
    assert [found.name for found in worst_first(rows)] == order


def test_models_of_a_router_are_rows_and_the_one_that_is_looked_at_has_the_figures_and_alerts() -> None:
    models = (RouterModelPicture("alpha", "loaded", watched=True), RouterModelPicture("beta", "unloaded"))
    severities = [*AlertSeverity, AlertSeverity.CRITICAL]
    alerts = AlertsPicture(
        tuple(Alert("rule", "title", one, "summary", 0.0, 0.0, 0.0) for one in severities), cause="x"
    )
    views = SpeculationViews(router=RouterPicture(models))
    picture = Picture(NOW, WALL, 300.0, BackendPicture(URL, BackendState.LIVE), views=views, alerts=alerts)
    own, other = rows_of(picture, "gpu1")
    assert (own.name, own.state, own.router_model) == ("gpu1/alpha", "live", None)
    assert (own.critical, own.warnings, own.notices, own.alerts, own.cause) == (2, 1, 1, 4, "x")
    assert (other.name, other.state, other.router_model, other.alerts) == ("gpu1/beta", "unloaded", "beta", 0)


# A router


MODELS = (
    RouterModel("small", ModelStatus.LOADED, ("tiny",), last_used=WALL - 60),
    RouterModel("large", ModelStatus.LOADED, last_used=WALL - 5),
    RouterModel("other", ModelStatus.UNLOADED),
)


def state(*models: RouterModel, watched: str | None = None) -> TargetState:
    props = Props(role="router", build_info="b11434")
    return tell(server(model=watched), NOW, props=props, router=RouterModels(models or MODELS))


@pytest.mark.parametrize(("named", "watched"), [("large", ["large"]), ("tiny", ["small"]), ("gone", []), (None, [])])
def test_the_model_that_is_watched_is_the_one_named_by_its_id_or_an_alias(
    named: str | None, watched: list[str]
) -> None:
    picture = derive(state(watched=named), NOW, WALL)
    assert [model.id for model in picture.models if model.watched] == watched


def test_a_request_that_names_no_model_gets_the_resident_one_used_last() -> None:
    router = state()
    picture = derive(router, NOW, WALL)
    assert picture.any_means == "large"
    assert [model.last_used_age_s for model in picture.models] == [60.0, 5.0, None]
    tell(router, NOW, router=(FailureKind.NOT_FOUND, "no /models"))
    assert derive(router, NOW, WALL).reason == "no /models"


A = RouterModel("a", ModelStatus.UNLOADED, spec_types=())


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ((A,), "the first request for one loads it"),
        (
            (replace(A, status=ModelStatus.LOADING), RouterModel("b", ModelStatus.FAILED, exit_code=139)),
            "a: loading; b: failed (exit code 139)",
        ),
        ((replace(A, status=ModelStatus.DOWNLOADING),), "a: downloading"),
    ],
)
def test_a_router_that_holds_no_model_is_live_and_names_which_one_comes_or_failed(
    models: tuple[RouterModel, ...], reason: str
) -> None:
    router = state(*models)
    router.retarget(Target("http://x", engine="llama.cpp", pid=7))
    tell(router, NOW, metrics=FailureKind.NO_MODEL, slots=FailureKind.NO_MODEL, health=OK)
    picture = router.picture(NOW, WALL)
    assert picture.backend.state == "live"
    assert picture.backend.reason == f"a router without a model in memory; {reason}"
    assert [model.words for model in picture.views.router.models] == [model.words for model in models]
    assert picture.views.drafting.state == "unknown"
