"""Real Spark writes transactions into a broker that is killed meanwhile and started again at once."""

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.pipeline.session import program_environment, takes_limits
from tests.pipeline.sink.attempt import wait_for_markers
from warmlog.client.blocking import Client

LIMIT_S = 300

pytestmark = [pytest.mark.interop, pytest.mark.timeout(LIMIT_S + 60), takes_limits]  # takes minutes

STREAM = Path(__file__).with_name("sink_stream.py")
ROWS = 600  # in three micro-batches
READY = re.compile(r"\bnative=(\S+)")


class Restarted:
    """A broker in a process of its own, which is started again at the same address whenever it is killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.native = "127.0.0.1:0"
        self.starts = 0
        self._ending = False
        self._process = self._start()
        self.pid = self._process.pid  # of the first process
        self._guard = threading.Thread(target=self._restart)
        self._guard.start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(self._directory), "--http", "none"]
        command += ["--kafka", "none", "--native", self.native]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        self.native = next(found[1] for line in process.stdout if (found := READY.search(line)))
        self.starts += 1
        return process

    def _restart(self) -> None:
        while not self._ending:
            assert self._process.stdout is not None
            self._process.stdout.read()
            if self._process.wait() == -signal.SIGKILL and not self._ending:
                self._process.stdout.close()
                self._process = self._start()

    def end(self) -> None:
        self._ending = True
        self._process.kill()
        self._guard.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Restarted]:
    running = Restarted(tmp_path / "data")
    yield running
    running.end()


def committed(client: Client) -> Counter[int]:
    """Return the values that readers of committed records see once all markers are written."""
    wait_for_markers(client)
    records = client.consume("copy", start="beginning", until_end=True, isolation="read_committed")
    return Counter(int(record.value or b"") for record in records)


@pytest.mark.parametrize("fault", ["kill-broker-writing", "kill-broker-deciding", "kill-broker-ending"])
def test_a_transactional_stream_goes_on_when_the_broker_is_killed(
    broker: Restarted, tmp_path: Path, fault: str
) -> None:
    with Client(broker.native) as client:
        client.create_topic("source", partitions=2)
        client.produce_many("source", [(b"k%d" % (at % 5), b"%d" % at) for at in range(ROWS)])
    command = [sys.executable, str(STREAM), broker.native, str(tmp_path), fault, "transactional=true"]
    command.append(f"broker={broker.pid}")
    ended = subprocess.run(
        [*command, f"broker={broker.pid}"],
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert broker.starts == 2
    with Client(broker.native) as client:
        assert committed(client) == Counter(range(ROWS))
        assert {listed.state for listed in client.list_transactions()} <= {"CompleteCommit", "CompleteAbort", "Empty"}
