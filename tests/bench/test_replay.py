"""`specdash bench replay`: what is sent, what is compared, and what is said of servers and sessions in trouble."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.load.samples import CACHED, BenchSample
from specdash.bench.replay.replay import CallResult, CountedBy, Replay, ReplayRow, report
from specdash.bench.replay.replay_run import unquoted
from specdash.cli.main import main
from specdash.core.errors import ExitCode
from support.engines import engine_env, running_backend
from support.fault_server import FaultServer, free_port, resets, says
from support.scripted_llama import Behaviour, ScriptedLlama
from support.transcripts import Shape, write_reader, write_session
from support.waiting import until

SMALL = Shape(turns=4, first_chars=300, last_chars=2_000, parallel_every=2, prompt_every=0)
SECRET = "the speculative decoder"


def answer(ttft: float, *, wall: float = 1.0, tokens: int | None = 11, cached: int = 0, **more: Any) -> CallResult:
    sample = BenchSample("p", "replay", 0, 0.0, 0.0, ttft, wall, prompt_tokens=100, cached_tokens=cached, **more)
    return CallResult(sample, tokens, CountedBy.TIMINGS)


def replay(*rows: tuple[CallResult | None, CallResult | None]) -> Replay:
    made = tuple(ReplayRow(number, 3 * number, 100 * number, number, *both) for number, both in enumerate(rows, 1))
    return Replay(made, ("cold", "warm"), 64, 1.7e9, 5.0)


FAILED = CallResult(BenchSample("p", "replay", 0, 0.0, 0.0, None, 0.5, error="HTTP 500", fault="server error"))
EMPTY = CallResult(BenchSample("p", "replay", 0, 0.0, 0.0, None, 0.5, finish="stop", empty=True), 0, CountedBy.TIMINGS)


def test_ratios_are_of_sums_over_the_calls_that_both_sides_answered() -> None:
    made = replay((answer(4.0, wall=6.0), answer(1.0, wall=2.0)), (answer(2.0, wall=3.0), answer(1.0, wall=2.5)),
                  (answer(50.0), FAILED), (FAILED, answer(9.0)), (answer(7.0), None))  # fmt: skip
    assert made.ttft_ratio == 3.0
    assert made.wall_ratio == 2.0
    assert (made.total("warm").failed, made.total("warm").calls) == (1, 4)


def test_a_cold_call_from_a_cache_is_not_compared() -> None:
    made = replay((answer(4.0, cached=50, flags=(CACHED,)), answer(1.0)), (answer(2.0), answer(1.0)))
    assert made.ttft_ratio == 2.0


def test_empty_answers_are_counted_and_named() -> None:
    made = replay((answer(1.0), EMPTY))
    assert made.empties == 1
    assert "call 1, warm: EMPTY: nothing came" in report(made).lines
    assert made.ttft_ratio is None


def test_decode_is_all_tokens_over_all_time() -> None:
    fast = answer(1.0, tokens=11, predicted_ms=100.0)
    slow = answer(1.0, tokens=11, predicted_ms=900.0)
    assert replay((fast, None), (slow, None)).total("cold").decode_rate == 20.0
    assert answer(1.0, wall=2.0, tokens=11).decode_rate == 10.0


def test_groups_grow_with_the_prefix() -> None:
    made = replay(*((answer(float(number)), answer(0.5)) for number in range(1, 9)))
    assert [group.ttft_ratio for group in made.growth()] == [3.0, 7.0, 11.0, 15.0]


times = st.none() | st.floats(0, 1e5)
answers = st.none() | st.builds(
    lambda first, done, tokens, cached, error, empty: CallResult(
        BenchSample("p", "replay", 0, 0.0, 0.0, first, done, cached_tokens=cached, error=error, empty=empty),
        tokens, None
    ),
    times, times, st.none() | st.integers(0, 10**6), st.none() | st.integers(0, 10**6), st.sampled_from(["", "no"]),
    st.booleans(),
)  # fmt: skip


@given(st.lists(st.tuples(answers, answers), max_size=6))
def test_whatever_came_can_be_told(rows: list[tuple[CallResult | None, CallResult | None]]) -> None:
    made = replay(*rows)
    told = report(made)
    assert json.loads(json.dumps(told.document, allow_nan=False))["compared"] == len(made.pairs)
    assert all(len(line) <= 100 for line in told.lines)
    assert told.page


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return write_session(tmp_path / "session.jsonl", SMALL)


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, in this process: starting a new one takes longer than most of these tests."""

    def replay_it(*options: str) -> Done:
        code = main(["bench", "replay", *options])
        told = capsys.readouterr()
        return Done(code, told.out, told.err)

    return replay_it


