"""A client of the share coordinators, on this broker and on others.

    call ──► queue of its coordinator ──► one request per group with all waiting items ──► result, or another attempt

A request that another broker has carried out but not answered is repeated: all of them are idempotent.

Source: org.apache.kafka.server.share.persister.DefaultStatePersister, PersisterStateManager.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from warmlog.broker.coordinator.peer_queue import PeerQueue, Peers
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.share.persister import (
    InitialState,
    Outcome,
    PartitionById,
    ReadState,
    StateSummary,
)
from warmlog.broker.share.state.coordinator import ShareCoordinator
from warmlog.broker.share.state.shard import ShareStateShard
from warmlog.broker.share.state.topic import name_of
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    NamedSharePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    SharePartitionInEpoch,
    SharePartitionToInitialize,
    SharePartitionToWrite,
    StateBatch,
    WriteShareGroupStateRequest,
)
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import DELETE_STATE, INITIALIZE_STATE, READ_STATE, SUMMARIZE_STATE, WRITE_STATE
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

# Separate connections: brokers answer in order, and an answer waits for the in-sync replicas of a log partition.
WRITES: Final = -3
OTHERS: Final = -4
MAX_ITEMS = 200  # share-partitions per request
LIMIT_S = 25.0  # time for all attempts; clients wait for 30
FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
HERE: Final = -1  # used as a broker's id

_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)

Serve: TypeAlias = Callable[[Any, Callable[[], Awaitable[None]]], Awaitable[Any]]


class _Operation(NamedTuple):
    """A kind of request: for brokers, and for the coordinator here."""

    request: type[Any]
    api: PeerApi[Any, Any]
    serve: Serve
    connection: int


class _Destination(NamedTuple):
    """The key of a queue. This broker has a queue per log partition, so that none waits for another's replicas."""

    broker: int
    log_partition: int
    connection: int


class _Item:
    """A share-partition of a request, with its result."""

    __slots__ = ("answered", "group", "operation", "partition", "result")

    def __init__(self, operation: _Operation, group: str, partition: Any) -> None:
        self.operation = operation
        self.group = group
        self.partition = partition
        self.result: Any = None
        self.answered = trio.Event()


