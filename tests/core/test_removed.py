"""Commands, options and settings of earlier versions: each answers with what to use instead."""

import pytest

from specdash.cli.commands import COMMANDS
from specdash.cli.main import main
from specdash.core.config import BY_NAME, resolve
from specdash.core.errors import ExitCode
from specdash.core.paths import config_file
from specdash.core.removed import REMOVED_COMMANDS, REMOVED_OPTIONS, REMOVED_SETTINGS
from specdash.proxy.settings import settings_from_env


@pytest.mark.parametrize("command", REMOVED_COMMANDS)
def test_a_removed_command_names_what_to_use(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"specdash: `specdash {command}` was removed: {REMOVED_COMMANDS[command]}\n"


@pytest.mark.parametrize(("command", "option"), REMOVED_OPTIONS)
def test_a_removed_option_names_what_to_use(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    # A monitor's plugin answers on standard output, UNKNOWN.
    assert main([command or "snapshot", f"{option}=x"]) == (3 if command == "check" else ExitCode.USAGE)
    assert REMOVED_OPTIONS[(command, option)] in "".join(capsys.readouterr())


def test_what_is_in_use_is_not_in_the_table() -> None:
    assert not REMOVED_COMMANDS.keys() & {command.name for command in COMMANDS}
    assert not REMOVED_SETTINGS.keys() & BY_NAME.keys()


@pytest.mark.parametrize("key", [key for key in REMOVED_SETTINGS if not key.startswith("PROXY_")])
def test_a_removed_setting_is_ignored_with_a_warning(key: str) -> None:
    heard: list[str] = []
    settings = resolve({}, {}, f'{key} = "x"\nwindow = "15m"\n', warn=heard.append)
    assert settings["window"].value == "15m"
    assert heard == [f"config.toml: {key} was removed and is ignored: {REMOVED_SETTINGS[key]}"]


def test_a_removed_setting_is_ignored_in_tables_and_the_environment_too() -> None:
    heard: list[str] = []
    text = '[[target]]\nname = "a"\nurl = "http://a:1"\nmanager = "systemd"\n'
    settings = resolve({}, {"SPECDASH_BACKEND_SERVICE": "mine.service"}, text, warn=heard.append)
    assert "manager" not in settings["target"].value[0]
    assert len(heard) == 2
    assert all("backend_env_file and proxy_env_file name one of several" in line for line in heard)


def test_a_command_reads_a_file_with_removed_settings_and_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text('backend_service = "podman:llama"\nwindow = "15m"\n', encoding="utf-8")
    assert main(["config", "show"]) == ExitCode.OK
    shown = capsys.readouterr()
    assert f"specdash: {config_file()}: backend_service was removed and is ignored" in shown.err
    assert "15m" in shown.out
    assert main(["config", "show"]) == ExitCode.OK
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("key", [key for key in REMOVED_SETTINGS if key.startswith("PROXY_")])
def test_a_removed_key_of_the_proxy_is_ignored_with_a_warning(key: str) -> None:
    assert settings_from_env({key: "on"}).problems == (
        f"environment: {key} was removed and is ignored: {REMOVED_SETTINGS[key]}",
    )
