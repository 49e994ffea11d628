"""What a few completions show of speculation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.bench import smoke
from specdash.bench.smoke import CompletionKind, Instance, InstanceLook, SmokeCompletion, SmokeStatus, Speculation

GOOD = SmokeCompletion(
    CompletionKind.DIFFERENT, streamed=False, text="Bread is baked from flour and water.", finish="length",
    prompt_tokens=30,
    tokens=64, drafted=80, accepted=50, seconds=0.2, model="m", build="b1",
)  # fmt: skip
ON = Speculation(slots=2, drafting=2, types=("draft-simple",))
NGRAM = Speculation(slots=2, drafting=2, types=("ngram-mod",))
OFF = Speculation(slots=2, drafting=0)


@pytest.mark.parametrize(
    ("text", "tokens", "fault"),
    [
        ("", 12, "empty"),
        (" \n\n", 64, "empty"),
        ("<pad><pad> <pad>", 3, "padding only"),
        ("[PAD151935][PAD151935]", 2, "padding only"),
        ("<unk>" * 30, 30, "padding only"),
        ("<|endoftext|><|endoftext|>", 2, "padding only"),
        ("!" * 64, 64, "one token repeated"),
        ("@@@@@@@@@@@@@@@@", 16, "one token repeated"),
        (" the" * 20, 20, "one token repeated"),
        ("GG" * 40, 40, "one token repeated"),
        ("ab\ufffd\ufffd", 4, "unreadable"),
        ("\x01\x02\x03\x04x", 5, "unreadable"),
        ("!!!", 3, None),
        ("Yes.", 2, None),
        ("No no no no", 4, None),
        ("------------------------\nname | value\n", 12, None),
        ("日本語の文章です。", 9, None),
        ("def f(x):\n\treturn x\n" * 20, 120, None),
        ("a man a plan a canal a man a plan a canal a man", 12, None),
        ("0, 1, 2, 3, 4, 5, 6, 7, 8, 9", 28, None),
    ],
)
def test_texts_that_no_sound_model_writes(text: str, tokens: int, fault: str | None) -> None:
    assert smoke.output_fault(text, tokens) == fault


@given(st.text(alphabet="abcdefgh ", min_size=1, max_size=6).filter(str.strip), st.integers(8, 40))
def test_any_short_piece_over_and_over_is_one_token_repeated(unit: str, times: int) -> None:
    if len(unit.split()) == 1:
        assert smoke.output_fault(unit * times, times) == "one token repeated"


@given(st.lists(st.sampled_from(["bread", "flour", "salt", "and", "of", "water"]), min_size=12).map(tuple))
def test_text_of_several_words_is_not(words: tuple[str, ...]) -> None:
    if len(set(words)) > 1:
        assert smoke.output_fault(" ".join(words), len(words)) is None


def test_reasoning_and_tool_calls_are_signs_of_life() -> None:
    thinking = replace(GOOD, text="", reasoning="The user asks for haikus, so")
    calling = replace(GOOD, text="", tool_calls=1)
    check = smoke.output([GOOD, thinking, calling])
    assert check.status is SmokeStatus.PASS
    assert "1 with reasoning alone" in check.words
    assert smoke.output([GOOD, replace(GOOD, text="")]).status is SmokeStatus.FAIL
    assert smoke.output([replace(GOOD, text="", reasoning="!" * 64)]).status is SmokeStatus.FAIL
    assert smoke.output([replace(GOOD, error="HTTP 500")]).status is SmokeStatus.SKIP


def test_errors_fail_and_are_told_once_each() -> None:
    failed = replace(GOOD, error="HTTP 500: Compute error.")
    check = smoke.answers([GOOD, failed, failed, replace(failed, streamed=True)])
    assert check.status is SmokeStatus.FAIL
    assert check.words.count("Compute error") == 2
    assert smoke.answers([GOOD]).status is SmokeStatus.PASS


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        (ON, SmokeStatus.PASS, "2 of 2 slots draft (draft-simple)"),
        (replace(ON, expected=True, because="its env asks"), SmokeStatus.PASS, "its env asks"),
        (replace(ON, expected=False), SmokeStatus.FAIL, "and none should"),
        (replace(ON, drafting=1), SmokeStatus.FAIL, "only 1 of 2"),
        (OFF, SmokeStatus.PASS, "nothing says that it should"),
        (replace(OFF, expected=False, because="asked for none"), SmokeStatus.PASS, "asked for none"),
        (replace(OFF, expected=True), SmokeStatus.FAIL, "runs without speculation"),
        (Speculation(), SmokeStatus.WARN, "does not tell"),
    ],
)
def test_speculation_is_held_against_what_is_expected(told: Speculation, status: SmokeStatus, words: str) -> None:
    check = smoke.speculation(told)
    assert (check.status, words in check.words) == (status, True), check.words


def test_a_drafter_that_is_never_asked_fails() -> None:
    silent = replace(GOOD, drafted=0, accepted=0)
    assert smoke.drafter([silent, GOOD], ON).status is SmokeStatus.PASS
    assert smoke.drafter([silent] * 3, ON).status is SmokeStatus.FAIL
    assert smoke.drafter([silent] * 3, OFF).status is SmokeStatus.SKIP
    assert smoke.drafter([silent] * 3, Speculation()).status is SmokeStatus.WARN
    assert smoke.drafter([silent], NGRAM).status is SmokeStatus.WARN
    repeating = smoke.drafter([silent, replace(silent, kind=CompletionKind.REPEATING)], NGRAM)
    assert repeating.status is SmokeStatus.FAIL
    assert "not even where the text repeats" in repeating.words
    mixed = replace(NGRAM, types=("draft-simple", "ngram-mod"))
    assert smoke.drafter([silent], mixed).status is SmokeStatus.FAIL


def test_enough_drafts_are_those_after_which_a_drafter_of_that_level_is_ruled_out() -> None:
    assert smoke.enough_drafts() == 135
    assert 0.95**135 < 0.001 < 0.95**134
    assert smoke.enough_drafts(0.5, 0.001) == 10


@given(st.integers(1, 64), st.integers(1, 300))
def test_zero_accepted_fails_when_and_only_when_there_were_enough_drafts(per_answer: int, answers: int) -> None:
    completion = replace(GOOD, tokens=per_answer, drafted=4 * per_answer, accepted=0)
    check = smoke.acceptance([completion] * answers)
    enough = per_answer * answers >= smoke.enough_drafts()
    assert check.status is (SmokeStatus.FAIL if enough else SmokeStatus.WARN)
    alive = smoke.acceptance([replace(completion, accepted=per_answer * 4)] * answers)
    assert alive.status is SmokeStatus.PASS


def test_hardly_anything_accepted_is_a_warning() -> None:
    check = smoke.acceptance([replace(GOOD, drafted=400, accepted=3)])
    assert check.status is SmokeStatus.WARN
    assert "too few to gain" in check.words
    assert smoke.acceptance([replace(GOOD, drafted=0, accepted=0)]).status is SmokeStatus.SKIP


def test_the_cache_path_is_held_to_what_the_other_answers_reach() -> None:
    cold = replace(GOOD, kind=CompletionKind.IDENTICAL)
    warm = replace(cold, cached=28)
    assert smoke.cache_path([cold, warm, warm]).status is SmokeStatus.PASS
    broken = replace(warm, accepted=0, drafted=30, tokens=20)
    check = smoke.cache_path([cold, broken, GOOD, GOOD])
    assert check.status is SmokeStatus.FAIL, "20 drafts tell, where others have 62 %"
    assert smoke.cache_path([replace(cold, drafted=0, accepted=0), broken]).status is SmokeStatus.WARN
    assert smoke.cache_path([cold]).status is SmokeStatus.SKIP
    assert smoke.cache_path([cold, cold]).status is SmokeStatus.SKIP
    two = smoke.cache_path([cold, replace(warm, text="other words")])
    assert "2 texts" in two.words


def test_the_long_prompt_must_be_longer_than_a_batch_and_be_drafted_as_well() -> None:
    long = replace(GOOD, kind=CompletionKind.LONG, prompt_tokens=700)
    assert smoke.long_prompt([GOOD, long], 512).status is SmokeStatus.PASS
    assert smoke.long_prompt([GOOD, replace(long, prompt_tokens=400)], 512).status is SmokeStatus.WARN
    assert smoke.long_prompt([GOOD, replace(long, accepted=0)], 512).status is SmokeStatus.FAIL
    dead = replace(long, error="the server broke off")
    assert smoke.long_prompt([GOOD, dead], 512).status is SmokeStatus.FAIL
    assert "too small" in smoke.long_prompt([GOOD], 512, skipped="too small").words


SEEN = Instance("b1", "/m.gguf", "48399025149", (7, 1.5), 1000.0, 12)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(SEEN, build="b2"), "build b1 became b2"),
        (replace(SEEN, model="/n.gguf"), "another model"),
        (replace(SEEN, started="1"), "it was restarted"),
        (replace(SEEN, process=(8, 2.5)), "process 7 became 8"),
        (replace(SEEN, predicted=900.0), "counters went back"),
        (replace(SEEN, predicted=1010.0), "counters miss answers"),
        (replace(SEEN, task=3), "started over"),
    ],
)
def test_a_changed_server_fails_also_when_it_was_out_of_sight_between(after: Instance, words: str) -> None:
    moved = replace(SEEN, predicted=1064.0, task=13)
    assert smoke.instance([InstanceLook(SEEN), InstanceLook(moved, 64)], [GOOD]).status is SmokeStatus.PASS
    for looks in (
        [InstanceLook(SEEN), InstanceLook(after, 64)],
        [InstanceLook(SEEN), InstanceLook(Instance()), InstanceLook(after, 64)],
    ):
        check = smoke.instance(looks, [GOOD])
        assert check.status is SmokeStatus.FAIL
        assert words in check.words


def test_answers_of_another_model_or_build_fail() -> None:
    looks = [InstanceLook(SEEN)]
    assert smoke.instance(looks, [GOOD, replace(GOOD, model="n")]).status is SmokeStatus.FAIL
    assert smoke.instance(looks, [GOOD, replace(GOOD, build="b2")]).status is SmokeStatus.FAIL
    assert smoke.instance([InstanceLook(Instance())], [replace(GOOD, build=None)]).status is SmokeStatus.WARN


def test_counters_of_six_digits_are_not_taken_for_another_server() -> None:
    before = replace(SEEN, predicted=1.23457e7)
    assert smoke.instance([InstanceLook(before), InstanceLook(before, 64)], [GOOD]).status is SmokeStatus.PASS
