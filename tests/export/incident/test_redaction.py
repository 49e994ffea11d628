"""The one table of secrets, and the one pass that takes them out."""

import json
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.masking import MASK
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.export.incident.redaction import TABLE, Redactor, spellings

PLAIN = Redactor()
CANARY = "Wombat8f3a77c1"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key {CANARY}",
        f"--api-key={CANARY}",
        f"--api_key '{CANARY} x'",
        f"llama-server -m m.gguf --hf-token {CANARY} -c 4096",
        f"Authorization: Bearer {CANARY}",
        f'"authorization": "Basic {CANARY}"',
        f"bearer {CANARY}",
        f"x-api-key: {CANARY}",
        f"api_key={CANARY}",
        f'{{"apikey": "{CANARY}"}}',
        f"LLAMA_API_KEY={CANARY}",
        f"SOME_SECRET='{CANARY}'",
        f"password: {CANARY}",
        f"https://user:{CANARY}@host.example/path",
        f"https://{CANARY}@host.example/path",
        f"postgres://a:{CANARY}@db:5432/x",
        f"sk-{CANARY}",
        f"sk-ant-api03-{CANARY}",
        f"hf_{CANARY}",
        f"ghp_{CANARY}",
        f"glpat-{CANARY}",
        f"xoxb-{CANARY}",
        f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
        f"{CANARY}@example.org",
        f"mail from first.{CANARY}+tag@mail.example.co.uk",
    ],
)
def test_every_kind_of_secret_is_taken_out(text: str) -> None:
    for around in ("{}", "before {} after", "(see {})", "x\n{}\ny"):
        assert CANARY not in PLAIN.text(around.format(text)), around


def test_every_row_of_the_table_is_needed() -> None:
    """Each row alone takes something out; a row that never matches would be a promise that nobody keeps."""
    samples = (
        "-----BEGIN PRIVATE KEY-----abc", "Authorization: abc", "bearer abcdefgh", "--password hush", "token=hush",
        "sk-abcdefgh", "http://a:b@c/", "a@b.example",
    )  # fmt: skip
    assert all(any(pattern.search(text) for text in samples) for _, pattern, _ in TABLE)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096, draft tokens = 12",
        "http://127.0.0.1:8080/v1/messages",
        "llama-server --model /srv/models/qwen.gguf --spec-draft-n-max 8 --ctx-size 4096",
        "acceptance fell from 71 % to 12 % (n 40)",
        "the key figures are below",
        "api_key_env",
        "task-1234, sk 5, hf-space",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert PLAIN.text(text) == text


letters = string.ascii_letters + string.digits + "-_./+=%&\"'\\ é✓"
# Blanks around a key are no part of it.
secrets = st.text(letters, min_size=8, max_size=40).filter(lambda secret: len(secret.strip()) >= 8)


@given(secrets, st.text(max_size=30), st.text(max_size=30))
def test_a_known_secret_is_found_wherever_and_however_it_is_written(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    for spelling in spellings(secret):
        assume(spelling not in MASK)
        assert spelling not in redactor.text(before + spelling + after)


@given(secrets)
def test_a_known_secret_is_in_no_data_however_deep(secret: str) -> None:
    data = {"a": [{"b": (f"x {secret} y", 1, None)}], secret: secret, "nested": {"key": [secret]}}
    written = json.dumps(Redactor([secret]).data(data), ensure_ascii=False)
    assert not any(spelling in written for spelling in spellings(secret))


@given(st.text(max_size=200))
def test_redacting_is_done_once_and_for_all(text: str) -> None:
    once = PLAIN.text(text)
    assert PLAIN.text(once) == once


def test_a_text_under_the_key_of_a_secret_is_masked_whole() -> None:
    assert PLAIN.data({"api_key": "abc", "API_KEY_FILE": "/etc/key", "prompt_tokens": 5}) == {
        "api_key": MASK,
        "API_KEY_FILE": "/etc/key",
        "prompt_tokens": 5,
    }


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("LLAMA_API_KEY", "abc", MASK),
        ("LLAMA_CTX_SIZE", "4096", "4096"),
        ("LLAMA_MODEL", "/srv/my models/qwen.gguf", "/srv/my models/qwen.gguf"),
        ("LLAMA_SPEC_TYPE", "draft-simple,ngram-mod", "draft-simple,ngram-mod"),
        ("LLAMA_ARG_MCP_SERVERS_JSON", '{"a":{"env":{"X":"hush"}}}', MASK),
        ("MY_OWN", "hush", MASK),
        ("MY_OWN", "12.5", "12.5"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("LLAMA_EXTRA_ARGS", "--api-key hush --mlock --ctx-size 512", "--api-key *** --mlock --ctx-size 512"),
        (
            "LLAMA_EXTRA_ARGS",
            "--chat-template 'You are hush' --jinja",
            "--chat-template '(text of 12 characters)' --jinja",
        ),
        ("LLAMA_EXTRA_ARGS", "--not-a-flag hush", "--not-a-flag ***"),
        ("LLAMA_EXTRA_ARGS", "--not-a-flag=hush", "--not-a-flag=***"),
        ("LLAMA_EXTRA_ARGS", "unbalanced ' hush", "(text of 17 characters)"),
    ],
)
def test_settings_are_shown_by_what_they_are(key: str, value: str, shown: str) -> None:
    assert PLAIN.setting(key, value) == shown


