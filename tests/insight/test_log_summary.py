"""The summary of real logs agrees with what plain searching finds in them."""

import re
from pathlib import Path

import pytest

from specdash.core.log_facts import LogBatch, ServerEvent
from specdash.insight.log.log_summary import LogSummary
from specdash.llama.log.parser import LogParser

LOGS = Path(__file__).parents[1] / "data" / "logs"
REAL = sorted(path for path in LOGS.glob("*.log") if path.stem != "field_samples_older_builds")
SUBSTRINGS = {
    "find_slot_non_consecutive": "non-consecutive token position",
    "kv_no_free_space": "failed to find free space",
    "context_shift": "slot context shift",
    "checkpoint_erased": "erased invalidated context checkpoint",
    "draft_clamped": "clamping to",
    "alloc_failed": "cudaMalloc failed",
    "cuda_error": "CUDA error",
    "request_cancelled": "cancel task, id_task",
    "vocab_mismatch": "vocabs are not compatible",
    "context_exceeded": "exceeds the available context size",
    "unauthorized": "Invalid API Key",
    "synth_enabled": "synthetic speculative acceptance is enabled",
    "full_reprocess": "forcing full prompt re-processing",
    "aborted": ".cpp:",
}


def summarise(path: Path) -> LogSummary:
    parser, summary = LogParser(), LogSummary()
    summary.add(parser.feed(path.read_bytes()))
    summary.add(parser.close())
    summary.close()
    return summary


def found(pattern: str, path: Path) -> list[tuple[str, ...]]:
    return re.findall(pattern, path.read_text(errors="replace"))


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_requests_add_up_to_what_a_search_finds(path: Path) -> None:
    requests = summarise(path).requests
    prompts = found(r"prompt eval time =\s+([\d.]+) ms /\s+(\d+) tokens", path)
    decodes = found(r"(?:\| |\s)\s{5,}eval time =\s+([\d.]+) ms /\s+(\d+) tokens", path)
    drafts = found(r"draft acceptance = [\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated", path)
    assert [(r.prompt_ms, r.processed_tokens) for r in requests if r.prompt_ms is not None] == [
        (float(ms), int(tokens)) for ms, tokens in prompts
    ]
    assert [(r.decode_ms, r.decode_tokens) for r in requests if r.decode_ms is not None] == [
        (float(ms), int(tokens)) for ms, tokens in decodes
    ]
    assert [(r.draft_accepted, r.draft_generated) for r in requests if r.draft_generated is not None] == [
        (int(accepted), int(generated)) for accepted, generated in drafts
    ]
    assert len(requests) == len(found(r"\| processing task", path))
    assert sum(r.cancelled for r in requests) == len(found("cancel task, id_task", path))


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_warnings_are_as_many_as_a_search_finds(path: Path) -> None:
    warnings = summarise(path).warnings
    # A line of the collector's own may quote the server.
    text = "".join(line for line in path.read_text(errors="replace").splitlines(keepends=True) if line[0] != "#")
    counted = {name: warnings[name].count for name in SUBSTRINGS if name in warnings}
    assert counted == {name: text.count(words) for name, words in SUBSTRINGS.items() if words in text}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_lines_are_counted_and_understood(path: Path) -> None:
    summary = summarise(path)
    data = path.read_bytes()
    assert summary.lines == data.count(b"\n") + (not data.endswith(b"\n"))
    # Of one log a warning is of no class.
    assert summary.unrecognised == (path.stem == "http_misc"), summary.unrecognised_samples


TRACED = [path for path in REAL if b"LLAMA_TRACE = 1" in path.read_bytes()]


@pytest.mark.parametrize("path", TRACED, ids=lambda path: path.stem)
def test_steps_of_a_request_add_up_to_its_own_acceptance(path: Path) -> None:
    requests = [request for request in summarise(path).requests if request.draft_generated is not None]
    assert requests
    for request in requests:
        assert (request.steps.accepted, request.steps.drafted) == (request.draft_accepted, request.draft_generated)


class TestWhatIsKept:
    def test_is_about_the_last_server(self) -> None:
        summary = LogSummary()
        old, new = (ServerEvent("model_loading", (("path", name),)) for name in ("old.gguf", "new.gguf"))
        summary.add(LogBatch(facts=(old, ServerEvent("restarted"), ServerEvent("server_starting"), new)))
        assert summary.restarts == 1
        assert [event.get("path") for _, event in summary.events] == [None, "new.gguf"]

    def test_is_bounded_but_for_the_requests(self) -> None:
        summary = LogSummary()
        for index in range(1000):
            events = tuple(ServerEvent("listening", (("url", str(index)),)) for _ in range(3))
            summary.add(LogBatch(3, 3, facts=events, unrecognised_samples=("a", "b")))
        assert len(summary.events) <= 200
        assert len(summary.unrecognised_samples) == 10
