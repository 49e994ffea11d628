"""The row of a server among many has the figures of its dashboard."""

from typing import Any

from msgspec.structs import replace

from insight.scenes import NOW, OK, WALL, baseline, measured, row_of, tell
from specdash.core.records import Alert, AlertSeverity
from specdash.insight.fleet import FleetRow, rows_of, worst_first
from specdash.insight.picture import (
    AlertsPicture,
    BackendPicture,
    BackendState,
    Picture,
    RouterModelPicture,
    RouterPicture,
    SpeculationViews,
)
from specdash.insight.speedup.verdict import Verdict, VerdictKind, verdict

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
