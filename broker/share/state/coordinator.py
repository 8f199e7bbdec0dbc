"""Answer requests for share group state: apply the rules, append the records, answer once they are stored.

The records of a request are appended together per log partition. Only brokers send these requests, on behalf of all
partition leaders, so the memory of states is counted for all senders together.

Source: org.apache.kafka.coordinator.share.ShareCoordinatorService.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import trio

from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.settings.settings import Settings
from warmlog.broker.share.state import rules
from warmlog.broker.share.state.rules import RefusedError, ShareState
from warmlog.broker.share.state.shard import BATCH_BYTES, STATE_BYTES, Change, ShareStateShard, StateEntry
from warmlog.broker.share.state.topic import name_of
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share import state as messages
from warmlog.protocol.kafka.messages.share.state import (
    UNKNOWN_OFFSET,
    NamedSharePartition,
    SharePartitionInEpoch,
    SharePartitionResult,
    SharePartitionState,
    SharePartitionSummary,
    SharePartitionToInitialize,
    SharePartitionToWrite,
)
from warmlog.protocol.kafka.share_state_records import SharePartitionKey, ShareRecord

STEP_WEIGHT = 50  # share-partitions of a request appended together before a checkpoint: 2 ms
RESULTS_PER_STEP = 1_000
BATCHES_PER_WEIGHT = 20  # batches that take as long as a share-partition, 0.04 ms
Checkpoint: TypeAlias = Callable[[], Awaitable[None]]

P = TypeVar("P", SharePartitionToInitialize, SharePartitionInEpoch, SharePartitionToWrite, NamedSharePartition)
R = TypeVar("R", SharePartitionResult, SharePartitionState, SharePartitionSummary)


class _Decision(NamedTuple, Generic[R]):
    """The answer for a share-partition of a request once `records` are stored; None is a tombstone."""

    result: R
    records: tuple[ShareRecord | None, ...] = ()


class ShareCoordinator:
    """Serves the states of this broker's log partitions. Call all methods on the event loop."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[ShareStateShard],
        settings: Settings,
        clock: Callable[[], int],
        has_partition: Callable[[bytes, int], bool],
    ) -> None:
        """`clock` returns ms since the epoch. `has_partition` returns whether the topic with an id has a partition."""
        self._runtime = runtime
        self._clock = clock
        self._has_partition = has_partition
        self._updates = settings.share_coordinator_snapshot_update_records_per_snapshot
        self._limit_s = settings.share_coordinator_write_timeout_ms / 1000
        self._max_bytes = settings.warmlog_share_states_memory_max_bytes
        self.refused = 0  # number of changes refused for lack of memory

    # -- requests --

    async def initialize(
        self, request: messages.InitializeShareGroupStateRequest, checkpoint: Checkpoint
    ) -> messages.InitializeShareGroupStateResponse:
        """Set the first state of share-partitions."""

        def decide(entry: StateEntry, each: SharePartitionToInitialize) -> _Decision[SharePartitionResult]:
            record = rules.initialized(entry.state, each, self._clock())
            self._check_partition(each)
            self._check_memory(STATE_BYTES if entry.state is None else 0)
            return _Decision(_done(each), (record,))

        results = await self._answer(request.group, request.partitions, decide, _refused_change, checkpoint)
        return messages.InitializeShareGroupStateResponse(partitions=results)

    async def read(
        self, request: messages.ReadShareGroupStateRequest, checkpoint: Checkpoint
    ) -> messages.ReadShareGroupStateResponse:
        """Return states, and fence earlier leaders of their partitions."""

        def decide(entry: StateEntry, each: SharePartitionInEpoch) -> _Decision[SharePartitionState]:
            content, record = rules.read(entry.state, each, self._clock(), self._updates)
            self._check_partition(each)
            result = SharePartitionState(
                topic_id=each.topic_id,
                partition=each.partition,
                state_epoch=content.state_epoch,
                start_offset=content.start_offset,
                batches=content.batches,
            )
            return _Decision(result, () if record is None else (record,))

        results = await self._answer(request.group, request.partitions, decide, _refused_read, checkpoint)
        return messages.ReadShareGroupStateResponse(partitions=results)

    async def write(
        self, request: messages.WriteShareGroupStateRequest, checkpoint: Checkpoint
    ) -> messages.WriteShareGroupStateResponse:
        """Change states."""

        def decide(entry: StateEntry, each: SharePartitionToWrite) -> _Decision[SharePartitionResult]:
            record = rules.written(entry.state, each, self._clock(), self._updates)
            self._check_partition(each)
            self._check_memory(BATCH_BYTES * len(each.batches))
            return _Decision(_done(each), (record,))

        results = await self._answer(request.group, request.partitions, decide, _refused_change, checkpoint)
        return messages.WriteShareGroupStateResponse(partitions=results)

    async def delete(
        self, request: messages.DeleteShareGroupStateRequest, checkpoint: Checkpoint
    ) -> messages.DeleteShareGroupStateResponse:
        """Delete states; one that does not exist counts as deleted."""

        def decide(entry: StateEntry, each: NamedSharePartition) -> _Decision[SharePartitionResult]:
            rules.check_index(each.partition)
            self._check_partition(each)
            return _Decision(_done(each), () if entry.state is None else (None,))

        results = await self._answer(request.group, request.partitions, decide, _refused_change, checkpoint)
        return messages.DeleteShareGroupStateResponse(partitions=results)

    async def summarize(
        self, request: messages.ReadShareGroupStateSummaryRequest, checkpoint: Checkpoint
    ) -> messages.ReadShareGroupStateSummaryResponse:
        """Return states without their batches; one that does not exist has the start offset -1."""

        def decide(entry: StateEntry, each: SharePartitionInEpoch) -> _Decision[SharePartitionSummary]:
            rules.check_index(each.partition)
            self._check_partition(each)
            return _Decision(_summary(each, entry.state))

        results = await self._answer(request.group, request.partitions, decide, _refused_summary, checkpoint)
        return messages.ReadShareGroupStateSummaryResponse(partitions=results)

    def _check_partition(self, each: Any) -> None:
        """Raise RefusedError for a partition that does not exist."""
        if not self._has_partition(each.topic_id, each.partition):
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic of this id has such a partition")

    def _check_memory(self, growth: int) -> None:
        if growth and sum([shard.bytes for shard in self._runtime.shards()]) + growth > self._max_bytes:
            self.refused += 1
            message = "states of share groups hold as much memory as this broker allows"
            raise RefusedError(ErrorCode.POLICY_VIOLATION, f"{message} (warmlog.share.states.memory.max.bytes)")

    # -- answers --

    async def _answer(
        self,
        group: str,
        partitions: Sequence[P],
        decide: Callable[[StateEntry, P], _Decision[R]],
        refused: Callable[[P, ErrorCode, str | None], R],
        checkpoint: Checkpoint,
    ) -> tuple[R, ...]:
        """Decide about all share-partitions of a request; return the results when their records are stored.

        As in Kafka, the answer is empty without a group or without partitions.
        """
        if not group:
            return ()
        pending: _Pending[R] = _Pending(len(partitions))
        appends: dict[ShareStateShard, list[Change]] = {}
        weight = 0
        named: set[tuple[bytes, int]] = set()
        for index, each in enumerate(partitions):
            try:
                _check_new(named, each)
                shard, entry, decision = self._decide(group, each, decide)
                for record in decision.records:
                    appends.setdefault(shard, []).append(shard.change(entry, record))
            except RefusedError as refusal:
                pending.settle(index, refused(each, refusal.error, refusal.message))
            else:
                if entry.is_changing:
                    entry.wait(partial(pending.settle, index, decision.result))
                else:
                    pending.settle(index, decision.result)
            weight += _weight(each)
            if weight >= STEP_WEIGHT:
                weight = 0
                self._append_all(appends)
                await checkpoint()
        self._append_all(appends)
        with trio.move_on_after(self._limit_s):
            await pending.wait()
        return await _results(partitions, pending, refused, checkpoint)

    def _decide(
        self, group: str, each: P, decide: Callable[[StateEntry, P], _Decision[R]]
    ) -> tuple[ShareStateShard, StateEntry, _Decision[R]]:
        """Decide about a share-partition. Raises RefusedError."""
        rules.check_index(each.partition)
        key = SharePartitionKey(group, each.topic_id, each.partition)
        name = name_of(key)
        error = self._runtime.availability(name)
        shard = self._runtime.shard_of(name)
        if error is not ErrorCode.NONE or shard is None:
            raise RefusedError(error or ErrorCode.NOT_COORDINATOR, "this broker does not serve the share-partition")
        entry = shard.entries.get(key) or StateEntry(key)
        return shard, entry, decide(entry, each)

    def _append_all(self, appends: dict[ShareStateShard, list[Change]]) -> None:
        while appends:
            self.append(*appends.popitem())

    def append(self, shard: ShareStateShard, changes: Sequence[Change]) -> None:
        """Append the records of changes, and report their outcome."""

        def settled(error: ErrorCode, offsets: Sequence[int]) -> None:
            for change, offset in zip_longest(changes, offsets):
                shard.settle(change, offset, error)

        self._runtime.append(shard.term, name_of(changes[0].entry.key), [each.row for each in changes], settled)


