"""Starts after clean and unclean stops: receipts, progress, several logs at once, and a stop in the middle."""

import json
import logging
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier, get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.receipt import Receipt, read_receipts
from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.disks.startup import LOG_INTERVAL_S, RecoveredLogs, StartProgress
from warmlog.broker.settings.listeners import join_address
from warmlog.client import Client
from warmlog.protocol.partitions import TopicPartition
from warmlog.testing import Broker


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def report(scanned_bytes: int = 0) -> RecoveryReport:
    return RecoveryReport(
        recovery_point=0,
        scanned_segments=1,
        scanned_bytes=scanned_bytes,
        truncated_bytes=0,
        truncated_at=None,
        truncation_reason=None,
        removed_segments=(),
        rebuilt_indexes=(),
        seconds=0.0,
    )


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_is_told_in_the_log_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warmlog.broker.partitions.disks.startup")
    clock = Clock()
    progress = StartProgress(clock)
    progress.begin(1000)
    for _ in range(40):
        clock.now_s += LOG_INTERVAL_S / 10
        progress.scanned(100)
        progress.opened(report())
    assert [record.getMessage() for record in caplog.records] == [
        f"opening logs: {10 * turn - 1} of 1,000 logs open, {10 * turn - 1} of them recovered,"
        f" {1000 * turn:,} bytes checked in {LOG_INTERVAL_S * turn:.1f} s"
        for turn in range(1, 5)
    ]


