"""A transaction coordinator with one log partition, whose appends and markers end as a test says."""

from collections.abc import Iterable, Iterator, Mapping

from warmlog.broker.coordinator.term import Term, TermState
from warmlog.broker.transactions.coordinator import InitRequest, Limits, TransactionCoordinator
from warmlog.broker.transactions.effects import Answer, Append, Producer, RetryLater, Stuck, WriteMarkers
from warmlog.broker.transactions.metadata import Metadata, State
from warmlog.broker.transactions.shard import TransactionShard
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import StoredTransaction
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import MAX_PRODUCER_EPOCH, TransactionVersion

TV_0, TV_1, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_1, TransactionVersion.TV_2
COMMIT, ABORT = Outcome.COMMIT, Outcome.ABORT
ORDERS, STOCK = ("orders", 0), ("stock", 1)
TIMEOUT_MS = 60_000
MAX_TIMEOUT_MS = 900_000
ID_EXPIRATION_MS = 7 * 24 * 3600 * 1000
COORDINATOR_EPOCH = 5
LAST = MAX_PRODUCER_EPOCH - 1  # the largest epoch that a client is given
STRANGER = Producer(9, 0)


class Ids:
    """Producer ids in order; `are_out` as while a block is being fetched."""

    def __init__(self, first: int = 100) -> None:
        self.next = first
        self.are_out = False

    def take(self) -> int | None:
        if self.are_out:
            return None
        self.next += 1
        return self.next - 1


class _Epochs:
    current = COORDINATOR_EPOCH


class _Log:
    epochs = _Epochs()


class _LogPartition:
    """The part of a partition that a term of it begins with."""

    index = 0
    log = _Log()


