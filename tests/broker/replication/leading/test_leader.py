"""Lead a partition with a real log, and followers that are mere numbers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.clients import batch
from tests.broker.partitions.test_partition import Rig, rig
from tests.broker.replication.leading.test_progress import Registrations, state_of
from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.broker.log.config import LogConfig
from warmlog.broker.net.turns.deadlines import Deadlines
from warmlog.broker.partitions.appends.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    ReplicasTooSlowError,
)
from warmlog.broker.partitions.partition import Append
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.broker.replication.leading.leader import PartitionLeader
from warmlog.broker.replication.leading.progress import Proposal
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import Codec

LAG_S = 30.0
ME = Member(0, 10)


class Brokers(Registrations):
    """Registrations, as an image of the cluster has them."""

    def current(self, broker: int) -> Member | None:
        return Member(broker, self.epochs[broker]) if broker in self.epochs else None


class Led:
    """A partition, its leader, and the proposals that it made."""

    def __init__(self, made: Rig, deadlines: Deadlines, min_isr: int) -> None:
        self.min_isr = min_isr
        self.made = made
        self.partition = made.partition
        self.log = made.partition.log
        self.brokers = Brokers()
        self.proposals: list[Proposal] = []
        self.leader = self.lead(state_of(0, 1, 2), deadlines)

    def lead(self, state: PartitionState, deadlines: Deadlines) -> PartitionLeader:
        self.log.epochs.assign(state.leader_epoch, self.log.offsets.log_end_offset)
        leader = PartitionLeader(
            self.partition,
            state,
            ME,
            min_isr=self.min_isr,
            brokers=self.brokers,
            deadlines=deadlines,
            propose=lambda _, proposal: self.proposals.append(proposal),
            max_lag_s=LAG_S,
        )
        leader.start()
        return leader

    def append(self, *values: bytes, replicas_ms: int = 1000) -> Append:
        append = self.partition.append(batch(*values), replicas_ms=replicas_ms)
        self.made.writer.write_queued()
        return append

    def fetch(self, offset: int, *brokers: int) -> None:
        for broker in brokers:
            self.leader.fetched(broker, self.brokers.epochs[broker], offset, 0)


@asynccontextmanager
async def led(directory: Path, min_isr: int = 1, **config: int) -> AsyncIterator[Led]:
    deadlines = Deadlines()
    async with rig(directory, **config) as made, trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        yield Led(made, deadlines, min_isr)
        nursery.cancel_scope.cancel()


async def test_an_append_is_done_when_every_in_sync_replica_has_it(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        append = one.append(b"a", b"b")
        assert one.log.offsets.log_end_offset == 2
        one.fetch(2, 1)
        assert not append.done
        one.fetch(2, 2)
        assert append.done
        assert append.error is None
        assert one.log.offsets.high_watermark == 2


async def test_an_append_with_acks_1_does_not_wait(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        append = one.append(b"a", replicas_ms=-1)
        assert append.done
        assert append.error is None
        assert one.log.offsets.high_watermark == 0


async def test_consumers_are_woken_when_the_high_watermark_reaches_a_write(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        woken: list[str] = []
        size = len(batch(b"a"))
        one.partition.enlist(FetchWaiter(2 * size, lambda: woken.append("consumer")))
        one.partition.enlist(FetchWaiter(2 * size, lambda: woken.append("follower")), to_log_end=True)
        one.append(b"a")
        one.fetch(1, 1, 2)
        assert woken == []
        one.append(b"b")
        assert woken == ["follower"]
        one.fetch(2, 1, 2)
        assert woken == ["follower", "consumer"]


async def test_too_few_in_sync_replicas_refuse_an_append_with_acks_all(tmp_path: Path) -> None:
    async with led(tmp_path, min_isr=2) as one:
        one.leader.update(state_of(0, revision=2), one.min_isr)
        with pytest.raises(NotEnoughReplicasError):
            one.append(b"a")
        assert one.append(b"a", replicas_ms=-1).error is None
        assert one.log.offsets.log_end_offset == 1


async def test_an_append_that_replicas_do_not_have_in_time_fails(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with led(tmp_path) as one:
        append = one.append(b"a", replicas_ms=500)
        began = trio.current_time()
        await append.wait()
        assert trio.current_time() - began == pytest.approx(0.5, abs=0.002)
        assert isinstance(append.error, ReplicasTooSlowError)
        one.fetch(1, 1, 2)
        assert one.log.offsets.high_watermark == 1, "it is stored all the same"


async def test_an_append_tells_when_the_isr_became_too_small(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with led(tmp_path, min_isr=2) as one:
        append = one.append(b"a")
        one.leader.update(state_of(0, revision=2), one.min_isr)
        await append.wait()
        assert isinstance(append.error, NotEnoughReplicasAfterAppendError)


async def test_resigning_fails_what_replicas_do_not_have(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        written = one.append(b"a")
        queued = one.partition.append(batch(b"b"), replicas_ms=1000)
        acks_1 = one.partition.append(batch(b"c"))
        one.leader.resign()
        one.made.writer.write_queued()
        assert one.partition.replication is None
        assert one.log.offsets.log_end_offset == 1, "what was queued is not written"
        for append in (written, queued, acks_1):
            assert isinstance(append.error, NotLeaderError)


async def test_resigning_fails_what_is_behind_a_write_in_progress(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        large = one.partition.append(batch(b"x" * (100 << 10)), replicas_ms=1000)
        one.made.disk.gate.clear()
        one.made.writer.write_queued()
        await wait_all_tasks_blocked()
        behind = one.partition.append(batch(b"b"))
        one.leader.resign()
        one.made.disk.gate.set()
        await one.partition.appends.settled()
        assert one.log.offsets.log_end_offset == 1
        assert isinstance(large.error, NotLeaderError)
        assert isinstance(behind.error, NotLeaderError)
        assert (await one.made.append(b"c")).planned.base_offset == 1


async def test_resigning_fails_what_is_being_decompressed(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        one.made.writer.opener.loop_bytes = 0
        append = one.partition.append(
            build_batch([(0, None, b"x" * 1000, ())], compression=Codec.GZIP), replicas_ms=1000
        )
        assert not append.done
        one.leader.resign()
        assert isinstance(append.error, NotLeaderError)
        await one.partition.appends.settled()
        assert one.log.offsets.log_end_offset == 0


async def test_an_append_of_an_earlier_leader_is_not_acknowledged_by_a_later_one(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        large = one.partition.append(batch(b"x" * (100 << 10)), replicas_ms=1000)
        one.made.disk.gate.clear()
        one.made.writer.write_queued()
        await wait_all_tasks_blocked()
        one.leader.resign()
        one.made.disk.gate.set()
        one.lead(state_of(0, revision=2), Deadlines())
        await one.partition.appends.settled()
        assert isinstance(large.error, NotLeaderError)


async def test_the_leader_counts_what_it_has_synced_if_every_append_is(tmp_path: Path) -> None:
    async with led(tmp_path, flush_messages=1) as one:
        append = one.append(b"a")
        one.fetch(1, 1, 2)
        assert one.log.offsets.high_watermark == 0
        with trio.fail_after(30):
            await append.wait()
        assert append.error is None
        assert one.log.offsets.high_watermark == one.log.durability.recovery_point == 1


async def test_a_duplicate_is_done_when_the_first_append_is_replicated(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        numbered = build_batch([(0, None, b"a", ())], producer_id=7, producer_epoch=0, base_sequence=0)
        first = one.partition.append(numbered, replicas_ms=1000)
        again = one.partition.append(numbered, replicas_ms=1000)
        one.made.writer.write_queued()
        assert again.planned.is_duplicate
        assert not again.done
        one.fetch(1, 1, 2)
        assert first.done
        assert again.done
        assert again.error is None


async def test_the_leader_counts_what_it_has_written_when_appends_are_not_synced_any_more(tmp_path: Path) -> None:
    async with led(tmp_path, flush_messages=1) as one:
        one.append(b"a", replicas_ms=-1)
        one.fetch(1, 1, 2)
        one.partition.reconfigure(LogConfig())
        assert one.log.offsets.high_watermark == 1


async def test_the_high_watermark_may_be_too_low_until_it_reaches_the_start_of_the_epoch(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        one.append(b"a", replicas_ms=-1)
        one.leader.resign()
        later = one.lead(state_of(0, 1, revision=2), Deadlines())
        assert not later.shows_all_committed
        later.fetched(1, 10, 1, 0)
        assert later.shows_all_committed


async def test_followers_are_let_in_and_excluded_by_proposals(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with led(tmp_path) as one:
        one.append(b"a", replicas_ms=-1)
        one.fetch(1, 1)
        await trio.sleep(LAG_S + 1)
        one.leader.check()
        assert one.proposals == [Proposal(1, (Member(0, 10), Member(1, 10)), ())]
        one.leader.update(state_of(0, 1, revision=2), one.min_isr)
        one.fetch(1, 2)
        assert one.proposals[1] == Proposal(2, (Member(0, 10), Member(1, 10), Member(2, 10)), (Member(2, 10),))
        assert len(one.proposals) == 2


async def test_only_the_epoch_of_the_latest_registration_counts(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        assert one.leader.is_latest(1, 10)
        one.brokers.epochs[1] = 12
        assert [one.leader.is_latest(1, epoch) for epoch in (10, 12, 13, -1)] == [False, True, False, False]


async def test_many_writes_above_the_high_watermark_are_added_up(tmp_path: Path) -> None:
    async with led(tmp_path) as one:
        woken: list[int] = []
        size = len(batch(b"a"))
        one.partition.enlist(FetchWaiter(2000 * size, lambda: woken.append(1)))
        for _ in range(2000):
            one.append(b"a", replicas_ms=-1)
        one.fetch(2000, 1, 2)
        assert woken == [1]
