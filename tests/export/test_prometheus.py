"""The picture as Prometheus metrics."""

import json
import re
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from specdash.core.readings import ReadingStatus
from specdash.export.prometheus import HISTOGRAMS, METRICS, RequestTally, registry_of, to_prometheus
from specdash.insight.picture import BackendPicture, LogPicture, Picture, SpeedUpPicture
from specdash.insight.request import Samples, ServedRequest
from tui.fake_alerts import HURTING
from tui.fake_state import FakeState

CONTRIB = Path(__file__).parents[2] / "contrib"
BUSY = replace(FakeState("busy").picture(0.0, 1.0, 300.0), speedup=HURTING)


def read(picture: Picture, tally: RequestTally | None = None) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Labels without the server's, and value, by the name of the sample, as an OpenMetrics parser reads them."""
    page: bytes = generate_latest(registry_of(lambda: [(picture, tally)]))  # type: ignore[no-untyped-call]
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page.decode()):  # type: ignore[no-untyped-call]
        assert family.documentation
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "server"}
            found.setdefault(sample.name.removeprefix("specdash_"), []).append((labels, sample.value))
    return found


def requests(*seconds: tuple[float, float]) -> Samples:
    """Finished requests of the log: when each ended, and how long its prompt took."""
    samples = Samples()
    for ended, prompt_s in seconds:
        request = ServedRequest(
            prompt_ms=prompt_s * 1000, decode_ms=900.0, decode_tokens=10, finished=True, processed_tokens=9
        )
        request.date(ended)
        samples.logged.append(request)
    return samples


def test_the_verdict_is_a_state_of_which_one_holds() -> None:
    rows = {labels["verdict"]: value for labels, value in read(BUSY)["speculation_verdict"]}
    assert rows["costs"] == 1.0
    assert sum(rows.values()) == 1.0
    assert ({"bound": "high"}, 0.91) in read(BUSY)["speculation_speedup_ratio"]


def test_a_figure_is_the_picture_s() -> None:
    page = read(BUSY)
    speculation = BUSY.backend.speculation
    assert page["draft_tokens_total"] == [({}, speculation.draft_tokens_total)]
    assert page["decode_tokens_per_second"] == [({}, BUSY.backend.decode.value)]
    assert [value for _, value in page["speculation_position_acceptance_ratio"]] == list(
        speculation.acceptance_per_position_window or ()
    )


def test_what_is_not_known_is_left_out_and_no_address_steers_the_format() -> None:
    nothing = Picture(0.0, 1.0, 300.0, BackendPicture('http://a"\n'), speedup=SpeedUpPicture())
    page = read(nothing)
    assert page["up"] == [({}, 0.0)]
    assert "speculation_speedup_ratio" not in page
    assert 'specdash_up{server="http://a\\"\\n"} 0.0\n' in to_prometheus(nothing)


def test_names_have_base_units_and_help_is_a_sentence() -> None:
    told = [(metric.name, metric.help) for metric in METRICS]
    for name, words in (*told, *((histogram.name, histogram.help) for histogram in HISTOGRAMS)):
        assert re.fullmatch(r"[a-z][a-z_]*", name)
        assert not re.search(r"_(ms|mib|percent|total)\b", name)
        assert words.endswith(".")


def test_requests_that_ended_before_the_first_look_are_not_counted_and_later_ones_once() -> None:
    tally = RequestTally()
    logged = replace(BUSY, log=LogPicture(status=ReadingStatus.KNOWN))
    samples = requests((100.0, 0.3))
    assert read(logged, tally.after(samples))["time_to_first_token_seconds_count"] == [({}, 0.0)]
    samples.logged.extend(requests((101.0, 0.3), (101.0, 6.0)).logged)
    for _ in range(3):
        page = read(logged, tally.after(samples))
    assert page["time_to_first_token_seconds_count"] == [({}, 2.0)]
    assert page["time_to_first_token_seconds_sum"] == [({}, 6.3)]
    buckets = {labels["le"]: value for labels, value in page["time_to_first_token_seconds_bucket"]}
    assert (buckets["0.25"], buckets["0.5"], buckets["5.0"], buckets["7.5"], buckets["+Inf"]) == (0, 1, 1, 2, 2)
    assert page["request_time_per_output_token_seconds_sum"] == [({}, 0.2)]


def test_without_a_source_of_requests_there_is_no_histogram() -> None:
    assert not [
        name for name in read(Picture(0.0, 1.0, 300.0, BackendPicture("http://a")), RequestTally()) if "first" in name
    ]


def test_the_dashboard_and_the_alerting_rules_ask_for_metrics_that_there_are() -> None:
    names = {f"specdash_{metric.name}{'_total' if metric.is_counter else ''}" for metric in METRICS}
    names |= {f"specdash_{histogram.name}_bucket" for histogram in HISTOGRAMS}
    files = (CONTRIB / "grafana/specdash.json", CONTRIB / "prometheus/rules.yml")
    panels = json.loads(files[0].read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [line for line in files[1].read_text(encoding="utf-8").splitlines() if line.strip().startswith("expr:")]
    used = {name for expression in asked for name in re.findall(r"(?<!\")specdash_\w+", expression.replace('\\"', '"'))}
    assert used
    assert used <= names
    assert len(asked) > len(panels)
