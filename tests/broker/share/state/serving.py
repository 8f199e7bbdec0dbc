"""A share coordinator on real logs, without listeners."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
import trio.testing

from tests.broker.rig import Rig, rig
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.share.persister import InitialState, Outcome, PartitionById, ReadState, StateSummary
from warmlog.broker.share.state.service import ShareStateService
from warmlog.broker.share.state.shard import ShareStateShard
from warmlog.broker.share.state.topic import TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey, ShareRecord, decode_record
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.reader import decode_batch

GROUP = "workers"
LOG_PARTITIONS = 2


@dataclass
class Serving:
    """The service, and what it stands on."""

    rig: Rig
    service: ShareStateService
    topic_id: bytes

    def key(self, partition: int = 0) -> SharePartitionKey:
        return SharePartitionKey(GROUP, self.topic_id, partition)

    async def initialize(self, partition: int = 0, state_epoch: int = 0, start_offset: int = 0) -> Outcome:
        state = InitialState(self.topic_id, partition, state_epoch, start_offset)
        outcomes = await self.service.persister.initialize(GROUP, [state])
        return outcomes[self.topic_id, partition]

    async def write(
        self,
        *batches: tuple[int, int, int, int],
        partition: int = 0,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        start_offset: int = -1,
        count: int = 0,
    ) -> Outcome:
        return await self.service.persister.write(
            self.key(partition),
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=count,
            batches=[StateBatch(*batch) for batch in batches],
        )

    async def read(self, partition: int = 0, leader_epoch: int = 0) -> ReadState:
        return await self.service.persister.read(self.key(partition), leader_epoch)

    async def summary(self, partition: int = 0) -> StateSummary:
        found: Mapping[PartitionById, StateSummary] = await self.service.persister.summarize(
            GROUP, {(self.topic_id, partition): -1}
        )
        return found[self.topic_id, partition]

    async def delete(self, partition: int = 0) -> Outcome:
        return (await self.service.persister.delete(GROUP, [(self.topic_id, partition)]))[self.topic_id, partition]

    def shards(self) -> list[ShareStateShard]:
        return self.service.runtime.shards()

    def log(self, index: int) -> Partition:
        partition = self.rig.partitions.get(TOPIC, index)
        assert partition is not None
        return partition

    def records(self) -> list[tuple[SharePartitionKey, ShareRecord | None]]:
        """Return all records that are in the log, by log partition."""
        found = []
        for index in range(LOG_PARTITIONS):
            log = self.log(index).log
            read = self.log(index).read(log.offsets.log_start_offset, 1 << 20, min_one_batch=True, to_log_end=True)
            if read is None or read.slice is None:
                continue
            data = read.slice.read_all()
            for position, header in headers(data):
                for record in decode_batch(data, position, header, max_decompressed_size=1 << 20):
                    if record.key is not None and record.offset >= log.offsets.log_start_offset:
                        decoded = decode_record(record.key, record.value)
                        assert decoded is not None
                        found.append(decoded)
        return found


@asynccontextmanager
async def serving(
    directory: Path, *, partitions: int = 4, deletes: bool = False, **settings: int
) -> AsyncIterator[Serving]:
    """Run a coordinator over a directory until the end of the block, which is like a kill for it.

    `deletes`: delete the topic before the coordinator runs.
    """
    assignments = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    count = f"share.coordinator.state.topic.num.partitions={LOG_PARTITIONS}"
    async with rig(directory, count, *assignments) as made:
        if made.partitions.topic("jobs") is None:
            await made.partitions.create("jobs", partitions, {})
        topic = made.partitions.topic("jobs")
        assert topic is not None
        if deletes:
            await made.partitions.delete("jobs")
        service = ShareStateService(made.partitions, made.writer, made.partitions.settings, clock=lambda: made.now_ms)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            assert await service.runtime.ensure() is ErrorCode.NONE
            while service.runtime.is_loading:
                await trio.testing.wait_all_tasks_blocked()
            yield Serving(made, service, topic.id.bytes)
            nursery.cancel_scope.cancel()
