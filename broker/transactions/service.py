"""The transaction coordinator as a service: carry out its effects, run its timers.

Invariant: appends are queued in the order of the coordinator's `Append` effects.

Source: kafka.coordinator.transaction.TransactionCoordinator, TransactionStateManager.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import trio

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.coordinator.effects import EffectLoop
from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.coordinator.runtime import CoordinatorRuntime, in_steps
from warmlog.broker.coordinator.term import Term
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings
from warmlog.broker.transactions.admission import Admission
from warmlog.broker.transactions.coordinator import InitRequest, Limits, TransactionCoordinator
from warmlog.broker.transactions.effects import (
    Answer,
    Append,
    Effect,
    Producer,
    RetryLater,
    Stuck,
    Waiter,
    WriteMarkers,
)
from warmlog.broker.transactions.markers import Marker, MarkerWriter
from warmlog.broker.transactions.peers import RemoteCoordinators, RemoteMarkers
from warmlog.broker.transactions.producer_ids import ProducerIds
from warmlog.broker.transactions.routing import MarkerRouter, MarkerSink
from warmlog.broker.transactions.shard import TransactionShard
from warmlog.broker.transactions.topic import STATE_TOPIC, TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import encode_transaction, encode_transaction_key
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import TRANSACTION_FEATURE, TransactionVersion

logger = logging.getLogger(__name__)

MAX_PARTITIONS_ENCODED_HERE = 500  # about 4 ms; a thread encodes more
WARNING_PAUSE_S = 10.0
RETRY_PAUSE_S = 0.1  # pause before a failed marker or completion is written again
RETRIES_PER_STEP = 10
ANSWER_LIMIT_S = 15.0  # timeout of a request whose record is not replicated yet; clients and brokers wait for 30


class TransactionService:
    """The transaction coordinator of this broker. Call all methods on the event loop; `run` is its task."""

    def __init__(
        self,
        partitions: Partitions,
        writer: Writer,
        settings: Settings,
        *,
        ids: ProducerIds,
        markers: MarkerWriter,
        clock: Callable[[], int],
        peers: Peers | None = None,
    ) -> None:
        """Use open logs. `clock` returns ms since the epoch; `peers` are the other brokers of a cluster."""
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(STATE_TOPIC, partitions, writer, clock)
        self._partitions = partitions
        self._settings = settings
        self.ids = ids
        self.markers = markers
        self._clock = clock
        self._to_peers: list[RemoteMarkers | RemoteCoordinators] = []
        self._markers: MarkerSink = markers
        elsewhere = None
        if peers is not None:
            self._to_peers = [remote := RemoteMarkers(peers), elsewhere := RemoteCoordinators(peers)]
            self._markers = MarkerRouter(partitions, writer, here=markers, elsewhere=remote, peers=peers)
        self.admission = Admission(self, settings, peers, elsewhere)
        limits = Limits(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
            max_ids=settings.warmlog_transactional_ids_max,
            max_partitions=settings.warmlog_transaction_partitions_max,
            max_partitions_in_all=settings.max_transaction_partitions,
        )
        self.coordinator = TransactionCoordinator(self.runtime, ids, limits)
        self._retries: list[RetryLater] = []
        self._stored: dict[str, trio.lowlevel.ParkingLot] = {}  # tasks waiting for the next state of an id
        self._has_retries = trio.Event()
        self._next_warning_at = -math.inf
        self._effects: EffectLoop[Effect] = EffectLoop(self._carry_out)
        self.runtime.bind(self)

    async def run(self) -> None:
        """Load the log, abort transactions that time out and expire unused ids, until cancelled."""
        settings = self._settings
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_retries)
            nursery.start_soon(
                self._run_at_intervals,
                settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                self.coordinator.abort_timed_out,
            )
            nursery.start_soon(
                self._run_at_intervals,
                settings.transaction_remove_expired_transaction_cleanup_interval_ms,
                self.coordinator.expire,
            )
            nursery.start_soon(self.runtime.run)
            for queue in self._to_peers:
                nursery.start_soon(queue.run)

    def stop(self) -> None:
        """Answer all waiting requests with an error, and reject further ones. Markers may still be written."""
        self.runtime.stop()

    # -- log partitions --

    def begin(self, term: Term) -> TransactionShard:
        """Begin a term of a log partition, without ids."""
        return TransactionShard(term)

    def loaded(self, shard: TransactionShard) -> Iterator[None]:
        """Complete the decided transactions of a log partition, once all its records have been replayed.

        An id whose records are all malformed is served as a new one: its producers are not fenced, and its transaction
        stays open.
        """
        return self._in_steps(self.coordinator.resume(shard, self._clock()))

    def close(self, shard: TransactionShard) -> Iterator[None]:
        """Answer waiting requests for ids of a log partition with NOT_COORDINATOR."""
        self.coordinator.close(shard)
        self.apply_effects()
        return iter(())

    # -- features --

    def feature_changed(self, name: str, level: int) -> None:
        """Apply the finalized level of `transaction.version`; ignore other features."""
        if name == TRANSACTION_FEATURE:
            self.coordinator.level = TransactionVersion(level)

    def now_ms(self) -> int:
        """Return the time in ms since the epoch."""
        return self._clock()

    # -- requests --

    async def ensure(self) -> ErrorCode:
        """Create `__transaction_state` unless it exists; return NONE, or COORDINATOR_NOT_AVAILABLE if that fails."""
        if self.runtime.is_stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self.runtime.ensure()

    async def initialize(self, request: InitRequest) -> Answer:
        """Answer an InitProducerId request that has a transactional id. Raises MetadataError."""
        if self.coordinator.may_need_producer_id(request.transactional_id):
            await self.ids.prepare()
        answer = await self._ask(lambda waiter: self.coordinator.init_producer_id(request, waiter, self._clock()))
        if answer.error is ErrorCode.POLICY_VIOLATION:
            self._warn(
                f"rejected transactional id {request.transactional_id[:200]!r}: {self.coordinator.id_count} exist "
                "(raise warmlog.transactional.ids.max or lower transactional.id.expiration.ms)"
            )
        return answer

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        version: TransactionVersion,
    ) -> ErrorCode:
        """Add partitions to the producer's transaction."""
        add = partial(self.coordinator.add_partitions, transactional_id, producer, partitions, version=version)
        error = (await self._ask(lambda waiter: add(waiter, now_ms=self._clock()))).error
        if error is ErrorCode.POLICY_VIOLATION:
            settings = self._settings
            self._warn(
                f"transactional id {transactional_id[:200]!r}: rejected further partitions for its transaction (raise "
                f"warmlog.transaction.partitions.max, which allows {settings.warmlog_transaction_partitions_max} per "
                f"transaction and {settings.max_transaction_partitions} in all)"
            )
        return error

    def _warn(self, text: str) -> None:
        now = trio.current_time()
        if now >= self._next_warning_at:
            self._next_warning_at = now + WARNING_PAUSE_S
            logger.warning(text)

    def leads(self, transactional_id: str) -> bool:
        """Return whether this broker coordinates an id; a standalone broker coordinates all."""
        return not self._partitions.is_clustered or self.runtime.leads(transactional_id)

    def partition_of(self, transactional_id: str) -> int:
        """Return the log partition of an id."""
        return self.runtime.partition_of(transactional_id)

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Report which partitions are part of the producer's transaction."""
        return self.coordinator.verify_partitions(transactional_id, producer, partitions)

    async def changed(self, transactional_id: str) -> None:
        """Wait until something is stored about an id."""
        waiting = self._stored.setdefault(transactional_id, trio.lowlevel.ParkingLot())
        try:
            await waiting.park()
        finally:
            if not waiting and self._stored.get(transactional_id) is waiting:
                del self._stored[transactional_id]

    async def end(
        self, transactional_id: str, producer: Producer, outcome: Outcome, version: TransactionVersion
    ) -> Answer:
        """Commit or abort the producer's transaction."""
        if self.coordinator.may_need_producer_id(transactional_id):
            await self.ids.prepare()
        end = partial(self.coordinator.end, transactional_id, producer, outcome, version=version)
        return await self._ask(lambda waiter: end(waiter, now_ms=self._clock()))

    async def _ask(self, ask: Callable[[Waiter], None]) -> Answer:
        waiter = PendingAnswer(Answer(None, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        ask(waiter)
        self.apply_effects()
        return await waiter.wait(ANSWER_LIMIT_S)  # a transition that has begun is completed regardless

    # -- effects --

    def apply_effects(self) -> None:
        """Carry out the coordinator's effects."""
        self._effects.put(self.coordinator.take_effects())

    def _in_steps(self, steps: Iterator[None]) -> Iterator[None]:
        """Carry out the effects of each step."""
        for _ in steps:
            self.apply_effects()
            yield
        self.apply_effects()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Answer(waiter=waiter):
                assert isinstance(waiter, PendingAnswer)
                waiter.settle(effect._replace(waiter=None))  # avoids a reference cycle
            case Append(value=value):
                if value is not None and len(value.partitions) > MAX_PARTITIONS_ENCODED_HERE:
                    self.runtime.spawn(partial(self._append_large, effect))
                else:
                    self._append(effect, _encoded(effect, self.coordinator.level))
            case WriteMarkers(source=source):
                marker = Marker(effect.producer, effect.outcome, source.term.leader_epoch, effect.version)
                self._markers.write(marker, effect.partitions, partial(self._marked, effect))
            case RetryLater():
                self._retries.append(effect)
                self._has_retries.set()
            case Stuck(source=source, error=error):
                logger.error(
                    "transactional id %.200r: cannot store the end of its transaction; rejecting its requests: %s",
                    source.transactional_id,
                    error.name,
                )

    async def _append_large(self, append: Append) -> None:
        row = await trio.to_thread.run_sync(_encoded, append, self.coordinator.level)
        if self.coordinator.is_current(append.source):
            self._append(append, row)
            self.apply_effects()

    def _append(self, append: Append, row: tuple[bytes, bytes | None]) -> None:
        source = append.source
        self.runtime.append(source.term, source.transactional_id, [row], lambda error, _: self._appended(append, error))

    def _appended(self, append: Append, error: ErrorCode) -> None:
        if error is ErrorCode.NOT_COORDINATOR and self._partitions.get(TOPIC, append.source.term.index) is not None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # a later write may succeed; a failed log is rebuilt first
        self.coordinator.appended(append, error, self._clock())
        self.apply_effects()
        waiting = self._stored.pop(append.source.transactional_id, None)
        if waiting is not None:
            waiting.unpark_all()

    def _marked(self, markers: WriteMarkers, results: Mapping[TopicPartition, ErrorCode]) -> None:
        # A partition that was deleted needs no marker.
        known = {
            topic_partition: ErrorCode.NONE if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error
            for topic_partition, error in results.items()
        }
        self.coordinator.markers_written(markers, known)
        self.apply_effects()

    # -- time --

    async def _run_at_intervals(self, interval_ms: int, work: Callable[[int], Iterator[None]]) -> None:
        while True:
            await trio.sleep(interval_ms / 1000)
            await in_steps(self._in_steps(work(self._clock())))

    async def _run_retries(self) -> None:
        while True:
            await self._has_retries.wait()
            await trio.sleep(RETRY_PAUSE_S)
            self._has_retries = trio.Event()
            retries, self._retries = self._retries, []
            for number, effect in enumerate(retries, 1):
                self.coordinator.retry(effect)
                if number % RETRIES_PER_STEP == 0:
                    self.apply_effects()
                    await trio.lowlevel.checkpoint()
            self.apply_effects()


def _encoded(append: Append, level: TransactionVersion) -> tuple[bytes, bytes | None]:
    key = encode_transaction_key(append.source.transactional_id)
    return key, None if append.value is None else encode_transaction(append.value, level)
