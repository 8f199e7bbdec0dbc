import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from warmlog.cli.serve import notify_ready


def listening(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address)
    sock.settimeout(60)
    return sock


def test_a_service_manager_at_a_path_is_notified(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        notify_ready({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert manager.recv(100) == b"READY=1"


def test_a_service_manager_in_the_abstract_namespace_is_notified() -> None:
    name = f"warmlog-test-{os.getpid()}"
    with listening(f"\0{name}") as manager:
        notify_ready({"NOTIFY_SOCKET": f"@{name}"})
        assert manager.recv(100) == b"READY=1"


def test_without_a_socket_nothing_is_sent(tmp_path: Path) -> None:
    notify_ready({})
    notify_ready({"NOTIFY_SOCKET": ""})


def test_an_unreachable_service_manager_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify_ready({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "cannot notify the service manager" in caplog.text


def test_serve_notifies_readiness_and_exits_with_0_on_sigterm(tmp_path: Path) -> None:
    """As in the unit of deploy/systemd: standard output is not read, the notification is."""
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
