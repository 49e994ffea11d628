"""Measures the bundled pair on the real llama.cpp engine: greedy acceptance by prompt class and draft length.

Runs in an environment that has ``xllamacpp``; needs nothing else. The server runs inside this process on a free port
of 127.0.0.1 and ends with it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MODELS = Path(__file__).resolve().parents[2] / "src" / "specdash" / "backend" / "models"
PROMPTS: dict[str, tuple[str, ...]] = {
    "coding": (
        "Write a Python function that parses a header line into a name and a value.",
        "Write the function `def read_config(self, filename)`.",
        "Write a Python class Queue. A first-in, first-out queue with a lock.",
        "Implement `def encode(text, errors='strict')`.\n\nEncode text and return bytes.",
        "Please write walk_directory in Python.",
        "Write the Python module `cache`.",
        "Can you write a Python function called merge_sorted? Merge two sorted lists.",
        "Write the class `TestServer`.",
    ),
    "pattern": (
        "Count from 3 to 60.",
        "Write numbered assignments for value.",
        "Repeat import 40 times.",
        "Write a JSON list of name records.",
    ),
    "prose": (
        "What does `open` do?",
        "Explain the module asyncio.",
        "Describe what Message is for.",
        "Explain what a socket is.",
    ),
}


def start(target: Path, draft: Path, n_max: int, context: int) -> Any:
    """Start the embedded server with ``draft-simple`` on a free port; returns it, ready."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(target)
    params.n_ctx = context
    params.n_parallel = 1
    params.port = 0
    params.endpoint_slots = True
    params.endpoint_props = True
    params.use_jinja = True
    params.cpuparams.n_threads = 2
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    params.speculative.draft.mparams.path = str(draft)
    params.speculative.draft.n_max = n_max
    return xllamacpp.Server(params)


def call(server: Any, path: str, body: dict[str, Any] | None = None) -> Any:
    """GET, or POST ``body``; the decoded JSON answer."""
    connection = http.client.HTTPConnection(urlsplit(server.listening_address).netloc, timeout=120)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return json.load(connection.getresponse())
    finally:
        connection.close()


def ask(server: Any, prompt: str, tokens: int) -> dict[str, Any]:
    """One greedy chat turn: its text, and the engine's own count of drafted and accepted tokens."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
    answer = call(server, "/v1/chat/completions", body | {"cache_prompt": False})
    timings = answer["timings"]
    return {
        "prompt": prompt,
        "text": answer["choices"][0]["message"]["content"],
        "finish_reason": answer["choices"][0]["finish_reason"],
        "tokens": timings["predicted_n"],
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
        "tokens_per_second": timings["predicted_per_second"],
    }


def acceptance(answers: list[dict[str, Any]]) -> float | None:
    """Accepted over drafted tokens of all answers together; None if nothing was drafted."""
    drafted = sum(a["drafted"] for a in answers)
    return sum(a["accepted"] for a in answers) / drafted if drafted else None


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--n-max", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="longest answer, tokens")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--classes", nargs="+", choices=sorted(PROMPTS), default=sorted(PROMPTS))
    options = parser.parse_args()
    target, draft = options.models / "demo-target.gguf", options.models / "demo-draft.gguf"
    server = start(target, draft, options.n_max, options.context)
    answers = {c: [ask(server, p, options.tokens) for p in PROMPTS[c]] for c in options.classes}
    props = call(server, "/props")
    sample = "def f(x):\n\treturn 'é' + \"日本\" # 1234567\n        \n"
    tokens = call(server, "/tokenize", {"content": sample})["tokens"]
    report = {
        "engine": f"xllamacpp {version('xllamacpp')}",
        "build": props.get("build_info"),
        "n_max": options.n_max,
        "speculative": call(server, "/slots")[0]["speculative"],
        "template_capabilities": props.get("chat_template_caps"),
        "round_trips": call(server, "/detokenize", {"tokens": tokens})["content"] == sample,
        "sample_tokens": tokens,
        "acceptance": {c: acceptance(a) for c, a in answers.items()},
        "answers": answers,
    }
    json.dump(report, sys.stdout, indent=1, ensure_ascii=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
