"""The end of a broker, and the making of topics, where one of its disks has failed."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import trio

from tests.broker.stored_topics import NODE_ID, lone_node
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.names import RESERVE
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.metadata.topic import Mirror, Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.loading import load_settings
from warmlog.protocol.records.builder import build_batch


class BrokenBelow(Disk):
    """Nothing below a path can be removed, once it is told."""

    def __init__(self) -> None:
        self.path = "\0"

    def unlink(self, path: str) -> None:
        if path.startswith(self.path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().unlink(path)


def test_a_directory_that_cannot_give_up_what_it_keeps_leaves_the_others_their_clean_stop(tmp_path: Path) -> None:
    disk, good, bad = BrokenBelow(), tmp_path / "good", tmp_path / "bad"
    with DataDirectories.open([good, bad], node_id=1, disk=disk) as directories:
        directories.join({}, [])
        storage = Storage(directories=directories, files=OpenFiles(disk=disk), clock=lambda: 0, random=Random(0))
        directories.live[1].space_status.is_short = True
        disk.path = f"{bad}/{RESERVE}"
        storage.close_logs([], all_open=True)
    assert (good / CLEAN_MARKER).exists()


class BusyDisk(Disk):
    """Something else happens on the loop while a worker waits for the first sync of a new directory."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] | None = None

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            trio.from_thread.run_sync(meanwhile)


async def test_what_was_just_opened_in_a_directory_that_went_meanwhile_is_offline(tmp_path: Path) -> None:
    disk, good, bad = BusyDisk(), tmp_path / "good", tmp_path / "bad"
    with DataDirectories.open([good, bad], node_id=1, disk=disk) as directories:
        directories.join({}, [])
        file, metrics = MetadataFile(good / METADATA_FILE, NODE_ID), Metrics()
        storage = Storage(directories=directories, files=OpenFiles(disk=disk), clock=lambda: 0, random=Random(0))
        async with trio.open_nursery() as nursery:
            writer = Writer(nursery=nursery, metrics=metrics, loop_write_max_bytes=1 << 16)
            partitions = Partitions(storage, LiveSettings(load_settings()), writer, metrics, lone_node(file, writer))
            await partitions.open_all()
            disk.meanwhile = partial(partitions.availability.take_offline, str(bad), "gone")
            await partitions.create("orders", 4)
            served = [index for index in range(4) if partitions.get("orders", index)]
            offline = [index for index in range(4) if partitions.is_offline("orders", index)]
            await partitions.close_all()
        file.close()
    assert (len(served), len(offline)) == (2, 2)


def test_the_log_of_a_copy_begins_no_epoch_and_takes_its_high_watermark_from_the_checkpoint(tmp_path: Path) -> None:
    """An unclean start begins a leader epoch in the logs that this broker leads, and in no other."""
    led = Topic(name="led", partitions=1)
    copied = Topic(name="copied", partitions=1, mirror=Mirror(cluster_id="source"))
    found = []
    for _ in range(2):
        with DataDirectories.open([tmp_path], node_id=1) as directories:
            directories.join({}, [])
            storage = Storage(
                directories=directories,
                files=OpenFiles(),
                clock=lambda: 0,
                random=Random(0),
            )
            logs = [storage.open_logs(topic, [0], LogConfig())[0][0] for topic in (led, copied)]
            found.append([(log.epochs.entries, log.offsets.high_watermark) for log in logs])
            for log in logs:
                log.appends.append(build_batch([(0, None, b"v", ())] * 3))
            logs[1].offsets.advance_high_watermark(2)
            directories.live[0].write_checkpoints(logs)
            for log in logs:
                log.close(clean=False)
    assert found == [[(((0, 0),), 0), ((), 0)], [(((0, 0), (1, 3)), 3), (((0, 0),), 2)]]
