"""deploy/systemd: the unit by systemd's own word, and what it says of the broker."""

import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tests.deploy.conftest import Tool
from tests.deploy.files import DEPLOY
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings

UNIT = DEPLOY / "systemd" / "warmlog.service"
MAX_EXPOSURE = 2.0  # of 10; below 5 systemd says OK


def settings() -> dict[str, str]:
    parser = RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a command that is there."""
    text = UNIT.read_text()
    command = settings()["ExecStart"].split()[0]
    assert text.count(command) == 1
    path = tmp_path / UNIT.name
    path.write_text(text.replace(command, sys.executable))
    return path


@pytest.mark.interop
def test_systemd_has_nothing_to_say(tool: Tool, installed: Path) -> None:
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(installed)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.interop
def test_systemd_finds_mistakes(tool: Tool, installed: Path) -> None:
    installed.write_text(installed.read_text().replace("Type=notify", "Type=notified"))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(installed)], capture_output=True, text=True, check=False
    )
    assert "notified" in done.stderr


@pytest.mark.interop
def test_it_is_hardened(tool: Tool, installed: Path) -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:g}"]
    done = subprocess.run([*command, str(installed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_it_starts_and_stops_the_broker_as_the_broker_wants() -> None:
    from warmlog.cli.serve import serve

    unit = settings()
    _, command, *options = unit["ExecStart"].split()
    context = serve.make_context(command, options)
    assert context.params["is_secure"]
    data, secrets = unit["StateDirectory"].split()
    assert context.params["data_dir"] == f"/var/lib/{data}"
    assert secrets == f"{data}-secrets"
    assert str(context.params["config"]).startswith(f"/etc/{unit['ConfigurationDirectory']}/")
    assert unit["Type"] == "notify"
    assert unit["KillSignal"] == "SIGTERM"
    assert unit["RestartPreventExitStatus"] == "2"  # warmlog.cli.failure.CannotStart
    minutes = int(unit["TimeoutStopSec"].removesuffix("min"))
    assert minutes * 60 >= 60 + Settings().warmlog_stop_timeout_ms / 1000
    assert int(unit["LimitNOFILE"]) >= 65536


def test_the_settings_file_that_it_reads_is_one() -> None:
    loaded = load_settings(DEPLOY / "systemd" / "warmlog.toml")
    assert loaded.log_retention_hours == 168
