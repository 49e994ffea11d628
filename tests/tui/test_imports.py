"""Before the first paint the screen loads nothing that collects, judges or tunes, and no chart library."""

import json
import subprocess
import sys

UNTIL_THE_FIRST_PAINT = """
import json, sys
from specdash.cli import watch
from specdash.cli.options import resolved_settings
from specdash.core.target import Target
def run_app(app, **_):
    print(json.dumps(sorted(sys.modules)))
    raise SystemExit
watch.run_app = run_app
watch.open_dashboard(Target("http://127.0.0.1:9"), resolved_settings(None))
"""
MOST_OWN, MOST_OTHERS = 74, 396
"""Modules of specdash and of others: 68 and 393 on Python 3.11 when this was written, 182 of them Textual and Rich."""


def test_until_the_first_paint_no_more_is_imported_than_the_budget() -> None:
    command = [sys.executable, "-c", UNTIL_THE_FIRST_PAINT]
    loaded = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    own = {name for name in loaded if name.partition(".")[0] == "specdash"}
    assert len(own) <= MOST_OWN
    assert len(loaded) - len(own) <= MOST_OTHERS
    libraries = ("pydantic", "psutil", "plotext", "sqlite3", "tomllib", "httpx", "pynvml", "numpy")
    packages = ("specdash.backend", "specdash.collect.hub", "specdash.llama", "specdash.tune.model")
    screens = ("specdash.tui.screens.tuner", "specdash.tui.widgets.tuner.tuner_boots")
    assert not {name for name in loaded if name.startswith((*libraries, *packages, *screens))}
