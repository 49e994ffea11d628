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
    removed = f"specdash: `specdash {command}` was removed: {REMOVED_COMMANDS[command]}\n"
    assert tuple(capsys.readouterr()) == ("", removed)


@pytest.mark.parametrize(("command", "option"), REMOVED_OPTIONS)
def test_a_removed_option_names_what_to_use(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    # A monitor's plugin answers on standard output, UNKNOWN.
    assert main([command or "snapshot", f"{option}=x"]) == (3 if command == "check" else ExitCode.USAGE)
    assert REMOVED_OPTIONS[(command, option)] in "".join(capsys.readouterr())


def test_what_is_in_use_is_not_in_the_table() -> None:
    assert not REMOVED_COMMANDS.keys() & {command.name for command in COMMANDS}
    assert not REMOVED_SETTINGS.keys() & BY_NAME.keys()


def test_a_removed_setting_is_ignored_with_a_warning_in_the_file_its_tables_and_the_environment() -> None:
    for key, instead in REMOVED_SETTINGS.items():
        warning = f"{key} was removed and is ignored: {instead}"
        if key.startswith("PROXY_"):
            assert settings_from_env({key: "on"}).problems == (f"environment: {warning}",)
            continue
        heard: list[str] = []
        text = f'{key} = "x"\nwindow = "15m"\n[[target]]\nname = "a"\nurl = "http://a:1"\n{key} = "y"\n'
        settings = resolve({}, {f"SPECDASH_{key.upper()}": "z"}, text, warn=heard.append)
        assert (settings["window"].value, key in settings["target"].value[0]) == ("15m", False)
        assert [warning in line for line in heard] == [True] * 3, heard


def test_a_command_reads_a_file_with_removed_settings_and_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text('backend_service = "podman:llama"\nwindow = "15m"\n', encoding="utf-8")
    for warning in (f"specdash: {config_file()}: backend_service was removed and is ignored", ""):
        assert main(["config", "show"]) == ExitCode.OK
        shown = capsys.readouterr()
        assert "15m" in shown.out
        assert warning in shown.err if warning else shown.err == ""
