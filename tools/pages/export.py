"""docs/export.md, and for Prometheus and Grafana what is made of the same tables: alerting rules and a dashboard."""

from __future__ import annotations

import json
from typing import Any

from specdash.export.prometheus import HISTOGRAMS, METRICS, SERVER
from specdash.insight.rules.catalogue import shipped
from specdash.system.text import markdown_table

INTRO = """# Prometheus metrics: `specdash export`

Generated from the table of metrics (`src/specdash/export/prometheus.py`) by `python tools/make_docs.py`; do not
edit.

```
specdash export                               serves http://127.0.0.1:9538/metrics for the server found here
specdash export --all --listen 0.0.0.0:9538   every server found on this machine, also those that come later
specdash export --url http://gpu1:8080 --once prints the page (OpenMetrics) and ends
```

It collects as the dashboard does, every `--refresh` seconds, and judges the same rules; windowed figures cover
`--window`. A scrape costs a server nothing: it reads what was collected. Every metric has the server's address as
the label `server`; unknown ones are left out, and counters start again with the server. No label or value is secret.
Anyone who reaches the port can read it: listen on loopback, or behind what guards your Prometheus.

`contrib/prometheus/rules.yml` has an alerting rule for every rule of specdash, and one for speculation that costs
for ten minutes. `contrib/grafana/specdash.json` is a dashboard (Import, choose the Prometheus data source).

```yaml
scrape_configs:
  - job_name: specdash
    static_configs: [{targets: ["127.0.0.1:9538"]}]
rule_files: [specdash/contrib/prometheus/rules.yml]
```

`specdash snapshot --prometheus` prints the gauges and counters once, without histograms, for
[node_exporter's textfile collector](snapshot.md).

Exit codes: 0 ended by SIGTERM, SIGINT or SIGHUP, or `--once` printed; 2, 3 invalid options, a port that is taken, an
env variable without a key; 4 `--once` found no server.

## Gauges and counters

"""
HISTOGRAM_INTRO = """## Histograms

Of requests that have finished since the exporter's start, from the server's log (`--log`, or found), else from the
proxy's events; without both there are none. Buckets are vLLM's, so that one dashboard serves both.

"""


def page() -> str:
    """The whole page."""
    rows = [("metric", "labels", "what it is")]
    for metric in METRICS:
        name = f"specdash_{metric.name}{'_total' if metric.is_counter else ''}"
        rows.append((f"`{name}`", ", ".join(f"`{label}`" for label in metric.labels), metric.help))
    rows.append(("`specdash_server_info`", "`engine`, `model`", "The server's build and model; 1."))
    rows.append(("`specdash_build_info`", "`version`", "This program; 1, without a server."))
    histograms = [("metric", "what it is", "buckets, seconds")]
    histograms += [
        (f"`specdash_{histogram.name}`", histogram.help, ", ".join(f"{bound:g}" for bound in histogram.buckets))
        for histogram in HISTOGRAMS
    ]
    return f"{INTRO}{markdown_table(rows)}\n\n{HISTOGRAM_INTRO}{markdown_table(histograms)}\n"


def alerting_rules() -> str:
    """contrib/prometheus/rules.yml: YAML whose strings are JSON's."""
    lines = [
        "# Generated from specdash's rules by `python tools/make_docs.py`; do not edit. docs/export.md",
        "groups:",
        "  - name: specdash",
        "    rules:",
    ]
    rows = [
        (
            rule.id,
            f'specdash_alert_active{{rule="{rule.id}"}} == 1',
            "",
            rule.title,
            f"{rule.meaning} {rule.remedy}",
        )
        for rule in shipped()
    ]
    rows.append((
        "speculation_costs", 'specdash_speculation_verdict{verdict="costs"} == 1', "10m", "Speculation costs speed",
        "The server would decode faster without speculation. `specdash` says what would be better.",
    ))  # fmt: skip
    rows.append((
        "exporter_away", "absent(specdash_up)", "5m", "No metrics of specdash",
        "Nothing is scraped from `specdash export`: start it, or mend the scrape job.",
    ))  # fmt: skip
    for name, expression, lasting, title, text in rows:
        words = "".join(part.capitalize() for part in name.split("_"))
        lines += [f"      - alert: Specdash{words}", f"        expr: {json.dumps(expression)}"]
        lines += [f"        for: {lasting}", "        labels: {severity: warning}"] if lasting else []
        # Braces would be a template's.
        summary, description = (json.dumps(part.replace("{{", "{ {")) for part in (title, text))
        lines += [
            "        annotations:",
            f'          summary: {summary[:-1]} on {{{{ $labels.{SERVER} }}}}"',
            f"          description: {description}",
        ]
    return "\n".join(lines) + "\n"


