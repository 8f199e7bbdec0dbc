import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from warmlog.cli.root import root

READY = re.compile(r"ready kafka=(?:127\.0\.0\.1:\d+) native=(127\.0\.0\.1:\d+) http=(127\.0\.0\.1:\d+)\n")
FREE = ["--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0"]


@contextmanager
def serving(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the real command; kill it at the end if it still runs."""
    command = [sys.executable, "-m", "warmlog", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_served(url: str) -> None:
    """Retry until the broker answers; its output is not read."""
    while True:
        with suppress(OSError), urllib.request.urlopen(url) as reply:
            assert reply.status == 200
            return


def refused(*options: str) -> str:
    """Return the error line of a `serve` that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "warmlog", "serve", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def start_lines(process: subprocess.Popen[str]) -> tuple[str, re.Match[str]]:
    assert process.stdout is not None
    power_cut, ready = process.stdout.readline(), process.stdout.readline()
    match = READY.fullmatch(ready)
    assert match, f"{power_cut!r} {ready!r}"
    return power_cut, match


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_durability_then_ready_and_stops_cleanly_on_a_signal(tmp_path: Path, stop: signal.Signals) -> None:
    with serving("--data-dir", str(tmp_path), *FREE) as process:
        power_cut, ready = start_lines(process)
        assert power_cut.startswith("power cut: ")
        with urllib.request.urlopen(f"http://{ready[2]}/healthz") as reply:
            assert reply.status == 200
        process.send_signal(stop)
        rest, errors = process.communicate()
    assert process.returncode == 0
    assert rest == ""
    assert "Traceback" not in errors
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_signal_during_the_start_stops_cleanly_too(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), *FREE) as process:
        while not any(tmp_path.iterdir()) and process.poll() is None:
            pass  # the first file: the broker is being made
        process.terminate()
        process.communicate()
    assert process.returncode == 0


def test_json_logs_are_one_object_per_line(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), *FREE, "--log-json", "--log-level", "debug") as process:
        start_lines(process)
        process.terminate()
        _, errors = process.communicate()
    for line in errors.splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()


def test_a_disabled_listener_is_none_in_the_ready_line(tmp_path: Path) -> None:
    with serving(
        "--data-dir", str(tmp_path), "--kafka", "none", "--native", "127.0.0.1:0", "--http", "none"
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert re.fullmatch(r"ready kafka=none native=127\.0\.0\.1:\d+ http=none\n", process.stdout.readline())


def test_an_unknown_setting_is_reported_before_any_other_error(tmp_path: Path) -> None:
    line = refused(
        "--data-dir", str(tmp_path), "--kafka", "1:2", "--native", "nonsense", "--set", "log.segment.bites=1"
    )
    assert "log.segment.bites" in line
    assert "log.segment.bytes" in line


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.toml") in refused("--config", str(tmp_path / "none.toml"), *FREE)


def test_an_invalid_address_is_rejected(tmp_path: Path) -> None:
    assert "nonsense" in refused(
        "--data-dir", str(tmp_path), "--kafka", "none", "--native", "nonsense", "--http", "none"
    )


def test_a_port_in_use_is_rejected(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused("--data-dir", str(tmp_path), "--kafka", "none", "--native", address, "--http", "none")


def test_a_data_directory_in_use_is_rejected(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), *FREE) as process:
        start_lines(process)
        assert str(tmp_path) in refused("--data-dir", str(tmp_path), *FREE)


def test_settings_come_from_the_environment_too(tmp_path: Path) -> None:
    result = CliRunner().invoke(root, ["serve", "--data-dir", str(tmp_path)], env={"WARMLOG_NUM_PARTITIONS": "zero"})
    assert result.exit_code == 2
    assert "WARMLOG_NUM_PARTITIONS" in result.stderr


def test_serving_continues_after_the_reader_of_the_ready_line_is_gone(tmp_path: Path) -> None:
    """`warmlog serve | head -1` continues to serve."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    with serving("--data-dir", str(tmp_path), "--kafka", "none", "--native", "none", "--http", address) as process:
        assert process.stdout is not None
        process.stdout.close()
        wait_until_served(f"http://{address}/readyz")
        process.terminate()
        assert process.wait() == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
