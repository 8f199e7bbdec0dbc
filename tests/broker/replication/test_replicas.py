"""Brokers with real partitions and logs that replicate over a simulated network."""

import os
import shutil
from typing import Any

import pytest
import trio

from tests.broker.clients import batch
from tests.broker.log.io.crashing_disk import CrashingDisk
from tests.broker.replication.simulated_brokers import Brokers, simulate
from tests.cluster.simulation.machine import host_of
from warmlog.broker.cluster import admin, partition_admin
from warmlog.broker.cluster.admin import COMMIT_TIMEOUT_S
from warmlog.broker.cluster.keys import PRODUCER_IDS_KEY
from warmlog.broker.cluster.rules import needs_election
from warmlog.broker.cluster.store import Delete, StoreTransaction
from warmlog.broker.maintenance.failed_logs import FailedLogs
from warmlog.broker.metadata.errors import MetadataTimeoutError
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.append import Append
from warmlog.broker.replication import replicas
from warmlog.broker.replication.replicas import CREATIONS
from warmlog.protocol.records.builder import build_batch

pytestmark = pytest.mark.timeout(240)


def test_an_acknowledged_append_is_on_all_in_sync_replicas() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        for number in range(5):
            await brokers.stored(b"v%d" % number)
            ends = [brokers.log(number).offsets.log_end_offset for number in (1, 2, 3)]
            assert ends == [number + 1] * 3
        assert await brokers.alike(1, 2, 3)
        await brokers.until(lambda: brokers.log(2).offsets.high_watermark == 5)

    simulate(main)


def test_a_killed_leader_is_replaced_and_truncates_what_nobody_else_has() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3], min_insync_replicas="1")
        await brokers.stored(b"kept")
        for other in (2, 3):
            brokers.cut(1, other)
        await brokers.append(b"lost", b"lost", replicas_ms=-1)
        await brokers.kill(1)
        brokers.network.heal()
        await brokers.until(lambda: brokers.state().leader_id != 1)
        await brokers.stored(b"next")
        await brokers.start(1)
        content = await brokers.alike(1, 2, 3)
        assert b"lost" not in content
        assert b"kept" in content
        assert b"next" in content

    simulate(main)


def test_replicas_start_with_their_checkpointed_high_watermark() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3], min_insync_replicas="1")
        await brokers.stored(b"shown")
        await brokers.until(lambda: brokers.log(1).offsets.high_watermark == 1)
        for other in (2, 3):
            brokers.cut(other, 1)
        await brokers.append(b"not shown", replicas_ms=-1)
        await brokers.stop(1)
        await brokers.start(1)
        log = brokers.log(1)
        assert (log.offsets.high_watermark, log.offsets.log_end_offset) == (1, 2)

    simulate(main)


def test_an_in_sync_replica_whose_log_is_gone_does_not_lead_with_nothing() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"kept")
        await brokers.alike(1, 2, 3)
        for number in (3, 2, 1):
            await brokers.stop(number)
        machine = brokers.machines[1]
        machine.disk.rename(str(machine.directories[0] / "t-0"), str(machine.path / "gone"))
        await brokers.start(1)
        await brokers.start(2, 3)
        assert b"kept" in await brokers.alike(1, 2, 3)

    simulate(main)


def test_an_eligible_replica_whose_log_is_gone_is_not_elected() -> None:
    """Its checkpoint names the log, so the broker registers without the history in which it had the records."""

    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([2, 1], min_insync_replicas="2")
        await brokers.stored(b"kept")
        await brokers.alike(1, 2)
        await brokers.stop(1)
        await brokers.kill(2)
        await brokers.until(lambda: brokers.node(3).image.current(2) is None)
        machine = brokers.machines[1]
        machine.disk.rename(str(machine.directories[0] / "t-0"), str(machine.path / "gone"))
        await brokers.start(1)
        await trio.sleep(5)  # of simulated time
        assert brokers.state().leader != brokers.node(1).me
        await brokers.start(2)
        assert b"kept" in await brokers.alike(1, 2)

    simulate(main)


