"""Logs of replicas that a cluster assigns: created and deleted, together, with failures of single ones."""

import errno
import os
from pathlib import Path

import pytest
import trio

from tests.broker.log.io.crashing_disk import CrashingDisk
from tests.broker.replication.simulated_brokers import Brokers, simulate
from warmlog.broker.cluster import partition_admin

pytestmark = pytest.mark.timeout(240)


class Syncs(CrashingDisk):
    """Counts how often the names in a data directory are synced; refuses to create or rename what it is told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.names = 0
        self.refused: str | None = None

    def sync_directory(self, path: str) -> None:
        self.names += os.path.basename(path).startswith("disk-")
        super().sync_directory(path)

    def make_directory(self, path: str, mode: int = 0o777) -> None:
        self._refuse(path)
        super().make_directory(path, mode)

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)
        super().rename(source, target)

    def _refuse(self, path: str) -> None:
        if self.refused is not None and path.endswith(self.refused):
            raise OSError(errno.EACCES, "not now", path)


def test_many_replicas_are_created_and_deleted_with_few_syncs() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.machines[1].disk = Syncs(brokers.machines[1].path)
        await brokers.start(1)
        before = disk.names
        await brokers.create_all([[1]] * 50)
        await brokers.until(lambda: all(brokers[1].partitions.get("t", index) for index in range(50)))
        created = disk.names - before
        await brokers.delete()
        await brokers.until(lambda: not list(brokers[1].partitions))
        await brokers.until(lambda: not brokers.node(1).image.gone)
        assert created < 10
        assert disk.names - before - created < 10
        assert not list(brokers.machines[1].directories[0].glob("t-?"))

    simulate(main)


def test_a_replica_that_cannot_be_created_is_tried_again_and_does_not_hold_up_others() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.machines[1].disk = Syncs(brokers.machines[1].path)
        await brokers.start(1)
        disk.refused = "t-0"
        await brokers.create([1])
        await brokers.create([1], "other")
        await brokers.stored(b"v", topic="other")
        await trio.sleep(5)
        assert brokers.local(1) is None
        disk.refused = None
        await brokers.stored(b"v")

    simulate(main)


def test_a_leader_that_cannot_create_its_log_hands_over() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.machines[3].disk = Syncs(brokers.machines[3].path)
        await brokers.start(1, 2, 3)
        disk.refused = "t-0"
        await brokers.create_all([[3, 1, 2], [3, 1, 2]])
        await brokers.stored(b"led by another")
        assert brokers.state().leader_id != 3
        assert brokers.in_sync() == {1, 2}
        await brokers.stored(b"led by 3", index=1)
        assert brokers.state(index=1).leader_id == 3
        disk.refused = None
        await brokers.alike(1, 2, 3)

    simulate(main)


def test_a_follower_that_cannot_create_its_log_is_not_waited_for() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.machines[3].disk = Syncs(brokers.machines[3].path)
        await brokers.start(1, 2, 3)
        disk.refused = "t-0"
        await brokers.create([1, 2, 3])
        before_s = trio.current_time()
        await brokers.stored(b"v")
        assert trio.current_time() - before_s < brokers[1].partitions.settings.replica_lag_time_max_ms / 1000
        assert brokers.in_sync() == {1, 2}
        disk.refused = None
        await brokers.alike(1, 2, 3)

    simulate(main)


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("replicas", [[1, 2, 3], [3, 1, 2]])
def test_what_is_left_of_a_topic_that_was_moved_and_deleted_is_kept_aside(
    replicas: list[int], *, is_away: bool
) -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"old", b"old")
        await brokers.alike(1, 2, 3)
        await brokers.kill(3)
        assert not await partition_admin.reassign_partitions(brokers.node(1), {brokers.key(): [1, 2]})
        await brokers.until(lambda: set(brokers.state().replicas) == {1, 2})
        await brokers.delete()
        if is_away:
            await brokers.create_all([replicas, replicas])
        await brokers.start(3)
        if not is_away:
            await brokers.create_all([replicas, replicas])
        await brokers.stored(b"new")
        assert b"old" not in await brokers.alike(1, 2, 3)
        (kept,) = brokers.machines[3].directories[0].glob("t-0.*-stray")
        assert any(b"old" in path.read_bytes() for path in kept.glob("*.log"))
        await brokers.stop(3)
        await brokers.start(3)
        assert b"old" not in await brokers.alike(1, 2, 3)
        assert kept.exists()

    simulate(main)


def test_a_replica_that_cannot_be_removed_is_not_taken_for_one_of_a_new_topic() -> None:
    async def main(brokers: Brokers) -> None:
        disk = brokers.machines[1].disk = Syncs(brokers.machines[1].path)
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
