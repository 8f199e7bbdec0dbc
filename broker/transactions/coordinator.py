"""All transactional ids of this broker: dispatch requests to their automatons.

Sans-IO, as `state.py` is: a request carries a waiter and the time, and `take_effects` returns the effects to carry out.

Invariants:
1. While a log partition is being read its ids are answered with COORDINATOR_LOAD_IN_PROGRESS; while it is led by
   another broker or offline, with NOT_COORDINATOR.
2. A report about an effect of an earlier term is ignored.

Source: kafka.coordinator.transaction.TransactionCoordinator, TransactionStateManager (Kafka 4.3.1).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from warmlog.broker.transactions.effects import (
    Answer,
    Append,
    Effect,
    EffectSource,
    Producer,
    ProducerIdSource,
    RetryLater,
    Waiter,
    WriteMarkers,
)
from warmlog.broker.transactions.metadata import Metadata, State
from warmlog.broker.transactions.shard import TransactionShard
from warmlog.broker.transactions.state import Transaction
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import NO_TIMEOUT_MS, TransactionVersion

IDS_A_STEP = 500  # ids examined between two checkpoints
MAX_ID_BYTES = 32_767  # the limit of a record's key
EFFECTS_A_STEP = 10  # effects caused between two checkpoints: each leads to several writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the broker."""

    max_timeout_ms: int  # transaction.max.timeout.ms
    id_expiration_ms: int  # transactional.id.expiration.ms
    max_ids: int = 1 << 31  # warmlog.transactional.ids.max
    max_partitions: int = 1 << 31  # of a transaction: warmlog.transaction.partitions.max
    max_partitions_in_all: int = 1 << 31  # of all transactions together
    allows_two_phases: bool = False  # transaction.two.phase.commit.enable (KIP-939)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """An InitProducerId with a transactional id. `expected`: the producer that continues after an error (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None
    in_two_phases: bool = False
    keeps_prepared: bool = False


class Shards(Protocol):
    """The log partitions that this broker leads, by transactional id."""

    def shards(self) -> list[TransactionShard]:
        """Return all shards."""

    def shard_at(self, index: int) -> TransactionShard | None:
        """Return the shard of a log partition."""

    def shard_of(self, name: str) -> TransactionShard | None:
        """Return the shard of a transactional id."""

    def availability(self, name: str) -> ErrorCode:
        """Return NONE, or the code that answers requests for an id."""

    @property
    def is_loading(self) -> bool:
        """Whether a shard is being loaded."""


