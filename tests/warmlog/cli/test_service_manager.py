import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from warmlog.cli.service_manager import tell_ready


def listening(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address)
    sock.settimeout(60)
    return sock


def test_a_manager_at_a_path_is_told(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        tell_ready({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert manager.recv(100) == b"READY=1"


def test_a_manager_in_the_abstract_namespace_is_told() -> None:
    name = f"warmlog-test-{os.getpid()}"
    with listening(f"\0{name}") as manager:
        tell_ready({"NOTIFY_SOCKET": f"@{name}"})
        assert manager.recv(100) == b"READY=1"


def test_nobody_who_did_not_ask(tmp_path: Path) -> None:
    tell_ready({})
    tell_ready({"NOTIFY_SOCKET": ""})


def test_a_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tell_ready({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "could not be told" in caplog.text


def test_serve_tells_when_it_serves_and_ends_with_0(tmp_path: Path) -> None:
    """As the unit of deploy/systemd has it: no reader of its output, one of its notification."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with listening(str(tmp_path / "notify")) as manager:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert manager.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
