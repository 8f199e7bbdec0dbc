"""Effects of the transaction coordinator as values, and the reports that it expects in return."""

from collections.abc import Hashable
from typing import NamedTuple, Protocol, TypeAlias

from warmlog.broker.coordinator.term import Term
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import StoredTransaction
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionVersion

Waiter: TypeAlias = Hashable  # the sender of a request; opaque here


class ProducerIdSource(Protocol):
    """Source of unused producer ids."""

    def take(self) -> int | None:
        """Return an id, or None while the next block is being fetched: the client then retries."""


class Producer(NamedTuple):
    """A producer id with its epoch."""

    id: int
    epoch: int


class EffectSource(NamedTuple):
    """The automaton that requested an effect, and the term of its log partition.

    The term's leader epoch is written into markers. A report about any term but the current one is ignored.
    """

    transactional_id: str
    term: Term


class Answer(NamedTuple):
    """Reply to a request. The producer is given where InitProducerId or EndTxn (version 5 or later) succeeded."""

    waiter: Waiter
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class Append(NamedTuple):
    """Append a state to `__transaction_state` with acks=all; then call `TransactionCoordinator.appended`.

    `value`: None writes a tombstone. At most one append per transactional id is in flight.
    """

    source: EffectSource
    value: StoredTransaction | None


class WriteMarkers(NamedTuple):
    """End a transaction in these partitions with a control batch; then call `TransactionCoordinator.markers_written`.

    Results may be reported per partition. A partition that the catalog no longer has counts as written (NONE).
    `version` decides whether a partition accepts a marker of an epoch that it has already seen.
    """

    source: EffectSource
    producer: Producer
    outcome: Outcome
    partitions: frozenset[TopicPartition]
    version: TransactionVersion


class RetryLater(NamedTuple):
    """Call `TransactionCoordinator.retry` after a pause: an append or a marker failed with a retriable error."""

    source: EffectSource


class Stuck(NamedTuple):
    """Report that a decided transaction cannot be completed by this coordinator.

    TRANSACTION_COORDINATOR_FENCED: a newer coordinator completes it. Any other error needs an operator; requests for
    the transactional id get CONCURRENT_TRANSACTIONS until its log partition is loaded again.
    """

    source: EffectSource
    error: ErrorCode


Effect: TypeAlias = Answer | Append | WriteMarkers | RetryLater | Stuck