def _quantiles(name: str) -> tuple[tuple[str, str], ...]:
    rate = f"sum by (le, server) (rate({name}_bucket[$__rate_interval]))"
    return tuple((f"histogram_quantile({p / 100}, {rate})", f"{{{{server}}}} p{p}") for p in (50, 95))


_PANELS: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Does speculation pay?", "stat", "none", (("specdash_speculation_verdict == 1", "{{server}}: {{verdict}}"),)),
    (
        "Speed-up over no speculation", "timeseries", "none",
        (("specdash_speculation_speedup_ratio", "{{server}} {{bound}}"),),
    ),
    ("Alerts", "table", "none", (("specdash_alert_active", "{{server}} {{rule}}"),)),
    ("Acceptance", "timeseries", "percentunit", (("specdash_speculation_acceptance_ratio", "{{server}}"),)),
    (
        "Acceptance by draft position", "bargauge", "percentunit",
        (("specdash_speculation_position_acceptance_ratio", "{{position}}"),),
    ),
    (
        "Tokens per second", "timeseries", "none",
        (
            ("specdash_decode_tokens_per_second", "{{server}} decode"),
            ("specdash_prefill_tokens_per_second", "{{server}} prefill"),
        ),
    ),
    (
        "Time to first token", "timeseries", "s",
        _quantiles("specdash_time_to_first_token_seconds"),
    ),
    (
        "Time per output token", "timeseries", "s",
        _quantiles("specdash_request_time_per_output_token_seconds"),
    ),
    (
        "Requests", "timeseries", "none",
        (
            ("specdash_requests_processing", "{{server}} at work"),
            ("specdash_requests_deferred", "{{server}} waiting"),
        ),
    ),
    (
        "Warnings in the log", "timeseries", "none",
        (("sum by (server, warning) (rate(specdash_log_warnings_total[$__rate_interval]))", "{{server}} {{warning}}"),),
    ),
    (
        "GPU memory", "timeseries", "percentunit",
        (("specdash_gpu_memory_used_bytes / specdash_gpu_memory_total_bytes", "{{server}} GPU {{gpu}}"),),
    ),
    ("GPU clocks limited by", "timeseries", "none", (("specdash_gpu_throttled", "GPU {{gpu}}: {{reason}}"),)),
)  # fmt: skip
"""Title, kind, unit, and the expressions with their legends: three to a row."""


def dashboard() -> str:
    """contrib/grafana/specdash.json."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels: list[dict[str, Any]] = [
        {
            "id": number + 1,
            "title": title,
            "type": kind,
            "datasource": source,
            "gridPos": {"x": 8 * (number % 3), "y": 8 * (number // 3), "w": 8, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "options": {"textMode": "name"} if kind == "stat" else {},
            "targets": [
                {
                    "refId": chr(65 + place),
                    "datasource": source,
                    "expr": expression,
                    "legendFormat": legend,
                    "instant": kind in ("stat", "table", "bargauge"),
                }
                for place, (expression, legend) in enumerate(expressions)
            ],
        }
        for number, (title, kind, unit, expressions) in enumerate(_PANELS)
    ]
    variable = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    document = {
        "title": "specdash",
        "uid": "specdash",
        "description": "llama.cpp's speculation: does it pay, and is the server well? From `specdash export`.",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"