def test_a_copy_of_an_earlier_clean_stop_is_not_taken_for_complete() -> None:
    """A backup of a stopped broker is put back after that has run on: it is clean, and it lacks records."""

    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"first")
        await brokers.alike(1, 2, 3)
        await brokers.stop(2)
        machine = brokers.machines[2]
        backup = machine.path.with_name("backup")
        shutil.copytree(machine.path, backup)
        await brokers.start(2)
        await brokers.alike(1, 2, 3)
        await brokers.stored(b"acknowledged")
        await brokers.stop(3)
        await brokers.until(lambda: brokers.in_sync() == {1, 2})
        await brokers.kill(2)
        await brokers.until(lambda: brokers.in_sync() == {1})
        shutil.rmtree(machine.path)
        shutil.copytree(backup, machine.path)
        machine.disk = CrashingDisk(machine.path)
        for other in (1, 3):
            brokers.cut(2, other)
            brokers.cut(other, 2)
        machine.start()
        await brokers.until(lambda: brokers.node(1).image.current(2) is not None and machine.life is not None)
        await brokers.kill(1)
        brokers.network.heal()
        await brokers.until(lambda: brokers.node(2).image.current(1) is None)
        await brokers.start(1, 3)
        assert b"acknowledged" in await brokers.alike(1, 2, 3)

    simulate(main)


def test_an_empty_last_member_does_not_cut_a_live_replica_that_has_everything() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2])
        await brokers.stored(b"kept")
        await brokers.alike(1, 2)
        await brokers.stop(2)
        await brokers.kill(1)
        machine = brokers.machines[1]
        for directory in machine.directories:
            shutil.rmtree(directory)
            directory.mkdir()
        machine.disk = CrashingDisk(machine.path)
        await brokers.start(2, 1)
        assert b"kept" in await brokers.alike(1, 2)

    simulate(main)


def test_a_leader_begins_while_logs_are_deleted_from_a_slow_disk() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create_all([[2]] * (CREATIONS + 10))
        await brokers.create([1, 2, 3], topic="u")
        await brokers.until(lambda: all(brokers.local(2, "t", index) for index in range(CREATIONS + 10)))
        await brokers.stored(b"v", topic="u")
        slow_to_remove(brokers, 2)
        await brokers.delete()
        await brokers.kill(1)
        await brokers.until(lambda: brokers.state("u").leader_id == 2)
        at = trio.current_time()
        await brokers.until(lambda: brokers[2].partitions.get("u", 0))
        assert trio.current_time() < at + 1

    simulate(main)


def test_a_topic_that_is_created_again_is_not_served_from_the_log_of_the_deleted_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "CREATIONS", 1)  # all others wait for the first one
    indexes = range(4)

    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2)
        await brokers.create_all([[1, 2]] * len(indexes))
        await brokers.until(lambda: all(brokers.local(2, "t", index) for index in indexes))
        old = [await appended(brokers, index, b"OLD", b"OLD") for index in indexes]
        await brokers.until(lambda: all(each.done for each in old))
        slow_to_remove(brokers, 1)
        await brokers.delete()
        await brokers.create_all([[1, 2]] * len(indexes))
        new = [await appended(brokers, index, b"NEW") for index in indexes]
        await brokers.until(lambda: all(each.done for each in new))
        assert [each.error for each in new] == [None] * len(indexes)
        for number in (1, 2):
            for index in indexes:
                await brokers.until(lambda number=number, index=index: brokers.content(number, "t", index))
                content = brokers.content(number, "t", index)
                assert b"NEW" in content
                assert b"OLD" not in content

    simulate(main)