def test_progress_for_scripts(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    progress = StartProgress(clock)
    progress.begin(3)
    clock.now_s += 1.5
    progress.opened(None)
    progress.opened(report())
    progress.scanned(77)
    form = {"logs": 3, "opened_logs": 2, "recovered_logs": 1, "scanned_bytes": 77, "seconds": 1.5}
    assert progress.form() == form
    progress.end()
    clock.now_s += 100
    progress.scanned(1)
    assert progress.seconds == 1.5
    assert not caplog.records


# -- several at once ---------------------------------------------------------------------------------------------------


class FakeLog:
    """What `RecoveredLogs` asks of a log."""

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.closed: bool | None = None

    def close(self, *, clean: bool) -> None:
        self.closed = clean


def keys(topic: str, count: int) -> list[TopicPartition]:
    return [(topic, index) for index in range(count)]


def ahead_of(
    queues: Sequence[Sequence[TopicPartition]], open_log: object, progress: StartProgress | None = None
) -> RecoveredLogs:
    ahead = RecoveredLogs()
    ahead.run(queues, open_log, threads_each=2, progress=progress or StartProgress())  # type: ignore[arg-type]  # fakes
    return ahead


def test_each_directory_has_threads_of_its_own() -> None:
    together, threads = Barrier(4, timeout=20), set()

    def open_log(key: TopicPartition) -> FakeLog:
        together.wait()  # passes once four are at it: two of each queue
        threads.add(get_ident())
        return FakeLog(key)

    ahead = ahead_of([keys("a", 2), keys("b", 2)], open_log)
    assert len(threads) == 4
    log = ahead.take("b", 1)
    assert isinstance(log, FakeLog)
    assert log.key == ("b", 1)
    assert ahead.take("b", 1) is None


def test_a_log_that_cannot_be_opened_ahead_is_left_to_its_turn() -> None:
    def open_log(key: TopicPartition) -> FakeLog:
        if key[1] % 2:
            raise OSError(5, "no") if key[1] % 4 == 1 else LogFailedError("no")
        return FakeLog(key)

    ahead = ahead_of([keys("a", 8)], open_log)
    assert [index for index in range(8) if ahead.take("a", index) is not None] == [0, 2, 4, 6]


def test_a_defect_is_not_swallowed() -> None:
    def open_log(_: TopicPartition) -> FakeLog:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ahead_of([keys("a", 3)], open_log)


def test_who_gives_up_gets_no_further_log_and_the_opened_ones_are_closed() -> None:
    progress, opened = StartProgress(), []

    def open_log(key: TopicPartition) -> FakeLog:
        opened.append(FakeLog(key))
        if len(opened) >= 5:
            progress.cancel()
        return opened[-1]

    ahead = ahead_of([keys("a", 1000)], open_log, progress)
    assert len(opened) < 10
    ahead.close_rest()
    assert [log.closed for log in opened] == [False] * len(opened)


# -- a broker ----------------------------------------------------------------------------------------------------------

TOPICS = 3
PARTITIONS = 4
SETTINGS = {"num.partitions": PARTITIONS, "log.index.size.max.bytes": 4096}  # copied, the holes of an index are bytes


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with records of which a killed broker left the end of one log torn."""
    directory = tmp_path_factory.mktemp("killed")
    with Broker(data_dir=directory / "live", settings=SETTINGS) as broker:
        with Client(broker.native) as client:
            for number in range(TOPICS):
                for index in range(200):
                    client.produce(f"t{number}", value=b"%04d" % index, partition=index % PARTITIONS)
        # what is called .tmp is on its way to another name
        shutil.copytree(directory / "live", directory / "killed", ignore=shutil.ignore_patterns("*.tmp"))
    with next((directory / "killed" / "t1-2").glob("*.log")).open("ab") as log:
        log.write(b"torn" * 20)
    yield directory / "killed"
    shutil.rmtree(directory)


@pytest.fixture
def data_dir(killed: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return shutil.copytree(killed, tmp_path / "data")


def receipts(directory: Path) -> list[Receipt]:
    return [each for each in read_receipts(Disk(), str(directory)) if isinstance(each, Receipt)]


def values(broker: Broker, topic: str) -> set[bytes | None]:
    with Client(broker.native) as client:
        return {record.value for record in client.consume(topic, start="beginning", until_end=True)}


@pytest.mark.parametrize("threads", [1, 3])
def test_an_unclean_start_recovers_everything_and_leaves_a_receipt(data_dir: Path, threads: int) -> None:
    with Broker(data_dir=data_dir, settings={"num.recovery.threads.per.data.dir": threads}) as broker:
        for number in range(TOPICS):
            assert values(broker, f"t{number}") == {b"%04d" % index for index in range(200)}
    (receipt,) = receipts(data_dir)
    assert (receipt.reason, receipt.complete, receipt.threads) == ("unclean shutdown", True, threads)
    assert receipt.truncated_bytes == 80
    (cut,) = (log for log in receipt.logs if log.repairs)
    assert (cut.topic, cut.partition, cut.truncated_bytes, cut.truncated_at) == ("t1", 2, 80, 50)
    assert cut.truncation_reason
    assert receipt.scanned_bytes == sum(log.scanned_bytes for log in receipt.logs) > 200 * TOPICS
    assert len(receipt.logs) == TOPICS * PARTITIONS
    assert receipt.log_count >= len(receipt.logs)


def test_a_clean_start_leaves_none(data_dir: Path) -> None:
    for _ in range(3):
        with Broker(data_dir=data_dir):
            pass
    assert len(receipts(data_dir)) == 1


def test_a_checkpoint_that_cannot_be_read_is_told_in_the_receipt(data_dir: Path) -> None:
    (data_dir / "recovery-point-offset-checkpoint").write_text("0\n1\nrubbish\n")
    with Broker(data_dir=data_dir) as broker:
        assert len(values(broker, "t0")) == 200
    (receipt,) = receipts(data_dir)
    (finding,) = receipt.findings
    assert "recovery-point-offset-checkpoint" in finding


def test_want_of_room_for_the_receipt_is_a_line_in_the_log(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rename = Disk.rename

    def full(disk: Disk, source: str, target: str) -> None:
        if "recovery-receipt" in target:
            raise OSError(28, "No space left on device")
        rename(disk, source, target)

    monkeypatch.setattr(Disk, "rename", full)
    with Broker(data_dir=data_dir) as broker:
        assert len(values(broker, "t0")) == 200
    assert receipts(data_dir) == []
    assert "cannot write the receipt of the recovery" in caplog.text
    assert not list(data_dir.glob("recovery-receipt*"))


def test_metrics_say_how_long_a_start_with_recovery_took(data_dir: Path) -> None:
    from urllib.request import urlopen

    def seconds(broker: Broker) -> float:
        text = urlopen(f"http://{broker.http}/metrics").read().decode()
        return float(next(line for line in text.splitlines() if line.startswith("warmlog_recovery_seconds")).split()[1])

    with Broker(data_dir=data_dir) as broker:
        assert seconds(broker) > 0
    with Broker(data_dir=data_dir) as broker:
        assert seconds(broker) == 0


def test_the_http_listener_answers_while_logs_are_recovered(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from warmlog.broker import app
    from warmlog.broker.partitions.disks import storage

    answers: list[tuple[int, object]] = []
    addresses: list[str] = []
    metrics: list[str] = []
    listener = app.HttpListener

    def noted(sock: socket.socket, *arguments: Any) -> app.HttpListener:
        addresses.append(join_address(*sock.getsockname()[:2]))
        return listener(sock, *arguments)

    def asked(directory: Path, **named: Any) -> PartitionLog:
        log = PartitionLog.open(directory, **named)
        if named["topic"] == "t2" and not answers:
            metrics.append(urlopen(f"http://{addresses[0]}/metrics").read().decode())
            for path in ("healthz", "readyz"):
                try:
                    reply = urlopen(f"http://{addresses[0]}/{path}")
                    answers.append((reply.status, reply.read()))
                except HTTPError as error:
                    answers.append((error.code, json.loads(error.read())))
        return log

    monkeypatch.setattr(app, "HttpListener", noted)
    monkeypatch.setattr(storage, "PartitionLog", SimpleNamespace(open=asked))
    settings = {"num.recovery.threads.per.data.dir": 1}
    with Broker(data_dir=data_dir, settings=settings) as broker:
        assert urlopen(f"http://{broker.http}/readyz").status == 200
        assert "warmlog_ready 1.0" in urlopen(f"http://{broker.http}/metrics").read().decode()
    (healthy, (status, progress)) = answers
    assert healthy == (200, b"ok\n")
    assert status == 503
    assert isinstance(progress, dict)
    assert progress["status"] == "starting"
    assert progress["opened_logs"] == progress["recovered_logs"]
    assert 0 < progress["opened_logs"] < progress["logs"]
    assert progress["scanned_bytes"] > 0
    (text,) = metrics
    assert "warmlog_ready 0.0" in text
    assert f'warmlog_start_logs{{state="opened"}} {progress["opened_logs"]}.0' in text
    assert f"warmlog_start_scanned_bytes {float(progress['scanned_bytes'])}\n" in text
