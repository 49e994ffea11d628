"""Sessions: who is remembered, for how long, what a turn teaches, and which one a request belongs to."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import Usage
from specdash.proxy.sessions import ProxySession, SessionStore, session_id
from support.clock import Clock
from support.messages_bodies import any_json


def make_store(ttl: float = 100.0, cap: int = 3) -> tuple[SessionStore, Clock]:
    clock = Clock()
    return SessionStore(ttl, cap, clock), clock


def make_session() -> ProxySession:
    return ProxySession("s", 0.0)


def test_an_id_has_one_session_until_it_was_idle_for_longer_than_the_ttl() -> None:
    store, clock = make_store(ttl=100)
    first = store.get("a")
    assert store.get("a") is first
    assert (store.find("b"), len(store)) == (None, 1)
    clock.now += 99
    assert store.find("a") is first
    clock.now += 2
    assert store.find("a") is None
    assert store.get("a") is not first


def test_beyond_the_cap_the_longest_idle_is_forgotten_and_the_latest_comes_first() -> None:
    store, clock = make_store(cap=3)
    for name in "abcade":
        clock.now += 1
        store.get(name)
        assert len(store) <= 3
    assert [session.id for session in store.all()] == ["e", "d", "a"]


def test_a_turn_says_what_it_used_of_the_window() -> None:
    session = make_session()
    assert session.utilisation(1000) is None
    session.turn_done(Usage(prompt=600, cached=100, completion=150), None, 1000)
    session.turn_done(Usage(prompt=400, completion=50), None, 1000)
    assert session.utilisation(1000) == pytest.approx(0.45)
    assert session.utilisation(None) is None
    assert (session.peak_tokens, session.peak_prompt_tokens) == (750, 600)
    view = session.view(1000, 0)
    assert (view.context_tokens, view.context_window, view.output_tokens) == (450, 1000, 50)


@pytest.mark.parametrize(
    ("sizes", "remaining"),
    [
        ([400], None),
        ([400, 500], 5),
        ([400, 300, 500], 2),
        ([400, 300], None),
        ([100, 200, 150, 450], 2),
        ([900, 1100], 0),
    ],
)
def test_turns_remaining_is_the_room_over_the_mean_growth(sizes: list[int], remaining: int | None) -> None:
    session = make_session()
    for size in sizes:
        session.turn_done(Usage(prompt=size), None, 1000)
    assert session.turns_remaining(1000) == remaining
    assert session.turns_remaining(None) is None


def test_the_scale_moves_only_when_the_ratio_moved_by_more_than_a_tenth() -> None:
    session = make_session()
    session.turn_done(Usage(prompt=10_900), 10_000, None)
    assert session.scale == 1.0
    session.turn_done(Usage(prompt=12_000), 10_000, None)
    assert session.scale == pytest.approx(1.2)
    session.turn_done(Usage(prompt=13_100), 10_000, None)
    assert session.scale == pytest.approx(1.2)


def test_forced_requests_are_counted_once_per_turn() -> None:
    session = make_session()
    for forced, messages in ((True, 3), (True, 3), (True, 5)):
        session.note_forced(forced, messages)
    assert session.forced_streak == 2
    session.note_forced(False, 7)
    assert session.forced_streak == 0
    session.note_forced(True, 7)
    assert session.forced_streak == 1


UUID_TEXT = "11111111-2222-3333-4444-555555555555"
USER = {"role": "user", "content": "hi"}
HEADERS = [
    "x-claude-code-session-id",
    "x-uap-session-id",
    "x-claude-session-id",
    "anthropic-session-id",
    "x-session-id",
]


def identity(headers: dict[str, str] | None = None, host: str = "127.0.0.1", **fields: Any) -> str:
    user = fields.get("metadata", {}).get("user_id")
    return session_id(headers or {}, user, fields.get("messages", [USER]), host)


class TestTheClientsWord:
    def test_headers_rank_in_order_and_an_empty_one_counts_as_absent(self) -> None:
        headers = {name: f" s{rank} " for rank, name in enumerate(HEADERS)}
        for rank, name in enumerate(HEADERS):
            assert identity(headers) == f"hdr:s{rank}"
            headers[name] = " "

    def test_an_agent_has_a_session_of_its_own_that_no_session_id_can_pose_as(self) -> None:
        agent = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
        assert identity(agent) == "hdr:s/a" != identity({"x-claude-code-session-id": "s/a"})
        assert identity({"x-claude-code-agent-id": "a"}).startswith("fp:")

    @pytest.mark.parametrize(
        ("user", "wanted"),
        [
            (f"user_0abc_account_{UUID_TEXT[::-1]}_session_{UUID_TEXT}", f"meta:{UUID_TEXT}"),
            (f'{{"device_id":"d","account_uuid":"","session_id":"{UUID_TEXT}"}}', f"meta:{UUID_TEXT}"),
            *((user, "fp:") for user in ("alice", '{"session_id":{}}', "[1]", "", 5, None, {"session_id": "x"})),
        ],
    )
    def test_claude_codes_user_id_holds_the_session_and_no_other(self, user: Any, wanted: str) -> None:
        assert identity(metadata={"user_id": user}).startswith(wanted)


class TestFingerprint:
    @given(st.integers(1, 4), st.from_regex(r"[0-9a-f]{4}", fullmatch=True))
    def test_all_turns_of_a_conversation_share_it(self, turns: int, nonce: str) -> None:
        def turn(number: int) -> list[Any]:
            call = {"type": "tool_use", "id": f"toolu_{nonce}{number}", "name": "Read", "input": {}}
            result = {"type": "tool_result", "tool_use_id": f"toolu_{nonce}{number}", "content": nonce}
            return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

        words = {"type": "text", "text": "fix the bug"}
        reminder = {"type": "text", "text": f"<system-reminder>\nnow {nonce}\n</system-reminder>"}
        first = {"role": "user", "content": [words]}
        later = {"role": "user", "content": [reminder, {**words, "cache_control": {"type": "ephemeral"}}]}
        grown = [later, *(message for number in range(turns) for message in turn(number))]
        assert identity(messages=grown) == identity(messages=[first])

    def test_hosts_and_users_are_kept_apart(self) -> None:
        ids = {identity(host="10.0.0.1"), identity(host="10.0.0.2"), identity(metadata={"user_id": "alice"})}
        assert len(ids) == 3


class TestHostileValues:
    @given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
    def test_every_id_is_short_printable_ascii(self, session: str, agent: str, user: str) -> None:
        headers = {"x-claude-code-session-id": session, "x-claude-code-agent-id": agent}
        for found in (identity(headers), identity(metadata={"user_id": user})):
            assert re.fullmatch(r"(hdr|meta|fp):[ -~]{1,257}", found)

    @pytest.mark.parametrize("value", ["x" * 129, "a\nb", "a\x00b", "sitzüng", "../../etc/passwd", "c:\\x", "a\x7fb"])
    def test_a_hostile_value_becomes_its_digest(self, value: str) -> None:
        found = identity({"x-session-id": value})
        assert re.fullmatch(r"hdr:sha256-[0-9a-f]{20}", found)
        assert found != identity({"x-session-id": value + "1"})


class TestChatCompletions:
    def test_the_conversation_keeps_its_fingerprint(self) -> None:
        first = [{"role": "system", "content": "Today is 2026-01-02."}, {"role": "user", "content": "hi"}]
        parts = [{"type": "text", "text": "hi"}]
        later = [{"role": "developer", "content": "Today is 2027-03-04."}, {"role": "user", "content": parts}]
        grown = [*later, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
        assert identity(messages=first) == identity(messages=grown)
        other = [*first[:1], {"role": "user", "content": "ho"}]
        assert identity(messages=first) != identity(messages=other)

    @given(
        st.dictionaries(st.sampled_from(["messages", "user"]), any_json),
        st.lists(st.dictionaries(st.sampled_from(["role", "content"]), any_json | st.just("user"))),
    )
    def test_any_body_has_a_session(self, body: dict[str, Any], messages: list[Any]) -> None:
        assert session_id({}, body.get("user"), body.get("messages"), "h")
        deep = msgspec.json.decode(b"[" * 700 + b"]" * 700)
        for content in (messages, [{"role": "user", "content": deep}]):
            assert session_id({}, body.get("user"), content, "h")
