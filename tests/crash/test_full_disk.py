"""A disk filled to the brim and relieved under real clients; and disks that go away."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.stored_topics import NODE_ID, stored_topics
from tests.clients.waiting import LIMIT_S, until
from tests.crash.mounts import MIB, Mount, mounted
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Topic

SMALL = 32 * MIB  # 2 % of it is 0.6 MB
VALUE = bytes(20_000)
SETTINGS = (
    "log.segment.bytes=1000000",
    "log.segment.delete.delay.ms=0",
    "log.retention.check.interval.ms=200",
    "log.initial.task.delay.ms=0",
    "log.flush.offset.checkpoint.interval.ms=200",
    "offsets.topic.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "auto.create.topics.enable=false",
)


class Served:
    """`warmlog serve` over some directories, with what is asked of it."""

    def __init__(self, paths: list[Path], log: Path) -> None:
        self._log = log
        words = [word for setting in SETTINGS for word in ("--set", setting)]
        command = [sys.executable, "-m", "warmlog", "serve", "--kafka", "127.0.0.1:0", "--native", "none"]
        command += ["--http", "127.0.0.1:0", "--set", f"log.dirs={','.join(map(str, paths))}", *words]
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "CI": ""}
            )
        assert self.process.stdout is not None
        ready = next((line for line in self.process.stdout if line.startswith("ready")), None)
        assert ready is not None, f"ended with {self.end()} before it was ready: {self.log}"
        addresses = dict(word.split("=") for word in ready.split()[1:])
        self.kafka, self._http = addresses["kafka"], addresses["http"]
        self.admin = AdminClient({"bootstrap.servers": self.kafka})

    @property
    def log(self) -> str:
        return self._log.read_text()

    def metric(self, name: str, directory: Path) -> float:
        with urllib.request.urlopen(f"http://{self._http}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{directory="{directory}"}}'))

    def create(self, *topics: str, partitions: int = 1) -> None:
        for future in self.admin.create_topics([NewTopic(topic, partitions) for topic in topics]).values():
            future.result(LIMIT_S)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(LIMIT_S)

    def leaderless(self, topic: str) -> list[int]:
        """Its partitions that have no leader."""
        found = self.admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions
        return [index for index, partition in found.items() if partition.leader < 0]

    def produce(self, topic: str, values: int, partition: int = 0, **config: Any) -> list[int | KafkaError]:
        """What became of so many values: the offset or the error of each."""
        told: list[int | KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            assert error is not None or offset is not None
            told.append(error or offset or 0)

        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 0, "retries": 0, **config})
        for _ in range(values):
            producer.produce(topic, VALUE, partition=partition, on_delivery=delivered)
        until(lambda: len(told) == values, lambda: producer.flush(0.1), "all deliveries")
        return told

    def fill(self, topic: str) -> int:
        """Produce until the broker refuses; how many records are there then."""
        acknowledged = 0
        for _ in count():
            told = self.produce(topic, 100)
            acknowledged += sum(isinstance(one, int) for one in told)
            if any(isinstance(one, KafkaError) for one in told):
                return acknowledged
        raise AssertionError

    def delete_records(self, topic: str, offset: int) -> None:
        (future,) = self.admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        assert future.result(LIMIT_S).low_watermark == offset

    def read(self, topic: str, group: str, end: int, *, start: int = 0) -> None:
        """Read all records of partition 0 as a member of a group, and commit."""
        config = {"bootstrap.servers": self.kafka, "group.id": group, "auto.offset.reset": "earliest"}
        with closing(Consumer({**config, "enable.auto.commit": False})) as consumer:
            consumer.subscribe([topic])
            for offset in range(start, end):
                message = consumer.poll(LIMIT_S)
                assert message is not None, f"{offset} of {end}"
                assert (message.error(), message.offset()) == (None, offset)
            (committed,) = consumer.commit(asynchronous=False) or []
            assert (committed.error, committed.offset) == (None, end)

    def committed(self, topic: str, group: str) -> int:
        with closing(Consumer({"bootstrap.servers": self.kafka, "group.id": group})) as consumer:
            (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
            assert isinstance(found.offset, int)
            return found.offset

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        """Its exit status, when it has ended."""
        status = self.process.wait(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """(directories) -> a broker over them; killed at the end if it still runs."""
    started: list[Served] = []

    def start(*paths: Path) -> Served:
        started.append(Served(list(paths), tmp_path / "log"))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.kill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mount]:
    with mounted(tmp_path / "small", SMALL) as mount:
        yield mount


def codes(told: list[int | KafkaError]) -> set[int]:
    return {one.code() for one in told if isinstance(one, KafkaError)}


def test_a_full_disk_stops_writes_and_nothing_else(disk: Mount, serve: Serve) -> None:
    broker = serve(disk.path)
    broker.create("orders", "doomed")
    assert all(isinstance(one, int) for one in broker.produce("doomed", 300))
    stored = broker.fill("orders")
    assert codes(broker.produce("orders", 3)) == {KafkaError.KAFKA_STORAGE_ERROR}
    assert codes(broker.produce("doomed", 3)) == {KafkaError.KAFKA_STORAGE_ERROR}
    with pytest.raises(KafkaException) as refused:
        broker.create("more")
    assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
    assert broker.metric("warmlog_refused_appends_total", disk.path) >= 2
    broker.read("orders", "readers", stored)
    broker.read("orders", "other readers", stored)
    until(lambda: " is full (" in broker.log, lambda: broker.produce("orders", 50), "the news of it")
    broker.read("orders", "late readers", stored)
    assert broker.log.count("rejected") == 1, "one line for all appends of a while"

    broker.delete("doomed")
    told = broker.produce("orders", 20, **{"retries": 1000, "retry.backoff.ms": 50})
    assert all(isinstance(one, int) for one in told), "writes return by themselves"
    free = partial(broker.metric, "warmlog_disk_free_bytes", disk.path)
    until(lambda: free() > MIB, lambda: broker.leaderless("orders"), "the next look")
    until(lambda: "accepting appends again" in broker.log, lambda: broker.leaderless("orders"), "the news of it")
    assert broker.stop() == 0
    assert (disk.path / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in broker.log


def test_a_broker_killed_on_a_full_disk_starts_there(disk: Mount, serve: Serve) -> None:
    broker = serve(disk.path)
    broker.create("orders")
    stored = broker.fill("orders")
    broker.read("orders", "readers", stored)
    disk.fill()
    broker.kill()
    for path in disk.path.glob("orders-0/*.*index"):
        path.unlink()  # there is more to rebuild than after most kills
    disk.fill()  # but nothing to make it of

    broker = serve(disk.path)
    assert broker.committed("orders", "readers") == stored
    broker.read("orders", "new readers", stored)
    assert codes(broker.produce("orders", 3)) == {KafkaError.KAFKA_STORAGE_ERROR}
    assert broker.stop() == 0

    disk.fill()  # what the stop has given up, and not kept again
    broker = serve(disk.path)
    broker.delete_records("orders", stored - 50)
    told = broker.produce("orders", 20, **{"retries": 1000, "retry.backoff.ms": 50})
    assert told == list(range(stored, stored + 20)), "the room of deleted records is room for new ones"
    broker.kill()
    broker = serve(disk.path)
    broker.read("orders", "late readers", stored + 20, start=stored - 50)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log


@pytest.mark.parametrize(("kind", "arguments"), [("offset.OffsetIndex", "9, 9"), ("time.TimeIndex", "9")])
def test_the_hole_of_an_index_is_checked_on_a_full_disk(disk: Mount, kind: str, arguments: str) -> None:
    """A page fault in a hole would end the process with SIGBUS."""
    module, name = kind.split(".")
    program = f"""
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.{module} import {name}
from warmlog.broker.log.io.files import OpenFiles
index = {name}(OpenFiles(), {str(disk.path / "0.index")!r}, 0, capacity_size={MIB})
try:
    index.sanity_check({arguments})
