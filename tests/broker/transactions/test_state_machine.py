"""The coordinator against a plain model, whatever comes in whatever order.

The model is what transactions are for: partitions that hold open writes of a producer, refuse older epochs as logs
do, and commit or abort what is open when a marker comes. Clients write to it, some of them zombies with old epochs;
requests are sent again; appends fail before or after they are in the log; markers fail; the coordinator loses all but
its log.

Checked after every step:
1. Nobody is answered twice; a producer that is given out was not given out before, except to a retry.
2. A request of an old producer appends nothing.
3. What was written in a transaction has one outcome in all its partitions; a commit that was confirmed never becomes an
   abort, and the reverse.
4. What is in memory is what the log holds.
At the end everything succeeds for a while: then no transaction is left undecided, and no partition has an open write
that the coordinator does not know of.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.transactions.driver import TIMEOUT_MS, TV_0, TV_1, TV_2, Driver
from warmlog.broker.transactions.effects import Producer, WriteMarkers
from warmlog.broker.transactions.metadata import PREPARED, Metadata, State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import StoredTransaction
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import MAX_PRODUCER_EPOCH, TransactionVersion

PARTITIONS: list[TopicPartition] = [("a", 0), ("a", 1), ("b", 0)]
APPEND_ERRORS = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
MARKER_ERRORS = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
picks = st.integers(0, 1000)


@dataclass
class Write:
    """One record, in a transaction of its client's."""

    transaction: int
    outcome: Outcome | None = None