def asked(server: ScriptedLlama) -> list[dict[str, Any]]:
    """The measured requests, without the warm-up."""
    return server.bodies[1:]


def test_calls_are_sent_cold_and_warm_in_order_with_their_exact_prefix(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000)) as server:
        done = run(str(session), "--url", server.url, "--json", "--out", str(tmp_path / "out"), "--max-tokens", "8")
    assert done.returncode == ExitCode.OK, done.stderr
    bodies = asked(server)
    cold, warm = bodies[:4], bodies[4:]
    assert (len(cold), len(warm)) == (4, 4)
    assert [body["cache_prompt"] for body in bodies] == [False] * 4 + [True] * 4
    beginnings = [body["messages"][0]["content"] for body in bodies]
    assert len({*beginnings[:4]}) == 4
    assert len({*beginnings[4:]}) == 1
    for before, after in pairwise(warm):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    assert [entry["messages"][1:] for entry in cold] == [entry["messages"][1:] for entry in warm]
    assert [tool["function"]["name"] for tool in warm[0]["tools"]] == ["Read", "Grep", "Bash"]
    roles = [message["role"] for message in warm[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "tool"]
    told = json.loads(done.stdout)
    assert (told["compared"], told["engine"]["model"], told["session"]["calls"]) == (4, "scripted.gguf", 4)
    assert told["token_counts_from"] == ["timings"]


def test_results_are_kept_and_hold_no_words_of_the_session(run: Run, session: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ScriptedLlama(Behaviour(n_ctx=100_000)) as server:
        done = run(str(session), "--url", server.url, "--out", str(out))
    assert done.returncode == ExitCode.OK, done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["report.json", "report.md", "samples.jsonl"]
    assert len((out / "samples.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    everything = done.stdout + done.stderr + "".join(path.read_text(encoding="utf-8") for path in out.iterdir())
    assert SECRET in session.read_text(encoding="utf-8")
    assert SECRET not in everything
    assert "sum of TTFT" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if " |" in line)


def test_one_side_alone_and_the_first_turns_only(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000)) as server:
        done = run(str(session), "--url", server.url, "--warm", "--turns", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.OK, done.stderr
    assert [entry["cache_prompt"] for entry in asked(server)] == [True, True]


def test_what_does_not_fit_is_left_out_with_a_word(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=1100)) as server:
        done = run(str(session), "--url", server.url, "--json", "--out", str(tmp_path / "out"))
        told = json.loads(done.stdout)
        assert told["left_out"] == [3, 4]
        assert "2 calls left out: the prefix does not fit into the 1100 tokens of a slot" in told["notes"]
        server.behaviour.n_ctx = 200
        none = run(str(session), "--url", server.url, "--out", str(tmp_path / "two"))
    assert none.returncode == ExitCode.BAD_INPUT
    assert "not one of 4 calls fits into the 200 tokens of a slot" in none.stderr


def test_where_the_template_knows_no_tools_calls_and_results_go_as_text(
    run: Run, session: Path, tmp_path: Path
) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000, knows_tools=False)) as server:
        done = run(str(session), "--url", server.url, "--json", "--out", str(tmp_path / "out"))
    assert json.loads(done.stdout)["flat"]
    last = asked(server)[-1]
    assert "tools" not in last
    assert [message["role"] for message in last["messages"]] == ["system", *(["user", "assistant"] * 3), "user"]
    assert "<tool_call name=Read>" in last["messages"][2]["content"]
    assert last["messages"][3]["content"].startswith("<tool_response>")