@pytest.mark.interop  # takes many seconds
def test_a_topic_whose_creation_takes_too_long_for_its_client_is_finished_later() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        partitions = brokers[1].partitions
        topic = partitions.plan_topic("big", 650, {}, replication_factor=3)
        failures = {}

        async def create() -> None:
            failures.update(await partitions.changes.create([topic]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await brokers.until(lambda: "big" in brokers.node(1).image.topics)
            for number in (1, 2, 3):
                brokers.store_faults[host_of(number)].holds_transactions = True
            await trio.sleep(COMMIT_TIMEOUT_S + 5)
            for faults in brokers.store_faults.values():
                faults.heal()
        assert isinstance(failures["big"], MetadataTimeoutError)
        await brokers.until(lambda: partitions.has("big"))
        assert brokers.node(1).image.counts[topic.id] == 650
        assert not await partitions.changes.delete(["big"], trio.lowlevel.checkpoint)

    simulate(main)


def test_producer_ids_in_logs_are_not_given_out_by_a_store_that_was_restored() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([2, 3])
        leader = await brokers.until(brokers.leader)
        sent = build_batch([(1, None, b"v", ())], producer_id=5000, producer_epoch=0, base_sequence=0)
        append = leader.append(sent, replicas_ms=60_000)
        brokers[brokers.state().leader_id].writer.write_queued()
        await append.wait()
        await brokers.stop(2)
        await brokers.stop(3)
        brokers.store.commit(StoreTransaction((), (Delete(PRODUCER_IDS_KEY),)))
        await brokers.start(2)
        await brokers.until(lambda: brokers.node(1).image.producer_ids.next_id == 5001)
        assert await admin.take_producer_ids(brokers.node(1), 1000) == 5001

    simulate(main)


def test_the_log_of_a_deleted_topic_does_not_count_as_the_longest_of_its_successor() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        for _ in range(3):
            await brokers.stored(b"old")
        await brokers.alike(1, 2, 3)
        slow_to_remove(brokers, 3, 60)
        await brokers.delete()
        await brokers.create([1, 2, 3])
        await brokers.until(lambda: brokers.in_sync() == {1, 2})
        await brokers.stored(b"kept")
        await brokers.kill(2)
        await brokers.kill(1)
        await brokers.start(1, 2)
        await brokers.until(lambda: brokers.leader() is not None)
        await trio.sleep(60)
        assert b"kept" in await brokers.alike(1, 2, 3)

    simulate(main)


def test_elections_do_not_wait_for_a_silent_replica_outside_of_the_isr_twice() -> None:
    indexes = range(64)  # twice as many as are asked about at once

    async def main(brokers: Brokers) -> None:
        await brokers.start(2)
        await brokers.start(1, 3)
        await brokers.create_all([[1, 3]] * len(indexes))
        for other in (1, 2):
            brokers.cut(3, other)
            brokers.cut(other, 3)
        for index in indexes:
            await brokers.append(b"v", index=index, replicas_ms=-1)
        await brokers.until(lambda: all(brokers.in_sync("t", index) == {1} for index in indexes))
        await brokers.kill(1)
        await brokers.until(lambda: brokers.node(2).image.current(1) is None)
        brokers.machines[1].start()
        image = brokers.node(2).image
        await brokers.until(lambda: image.current(1) is not None)
        at = trio.current_time()
        await brokers.until(lambda: all(not needs_election(image, brokers.state("t", index)) for index in indexes))
        assert 3 in image.brokers
        assert trio.current_time() < at + 60

    simulate(main)


async def appended(brokers: Brokers, index: int, *values: bytes) -> Append:
    """Append with acks=all as soon as broker 1 leads the partition."""
    partition = await brokers.until(lambda: brokers[1].partitions.get("t", index))
    append = partition.append(batch(*values), replicas_ms=60_000)
    brokers[1].writer.write_queued()
    return append


def slow_to_remove(brokers: Brokers, number: int, seconds: float = 10) -> None:
    """Let a broker take some time for the removal of a log."""
    directories = brokers[number].partitions.directories
    move_away = directories.move_away

    async def slow(*arguments: Any, **named: Any) -> Any:
        await trio.sleep(seconds)
        return await move_away(*arguments, **named)

    directories.move_away = slow


def test_what_a_coordinator_verified_for_an_earlier_leader_begins_no_transaction() -> None:
    async def lead(brokers: Brokers, broker: int) -> None:
        replicas = [broker, 3 - broker]
        await brokers.until(lambda: brokers.in_sync() == {1, 2})
        assert not await partition_admin.reassign_partitions(brokers.node(3), {brokers.key(): replicas})
        await brokers.until(lambda: brokers.node(3).image.partitions[brokers.key()].replicas == tuple(replicas))
        await partition_admin.elect_leaders(brokers.node(3), [brokers.key()], is_unclean=False)
        await brokers.until(lambda: brokers[broker].partitions.get("t", 0))

    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2])
        await brokers.stored(b"v")
        guards = brokers.log(1).producers.guards
        guard = guards.open(7)
        await lead(brokers, 2)
        await lead(brokers, 1)
        assert brokers.log(1).producers.guards is guards
        assert not guards.is_valid(7, guard)

    simulate(main)