class _Pending(Generic[R]):
    """The results of a request so far."""

    def __init__(self, count: int) -> None:
        self.results: list[tuple[ErrorCode, R | None]] = [(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)] * count
        self._left = count
        self._complete = trio.Event()

    def settle(self, index: int, result: R, error: ErrorCode = ErrorCode.NONE) -> None:
        """Set the result of a share-partition, or the error of its record."""
        self.results[index] = error, result
        self._left -= 1
        if not self._left:
            self._complete.set()

    async def wait(self) -> None:
        """Wait until all results are available."""
        if self._left:
            await self._complete.wait()


def _check_new(named: set[tuple[bytes, int]], each: Any) -> None:
    """Raise RefusedError for a repeated share-partition, which no broker sends."""
    key = each.topic_id, each.partition
    if key in named:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the request names the share-partition twice")
    named.add(key)


def _weight(each: Any) -> int:
    return 1 + len(each.batches) // BATCHES_PER_WEIGHT if isinstance(each, SharePartitionToWrite) else 1


async def _results(
    partitions: Sequence[P],
    pending: "_Pending[R]",
    refused: Callable[[P, ErrorCode, str | None], R],
    checkpoint: Checkpoint,
) -> tuple[R, ...]:
    """Return the results of a request; changes that are not stored yet are errors."""
    results = []
    for index, each in enumerate(partitions):
        error, result = pending.results[index]
        if error is ErrorCode.NONE and result is not None:
            results.append(result)
        else:
            results.append(refused(each, error, "the state was not stored"))
        if index % RESULTS_PER_STEP == 0:
            await checkpoint()
    return tuple(results)


