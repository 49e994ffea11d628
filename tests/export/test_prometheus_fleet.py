"""The rows of a fleet, read from a Prometheus, are those that were exported to it."""

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from specdash.collect.prometheus import PrometheusSample
from specdash.export.from_prometheus import READ, rows_of_samples
from specdash.export.prometheus import METRICS, registry_of
from specdash.insight.fleet import rows_of
from specdash.insight.picture import Picture
from tui.fake_alerts import HURTING
from tui.fake_state import FakeState


def scraped(*pictures: Picture, instance: str = "gpu1:9840") -> list[PrometheusSample]:
    """What a Prometheus keeps of an exporter's page."""
    page = generate_latest(registry_of(lambda: [(picture, None) for picture in pictures]))  # type: ignore[no-untyped-call]
    return [
        PrometheusSample({**sample.labels, "__name__": sample.name, "instance": instance}, sample.value)
        for family in text_string_to_metric_families(page.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
    ]


@pytest.mark.parametrize("scene", ["busy", "down", "loading", "idle", "alerts", "hostile"])
def test_a_row_comes_back_as_it_was_exported(scene: str) -> None:
    picture = replace(FakeState(scene).picture(0.0, 1.0, 300.0), speedup=HURTING)
    (row,) = rows_of_samples(scraped(picture))
    own = rows_of(picture, "any")[0]
    for field in (
        "url",
        "state",
        "context_used",
        "context_size",
        "gpu",
        "vram_used",
        "vram_size",
        "slots",
        "queue",
        "alerts",
        "critical",
    ):
        assert getattr(row, field) == getattr(own, field), field
    assert row.model == (own.model.encode("utf-8", "replace").decode() if own.model else None)
    assert row.decode.value == own.decode.value
    assert row.acceptance.value == picture.backend.speculation.acceptance.window.value
    assert row.verdict is not None
    assert own.verdict is not None
    assert row.verdict.kind is own.verdict.kind
    if own.verdict.is_clear:
        assert row.verdict.headline == own.verdict.headline
    assert bool(row.cause) == bool(own.alerts)


def test_the_same_address_on_two_machines_is_two_rows() -> None:
    picture = FakeState("busy").picture(0.0, 1.0, 300.0)
    rows = rows_of_samples([*scraped(picture), *scraped(picture, instance="gpu2:9840")])
    url = picture.backend.url
    assert [row.name for row in rows] == [f"gpu1  {url}", f"gpu2  {url}"]


def test_every_metric_that_is_read_is_one_that_is_exported() -> None:
    assert set(READ) <= {metric.name for metric in METRICS} | {"server_info"}


def test_what_is_no_metric_of_ours_is_passed_over() -> None:
    strangers = [
        PrometheusSample({"__name__": "up"}, 1.0),
        PrometheusSample({"__name__": "specdash_state", "server": "http://a", "state": "new"}, 1.0),
        PrometheusSample({"__name__": "specdash_decode_tokens_per_second", "server": "http://a"}, float("nan")),
    ]
    (row,) = rows_of_samples(strangers)
    assert (row.url, row.state, row.decode.value, row.verdict) == ("http://a", "unknown", None, None)
