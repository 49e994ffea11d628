"""Whether answers are the same, and whether where they are not rounding decided."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.bench.verify import (
    BUILT_IN,
    EPSILON,
    Agreement,
    GreedyAnswer,
    SendMode,
    VerifiedAnswer,
    VerifyReport,
    VerifySide,
    Weights,
    advice,
    against_itself,
    cause,
    first_difference,
    judge,
    read_prompts,
    weighed,
    worst,
)
from specdash.core.errors import InputError

LENGTH = 40
VOCABULARY = 7


@dataclass
class Model:
    """A greedy model of made-up logits: at a tied place two tokens are worth the same, or nearly so."""

    tied: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)

    def best(self, prefix: tuple[int, ...]) -> int:
        return (sum(prefix) * 3 + len(prefix)) % VOCABULARY

    def other(self, prefix: tuple[int, ...]) -> int:
        return (self.best(prefix) + 1) % VOCABULARY

    def logprob(self, prefix: tuple[int, ...], token: int) -> float | None:
        if token == self.best(prefix):
            return -0.7
        if token == self.other(prefix):
            return -0.7 - (EPSILON / 2 if len(prefix) in self.tied else 5.0)
        return None

    def weigh(self, prefix: tuple[int, ...], expected: int, got: int) -> Weights:
        self.asked.append(len(prefix))
        return Weights(self.logprob(prefix, expected), self.logprob(prefix, got), self.best(prefix))

    def resume(self, prefix: tuple[int, ...], left: int) -> tuple[int, ...]:
        text = prefix
        for _ in range(left):
            text = (*text, self.best(text))
        return text[len(prefix) :]

    def answer(self, flips: frozenset[int] = frozenset(), *, wrong: int | None = None) -> GreedyAnswer:
        """Its greedy answer, with the other token at the tied places `flips`, and a token of no worth at `wrong`."""
        text: tuple[int, ...] = ()
        for at in range(LENGTH):
            token = self.other(text) if at in flips else self.best(text)
            text = (*text, (self.best(text) + 3) % VOCABULARY if at == wrong else token)
        return GreedyAnswer(text)


def run_of(
    answer: GreedyAnswer,
    *,
    side: VerifySide = VerifySide.CANDIDATE,
    way: SendMode = SendMode.SEQUENTIAL,
    prompt: int = 0,
) -> VerifiedAnswer:
    return VerifiedAnswer(side, way, 1, prompt, answer, Agreement.UNDECIDED, LENGTH)


def judged(model: Model, answer: GreedyAnswer, *, followed: int = LENGTH) -> VerifiedAnswer:
    return judge(
        run_of(answer), model.answer(), weigh=model.weigh, resume=model.resume, candidate=None, followed=followed
    )


places = st.frozensets(st.integers(0, LENGTH - 1), max_size=8)


@given(places)
def test_an_answer_that_left_the_baselines_at_near_ties_alone_is_a_batch_shape_effect(flips: frozenset[int]) -> None:
    model = Model(flips)
    run = judged(model, model.answer(flips))
    assert run.verdict is (Agreement.BATCH_SHAPE if flips else Agreement.IDENTICAL)
    assert [difference.at for difference in run.differences] == sorted(flips)
    assert run.checked == LENGTH
    assert run.matched == min(flips, default=LENGTH)


@given(places, st.integers(0, LENGTH - 1))
def test_one_wrong_token_is_found_where_it_is_also_behind_near_ties(flips: frozenset[int], wrong: int) -> None:
    model = Model(flips)
    run = judged(model, model.answer(flips, wrong=wrong))
    assert run.verdict is Agreement.DAMAGED
    assert run.differences[-1].at == wrong
    assert run.telling == run.differences[-1]
    assert [difference.at for difference in run.differences[:-1]] == sorted(at for at in flips if at < wrong)
    assert run.checked == wrong + 1


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_the_first_difference_is_where_the_common_beginning_ends(row: list[int], other: list[int]) -> None:
    at = first_difference(row, other)
    assert (at is None) is (row == other)
    if at is not None:
        assert row[:at] == other[:at]
        assert row[at : at + 1] != other[at : at + 1]


@given(st.lists(st.integers(0, 6), max_size=LENGTH).map(tuple), places)
def test_an_answer_that_ends_early_is_damage_whatever_it_says(tokens: tuple[int, ...], tied: frozenset[int]) -> None:
    model = Model(tied)
    run = judged(model, GreedyAnswer(tokens))
    assert (run.verdict is Agreement.IDENTICAL) is (tokens == model.answer().tokens)
    if len(tokens) < LENGTH and not any(
        difference.expected is not None and not difference.near_tie for difference in run.differences[:-1]
    ):
        assert run.verdict is Agreement.DAMAGED


def test_near_ties_are_followed_only_so_far_and_the_run_says_how_far() -> None:
    flips = frozenset(range(0, 20, 2))
    model = Model(flips)
    run = judged(model, model.answer(flips), followed=3)
    assert run.verdict is Agreement.BATCH_SHAPE
    assert len(run.differences) == 4
    assert run.checked == run.differences[-1].at + 1 < LENGTH


@pytest.mark.parametrize(
    ("baseline", "candidate", "near"),
    [
        (Weights(-0.7, -0.75), None, True),
        (Weights(-0.75, -0.7), None, True),
        (Weights(-0.7, -0.75), Weights(-0.74, -0.7, 5), True),
        (Weights(-0.7, -0.75), Weights(-6.0, -0.01, 5), False),
        (Weights(-0.7, -0.75), Weights(None, -0.01, 5), False),
        (Weights(-0.7, -0.9), None, False),
        (Weights(-0.1, None), None, False),
        (None, Weights(-0.7, -0.7, 5), False),
    ],
)
def test_a_near_tie_is_one_in_the_eyes_of_both(baseline: Weights | None, candidate: Weights | None, near: bool) -> None:
    model = Model()
    difference = judged(model, model.answer(wrong=3)).differences[0]
    assert weighed(difference, baseline, candidate, EPSILON).near_tie is near


def test_a_text_that_the_baseline_gives_another_way_is_no_damage() -> None:
    model = Model(frozenset({4}))
    other = replace(run_of(model.answer(frozenset({4})), side=VerifySide.BASELINE, way=SendMode.PARALLEL))
    other = replace(other, verdict=Agreement.BATCH_SHAPE)
    run = against_itself(judged(Model(), other.answer), [other])
    assert run.verdict is Agreement.BATCH_SHAPE
    assert run.as_baseline is SendMode.PARALLEL
    assert "in parallel" in cause(run)


def test_where_the_baseline_is_not_reproducible_nothing_is_claimed() -> None:
    model = Model()
    broken = replace(run_of(model.answer(wrong=2), side=VerifySide.BASELINE), verdict=Agreement.DAMAGED)
    run = judged(model, model.answer(wrong=9))
    assert against_itself(run, [broken]).verdict is Agreement.UNDECIDED
    assert against_itself(run, [replace(broken, prompt=1)]).verdict is Agreement.DAMAGED
    same = judged(model, model.answer())
    assert against_itself(same, [broken]).verdict is Agreement.IDENTICAL


def test_the_cause_tells_drafting_from_another_model() -> None:
    model = Model()
    run = judged(model, model.answer(wrong=3))
    difference = run.differences[-1]
    assert difference.expected is not None
    drafting = replace(run, differences=(replace(difference, candidate_first=difference.expected),))
    assert "its drafting is at fault" in cause(drafting)
    assert "another model" in cause(replace(run, differences=(replace(difference, candidate_first=difference.got),)))
    assert "ended early" in cause(replace(run, differences=(replace(difference, got=None),)))
    assert cause(judged(model, model.answer())) == ""


def test_the_report_has_the_worst_verdict() -> None:
    model = Model(frozenset({4}))
    answers = [model.answer(), model.answer(frozenset({4})), model.answer(wrong=1)]
    found = [VerifyReport([judged(model, answer) for answer in answers[:count]]).verdict for count in range(4)]
    assert found == [None, Agreement.IDENTICAL, Agreement.BATCH_SHAPE, Agreement.DAMAGED]
    assert worst([]) is None


def test_advice_says_what_was_not_put_to_the_test_and_how_to_get_reproducible_answers() -> None:
    model = Model(frozenset({4}))
    plain, full = model.answer(), replace(model.answer(), drafted=8, accepted=8)
    shaken = replace(judged(model, model.answer(frozenset({4}))), way=SendMode.PARALLEL)

    def said(*runs: VerifiedAnswer, slots: int = 2, speculates: bool = True) -> str:
        return " ".join(advice(VerifyReport(list(runs)), slots=slots, speculates=speculates))

    assert "drafted nothing" in said(judged(model, plain))
    assert not said(judged(model, plain), speculates=False)
    assert "one slot" in said(judged(model, plain), slots=1)
    assert "no draft token was rejected" in said(judged(model, full))
    assert not said(judged(model, replace(full, accepted=7)))
    assert "--no-kv-unified" in said(shaken)
    assert "LLAMA_FLASH_ATTN=off" not in said(shaken)
    assert "LLAMA_FLASH_ATTN=off" in said(replace(shaken, way=SendMode.SEQUENTIAL))


# The prompts of a verification, our own and the operator's.


SECRET = "nobody must see this"
MESSAGES = [{"role": "user", "content": "hello"}]


def written(directory: Path, text: str) -> str:
    file = directory / "prompts"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_our_own_prompts_are_long_enough_that_kernels_are_not_switched() -> None:
    assert len({verify_prompt.name for verify_prompt in BUILT_IN}) == len(BUILT_IN) == 4
    for verify_prompt in BUILT_IN:
        words = str(verify_prompt.messages[0]["content"]).split()
        assert len(words) > 80, "every word is a token at least"


@pytest.mark.parametrize(
    "text",
    [
        "first text\nof two lines\n---\nsecond text\n---\n",
        json.dumps(["first text\nof two lines", "second text"]),
        json.dumps("first text\nof two lines") + "\n\n" + json.dumps({"prompt": "second text"}) + "\n",
        json.dumps([{"prompt": "first text\nof two lines"}, {"prompt": "second text", "name": "prompt 2"}]),
    ],
)
def test_prompts_are_read_as_json_json_lines_and_plain_texts(text: str, tmp_path: Path) -> None:
    found = read_prompts(written(tmp_path, text))
    assert [verify_prompt.text for verify_prompt in found] == ["first text\nof two lines", "second text"]
    assert [verify_prompt.name for verify_prompt in found] == ["prompt 1", "prompt 2"]


def test_messages_are_kept_for_the_chat_template(tmp_path: Path) -> None:
    [verify_prompt] = read_prompts(written(tmp_path, json.dumps({"messages": MESSAGES, "name": "greeting"})))
    assert (verify_prompt.name, verify_prompt.messages, verify_prompt.text) == ("greeting", tuple(MESSAGES), "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no prompt"),
        ("---\n---\n", "has no prompt"),
        ("[1]", "prompt 1: must be a text"),
        ('["a", {}]', "prompt 2: needs either"),
        (json.dumps({"prompt": SECRET, "messages": MESSAGES}), "needs either"),
        ('{"prompt": " "}', "not empty"),
        ('{"messages": []}', "messages must be"),
        ('{"messages": [{"role": "user"}]}', "messages must be"),
        (json.dumps({"prompt": SECRET, "name": "a\x1bb"}), "name must be"),
        (f'"{SECRET}"\n{{"prompt": {SECRET}}}', "line 2: is not JSON"),
        (json.dumps(["x"] * 65), "64 are the most"),
    ],
)
def test_what_is_no_prompts_file_is_named_without_quoting_it(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prompts ") as caught:
        read_prompts(written(tmp_path, text))
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)