class OneShard:
    """The log partitions of a broker that leads at most one."""

    def __init__(self) -> None:
        self.shard: TransactionShard | None = None

    def shards(self) -> list[TransactionShard]:
        return [] if self.shard is None else [self.shard]

    def shard_at(self, _index: int) -> TransactionShard | None:
        return self.shard

    def shard_of(self, _name: str) -> TransactionShard | None:
        return self.shard

    def availability(self, _name: str) -> ErrorCode:
        return ErrorCode.NOT_COORDINATOR if self.shard is None else self.shard.term.error

    @property
    def is_loading(self) -> bool:
        return self.availability("") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class Driver:
    """Waiters are numbers; `answers` holds what each was told. `log`: the rows that are in the log, in order."""

    def __init__(self, *, level: TransactionVersion = TV_2, first_id: int = 100, **limits: int) -> None:
        self.now_ms = 1_700_000_000_000
        self.ids = Ids(first_id)
        self.level = level
        self.answers: dict[int, Answer] = {}
        self.appends: list[Append] = []
        self.markers: list[WriteMarkers] = []
        self.retries: list[RetryLater] = []
        self.stuck: list[Stuck] = []
        self.log: list[tuple[str, StoredTransaction | None]] = []
        self.written: list[WriteMarkers] = []  # markers that are in all their partitions
        self.appends_at_once = True
        self.marks_at_once = True
        self._limits = Limits(max_timeout_ms=MAX_TIMEOUT_MS, id_expiration_ms=ID_EXPIRATION_MS, **limits)  # type: ignore[arg-type]
        self.shards = OneShard()
        self.coordinator = TransactionCoordinator(self.shards, self.ids, self._limits, self.level)
        self._waiters = iter(range(1 << 30))
        self.start()

    def start(self, stored: Mapping[str, StoredTransaction] | None = None) -> None:
        shard = self.begin_loading()
        for _ in self.load(shard, (self.latest() if stored is None else stored).items()):
            pass
        self.pump()

    def begin_loading(self) -> TransactionShard:
        """Begin a term of the log partition, after that which is current."""
        self.unload()
        shard = self.shards.shard = TransactionShard(Term(_LogPartition()))  # type: ignore[arg-type]
        return shard

    def load(self, shard: TransactionShard, rows: Iterable[tuple[str, StoredTransaction]]) -> Iterator[None]:
        for name, value in rows:
            shard.replay(name, value, 0)
        yield from self.coordinator.resume(shard, self.now_ms)
        shard.term.state = TermState.SERVING

    def unload(self) -> None:
        """End the term of the log partition."""
        shard, self.shards.shard = self.shards.shard, None
        if shard is not None:
            shard.term.state = TermState.OVER
            self.coordinator.close(shard)

    def restart(self) -> None:
        """Lose everything but the log."""
        self.shards = OneShard()
        self.coordinator = TransactionCoordinator(self.shards, self.ids, self._limits, self.level)
        self.appends, self.markers, self.retries = [], [], []
        self.start()

    def latest(self) -> dict[str, StoredTransaction]:
        rows = dict(self.log)
        return {name: value for name, value in rows.items() if value is not None}

    # -- requests --

    def init(
        self, expected: Producer | None = None, *, name: str = "id", timeout_ms: int = TIMEOUT_MS, **flags: bool
    ) -> int:
        waiter = next(self._waiters)
        request = InitRequest(transactional_id=name, timeout_ms=timeout_ms, expected=expected, **flags)
        self.coordinator.init_producer_id(request, waiter, self.now_ms)
        self.pump()
        return waiter

    def add(
        self,
        producer: Producer,
        *partitions: TopicPartition,
        name: str = "id",
        version: TransactionVersion = TV_2,
    ) -> int:
        waiter = next(self._waiters)
        self.coordinator.add_partitions(
            name, producer, partitions or (ORDERS,), waiter, version=version, now_ms=self.now_ms
        )
        self.pump()
        return waiter

    def verify(self, producer: Producer, *partitions: TopicPartition, name: str = "id") -> list[ErrorCode]:
        errors = self.coordinator.verify_partitions(name, producer, partitions)
        return [errors[each] for each in partitions]

    def end(
        self, producer: Producer, outcome: Outcome = COMMIT, *, name: str = "id", version: TransactionVersion = TV_2
    ) -> int:
        waiter = next(self._waiters)
        self.coordinator.end(name, producer, outcome, waiter, version=version, now_ms=self.now_ms)
        self.pump()
        return waiter

    # -- shorter --

    def producer(self, expected: Producer | None = None, **options: int) -> Producer:
        """Initialize and succeed."""
        answer = self.answers[self.init(expected, **options)]
        assert answer.error is ErrorCode.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    def error(self, waiter: int) -> ErrorCode:
        return self.answers[waiter].error

    def given(self, waiter: int) -> Producer:
        answer = self.answers[waiter]
        assert answer.error is ErrorCode.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    def metadata(self, name: str = "id") -> Metadata:
        metadata = self.coordinator.describe(name)
        assert isinstance(metadata, Metadata)
        return metadata

    # -- what ends, and how --

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        for _ in self.coordinator.abort_timed_out(self.now_ms):
            pass
        for _ in self.coordinator.expire(self.now_ms):
            pass
        self.pump()

    def pump(self) -> None:
        while effects := self.coordinator.take_effects():
            for effect in effects:
                match effect:
                    case Answer(waiter=int() as waiter):
                        assert waiter not in self.answers, "nobody is answered twice"
                        self.answers[waiter] = effect
                    case Append():
                        self.appends.append(effect)
                    case WriteMarkers():
                        self.markers.append(effect)
                    case RetryLater():
                        self.retries.append(effect)
                    case Stuck():
                        self.stuck.append(effect)
            if self.appends_at_once:
                self._settle_appends(ErrorCode.NONE)
            if self.marks_at_once:
                self._settle_markers({})

    def settle_appends(self, error: ErrorCode = ErrorCode.NONE, *, is_in_log: bool | None = None) -> None:
        """End what is under way; `is_in_log`: whether the rows count after a restart, by default those that succeed."""
        self._settle_appends(error, is_in_log=is_in_log)
        self.pump()

    def _settle_appends(self, error: ErrorCode, *, is_in_log: bool | None = None) -> None:
        appends, self.appends = self.appends, []
        for append in appends:
            if (error is ErrorCode.NONE) if is_in_log is None else is_in_log:
                self.log.append((append.source.transactional_id, append.value))
            self.coordinator.appended(append, error, self.now_ms)

    def settle_markers(self, errors: Mapping[TopicPartition, ErrorCode] | None = None) -> None:
        """End what is under way; partitions that are not named succeed."""
        self._settle_markers(errors or {})
        self.pump()

    def _settle_markers(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        markers, self.markers = self.markers, []
        for each in markers:
            results = {pair: errors.get(pair, ErrorCode.NONE) for pair in each.partitions}
            good = frozenset(pair for pair, error in results.items() if error is ErrorCode.NONE)
            if good:
                self.written.append(each._replace(partitions=good))
            self.coordinator.markers_written(each, results)

    def report_markers(self, markers: WriteMarkers, written: Iterable[TopicPartition]) -> None:
        """Report some partitions of one effect."""
        self.coordinator.markers_written(markers, dict.fromkeys(written, ErrorCode.NONE))
        self.pump()

    def retry(self) -> None:
        retries, self.retries = self.retries, []
        for each in retries:
            self.coordinator.retry(each)
        self.pump()


def at_epoch(epoch: int, state: State = State.EMPTY, *, level: TransactionVersion = TV_2) -> Driver:
    """Return a coordinator that has loaded transactional id `id` at an epoch of producer id 7."""
    driver = Driver(level=level)
    is_open = state in {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}
    driver.start(
        {
            "id": StoredTransaction(
                producer_id=7,
                previous_producer_id=7,
                producer_epoch=epoch,
                timeout_ms=TIMEOUT_MS,
                state=state,
                partitions=frozenset({ORDERS}) if is_open else frozenset(),
                updated_ms=driver.now_ms,
                started_ms=driver.now_ms,
                client_version=level,
            )
        }
    )
    return driver