@given(st.lists(st.text(min_size=1, max_size=12), max_size=8))
def test_an_argument_vector_keeps_its_length_and_loses_what_is_unknown(words: list[str]) -> None:
    shown = PLAIN.command(["llama-server", *words, "--api-key", CANARY, "--grammar", f"root ::= '{CANARY}'"])
    assert len(shown) == len(words) + 5
    assert not any(CANARY in word for word in shown)


def test_a_command_line_stays_readable() -> None:
    words = ["/opt/llama-server", "--model", "/m/q.gguf", "-c", "4096", "--jinja", "--port=8080", "--draft-max", "16"]
    assert list(PLAIN.command(words)) == words


LINE = f"0.01.205.300 W srv  x: the draft model '{CANARY}' is not compatible with the target model '{CANARY}'"


def test_of_a_printed_document_what_others_wrote_is_rebuilt_or_left_out() -> None:
    document = {
        "log": {"warnings": {"vocab_mismatch": {"sample": LINE, "count": 3}}},
        "backend": {
            "speculation": {"problem": LINE},
            "reason": LINE,
            "process": {"command": ["x", "--grammar", CANARY]},
        },
        "proxy": {
            "problems": [f"PROXY_X='{CANARY}': must be a number"],
            "finished": [{"request_id": f"id of {CANARY}", "error_type": f"{CANARY}!", "tool_calls": [CANARY], "n": 4}],
        },
        "requests": [{"error": f"parse error near {CANARY}"}],
    }
    clean = PLAIN.data(document)
    assert CANARY not in json.dumps(clean)
    assert clean["log"]["warnings"]["vocab_mismatch"]["count"] == 3
    assert clean["proxy"]["problems"] == ["PROXY_X …"]
    (finished,) = clean["proxy"]["finished"]
    assert (finished["tool_calls"], finished["n"]) == (["…"], 4)


def test_records_lose_the_log_lines_that_they_quote() -> None:
    alert = Alert("r", "R", AlertSeverity.WARNING, LINE, 1.0, 1.0, 1.0, evidence=(("sample", LINE), ("share", "5 %")))
    clean = PLAIN.alert(alert)
    assert CANARY not in str(clean)
    assert clean.evidence[1] == ("share", "5 %")
    change = Change(Role.BACKEND, "MY_OWN_THING", CANARY, "4")
    record = ApplyRecord(
        1, 1.0, 2.0, ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK, (change,), reason=f"it says: {LINE}", log_lines=(LINE,)
    )
    assert CANARY not in str(PLAIN.apply(record))
    assert CANARY not in str(PLAIN.event(TimelineEvent(1.0, EventKind.STATE, LINE, detail=LINE)))


def test_an_env_file_is_shown_without_comments_secrets_and_unknown_keys() -> None:
    text = f"# {CANARY}\nLLAMA_DRAFT_MAX=16\nLLAMA_API_KEY={CANARY}\nMY_OWN={CANARY}\n{CANARY}\n"
    assert PLAIN.env_file(text).splitlines() == [
        "# (comment left out)", "LLAMA_DRAFT_MAX=16", "LLAMA_API_KEY=***", "MY_OWN=***", "# (unreadable line left out)",
    ]  # fmt: skip