except IndexCorruptError as error:
    print(error)
"""
    with (disk.path / "0.index").open("wb") as file:
        file.truncate(MIB // 24 * 24)
    disk.fill()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not greater than its first" in done.stdout


def test_a_metadata_file_that_cannot_grow_is_an_error_and_goes_on(tmp_path: Path) -> None:
    """A transaction that found no room leaves nothing behind, and with room that is made for it goes through."""
    with mounted(tmp_path / "small", MIB) as mount:
        kept = mount.path / "kept"
        kept.write_bytes(bytes(100_000))
        is_given = False

        def release_reserve() -> bool:
            if is_given:
                kept.unlink()
            return is_given

        with stored_topics(mount.path, release_reserve) as store:
            store.create(Topic(name="first", partitions=1))
            filler = mount.fill()
            with pytest.raises(MetadataError, match=r"metadata\.sqlite: (database or disk is full|disk I/O error)"):
                for number in range(1000):
                    store.create(Topic(name=f"topic-{number}", partitions=1, configs={"flush.ms": "9" * 900}))
            names = [topic.name for topic in store.load()]
            with pytest.raises(MetadataError):
                store.create(Topic(name="more", partitions=1, configs={"flush.ms": "9" * 4000}))
            assert [topic.name for topic in store.load()] == names
            is_given = True
            store.begin_deletion("first")
            store.create(Topic(name="more", partitions=1, configs={"flush.ms": "9" * 4000}))
            filler.unlink()
        with stored_topics(mount.path) as store:
            assert [topic.name for topic in store.load()] == sorted({*names, "more"} - {"first"})
            assert store.deleting() == ["first"]


def test_a_metadata_file_that_was_left_on_a_full_disk_is_opened_with_room_that_is_made_for_it(tmp_path: Path) -> None:
    """After a kill its write-ahead log is read into shared memory, which is a file, too."""
    with mounted(tmp_path / "small", MIB) as mount:
        kept = mount.path / "kept"
        kept.write_bytes(bytes(100_000))
        left = mount.path / "left"
        left.mkdir()
        with stored_topics(mount.path) as store:
            store.create(Topic(name="first", partitions=1))
            for suffix in ("", "-wal"):
                copyfile(mount.path / f"metadata.sqlite{suffix}", left / f"metadata.sqlite{suffix}")
        mount.fill()
        with pytest.raises(MetadataError, match=r"left/metadata\.sqlite: (database or disk is full|disk I/O error)"):
            MetadataFile(left / "metadata.sqlite", NODE_ID)

        def release_reserve() -> bool:
            kept.unlink()
            return True

        with stored_topics(left, release_reserve) as store:
            assert [topic.name for topic in store.load()] == ["first"]


def test_a_disk_that_is_unmounted_goes_alone(tmp_path: Path, serve: Serve) -> None:
    with mounted(tmp_path / "second", SMALL) as second:
        data = second.path / "data"
        broker = serve(tmp_path / "first", data)
        broker.create("orders", partitions=4)
        for index in range(4):
            assert broker.produce("orders", 1, index) == [0]
        second.unmount_lazily()
        until(lambda: broker.leaderless("orders") == [1, 3], lambda: broker.produce("orders", 1), "the loss")
        assert "it no longer exists" in broker.log
        for index in (1, 3):
            assert codes(broker.produce("orders", 1, index, **{"message.timeout.ms": 500})), "no leader"
        assert broker.produce("orders", 5, 2) == [1, 2, 3, 4, 5]
        assert broker.stop() == 0

    broker = serve(tmp_path / "first", data)
    assert broker.leaderless("orders") == [1, 3]
    assert broker.produce("orders", 1, 2) == [6]
    assert broker.stop() == 0
    assert not data.exists(), "nothing is made on the mount point that is left"
    assert "Traceback" not in broker.log


def test_a_disk_that_is_read_only_at_the_start_can_remove_markerout(tmp_path: Path, serve: Serve) -> None:
    with mounted(tmp_path / "second", SMALL) as second:
        paths = tmp_path / "first", second.path
        broker = serve(*paths)
        broker.create("orders", partitions=4)
        for index in range(4):
            assert broker.produce("orders", 1, index) == [0]
        assert broker.stop() == 0
        second.remount("ro")

        broker = serve(*paths)
        assert broker.leaderless("orders") == [1, 3]
        assert "Read-only file system" in broker.log
        assert broker.produce("orders", 1, 2) == [1]
        assert broker.stop() == 0
        second.remount("rw")

        broker = serve(*paths)
        assert broker.leaderless("orders") == []
        assert broker.produce("orders", 1, 3) == [1]
        assert broker.stop() == 0
        assert "Traceback" not in broker.log


def test_without_the_disk_of_the_metadata_the_broker_ends(tmp_path: Path, serve: Serve) -> None:
    with mounted(tmp_path / "first", SMALL) as first:
        broker = serve(first.path, tmp_path / "second")
        broker.create("orders", partitions=2)
        first.unmount_lazily()
        assert broker.end() == 1
    last = broker.log.splitlines()[-1]
    assert f"data directory {tmp_path / 'first'} cannot be used: it no longer exists" in last
    assert "it has the metadata" in last
    assert "Traceback" not in broker.log