def test_a_deleted_topic_leaves_nothing_and_its_name_begins_anew() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"old")
        old = brokers.key().topic_id
        await brokers.delete()
        await brokers.create([1, 2, 3])
        await brokers.stored(b"new")
        content = await brokers.alike(1, 2, 3)
        assert b"old" not in content
        assert b"new" in content
        await brokers.until(lambda: old not in brokers.node(1).image.gone)

    simulate(main)


def test_a_broker_that_hears_of_a_deletion_and_a_creation_at_once_keeps_them_apart() -> None:
    async def main(brokers: Brokers) -> None:
        faults = brokers.store_faults[host_of(3)]
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"old")
        await brokers.alike(1, 2, 3)
        faults.is_away = True
        await brokers.delete()
        await brokers.create([1, 2, 3])
        await trio.sleep(2)  # its watch fails; the next one reports all changes at once
        faults.is_away = False
        await brokers.stored(b"new")
        assert b"old" not in await brokers.alike(1, 2, 3)

    simulate(main)


def test_a_broker_that_was_down_does_not_take_the_log_of_a_recreated_topic() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"old")
        await brokers.alike(1, 2, 3)
        old = brokers.key().topic_id
        await brokers.stop(3)
        await brokers.delete()
        await brokers.create([1, 2, 3])
        await brokers.stored(b"new")
        await brokers.start(3)
        assert b"old" not in await brokers.alike(1, 2, 3)
        await brokers.until(lambda: old not in brokers.node(1).image.gone)

    simulate(main)


def test_a_replica_whose_disk_is_full_leaves_the_isr_and_returns() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"a")
        status = brokers.log(3).appends.space_status
        status.is_short = True
        before_s = trio.current_time()
        await brokers.stored(b"b")
        assert trio.current_time() - before_s < brokers[1].partitions.settings.replica_lag_time_max_ms / 1000
        assert brokers.in_sync() == {1, 2}
        await brokers.stored(b"c")
        status.is_short = False
        await brokers.alike(1, 2, 3)

    simulate(main)


def test_a_leader_whose_disk_is_full_hands_over_to_one_that_has_room() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"a")
        status = brokers.log(1).appends.space_status
        status.is_short = True
        await brokers.until(lambda: brokers.state().leader_id == 2)
        await brokers.stored(b"b")
        assert brokers.in_sync() == {2, 3}
        status.is_short = False
        await brokers.alike(1, 2, 3)

    simulate(main)


def test_the_last_replica_in_sync_leads_although_its_disk_is_full() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2)
        await brokers.create([1])
        await brokers.stored(b"a")
        brokers.log(1).appends.space_status.is_short = True
        await trio.sleep(5)
        assert brokers.leader() is not None

    simulate(main)


def test_a_leader_whose_log_fails_is_replaced_at_once_and_returns_when_it_is_rebuilt() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"kept")
        leader = brokers.leader()
        assert leader is not None
        leader.log.fail("a test")
        leader.on_health()  # type: ignore[misc]
        assert brokers[1].partitions.get("t", 0) is None
        await brokers.stored(b"next")
        assert brokers.in_sync() == {2, 3}
        await FailedLogs(brokers[1].partitions, Metrics()).check()
        content = await brokers.alike(1, 2, 3)
        assert b"kept" in content

    simulate(main)


def test_the_only_replica_leads_again_when_its_failed_log_is_rebuilt_and_raises_no_epoch_itself() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2)
        await brokers.create([1])
        await brokers.stored(b"kept")
        await brokers.append(b"lost")
        leader = brokers.leader()
        assert leader is not None
        log, epoch = leader.log, brokers.state().leader_epoch
        os.truncate(next(log.directory.glob("*.log")), log.size - 1)
        log.fail("a test")
        seen: list[tuple[int, int]] = []
        report = leader.on_health
        assert report is not None
        leader.on_health = lambda: (seen.append((log.epochs.current, log.offsets.log_end_offset)), report())[1]
        leader.on_health()
        await brokers.until(lambda: brokers.state().leader is None)
        await FailedLogs(brokers[1].partitions, Metrics()).check()
        assert seen[-1] == (epoch, 1)
        await brokers.stored(b"next")
        assert log.epochs.current == brokers.state().leader_epoch
        assert b"kept" in brokers.content(1)

    simulate(main)