@dataclass
class PartitionModel:
    """What a log knows of producers: the largest epoch of each id, and writes whose outcome is open."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Write]] = field(default_factory=dict)

    def write(self, producer: Producer, write: Write) -> bool:
        if producer.epoch < self.epochs.get(producer.id, -1):
            return False
        self.epochs[producer.id] = producer.epoch
        self.open.setdefault(producer.id, []).append(write)
        return True

    def mark(self, producer: Producer, outcome: Outcome, version: TransactionVersion) -> None:
        epoch = self.epochs.get(producer.id, -1)
        is_same_again = producer.epoch == epoch and (version < TV_2 or producer.id not in self.open)
        assert producer.epoch > epoch or is_same_again, "a marker that its partition refuses"
        self.epochs[producer.id] = producer.epoch
        for each in self.open.pop(producer.id, []):
            each.outcome = outcome


@dataclass
class Client:
    """A producer as its program knows it."""

    version: TransactionVersion
    producer: Producer
    transaction: int = 0  # number of the open one; 0 before the first write
    added: set[TopicPartition] = field(default_factory=set)
    ending: Outcome | None = None  # asked for, and not answered yet: until then nothing else is asked for

    def begin_anew(self, producer: Producer) -> None:
        self.producer, self.transaction, self.ending = producer, 0, None
        self.added.clear()


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.partitions = {pair: PartitionModel() for pair in PARTITIONS}
        self.clients: list[Client] = []
        self.given: set[Producer] = set()
        self.writes: dict[int, list[Write]] = {}
        self.confirmed: dict[int, Outcome] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.marked = 0

    @initialize(level=st.sampled_from([TV_1, TV_2]), left=st.sampled_from([None, 0, 1, 2, 5]))
    def begin(self, level: TransactionVersion, left: int | None) -> None:
        """`left`: epochs that the present producer id has left for its clients."""
        self.driver = Driver(level=level)
        self.driver.marks_at_once = False
        if left is not None:
            last = MAX_PRODUCER_EPOCH - 1 - left
            stored = StoredTransaction(
                producer_id=7,
                previous_producer_id=7,
                producer_epoch=last,
                timeout_ms=TIMEOUT_MS,
                state=State.EMPTY,
                updated_ms=self.driver.now_ms,
            )
            self.driver.log.append(("id", stored))
            self.driver.start()

    # -- clients --

    @rule()
    def a_new_client_takes_over(self) -> None:
        version = TV_2 if self.driver.level is TV_2 else TV_0
        waiter = self.driver.init()
        self._mark()
        if self._error(waiter) is ErrorCode.NONE:
            self.clients.append(Client(version, self._given(waiter)))

    @precondition(lambda self: self.clients)
    @rule(pick=picks)
    def a_client_goes_on_after_an_error(self, pick: int) -> None:
        client = self._pick(pick)
        before, is_old = self._rows(), self._is_old(client.producer)
        waiter = self.driver.init(client.producer)
        self._mark()
        if self._error(waiter) is ErrorCode.NONE:
            client.begin_anew(self._given(waiter, is_retry=is_old))
        elif self._error(waiter) is ErrorCode.PRODUCER_FENCED:
            assert self._rows() == before

    @precondition(lambda self: self.clients)
    @rule(pick=picks, pair=st.sampled_from(PARTITIONS))
    def a_client_writes(self, pick: int, pair: TopicPartition) -> None:
        client = self._pick(pick)
        if client.ending is not None:
            return
        before, is_old = self._rows(), self._is_old(client.producer)
        if client.version is TV_2 or pair not in client.added:
            error = self._error(self._ask_to_add(client, pair))
            if is_old:
                assert error is not ErrorCode.NONE
                assert self._rows() == before, "a zombie appends nothing"
        else:
            (error,) = self.driver.verify(client.producer, pair)
        if error is not ErrorCode.NONE:
            return
        client.added.add(pair)
        if not client.transaction:
            client.transaction = next(self.numbers)
        write = Write(client.transaction)
        if self.partitions[pair].write(client.producer, write):
            self.writes.setdefault(client.transaction, []).append(write)

    def _ask_to_add(self, client: Client, pair: TopicPartition) -> int:
        waiter = self.driver.add(client.producer, pair, version=client.version)
        self._mark()
        return waiter

    @precondition(lambda self: self.clients)
    @rule(pick=picks, outcome=st.sampled_from(Outcome), again=st.booleans())
    def a_client_ends_its_transaction(self, pick: int, outcome: Outcome, again: bool) -> None:
        client = self._pick(pick)
        client.ending = outcome = outcome if client.ending is None else client.ending
        before, is_old = self._rows(), self._is_old(client.producer)
        waiter = self.driver.end(client.producer, outcome, version=client.version)
        self._mark()
        error = self._error(waiter)
        if again and error in {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}:  # its answer was lost
            waiter = self.driver.end(client.producer, outcome, version=client.version)
            self._mark()
            error = self._error(waiter)
        if is_old and error is not ErrorCode.NONE:
            assert self._rows() == before, "a zombie appends nothing"
        if error is not ErrorCode.NONE:
            return
        if client.transaction:
            self.confirmed[client.transaction] = outcome
        client.begin_anew(self._given(waiter, is_retry=True) if client.version is TV_2 else client.producer)

    # -- what goes wrong --

    @rule(error=st.sampled_from(APPEND_ERRORS), is_in_log=st.booleans(), outcome=st.sampled_from(Outcome), pick=picks)
    def an_append_fails(self, error: ErrorCode, is_in_log: bool, outcome: Outcome, pick: int) -> None:
        """Of whatever the client asks for next; `is_in_log`: it is there all the same, after a restart."""
        if not self.clients:
            return
        client = self._pick(pick)
        self.driver.appends_at_once = False
        if pick % 3:
            client.ending = outcome = outcome if client.ending is None else client.ending
            self.driver.end(client.producer, outcome, version=client.version)
        else:
            self.driver.init()
        if self.driver.appends:
            self.driver.settle_appends(error, is_in_log=is_in_log)
            if is_in_log:
                self.driver.restart()
        self.driver.appends_at_once = True
        self.driver.settle_appends()  # of a completion that began meanwhile
        self._mark()

    @precondition(lambda self: self.driver.markers)
    @rule(errors=st.lists(st.sampled_from(MARKER_ERRORS), min_size=3, max_size=3))
    def markers_end(self, errors: list[ErrorCode]) -> None:
        self.driver.settle_markers(dict(zip(PARTITIONS, errors, strict=True)))
        self._mark()

    @rule()
    def retry(self) -> None:
        self.driver.retry()
        self._mark()

    @rule(reaches=st.lists(st.sampled_from(PARTITIONS), unique=True))
    def the_coordinator_is_killed(self, reaches: list[TopicPartition]) -> None:
        """Some markers were written, and nobody was told."""
        for markers in self.driver.markers:
            self._write_markers(markers, set(reaches))
        self.driver.restart()
        self._mark()

    @rule(milliseconds=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS + 1]))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.pass_ms(milliseconds)
        self._mark()

    # -- what holds --

    @invariant()
    def a_transaction_has_one_outcome(self) -> None:
        for number, writes in self.writes.items():
            outcomes = {each.outcome for each in writes} - {None}
            assert len(outcomes) <= 1, f"transaction {number}"
            if number in self.confirmed:
                assert outcomes <= {self.confirmed[number]}, f"transaction {number}"

    @invariant()
    def memory_is_what_the_log_holds(self) -> None:
        metadata = self.driver.coordinator.describe("id")
        if not isinstance(metadata, Metadata) or "id" not in self.driver.latest():
            return
        logged = self.driver.latest()["id"]
        assert (metadata.state, metadata.producer_id) == (logged.state, logged.producer_id)
        assert metadata.producer_epoch == logged.producer_epoch or self.driver.level is TV_1
        assert metadata.partitions <= logged.partitions
        assert metadata.state in PREPARED or metadata.partitions == logged.partitions

    def teardown(self) -> None:
        driver = self.driver
        driver.marks_at_once = True
        driver.settle_markers()
        for _ in range(3):
            driver.retry()
            driver.pass_ms(TIMEOUT_MS + 1)
        self._mark()
        if isinstance(driver.coordinator.describe("id"), Metadata):
            assert driver.metadata().state not in {*PREPARED, State.ONGOING}
        self.a_transaction_has_one_outcome()
        if driver.level is TV_2:
            for number, writes in self.writes.items():
                assert all(each.outcome is not None for each in writes), f"transaction {number} hangs"

    # -- inside --

    def _pick(self, pick: int) -> Client:
        """Mostly the newest client."""
        return self.clients[-1] if pick % 3 else self.clients[pick % len(self.clients)]

    def _rows(self) -> int:
        return len(self.driver.log)

    def _is_old(self, producer: Producer) -> bool:
        metadata = self.driver.metadata()
        return (metadata.producer_id, metadata.producer_epoch) != producer

    def _error(self, waiter: int) -> ErrorCode:
        return self.driver.error(waiter)

    def _given(self, waiter: int, *, is_retry: bool = False) -> Producer:
        producer = self.driver.given(waiter)
        assert is_retry or producer not in self.given, "two clients with one epoch"
        self.given.add(producer)
        return producer

    def _mark(self) -> None:
        """Take to the partitions what was written since the last look."""
        for markers in self.driver.written[self.marked :]:
            self._write_markers(markers, markers.partitions)
        self.marked = len(self.driver.written)

    def _write_markers(self, markers: WriteMarkers, pairs: set[TopicPartition] | frozenset[TopicPartition]) -> None:
        for pair in markers.partitions & pairs:
            self.partitions[pair].mark(markers.producer, markers.outcome, markers.version)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
