"""Logs of replicas that a cluster assigns: created and deleted, together, with failures of single ones."""

import errno
import os

import pytest
import trio

from broker.log.io.disk import Disk
from tests.broker.replication.simulated_brokers import Brokers, simulate

pytestmark = pytest.mark.timeout(60)


class Syncs(Disk):
    """Counts how often the names in a data directory are synced; refuses to create or rename what it is told."""

    def __init__(self) -> None:
        self.names = 0
        self.refused: str | None = None

    def sync_directory(self, path: str) -> None:
        self.names += os.path.basename(path).startswith("broker-")
        super().sync_directory(path)

    def make_directory(self, path: str) -> None:
        self._refuse(path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)
        super().rename(source, target)

    def _refuse(self, path: str) -> None:
        if self.refused is not None and path.endswith(self.refused):
            raise OSError(errno.EACCES, "not now", path)


def test_many_replicas_are_created_and_deleted_with_few_syncs() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.disks[1] = Syncs()
        await brokers.start(1)
        before = disk.names
        await brokers.create_all([[1]] * 50)
        await brokers.until(lambda: all(brokers[1].partitions.get("t", index) for index in range(50)))
        created = disk.names - before
        await brokers.delete()
        await brokers.until(lambda: not list(brokers[1].partitions))
        await brokers.until(lambda: not brokers[1].node.image.gone)
        assert created < 10
        assert disk.names - before - created < 10
        assert not list(brokers[1].directories[0].glob("t-?"))

    simulate(main)


def test_a_replica_that_cannot_be_created_is_tried_again_and_does_not_hold_up_others() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.disks[1] = Syncs()
        await brokers.start(1)
        disk.refused = "t-0"
        await brokers.create([1])
        await brokers.create([1], "other")
        await brokers.stored(b"v", topic="other")
        await trio.sleep(5)
        assert brokers[1].local() is None
        disk.refused = None
        await brokers.stored(b"v")

    simulate(main)


def test_a_replica_that_cannot_be_removed_is_not_taken_for_one_of_a_new_topic() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.disks[1] = Syncs()
        await brokers.start(1)
        await brokers.create([1])
        await brokers.stored(b"old")
        disk.refused = "t-0"
        await brokers.delete()
        await brokers.create([1])
        await trio.sleep(5)
        assert brokers[1].partitions.get("t", 0) is None
        disk.refused = None
        await brokers.stored(b"new")
        assert b"old" not in brokers.content(1)

    simulate(main)