def test_a_replica_whose_data_directory_goes_offline_is_disowned() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create_all([[1, 2, 3], [1, 2, 3]])
        for index in (0, 1):
            await brokers.stored(b"kept", index=index)
        first = brokers.local(1, index=0), brokers.local(1, index=1)
        there = next(each for each in first if each is not None and each.data_directory.endswith("-1"))
        brokers[1].partitions.availability.take_offline(there.data_directory, "a test")
        await brokers.until(lambda: 1 not in brokers.in_sync(index=there.index))
        await brokers.stored(b"next", index=there.index)
        other = 1 - there.index
        assert brokers.state(index=other).leader_id == 1

    simulate(main, directories=2)


async def offline_copy(brokers: Brokers) -> None:
    """Leave a copy of partition 0 on broker 1 in a data directory that goes offline."""
    await brokers.start(1, 2, 3)
    await brokers.create([1], topic="first")  # in the other data directory
    await brokers.create([1, 2])
    await brokers.stored(b"kept")
    await brokers.alike(1, 2)
    there = brokers.local(1)
    assert there is not None
    assert there.data_directory.endswith("-1")
    brokers[1].partitions.availability.take_offline(there.data_directory, "a test")
    await brokers.until(lambda: brokers.in_sync() == {2})


def test_a_replica_that_comes_back_replaces_its_copy_on_a_disk_that_was_offline() -> None:
    async def main(brokers: Brokers) -> None:
        await offline_copy(brokers)
        for target in ([3, 2], [1, 2]):
            assert not await partition_admin.reassign_partitions(brokers.node(2), {brokers.key(): target})
            await brokers.until(lambda target=target: brokers.state().replicas == tuple(target))  # type: ignore[misc]
        await brokers.stored(b"next")
        await brokers.alike(1, 2)
        assert len(list(brokers.machines[1].path.glob("*/t-0"))) == 2
        await brokers.stop(1)
        await brokers.start(1)
        assert b"next" in await brokers.alike(1, 2)
        assert [each.parent.name for each in brokers.machines[1].path.glob("*/t-0")] == ["disk-0"]
        assert not list(brokers.machines[1].path.glob("*/t-0/.arrival"))

    simulate(main, directories=2)


def test_a_recreated_topic_replaces_the_data_of_the_old_one_on_a_disk_that_was_offline() -> None:
    async def main(brokers: Brokers) -> None:
        await offline_copy(brokers)
        await brokers.delete()
        await brokers.create([1, 2])
        await brokers.stored(b"next")
        await brokers.stop(1)
        await brokers.start(1)
        content = await brokers.alike(1, 2)
        assert b"next" in content
        assert b"kept" not in content

    simulate(main, directories=2)


def test_a_reassignment_moves_a_replica() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2])
        await brokers.stored(b"kept")
        assert brokers.local(3) is None
        assert not await partition_admin.reassign_partitions(brokers.node(1), {brokers.key(): [3, 2]})
        await brokers.until(lambda: set(brokers.state().replicas) == {2, 3} and not brokers.state().adding)
        await brokers.until(lambda: brokers.local(1) is None)
        await brokers.stored(b"next")
        assert b"kept" in await brokers.alike(2, 3)
        assert not list(brokers.machines[1].directories[0].glob("t-0"))

    simulate(main)


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["*", "0:1,0:2,0:3"])
def test_a_throttled_reassignment_copies_at_the_rate_of_its_side(side: str, replicas: str) -> None:
    rate, size = 10_000, 200_000
    elapsed = reassignment_s({f"{side}.replication.throttled.rate": rate}, {f"{side}_throttled": replicas}, size)
    assert 0.8 * size / rate < elapsed < 1.2 * size / rate


def test_replicas_that_are_not_named_are_not_throttled() -> None:
    rates = {f"{side}.replication.throttled.rate": 1 for side in ("leader", "follower")}
    assert reassignment_s(rates, {"leader_throttled": "1:1", "follower_throttled": "0:2"}, 200_000) < 5


