"""The interface to the stored state of share-partitions: values, and the operations of the share coordinator.

Source: org.apache.kafka.server.share.persister.Persister, org.apache.kafka.server.share.SharePartitionKey.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import UNKNOWN_COUNT, UNKNOWN_OFFSET, StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

#: Topic id (16 bytes) and partition.
PartitionById: TypeAlias = tuple[bytes, int]


class InitialState(NamedTuple):
    """The start offset of a share-partition; -1 leaves it to the partition's leader."""

    topic_id: bytes
    partition: int
    state_epoch: int
    start_offset: int = UNKNOWN_OFFSET


class Outcome(NamedTuple):
    """NONE, or why a state was not changed."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ReadState(NamedTuple):
    """The state of a share-partition, or why it was not read.

    `start_offset`: -1 if it is not initialized. Kafka's response has no count of completed deliveries: the leader
    counts them in `batches`.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state_epoch: int = 0
    start_offset: int = UNKNOWN_OFFSET
    batches: Sequence[StateBatch] = ()


class StateSummary(NamedTuple):
    """The state of a share-partition without its batches, or why it was not read.

    `delivery_complete_count`: the number of acknowledged or archived offsets from the start offset on, -1 if unknown.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNKNOWN_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT


class SharePersister(Protocol):
    """The share coordinator's interface, on this broker or on another one.

    No method raises; if the coordinator cannot be reached after some attempts, the result is a retriable error such as
    COORDINATOR_NOT_AVAILABLE. Calls made in the same turn of the event loop are sent together.
    """

    async def initialize(self, group: str, partitions: Sequence[InitialState]) -> Mapping[PartitionById, Outcome]:
        """Set the first state of share-partitions, or replace their state under an equal or higher state epoch."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        """Read a state at the start of leadership; writes of lower leader epochs are fenced from then on."""

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
        """Store changed batches, and the start offset. Batches without gaps to each other may overlap stored ones."""

    async def delete(self, group: str, partitions: Sequence[PartitionById]) -> Mapping[PartitionById, Outcome]:
        """Delete states. A state that does not exist counts as deleted."""

    async def summarize(
        self, group: str, leader_epochs: Mapping[PartitionById, int]
    ) -> Mapping[PartitionById, StateSummary]:
        """Read states without batches; a state that does not exist has the start offset -1.

        `leader_epochs`: those known here, -1 if unknown.
        """