def test_images_are_sent_only_where_the_model_sees(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000)) as server:
        done = run(str(session), "--url", server.url, "--images", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.BAD_INPUT
    assert "--images: the model at" in done.stderr


def test_without_counts_of_the_server_the_answers_are_tokenised_again(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000, tells=False, text="abc def")) as server:
        done = run(str(session), "--url", server.url, "--json", "--out", str(tmp_path / "out"))
    told = json.loads(done.stdout)
    assert told["token_counts_from"] == ["tokenize"]
    assert told["calls"][0]["cold"]["tokens"] == 7
    assert any("tokenised again" in note for note in told["notes"])


def test_empty_answers_are_flagged_and_fail_a_run_when_the_cache_may_be_the_cause(
    run: Run, session: Path, tmp_path: Path
) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000, text="")) as server:
        both = run(str(session), "--url", server.url, "--out", str(tmp_path / "out"))
        warm = run(str(session), "--url", server.url, "--out", str(tmp_path / "two"), "--warm")
    assert (both.returncode, warm.returncode) == (ExitCode.OK, ExitCode.FAILED)
    assert "call 1, cold: EMPTY" in both.stdout
    assert "the model itself ends at once" in both.stdout
    assert "EMPTY with the cache only: 4 calls; `specdash repro-empty` looks into that" in warm.stdout


def test_a_server_that_fails_later_ends_it_and_keeps_what_there_is(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000, fails_from=4)) as server:
        done = run(str(session), "--url", server.url, "--json", "--out", str(tmp_path / "out"))
    told = json.loads(done.stdout)
    assert (told["cold"]["calls"], told["cold"]["failed"]) == (4, 2)
    assert "Compute error." in told["calls"][3]["cold"]["error"]
    assert told["compared"] == 0


def test_an_error_that_quotes_the_session_is_told_without_its_words() -> None:
    messages = [{"role": "user", "content": 'my "private" words\nare here, and nowhere else'}]
    quoting = 'HTTP 500: cannot parse: "my "private" words are here"'
    assert "private" not in unquoted(quoting, messages)
    assert unquoted(quoting, messages).startswith("HTTP 500: the server's words quote the session")
    plain = "HTTP 400: request (52026 tokens) exceeds the available context size (32768 tokens)"
    assert unquoted(plain, messages) == plain