def _done(each: Any) -> SharePartitionResult:
    return SharePartitionResult(topic_id=each.topic_id, partition=each.partition)


def _summary(each: SharePartitionInEpoch, state: ShareState | None) -> SharePartitionSummary:
    if state is None:
        return SharePartitionSummary(topic_id=each.topic_id, partition=each.partition, start_offset=UNKNOWN_OFFSET)
    content = state.content
    return SharePartitionSummary(
        topic_id=each.topic_id,
        partition=each.partition,
        state_epoch=content.state_epoch,
        leader_epoch=content.leader_epoch,
        start_offset=content.start_offset,
        delivery_complete_count=content.delivery_complete_count,
    )


def _refused_change(each: Any, error: ErrorCode, message: str | None) -> SharePartitionResult:
    return SharePartitionResult(topic_id=each.topic_id, partition=each.partition, error=error, message=message)


def _refused_read(each: SharePartitionInEpoch, error: ErrorCode, message: str | None) -> SharePartitionState:
    return SharePartitionState(topic_id=each.topic_id, partition=each.partition, error=error, message=message)


def _refused_summary(each: SharePartitionInEpoch, error: ErrorCode, message: str | None) -> SharePartitionSummary:
    return SharePartitionSummary(topic_id=each.topic_id, partition=each.partition, error=error, message=message)