class StatePersister:
    """`SharePersister` for the share coordinators of the cluster. Belongs to the event loop; `run` is its task."""

    def __init__(
        self, coordinator: ShareCoordinator, runtime: CoordinatorRuntime[ShareStateShard], peers: Peers | None
    ) -> None:
        """`peers` are the other brokers of a cluster."""
        self._runtime = runtime
        self._peers = peers
        self._queue: PeerQueue[_Destination, _Item] = PeerQueue(self._send, max_items=MAX_ITEMS)
        self._initialize = _Operation(
            InitializeShareGroupStateRequest, INITIALIZE_STATE, coordinator.initialize, OTHERS
        )
        self._read = _Operation(ReadShareGroupStateRequest, READ_STATE, coordinator.read, OTHERS)
        self._write = _Operation(WriteShareGroupStateRequest, WRITE_STATE, coordinator.write, WRITES)
        self._delete = _Operation(DeleteShareGroupStateRequest, DELETE_STATE, coordinator.delete, OTHERS)
        self._summarize = _Operation(ReadShareGroupStateSummaryRequest, SUMMARIZE_STATE, coordinator.summarize, OTHERS)

    async def run(self) -> None:
        """Send requests until cancelled."""
        await self._queue.run()

    # -- SharePersister --

    async def initialize(self, group: str, partitions: Sequence[InitialState]) -> Mapping[PartitionById, Outcome]:
        """Set the first state of share-partitions."""
        items = [
            SharePartitionToInitialize(
                topic_id=each.topic_id,
                partition=each.partition,
                state_epoch=each.state_epoch,
                start_offset=each.start_offset,
            )
            for each in partitions
        ]
        return await self._ask_all(self._initialize, group, items, _outcome)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        """Read a state at the start of leadership."""
        item = SharePartitionInEpoch(topic_id=key.topic_id, partition=key.partition, leader_epoch=leader_epoch)
        result = await self._ask(self._read, key.group, item)
        if result.error is not ErrorCode.NONE:
            return ReadState(result.error, result.message)
        return ReadState(state_epoch=result.state_epoch, start_offset=result.start_offset, batches=result.batches)

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Outcome:
        """Store changed batches, and the start offset."""
        item = SharePartitionToWrite(
            topic_id=key.topic_id,
            partition=key.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            batches=tuple(batches),
        )
        return _outcome(await self._ask(self._write, key.group, item))

    async def delete(self, group: str, partitions: Sequence[PartitionById]) -> Mapping[PartitionById, Outcome]:
        """Delete states."""
        items = [NamedSharePartition(topic_id=topic_id, partition=index) for topic_id, index in partitions]
        return await self._ask_all(self._delete, group, items, _outcome)

    async def summarize(
        self, group: str, leader_epochs: Mapping[PartitionById, int]
    ) -> Mapping[PartitionById, StateSummary]:
        """Read states without batches."""
        items = [
            SharePartitionInEpoch(topic_id=topic_id, partition=index, leader_epoch=epoch)
            for (topic_id, index), epoch in leader_epochs.items()
        ]
        return await self._ask_all(self._summarize, group, items, _summary)

    # -- attempts --

    async def _ask_all(
        self, operation: _Operation, group: str, partitions: Iterable[Any], convert: Callable[[Any], Any]
    ) -> dict[PartitionById, Any]:
        """Query the coordinators of all share-partitions concurrently."""
        results: dict[PartitionById, Any] = {}

        async def ask(each: Any) -> None:
            results[each.topic_id, each.partition] = convert(await self._ask(operation, group, each))

        async with trio.open_nursery() as nursery:
            for each in partitions:
                nursery.start_soon(ask, each)
        return results

    async def _ask(self, operation: _Operation, group: str, partition: Any) -> Any:
        """Return the result of a share-partition; a temporary error is returned only when the time is up."""
        key = SharePartitionKey(group, partition.topic_id, partition.partition)
        result: Any = Outcome(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the share coordinator does not answer")
        pause_s = FIRST_PAUSE_S
        with trio.move_on_after(LIMIT_S):
            while True:
                destination = await self._destination(key, operation)
                if destination is not None:
                    item = _Item(operation, group, partition)
                    self._queue.put(destination, item)
                    await item.answered.wait()
                    if item.result is not None:
                        result = item.result
                        if result.error not in _PASSING:
                            return result
                if self._runtime.is_stopped:
                    return result  # the broker stops, and the waiting member goes elsewhere
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        return result

    async def _destination(self, key: SharePartitionKey, operation: _Operation) -> _Destination | None:
        """Return the queue of a key's coordinator; None if it currently has none."""
        runtime, name = self._runtime, name_of(key)
        if not runtime.leads(name):
            if await runtime.ensure() is not ErrorCode.NONE:
                return None
            if not runtime.leads(name):
                index = runtime.partition_of(name)
                broker = None if self._peers is None else self._peers.leader_id(runtime.topic, index)
                return None if broker is None else _Destination(broker, 0, operation.connection)
        return _Destination(HERE, runtime.partition_of(name), operation.connection)

    async def _send(self, destination: _Destination, items: Sequence[_Item]) -> None:
        requests: dict[tuple[type[Any], str], list[_Item]] = {}
        for item in items:
            requests.setdefault((item.operation.request, item.group), []).append(item)
        try:
            async with trio.open_nursery() as nursery:
                for of_request in requests.values():
                    nursery.start_soon(self._send_request, destination, of_request)
        finally:
            for item in items:
                item.answered.set()

    async def _send_request(self, destination: _Destination, items: Sequence[_Item]) -> None:
        """Send a request about distinct share-partitions, and set the result of each item."""
        operation, group = items[0].operation, items[0].group
        while items:
            distinct: dict[PartitionById, _Item] = {}
            rest = []
            for item in items:
                number = item.partition.topic_id, item.partition.partition
                if distinct.setdefault(number, item) is not item:
                    rest.append(item)
            partitions = _by_topic([item.partition for item in distinct.values()])
            request = operation.request(group=group, partitions=partitions)
            if destination.broker == HERE:
                response = await operation.serve(request, trio.lowlevel.checkpoint)
            else:
                assert self._peers is not None
                response = await self._peers.answer(destination.broker, operation.api, request, destination.connection)
            for each in () if response is None else response.partitions:
                item_or_none = distinct.get((each.topic_id, each.partition))
                if item_or_none is not None:
                    item_or_none.result = each
            items = rest


def _by_topic(partitions: Sequence[Any]) -> tuple[Any, ...]:
    """Group share-partitions by topic: a message has each topic once."""
    return tuple(sorted(partitions, key=lambda each: (each.topic_id, each.partition)))


def _outcome(result: Any) -> Outcome:
    return Outcome(result.error, result.message)


def _summary(result: Any) -> StateSummary:
    if result.error is not ErrorCode.NONE:
        return StateSummary(result.error, result.message)
    return StateSummary(
        state_epoch=result.state_epoch,
        leader_epoch=result.leader_epoch,
        start_offset=result.start_offset,
        delivery_complete_count=result.delivery_complete_count,
    )