def test_a_first_request_that_fails_measures_nothing(run: Run, session: Path, tmp_path: Path) -> None:
    with ScriptedLlama(Behaviour(n_ctx=100_000, fails_from=1)) as server:
        done = run(str(session), "--url", server.url, "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.FAILED
    assert "the first request failed, so nothing was measured" in done.stderr
    assert "Traceback" not in done.stderr


MODELS = says(200, '{"data": [{"id": "m"}]}')
FAULTS = {
    "refuses": {"/v1/models": MODELS, "/v1/chat/completions": says(400, '{"error": {"message": "no"}}')},
    "resets": {"/v1/models": MODELS, "/v1/chat/completions": resets()},
    "garbage": {"/v1/models": MODELS, "/v1/chat/completions": says(200, "<html>")},
    "no llama-server": {"/v1/models": says(200, "<html>")},
    "no models": {},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_clear_line(run: Run, fault: str, session: Path, tmp_path: Path) -> None:
    with FaultServer(dict(FAULTS[fault])) as server:
        done = run(str(session), "--url", server.url, "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.count("\n") == 1
    assert server.url in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--turns", "0"), ExitCode.USAGE, "--turns 0"),
        (("--max-tokens", "0"), ExitCode.USAGE, "--max-tokens 0"),
        (("--timeout", "0"), ExitCode.USAGE, "--timeout 0"),
        (("--cold", "--warm"), ExitCode.USAGE, "not allowed with"),
        (("--system", "/nowhere"), ExitCode.BAD_INPUT, "--system /nowhere: No such file or directory\n"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    run: Run, options: tuple[str, ...], code: ExitCode, words: str, session: Path, tmp_path: Path
) -> None:
    with ScriptedLlama() as server:
        done = run(str(session), "--url", server.url, "--out", str(tmp_path / "out"), *options)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "is empty"),
        ("not json\n", "line 1: not JSON"),
        ('{"type": "user", "message": {"role": "user", "content": "x"}}\n', "nothing to replay"),
    ],
)
def test_a_session_that_cannot_be_read_is_one_clear_line(
    run: Run, content: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    done = run(str(path), "--url", "http://127.0.0.1:1")
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (ExitCode.BAD_INPUT, True, 1)


def test_a_folder_is_no_session_and_nobody_at_the_address_is_said(run: Run, session: Path, tmp_path: Path) -> None:
    assert "is no file" in run(str(tmp_path), "--url", "http://127.0.0.1:1").stderr
    done = run(str(session), "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == ExitCode.UNREACHABLE


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(session: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ScriptedLlama(Behaviour(n_ctx=100_000, hangs_from=4)) as server:
        command = [sys.executable, "-m", "specdash", "bench", "replay", str(session), "--url", server.url]
        process = subprocess.Popen([*command, "--out", str(out), "--json"], stdout=subprocess.PIPE, text=True)
        until(lambda: server.requests >= 4, 20)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=20)
    assert process.returncode == ExitCode.INTERRUPTED
    assert json.loads(stdout)["outcome"] == "interrupted"
    assert json.loads((out / "report.json").read_text(encoding="utf-8"))["cold"]["calls"] == 2


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server whose model reads the synthetic sessions' words as whole tokens."""
    directory = tmp_path_factory.mktemp("reader")
    model = write_reader(directory / "reader.gguf", 16384)
    engine = os.environ.get("SPECDASH_TEST_ENGINE", "xllamacpp")
    env = {**engine_env(engine), "LLAMA_MODEL": str(model), "LLAMA_CTX_SIZE": "16384", "LLAMA_PARALLEL": "1"}
    with running_backend(env, directory) as backend:
        yield backend.url


@pytest.mark.engine
def test_the_cache_saves_time_on_the_real_server_and_the_more_the_longer_the_prefix(
    run: Run, reader: str, tmp_path: Path
) -> None:
    path = write_session(tmp_path / "s.jsonl", Shape(turns=10, first_chars=4_000, last_chars=40_000))
    done = run(str(path), "--url", reader, "--json", "--out", str(tmp_path / "out"), "--max-tokens", "8")
    told = json.loads(done.stdout)
    # Its weights are drawn: where the end is nearly as likely as a word, another batch shape may bring it.
    assert done.returncode == (ExitCode.FAILED if told["empty_with_cache_only"] else ExitCode.OK), done.stderr
    assert (told["cold"]["failed"], told["warm"]["failed"]) == (0, 0)
    assert told["compared"] >= 10 - told["empties"]
    assert told["cold"]["cached_share"] == 0
    assert told["warm"]["cached_share"] > 0.8
    for before, row in pairwise(told["calls"]):
        # All but the last few tokens of the prefix before are there.
        assert row["warm"]["cached_tokens"] >= 0.95 * before["warm"]["prompt_tokens"]
    assert told["ttft_ratio"] > 1.5


@pytest.mark.engine
def test_what_the_server_counts_is_what_tokenize_says(run: Run, reader: str, tmp_path: Path) -> None:
    path = write_session(tmp_path / "s.jsonl", Shape(turns=3, first_chars=2_000, last_chars=90_000))
    done = run(str(path), "--url", reader, "--json", "--out", str(tmp_path / "out"), "--cold")
    told = json.loads(done.stdout)
    assert told["left_out"] == [3]
    assert told["cold"]["failed"] == 0
