"""The address of a machine behind ssh: what it names, what it becomes a command of, and what it may not hold."""

from __future__ import annotations

import shlex

import pytest

from specdash.core.errors import UsageError
from specdash.core.target import is_seen_whole, local_port, ssh_host, target_url


@pytest.mark.parametrize(
    ("written", "name", "port", "server"),
    [
        ("ssh://gpu1", "gpu1", None, None),
        ("SSH://ann@gpu1.lan/", "ann@gpu1.lan", None, None),
        ("ssh://ann@gpu1:2222/127.0.0.1:8081", "ann@gpu1", 2222, "http://127.0.0.1:8081"),
        ("ssh://gpu1/https://10.0.0.5:8443/llama/", "gpu1", None, "https://10.0.0.5:8443/llama"),
        ("ssh://ann@[fe80::1]:22", "ann@fe80::1", 22, None),
    ],
)
def test_it_names_a_host_as_ssh_takes_it_and_the_server_as_seen_from_there(
    written: str, name: str, port: int | None, server: str | None
) -> None:
    host = ssh_host(written)
    assert (host.name, host.port, host.server) == (name, port, server)
    assert ssh_host(host.url) == host, "what it is called is its address"
    assert target_url(written) == host.url


@pytest.mark.parametrize(
    "written",
    [
        "ssh://",
        "ssh://-oProxyCommand=evil",
        "ssh://ann@-x",
        "ssh://ann:secret@gpu1",
        "ssh://gpu1:0",
        "ssh://a b",
        "ssh://gpu1:",
    ],
)
def test_what_ssh_would_take_for_an_option_or_holds_a_password_is_refused_without_repeating_it(written: str) -> None:
    with pytest.raises(UsageError) as refused:
        ssh_host(written)
    assert "secret" not in str(refused.value)


def test_the_shell_there_sees_each_option_as_one_word_whatever_it_holds() -> None:
    command, options = ("ssh", "-F", "my file"), ("--log", "a b;rm")
    host = ssh_host("ssh://gpu1:2222/127.0.0.1:1", command=command, program="~/bin/specdash", options=options)
    *words, remote = host.argv(("--refresh", "1"))
    assert words == ["ssh", "-F", "my file", "-o", "BatchMode=yes", "-T", "-p", "2222", "gpu1"]
    assert remote.startswith("~/bin/specdash agent "), "the program is the shell's to find"
    assert shlex.split(remote)[2:] == ["--url", "http://127.0.0.1:1", "--log", "a b;rm", "--refresh", "1"]


def test_it_is_no_port_of_this_machine_even_where_the_host_is() -> None:
    assert local_port("ssh://localhost:2222") is None
    assert is_seen_whole("ssh://gpu1"), "GPUs and processes are read there"
    assert not is_seen_whole("http://gpu1:8080")
