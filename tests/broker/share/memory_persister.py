"""A share coordinator in memory, for tests of its users. `error` answers everything while it is set."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from warmlog.broker.share.persister import (
    InitialState,
    Outcome,
    PartitionById,
    ReadState,
    StateSummary,
)
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey


class _State:
    def __init__(self, state_epoch: int, start_offset: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = -1
        self.start_offset = start_offset
        self.complete_count = -1 if start_offset == -1 else 0
        self.offsets: dict[int, tuple[int, int]] = {}  # state and deliveries

    def batches(self) -> tuple[StateBatch, ...]:
        def run(numbered: tuple[int, int]) -> tuple[int, tuple[int, int]]:
            return numbered[1] - numbered[0], self.offsets[numbered[1]]

        found = []
        for (_, value), offsets in groupby(enumerate(sorted(self.offsets)), run):
            numbers = [offset for _, offset in offsets]
            found.append(StateBatch(numbers[0], numbers[-1], *value))
        return tuple(found)


class MemoryPersister:
    """Implements `SharePersister`; `writes` has every successful write."""

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        self.states: dict[SharePartitionKey, _State] = {}
        self.writes: list[tuple[SharePartitionKey, tuple[StateBatch, ...]]] = []

    async def initialize(self, group: str, partitions: Sequence[InitialState]) -> Mapping[PartitionById, Outcome]:
        outcomes = {}
        for topic_id, partition, state_epoch, start_offset in partitions:
            error, key = self.error, SharePartitionKey(group, topic_id, partition)
            known = self.states.get(key)
            if error is ErrorCode.NONE and known is not None and known.state_epoch > state_epoch:
                error = ErrorCode.FENCED_STATE_EPOCH
            if error is ErrorCode.NONE:
                self.states[key] = _State(state_epoch, start_offset)
            outcomes[topic_id, partition] = Outcome(error)
        return outcomes

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        state = self.states.get(key)
        if self.error is not ErrorCode.NONE or state is None:
            return ReadState(self.error or ErrorCode.INVALID_REQUEST)
        if leader_epoch < state.leader_epoch:
            return ReadState(ErrorCode.FENCED_LEADER_EPOCH)
        state.leader_epoch = leader_epoch
        return ReadState(state_epoch=state.state_epoch, start_offset=state.start_offset, batches=state.batches())

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
        state = self.states.get(key)
        if self.error is not ErrorCode.NONE or state is None:
            return Outcome(self.error or ErrorCode.INVALID_REQUEST)
        if leader_epoch < state.leader_epoch:
            return Outcome(ErrorCode.FENCED_LEADER_EPOCH)
        if state_epoch < state.state_epoch:
            return Outcome(ErrorCode.FENCED_STATE_EPOCH)
        for first, last, delivery_state, deliveries in batches:
            state.offsets |= dict.fromkeys(range(first, last + 1), (delivery_state, deliveries))
        if start_offset != -1:
            state.start_offset = start_offset
            state.offsets = {offset: value for offset, value in state.offsets.items() if offset >= start_offset}
        state.complete_count = delivery_complete_count
        self.writes.append((key, tuple(batches)))
        return Outcome()

    async def delete(self, group: str, partitions: Sequence[PartitionById]) -> Mapping[PartitionById, Outcome]:
        if self.error is ErrorCode.NONE:
            for topic_id, partition in partitions:
                self.states.pop(SharePartitionKey(group, topic_id, partition), None)
        return dict.fromkeys(partitions, Outcome(self.error))

    async def summarize(
        self, group: str, leader_epochs: Mapping[PartitionById, int]
    ) -> Mapping[PartitionById, StateSummary]:
        found = {}
        for topic_id, partition in leader_epochs:
            state = self.states.get(SharePartitionKey(group, topic_id, partition))
            if self.error is not ErrorCode.NONE or state is None:
                found[topic_id, partition] = StateSummary(self.error)
            else:
                found[topic_id, partition] = StateSummary(
                    state_epoch=state.state_epoch,
                    leader_epoch=state.leader_epoch,
                    start_offset=state.start_offset,
                    delivery_complete_count=state.complete_count,
                )
        return found
