"""What backend and proxy must agree on is an error whichever of them is checked."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from specdash.backend.launch import free_port
from specdash.backend.plan import Circumstances, judge
from specdash.cli.main import main
from specdash.core.changes import Role, changed_values, parse_assignments
from specdash.core.errors import Severity
from specdash.core.paths import backend_env_file, proxy_env_file
from support.engines import write_env

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdash.core.changes import WantedValues
    from specdash.core.errors import Finding

    Pair = dict[Role, dict[str, str]]

HERE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def ports() -> dict[str, str]:
    """What the words below stand for."""
    return {name: str(free_port("127.0.0.1")) for name in ("backend", "proxy", "nobody")}


@pytest.fixture
def fitting(models: dict[str, str], ports: dict[str, str]) -> Pair:
    """Two services that go together."""
    backend = {
        "LLAMA_MODEL": models["llama"],
        "LLAMA_CTX_SIZE": "4096",
        "LLAMA_PARALLEL": "2",
        "LLAMA_PORT": ports["backend"],
        "LLAMA_API_KEY": "first-key,second-key",
    }
    proxy = {
        "PROXY_PORT": ports["proxy"],
        "LLAMA_CPP_BASE": f"{HERE}:{ports['backend']}/v1",
        "PROXY_UPSTREAM_API_KEY": "second-key",
    }
    return {Role.BACKEND: backend, Role.PROXY: proxy}


def judged(pair: Pair, context: Circumstances, changed: frozenset[str] = frozenset()) -> tuple[Finding, ...]:
    """What both checks say, each finding once."""
    found: dict[Finding, None] = {}
    for role in Role:
        other = pair[Role.PROXY if role is Role.BACKEND else Role.BACKEND]
        found |= dict.fromkeys(judge(role, pair[role], replace(context, other=other, changed=changed)))
    return tuple(finding for finding in found if finding.severity is Severity.ERROR)


DISAGREEMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no key sent": ("upstream-key", ("-PROXY_UPSTREAM_API_KEY",)),
    "a wrong key sent": ("upstream-key", ("PROXY_UPSTREAM_API_KEY=third-key",)),
    "the backend moves": ("upstream", ("LLAMA_PORT=%nobody",)),
    "the backend moves by an argument": ("upstream", ("LLAMA_EXTRA_ARGS=--port %nobody",)),
    "the proxy looks at the default": ("upstream", ("-LLAMA_CPP_BASE",)),
    "a window larger than a slot": ("upstream-window", ("PROXY_CONTEXT_WINDOW=4096",)),
}


def with_changes(pair: Pair, wanted: WantedValues) -> Pair:
    return {role: changed_values(values, wanted.get(role, {})) for role, values in pair.items()}


def with_words(pair: Pair, words: tuple[str, ...], ports: dict[str, str]) -> Pair:
    filled = [re.sub(r"%(\w+)", lambda found: ports[found[1]], word) for word in words]
    return with_changes(pair, parse_assignments(filled))


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_a_disagreement_is_one_error_from_either_side(
    name: str, fitting: Pair, context: Circumstances, ports: dict[str, str]
) -> None:
    rule, words = DISAGREEMENTS[name]
    pair = with_words(fitting, words, ports)
    for role in Role:
        other = pair[Role.PROXY if role is Role.BACKEND else Role.BACKEND]
        found = judge(role, pair[role], replace(context, other=other))
        assert [finding.rule for finding in found if finding.severity is Severity.ERROR] == [rule]
    assert [finding.rule for finding in judged(pair, context)] == [rule]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("LLAMA_API_KEY=other", "PROXY_UPSTREAM_API_KEY=other"),
        ("-LLAMA_API_KEY",),
        ("LLAMA_PORT=%nobody", f"LLAMA_CPP_BASE={HERE}:%nobody"),
        ("LLAMA_CPP_BASE=http://localhost:%backend/v1",),
        ("LLAMA_CPP_BASE=http://other-machine:%nobody/v1", "LLAMA_API_KEY=other", "PROXY_CONTEXT_WINDOW=99999"),
        ("PROXY_CONTEXT_WINDOW=2048",),
        ("PROXY_CONTEXT_WINDOW=99999", "LLAMA_CTX_SIZE=0"),
    ],
)
def test_what_goes_together_is_not_refused(
    words: tuple[str, ...], fitting: Pair, context: Circumstances, ports: dict[str, str]
) -> None:
    assert judged(with_words(fitting, words, ports), context) == ()


def test_keys_in_a_file_count_as_well(fitting: Pair, context: Circumstances, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\nsecond-key\n", encoding="utf-8")
    del fitting[Role.BACKEND]["LLAMA_API_KEY"]
    fitting[Role.BACKEND]["LLAMA_API_KEY_FILE"] = str(file)
    assert judged(fitting, context) == ()
    fitting[Role.PROXY]["PROXY_UPSTREAM_API_KEY"] = "neither"
    assert [finding.rule for finding in judged(fitting, context)] == ["upstream-key"]


@pytest.fixture
def stranger() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


def test_a_proxy_in_front_of_another_server_of_this_machine_is_only_told_of(
    fitting: Pair, context: Circumstances, stranger: str
) -> None:
    fitting[Role.PROXY] |= {"LLAMA_CPP_BASE": f"{HERE}:{stranger}/v1", "PROXY_UPSTREAM_API_KEY": "its own"}
    assert judged(fitting, context) == ()
    found = judge(Role.PROXY, fitting[Role.PROXY], replace(context, other=fitting[Role.BACKEND]))
    assert [finding.severity for finding in found if finding.rule == "upstream"] == [Severity.WARNING]


def test_the_command_sees_the_other_service_although_it_is_not_asked_about(
    fitting: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    for make, values in ((backend_env_file, fitting[Role.BACKEND]), (proxy_env_file, fitting[Role.PROXY])):
        make().parent.mkdir(parents=True, exist_ok=True)
        write_env(make(), {**values, "LLAMA_ENGINE": "xllamacpp"} if make is backend_env_file else values)
    assert main(["preflight", "--json", "LLAMA_API_KEY=other"]) == 7
    shown = json.loads(capsys.readouterr().out)
    assert set(shown["services"]) == {"backend"}
    assert [row["rule"] for row in shown["findings"] if row["severity"] == "error"] == ["upstream-key"]
    assert main(["preflight", "--json", "LLAMA_API_KEY=other", "PROXY_UPSTREAM_API_KEY=other"]) == 0