def reassignment_s(rates: dict[str, int], throttled: dict[str, str], size: int) -> float:
    """Return how long it takes to move a partition of this size, on simulated time."""
    elapsed: list[float] = []
    configs = {name.replace("_", "_replication_") + "_replicas": text for name, text in throttled.items()}

    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2], **configs)
        for _ in range(size // 1000):
            await brokers.stored(bytes(925))  # a batch of about 1,000 bytes
        begun = trio.current_time()
        assert not await partition_admin.reassign_partitions(brokers.node(1), {brokers.key(): [1, 3]})
        await brokers.until(lambda: brokers.state().replicas == (1, 3))
        elapsed.append(trio.current_time() - begun)
        await brokers.alike(1, 3)

    rest = {"replica.lag.time.max.ms": 10_000, "replica.fetch.max.bytes": 10_000}
    simulate(main, settings=[f"{name}={value}" for name, value in {**rest, **rates}.items()])
    return elapsed[0]


def test_followers_in_sync_are_not_throttled() -> None:
    sides = ("leader", "follower")

    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2)
        configs = {f"{side}_replication_throttled_replicas": "*" for side in sides}
        await brokers.create([1, 2], min_insync_replicas="2", **configs)
        for _ in range(20):
            await brokers.stored(bytes(5000))
        assert brokers.in_sync() == {1, 2}

    simulate(main, settings=[f"{side}.replication.throttled.rate=1" for side in sides])


def test_a_rate_that_is_lifted_lets_a_reassignment_end() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2], follower_replication_throttled_replicas="*")
        for _ in range(20):
            await brokers.stored(bytes(5000))
        assert not await partition_admin.reassign_partitions(brokers.node(1), {brokers.key(): [1, 3]})
        await trio.sleep(100)
        assert brokers.state().adding == (3,)
        await admin.set_topic_configs(brokers.node(1), "t", lambda _: {})
        await brokers.until(lambda: brokers.state().replicas == (1, 3))

    simulate(main, settings=["follower.replication.throttled.rate=1", "replica.fetch.max.bytes=10000"])


def test_a_broker_removes_a_replica_that_was_moved_away_while_it_was_down() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2])
        await brokers.stored(b"kept")
        await brokers.alike(1, 2)
        await brokers.stop(1)
        assert not await partition_admin.reassign_partitions(brokers.node(2), {brokers.key(): [3, 2]})
        await brokers.until(lambda: set(brokers.state().replicas) == {2, 3} and not brokers.state().adding)
        await brokers.start(1)
        assert brokers.local(1) is None
        assert not list(brokers.machines[1].directories[0].glob("t-0"))

    simulate(main)


def test_a_growing_replication_factor_gives_an_only_replica_followers() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1])
        await brokers.stored(b"kept")
        assert not await partition_admin.reassign_partitions(brokers.node(1), {brokers.key(): [1, 2, 3]})
        await brokers.stored(b"next")
        assert b"kept" in await brokers.alike(1, 2, 3)
        assert not await partition_admin.reassign_partitions(brokers.node(1), {brokers.key(): [1]})
        await brokers.until(lambda: brokers.state().replicas == (1,))
        await brokers.stored(b"last")

    simulate(main)


def test_replication_goes_on_after_all_leases_were_lost() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        for number in range(3):
            await brokers.stored(b"v%d" % number)
            brokers.store.expire_all()
        expired_at = brokers.store.revision
        await brokers.until(lambda: all(node.image.revision > expired_at for node in brokers.nodes))
        await brokers.until(lambda: all(len(node.image.brokers) == 3 for node in brokers.nodes))
        await brokers.until(lambda: brokers.in_sync() == {1, 2, 3} and brokers.leader())
        await brokers.stored(b"last")
        await brokers.alike(1, 2, 3)

    simulate(main)


def test_with_flush_messages_1_every_in_sync_replica_has_synced_what_is_acknowledged() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3], flush_messages="1")
        for number in range(3):
            await brokers.stored(b"v%d" % number)
            points = [brokers.log(each).durability.recovery_point for each in (1, 2, 3)]
            assert points == [number + 1] * 3

    simulate(main)


def test_a_new_partition_does_not_wait_for_a_fetch_that_waits() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2)
        await brokers.create([1, 2], "first")
        await brokers.stored(b"v", topic="first")
        await trio.sleep(0.2)
        begun = trio.current_time()
        await brokers.create([1, 2], "second", min_insync_replicas="2")
        await brokers.stored(b"v", topic="second")
        assert trio.current_time() - begun < 0.3

    simulate(main)