class TransactionCoordinator:
    """Coordinates all transactional ids. Calls must not be concurrent."""

    def __init__(
        self, shards: Shards, ids: ProducerIdSource, limits: Limits, level: TransactionVersion = TransactionVersion.TV_2
    ) -> None:
        self.level = level  # finalized `transaction.version`; may change at any time
        self._shards = shards
        self._ids = ids
        self._limits = limits
        self._effects: list[Effect] = []

    @property
    def id_count(self) -> int:
        """The number of transactional ids."""
        return sum([len(shard.transactions) for shard in self._served()])

    def is_current(self, source: EffectSource) -> bool:
        """Return whether the automaton that requested an effect is still loaded."""
        return self._present(source) is not None

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    # -- log partitions --

    def resume(self, shard: TransactionShard, now_ms: int) -> Iterator[None]:
        """Complete the decided transactions of a loaded log partition; yields periodically."""
        for count, transaction in enumerate(list(shard.transactions.values()), 1):
            transaction.resume(now_ms)
            self._collect(transaction)
            if count % IDS_A_STEP == 0 or self._has_step:
                yield

    def close(self, shard: TransactionShard) -> None:
        """Unload a log partition that another broker leads or that is offline.

        Waiting requests get NOT_COORDINATOR.
        """
        for transaction in shard.close():
            transaction.give_up(ErrorCode.NOT_COORDINATOR)
            self._effects += transaction.take_effects()

    def availability(self, transactional_id: str) -> ErrorCode:
        """Return NONE if this broker serves the id, else the error code."""
        if not transactional_id or len(transactional_id.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
            return ErrorCode.INVALID_REQUEST
        return self._shards.availability(transactional_id)

    # -- requests --

    def knows(self, transactional_id: str) -> bool:
        """Return whether a transactional id exists; True also if another broker coordinates it."""
        is_available = self.availability(transactional_id) is ErrorCode.NONE
        return not is_available or self._find(transactional_id) is not None

    def may_need_producer_id(self, transactional_id: str) -> bool:
        """Return whether a request may need a new producer id: the transactional id is new, or its epochs are used."""
        transaction = self._find(transactional_id)
        return transaction is None or transaction.metadata.is_exhausted

    def init_producer_id(self, request: InitRequest, waiter: Waiter, now_ms: int) -> None:
        """Handle InitProducerId with a transactional id."""
        error = self._check_init(request) or self.availability(request.transactional_id)
        if error is not ErrorCode.NONE:
            self._effects.append(Answer(waiter, error))
            return
        timeout_ms = NO_TIMEOUT_MS if request.in_two_phases else request.timeout_ms
        transaction = self._find(request.transactional_id)
        if transaction is None:
            is_full = self.id_count >= self._limits.max_ids
            producer_id = None if is_full else self._ids.take()
            if producer_id is None:
                error = ErrorCode.POLICY_VIOLATION if is_full else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                self._effects.append(Answer(waiter, error))
                return
            transaction = self._create(request.transactional_id, producer_id, timeout_ms, now_ms)
        transaction.initialize(request.expected, timeout_ms, waiter, ids=self._ids, level=self.level, now_ms=now_ms)
        self._collect(transaction)

    def _check_init(self, request: InitRequest) -> ErrorCode:
        if request.in_two_phases and not self._limits.allows_two_phases:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keeps_prepared:
            return ErrorCode.UNSUPPORTED_VERSION
        if not request.in_two_phases and not 0 < request.timeout_ms <= self._limits.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        waiter: Waiter,
        *,
        version: TransactionVersion,
        now_ms: int,
    ) -> None:
        """Handle AddPartitionsToTxn, AddOffsetsToTxn (the group's partition), and Produce of clients that send neither.

        `version`: TV_0 for requests of clients that add partitions beforehand, TV_2 for those that do not. Answered
        with POLICY_VIOLATION at a limit.
        """
        transaction = self._require(transactional_id, waiter)
        if transaction is None:
            return
        limits = self._limits
        others = sum([shard.partition_count for shard in self._served()]) - transaction.partition_count
        most = min(limits.max_partitions, limits.max_partitions_in_all - others)
        if len(partitions) > limits.max_partitions:  # refused without examining them
            self._effects.append(Answer(waiter, ErrorCode.POLICY_VIOLATION))
            return
        transaction.add_partitions(
            producer, frozenset(partitions), waiter, version=version, max_partitions=most, now_ms=now_ms
        )
        self._collect(transaction)

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Report which partitions are part of the producer's open transaction (KIP-890, for older clients)."""
        error = self.availability(transactional_id)
        transaction = self._find(transactional_id)
        if error is ErrorCode.NONE and transaction is not None:
            return transaction.verify_partitions(producer, partitions)
        return dict.fromkeys(partitions, error or ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        outcome: Outcome,
        waiter: Waiter,
        *,
        version: TransactionVersion,
        now_ms: int,
    ) -> None:
        """Handle EndTxn. `version`: TV_2 for version 5 and later of the request, else TV_0."""
        transaction = self._require(transactional_id, waiter)
        if transaction is not None:
            transaction.end(producer, outcome, waiter, version=version, ids=self._ids, now_ms=now_ms)
            self._collect(transaction)

    def describe(self, transactional_id: str) -> Metadata | ErrorCode:
        """Return the state of an id, or the code that answers DescribeTransactions for it."""
        error = self.availability(transactional_id)
        transaction = self._find(transactional_id)
        if error is not ErrorCode.NONE or transaction is None:
            return error or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return transaction.metadata

    @property
    def is_loading(self) -> bool:
        """Whether a log partition is being loaded: then ListTransactions answers COORDINATOR_LOAD_IN_PROGRESS."""
        return self._shards.is_loading

    def select(
        self,
        now_ms: int,
        *,
        producer_ids: Collection[int] = (),
        states: Collection[State] = (),
        min_duration_ms: int = -1,
    ) -> Iterator[tuple[str, Metadata] | None]:
        """Yield ids with their states for ListTransactions; None periodically, so that other tasks can run.

        Empty filters select all. A duration of 0 or more selects transactions that began longer ago than that.
        """
        for count, transaction in enumerate(self._all(), 1):
            metadata = transaction.metadata
            if (
                (not producer_ids or metadata.producer_id in producer_ids)
                and (not states or metadata.state in states)
                and (min_duration_ms < 0 or now_ms - metadata.started_ms > min_duration_ms)
            ):
                yield transaction.source.transactional_id, metadata
            if count % IDS_A_STEP == 0:
                yield None

    # -- time --

    def abort_timed_out(self, now_ms: int) -> Iterator[None]:
        """Abort transactions that have been open for too long; yields periodically.

        Call it every transaction.abort.timed.out.transaction.cleanup.interval.ms.
        """
        are_open = [transaction for shard in self._served() for transaction in shard.open.values()]
        for count, transaction in enumerate(are_open, 1):
            if self._find(transaction.source.transactional_id) is transaction:
                transaction.abort_timed_out(ids=self._ids, level=self.level, now_ms=now_ms)
                self._collect(transaction)
            if count % IDS_A_STEP == 0 or self._has_step:
                yield

    def expire(self, now_ms: int) -> Iterator[None]:
        """Remove ids that have not been used for transactional.id.expiration.ms; yields periodically.

        Call it every transaction.remove.expired.transaction.cleanup.interval.ms.
        """
        unused_since_ms = now_ms - self._limits.id_expiration_ms
        for count, transaction in enumerate(self._all(), 1):
            if self._find(transaction.source.transactional_id) is transaction:
                transaction.expire(unused_since_ms)
                self._collect(transaction)
            if count % IDS_A_STEP == 0 or self._has_step:
                yield

    # -- reports --

    def appended(self, append: Append, error: ErrorCode, now_ms: int) -> None:
        """Process the outcome of an `Append` effect."""
        transaction = self._present(append.source)
        if transaction is None:
            return
        transaction.appended(error, now_ms)
        if transaction.is_expired:
            del self._shard_of(transaction).transactions[append.source.transactional_id]
        self._collect(transaction)

    def markers_written(self, markers: WriteMarkers, results: Mapping[TopicPartition, ErrorCode]) -> None:
        """Process the outcome of a `WriteMarkers` effect, for all or some of its partitions."""
        transaction = self._present(markers.source)
        if transaction is not None:
            transaction.markers_written(results)
            self._collect(transaction)

    def retry(self, effect: RetryLater) -> None:
        """Repeat the failed markers or append."""
        transaction = self._present(effect.source)
        if transaction is not None:
            transaction.retry()
            self._collect(transaction)

    # -- inside --

    def _create(self, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        shard = self._shards.shard_of(transactional_id)
        assert shard is not None, "an id is created in a term of its log partition"
        return shard.create(
            transactional_id, Metadata(producer_id=producer_id, timeout_ms=timeout_ms, updated_ms=now_ms)
        )

    def _find(self, transactional_id: str) -> Transaction | None:
        shard = self._shards.shard_of(transactional_id)
        return None if shard is None else shard.transactions.get(transactional_id)

    def _require(self, transactional_id: str, waiter: Waiter) -> Transaction | None:
        """Return the automaton of a request, or answer the waiter with an error and return None."""
        error = self.availability(transactional_id)
        transaction = self._find(transactional_id)
        if error is ErrorCode.NONE and transaction is not None:
            return transaction
        self._effects.append(Answer(waiter, error or ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        return None

    def _present(self, source: EffectSource) -> Transaction | None:
        """Return the automaton that requested an effect; None if its log partition's term has ended."""
        shard = self._shards.shard_at(source.term.index)
        if shard is None or shard.term is not source.term:
            return None
        return shard.transactions.get(source.transactional_id)

    @property
    def _has_step(self) -> bool:
        return len(self._effects) >= EFFECTS_A_STEP

    def _collect(self, transaction: Transaction) -> None:
        self._effects += transaction.take_effects()
        self._shard_of(transaction).changed(transaction)

    def _shard_of(self, transaction: Transaction) -> TransactionShard:
        shard = self._shards.shard_at(transaction.source.term.index)
        assert shard is not None, "automatons are used in the term of their log partition"
        return shard

    def _served(self) -> list[TransactionShard]:
        return [shard for shard in self._shards.shards() if shard.is_serving]

    def _all(self) -> Iterator[Transaction]:
        for shard in self._served():
            yield from list(shard.transactions.values())
