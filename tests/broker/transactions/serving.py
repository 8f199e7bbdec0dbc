"""A transaction coordinator on real logs, without listeners."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
import trio.testing

from tests.broker.rig import Rig, rig
from warmlog.broker.log.errors import LogError
from warmlog.broker.partitions.partition import Append, Partition
from warmlog.broker.transactions.coordinator import InitRequest
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.markers import AppendMarker, Marker, MarkerWriter
from warmlog.broker.transactions.producer_ids import ProducerIds
from warmlog.broker.transactions.service import TransactionService
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import TransactionVersion

TV_2 = TransactionVersion.TV_2


def append_record(partition: Partition, marker: Marker) -> Append:
    """Append a record in the place of a marker."""
    return partition.append(build_batch([(0, b"marker", b"%d" % marker.outcome, ())]))


@dataclass
class Markers:
    """Appends each marker, by default as a record; refuses partitions of `failing` topics."""

    written: list[tuple[str, int, Marker]] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    append: AppendMarker = append_record

    def __call__(self, partition: Partition, marker: Marker) -> Append:
        if partition.topic in self.failing:
            raise LogError("not now")
        self.written.append((partition.topic, partition.index, marker))
        return self.append(partition, marker)


@dataclass
class Serving:
    """The service, and what it stands on."""

    rig: Rig
    service: TransactionService
    markers: Markers

    async def producer(self, name: str = "id", timeout_ms: int = 60_000) -> Producer:
        answer = await self.service.initialize(InitRequest(transactional_id=name, timeout_ms=timeout_ms))
        assert answer.error is ErrorCode.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    async def add(self, producer: Producer, *partitions: tuple[str, int], name: str = "id") -> ErrorCode:
        return await self.service.add_partitions(name, producer, partitions, TV_2)

    async def commit(self, producer: Producer, name: str = "id") -> Producer:
        answer = await self.service.end(name, producer, Outcome.COMMIT, TV_2)
        assert answer.error is ErrorCode.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    def state(self, name: str = "id") -> str:
        found = self.service.coordinator.describe(name)
        return found.name if isinstance(found, ErrorCode) else found.state.label


@asynccontextmanager
async def serving(directory: Path, markers: Markers | None = None, **settings: int) -> AsyncIterator[Serving]:
    """Run a coordinator over a directory until the end of the block, which is like a kill for it."""
    assignments = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    async with rig(directory, "transaction.state.log.num.partitions=3", *assignments) as made:
        append = markers or Markers()
        service = TransactionService(
            made.partitions,
            made.writer,
            made.partitions.settings,
            ids=ProducerIds(made.node, lambda: -1),
            markers=MarkerWriter(made.partitions, made.writer, append),
            clock=lambda: made.now_ms,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            assert await service.ensure() is ErrorCode.NONE
            while service.runtime.is_loading:
                await trio.testing.wait_all_tasks_blocked()
            yield Serving(made, service, append)
            nursery.cancel_scope.cancel()
