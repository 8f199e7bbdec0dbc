"""The automaton by examples: each of Kafka's rules once, with its error code."""

import pytest

from broker.transactions.effects import Producer
from broker.transactions.metadata import Metadata, State
from protocol.errors import ErrorCode
from protocol.kafka.transaction_records import StoredTransaction
from protocol.records.markers import Outcome
from protocol.transactions import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionVersion
from tests.broker.transactions.driver import (
    ABORT,
    COMMIT,
    ID_EXPIRATION_MS,
    ORDERS,
    STOCK,
    TIMEOUT_MS,
    TV_0,
    TV_1,
    TV_2,
    Driver,
)

LAST = MAX_PRODUCER_EPOCH - 1  # the largest epoch that a client is given
STRANGER = Producer(9, 0)


def at_epoch(epoch: int, state: State = State.EMPTY, *, level: TransactionVersion = TV_2) -> Driver:
    """A coordinator that has read an id at an epoch of producer id 7."""
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


# -- InitProducerId --


def test_a_new_id_is_given_epoch_0_of_a_new_producer_id() -> None:
    driver = Driver()
    assert driver.producer() == Producer(100, 0)
    assert driver.metadata().state is State.EMPTY


def test_another_producer_of_the_id_is_given_the_next_epoch() -> None:
    driver = Driver()
    driver.producer()
    assert driver.producer() == Producer(100, 1)


def test_a_producer_is_not_answered_before_its_epoch_is_in_the_log() -> None:
    driver = Driver()
    driver.appends_at_once = False
    waiter = driver.init()
    assert waiter not in driver.answers
    driver.settle_appends()
    assert driver.given(waiter) == Producer(100, 0)


def test_a_second_request_meanwhile_is_to_try_again() -> None:
    driver = Driver()
    driver.appends_at_once = False
    first, second = driver.init(), driver.init()
    assert driver.error(second) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.settle_appends()
    assert driver.error(first) is ErrorCode.NONE


def test_a_failed_append_leaves_the_epoch_to_the_next_request() -> None:
    driver = Driver()
    driver.appends_at_once = False
    waiter = driver.init()
    driver.settle_appends(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.appends_at_once = True
    assert driver.producer() == Producer(100, 0)


def test_a_producer_goes_on_after_an_error_with_the_next_epoch() -> None:
    driver = Driver()
    first = driver.producer()
    assert driver.producer(first) == Producer(100, 1)


def test_a_retry_of_that_is_told_the_same_epoch() -> None:
    driver = Driver()
    first = driver.producer()
    second = driver.producer(first)
    assert driver.producer(first) == second


def test_a_retry_of_that_after_a_restart_is_fenced() -> None:
    driver = Driver()
    first = driver.producer()
    driver.producer(first)
    driver.restart()
    assert driver.error(driver.init(first)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_has_a_successor_cannot_go_on() -> None:
    driver = Driver()
    first = driver.producer()
    driver.producer()
    assert driver.error(driver.init(first)) is ErrorCode.PRODUCER_FENCED
    assert driver.error(driver.init(STRANGER)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_of_an_unknown_id_goes_on_with_a_new_producer_id() -> None:
    driver = Driver()
    assert driver.producer(STRANGER) == Producer(100, 0)


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    driver = at_epoch(LAST)
    assert driver.producer() == Producer(100, 0)
    assert driver.metadata().last_producer_epoch == NO_PRODUCER_EPOCH


def test_a_producer_at_the_last_epoch_goes_on_with_a_new_producer_id() -> None:
    driver = at_epoch(LAST)
    assert driver.producer(Producer(7, LAST)) == Producer(100, 0)
    assert driver.producer(Producer(7, LAST)) == Producer(100, 0), "a retry"


def test_a_stale_epoch_at_the_last_epoch_is_an_unknown_error() -> None:
    driver = at_epoch(LAST)
    assert driver.error(driver.init(Producer(7, LAST - 1))) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_without_a_producer_id_at_hand_the_client_is_to_try_again() -> None:
    driver = Driver()
    driver.ids.are_out = True
    assert driver.error(driver.init()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not driver.log
    driver = at_epoch(LAST)
    driver.ids.are_out = True
    assert driver.error(driver.init()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not driver.metadata().partitions


@pytest.mark.parametrize("level", [TV_1, TV_2])
def test_a_new_producer_aborts_the_transaction_of_the_one_before_and_tries_again(level: TransactionVersion) -> None:
    driver = Driver(level=level)
    old = driver.producer()
    driver.add(old)
    driver.marks_at_once = False
    assert driver.error(driver.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    (markers,) = driver.markers
    assert (markers.producer, markers.outcome) == (Producer(100, 1), ABORT)
    assert driver.error(driver.init()) is ErrorCode.CONCURRENT_TRANSACTIONS, "while markers are being written"
    driver.settle_markers()
    assert driver.producer() == Producer(100, 2)
    assert driver.error(driver.add(old)) is ErrorCode.PRODUCER_FENCED


def test_a_failed_fencing_raises_the_epoch_once_only_before_kip_890() -> None:
    driver = Driver(level=TV_1)
    old = driver.producer()
    driver.add(old)
    driver.appends_at_once = False
    for _ in range(3):
        waiter = driver.init()
        driver.settle_appends(ErrorCode.REQUEST_TIMED_OUT)
        assert driver.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driver.metadata().producer_epoch == 1
    assert driver.error(driver.add(old)) is ErrorCode.PRODUCER_FENCED
    driver.appends_at_once = True
    driver.init()
    assert driver.producer() == Producer(100, 2)


def test_a_failed_fencing_raises_no_epoch_with_kip_890() -> None:
    driver = Driver()
    old = driver.producer()
    driver.add(old)
    driver.appends_at_once = False
    waiter = driver.init()
    driver.settle_appends(ErrorCode.REQUEST_TIMED_OUT)
    assert driver.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.metadata().producer_epoch == 0
    assert driver.metadata().state is State.ONGOING


@pytest.mark.parametrize(("level", "expected"), [(TV_1, Producer(100, 0)), (TV_2, Producer(100, 1))])
def test_fencing_at_the_last_epoch_ends_with_a_new_producer_id(level: TransactionVersion, expected: Producer) -> None:
    driver = at_epoch(LAST, State.ONGOING, level=level)
    assert driver.error(driver.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.written[0].producer == Producer(7, MAX_PRODUCER_EPOCH)
    assert driver.producer() == expected


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_beyond_the_brokers_is_refused(timeout_ms: int) -> None:
    driver = Driver()
    assert driver.error(driver.init(timeout_ms=timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_two_phases_are_refused_unless_the_broker_allows_them() -> None:
    driver = Driver()
    refused = driver.init(in_two_phases=True)
    assert driver.error(refused) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert driver.error(driver.init(keeps_prepared=True)) is ErrorCode.UNSUPPORTED_VERSION


# -- AddPartitionsToTxn --


def test_the_first_partition_begins_a_transaction() -> None:
    driver = Driver()
    producer = driver.producer()
    assert driver.error(driver.add(producer)) is ErrorCode.NONE
    metadata = driver.metadata()
    assert (metadata.state, metadata.started_ms) == (State.ONGOING, driver.now_ms)


def test_further_partitions_do_not_move_the_start() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    started_ms = driver.now_ms
    driver.pass_ms(10)
    driver.add(producer, STOCK)
    metadata = driver.metadata()
    assert (metadata.started_ms, metadata.updated_ms) == (started_ms, started_ms + 10)
    assert metadata.partitions == {ORDERS, STOCK}


def test_partitions_that_are_there_already_append_nothing() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer, ORDERS, STOCK)
    rows = len(driver.log)
    assert driver.error(driver.add(producer, STOCK)) is ErrorCode.NONE
    assert len(driver.log) == rows


def test_partitions_of_a_failed_append_are_not_part_of_the_transaction() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.appends_at_once = False
    waiter = driver.add(producer)
    driver.settle_appends(ErrorCode.KAFKA_STORAGE_ERROR)
    assert driver.error(waiter) is ErrorCode.NOT_COORDINATOR
    assert driver.metadata().state is State.EMPTY


def test_others_than_the_producer_cannot_add_partitions() -> None:
    driver = Driver()
    producer = driver.producer()
    assert driver.error(driver.add(producer, name="unknown")) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.error(driver.add(STRANGER)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.error(driver.add(Producer(100, 1))) is ErrorCode.PRODUCER_FENCED
    assert driver.error(driver.add(producer, name="")) is ErrorCode.INVALID_REQUEST


def test_a_transition_under_way_comes_before_the_producer() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.appends_at_once = False
    driver.add(producer)
    assert driver.error(driver.add(STRANGER)) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_next_transaction_waits_for_the_markers_of_the_last_one() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.marks_at_once = False
    after = driver.given(driver.end(producer))
    assert driver.error(driver.add(after)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.settle_markers()
    assert driver.error(driver.add(after)) is ErrorCode.NONE


# -- verification --


def test_verification_tells_which_partitions_are_part_of_the_transaction() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer, ORDERS, version=TV_0)
    assert driver.verify(producer, ORDERS, STOCK) == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert driver.verify(STRANGER, ORDERS) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert driver.verify(Producer(100, 1), ORDERS) == [ErrorCode.PRODUCER_FENCED]
    assert driver.verify(producer, ORDERS, name="unknown") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert driver.verify(producer, ORDERS, name="") == [ErrorCode.INVALID_REQUEST]


def test_verification_after_the_end_asks_to_try_again_or_to_abort() -> None:
    driver = Driver(level=TV_1)
    producer = driver.producer()
    driver.add(producer, version=TV_0)
    driver.marks_at_once = False
    driver.end(producer, version=TV_0)
    assert driver.verify(producer, ORDERS) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    driver.settle_markers()
    assert driver.verify(producer, ORDERS) == [ErrorCode.TRANSACTION_ABORTABLE]


def test_verification_does_not_wait_for_a_transition() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.appends_at_once = False
    driver.add(producer, STOCK)
    assert driver.verify(producer, ORDERS, STOCK) == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]


# -- EndTxn --


def test_an_older_client_keeps_its_epoch() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer, version=TV_0)
    waiter = driver.end(producer, version=TV_0)
    assert driver.given(waiter) == Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    assert driver.metadata().producer_epoch == 0
    assert driver.error(driver.add(producer, version=TV_0)) is ErrorCode.NONE


def test_every_end_raises_the_epoch_with_kip_890() -> None:
    driver = Driver()
    producer = driver.producer()
    for epoch in range(1, 4):
        driver.add(producer)
        producer = driver.given(driver.end(producer))
        assert producer == Producer(100, epoch)


def test_the_client_is_answered_when_the_outcome_is_in_the_log_not_before() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.appends_at_once = driver.marks_at_once = False
    waiter = driver.end(producer)
    assert waiter not in driver.answers
    assert not driver.markers
    driver.settle_appends()
    assert driver.error(waiter) is ErrorCode.NONE
    assert driver.metadata().state is State.PREPARE_COMMIT
    assert [(each.producer, each.outcome, each.version) for each in driver.markers] == [
        (Producer(100, 1), COMMIT, TV_2)
    ]


def test_a_failed_append_leaves_the_transaction_open() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.appends_at_once = False
    waiter = driver.end(producer)
    driver.settle_appends(ErrorCode.MESSAGE_TOO_LARGE)
    assert driver.error(waiter) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.metadata().state is State.ONGOING
    driver.appends_at_once = True
    assert driver.given(driver.end(producer, ABORT)) == Producer(100, 1)


def test_a_retried_end_is_told_the_producer_that_it_missed() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    after = driver.given(driver.end(producer))
    assert driver.given(driver.end(producer)) == after
    assert driver.error(driver.end(producer, ABORT)) is ErrorCode.INVALID_TXN_STATE


def test_after_the_last_epoch_the_end_gives_a_new_producer_id() -> None:
    driver = at_epoch(LAST, State.ONGOING)
    driver.marks_at_once = False
    after = driver.given(driver.end(Producer(7, LAST)))
    assert after == Producer(100, 0)
    assert driver.markers[0].producer == Producer(7, MAX_PRODUCER_EPOCH)
    assert driver.metadata().next_producer_id == 100
    driver.settle_markers()
    assert driver.metadata().producer_id == 100
    assert driver.given(driver.end(Producer(7, LAST))) == after, "a retry"
    assert driver.error(driver.add(after)) is ErrorCode.NONE


def test_the_next_producer_id_survives_a_restart_between_decision_and_completion() -> None:
    driver = at_epoch(LAST, State.ONGOING)
    driver.marks_at_once = False
    after = driver.given(driver.end(Producer(7, LAST)))
    driver.marks_at_once = True
    driver.restart()
    assert Producer(driver.metadata().producer_id, driver.metadata().producer_epoch) == after


def test_without_a_producer_id_at_hand_the_end_is_to_be_tried_again() -> None:
    driver = at_epoch(LAST, State.ONGOING)
    driver.ids.are_out = True
    assert driver.error(driver.end(Producer(7, LAST))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.ids.are_out = False
    assert driver.given(driver.end(Producer(7, LAST))) == Producer(100, 0)


def test_an_abort_without_partitions_is_complete_at_once() -> None:
    driver = Driver()
    producer = driver.producer()
    assert driver.given(driver.end(producer, ABORT)) == Producer(100, 1)
    metadata = driver.metadata()
    assert (metadata.state, metadata.started_ms) == (State.COMPLETE_ABORT, driver.now_ms)
    assert not driver.written


def test_others_than_the_producer_cannot_end_the_transaction() -> None:
    for version in (TV_0, TV_2):
        driver = Driver()
        producer = driver.producer()
        driver.add(producer, version=version)
        rows = len(driver.log)
        assert driver.error(driver.end(STRANGER, version=version)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert driver.error(driver.end(Producer(100, 1), version=version)) is ErrorCode.PRODUCER_FENCED
        assert driver.error(driver.end(producer, name="x", version=version)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert driver.error(driver.end(producer, name="", version=version)) is ErrorCode.INVALID_REQUEST
        assert len(driver.log) == rows


@pytest.mark.parametrize(
    ("version", "error"),
    [(TV_0, ErrorCode.INVALID_PRODUCER_ID_MAPPING), (TV_2, ErrorCode.CONCURRENT_TRANSACTIONS)],
)
def test_a_transition_under_way_comes_before_the_producer_with_kip_890_only(
    version: TransactionVersion, error: ErrorCode
) -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer, version=version)
    driver.marks_at_once = False
    driver.end(producer, version=version)
    assert driver.error(driver.end(STRANGER, version=version)) is error
    assert driver.error(driver.end(producer, version=version)) is ErrorCode.CONCURRENT_TRANSACTIONS


# -- markers --


def test_the_transaction_is_complete_when_the_last_marker_is_written() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer, ORDERS, STOCK)
    driver.marks_at_once = False
    driver.end(producer)
    (markers,) = driver.markers
    driver.report_markers(markers, [ORDERS])
    assert driver.metadata().partitions == {STOCK}
    assert driver.metadata().state is State.PREPARE_COMMIT
    driver.report_markers(markers, [ORDERS])
    assert driver.metadata().state is State.PREPARE_COMMIT, "a report that came twice"
    driver.report_markers(markers, [STOCK])
    assert driver.metadata().state is State.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR],
)
def test_a_marker_that_failed_is_written_later_and_alone(error: ErrorCode) -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer, ORDERS, STOCK)
    driver.marks_at_once = False
    driver.end(producer)
    driver.settle_markers({STOCK: error})
    assert not driver.markers
    driver.retry()
    assert [each.partitions for each in driver.markers] == [{STOCK}]
    driver.settle_markers()
    assert driver.metadata().state is State.COMPLETE_COMMIT


def test_a_partition_whose_format_has_no_transactions_needs_no_marker() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.marks_at_once = False
    driver.end(producer)
    driver.settle_markers({ORDERS: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})
    assert driver.metadata().state is State.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_coordinator_with_a_successor_stops_and_says_so(error: ErrorCode) -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.marks_at_once = False
    after = driver.given(driver.end(producer))
    driver.settle_markers({ORDERS: error})
    assert [each.error for each in driver.stuck] == [error]
    assert not driver.retries
    assert driver.error(driver.add(after)) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_completion_that_cannot_be_appended_is_tried_again() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.marks_at_once = False
    driver.end(producer)
    driver.appends_at_once = False
    driver.settle_markers()
    driver.settle_appends(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.metadata().state is State.PREPARE_COMMIT
    driver.retry()
    driver.settle_appends()
    assert driver.metadata().state is State.COMPLETE_COMMIT


def test_a_completion_of_a_lost_log_waits_for_the_next_load() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.marks_at_once = False
    driver.end(producer)
    driver.appends_at_once = False
    driver.settle_markers()
    driver.settle_appends(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [each.error for each in driver.stuck] == [ErrorCode.NOT_COORDINATOR]
    driver.appends_at_once = driver.marks_at_once = True
    driver.restart()
    assert driver.metadata().state is State.COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("state", "outcome", "end"),
    [
        (State.PREPARE_COMMIT, Outcome.COMMIT, State.COMPLETE_COMMIT),
        (State.PREPARE_ABORT, Outcome.ABORT, State.COMPLETE_ABORT),
    ],
)
def test_a_decided_transaction_is_completed_after_a_restart(state: State, outcome: Outcome, end: State) -> None:
    driver = at_epoch(3, state)
    assert [(each.producer, each.outcome) for each in driver.written] == [(Producer(7, 3), outcome)]
    assert driver.metadata().state is end


def test_an_open_transaction_stays_open_over_a_restart() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.restart()
    driver.add(producer, STOCK)
    assert driver.metadata().partitions == {ORDERS, STOCK}
    assert driver.given(driver.end(producer)) == Producer(100, 1)


# -- time --


@pytest.mark.parametrize("level", [TV_0, TV_1, TV_2])
def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(level: TransactionVersion) -> None:
    driver = Driver(level=level)
    producer = driver.producer()
    driver.add(producer)
    driver.pass_ms(TIMEOUT_MS)
    assert driver.metadata().state is State.ONGOING
    driver.pass_ms(1)
    assert driver.metadata().state is State.COMPLETE_ABORT
    assert driver.written[0].producer == Producer(100, 1)
    assert driver.error(driver.add(producer)) is ErrorCode.PRODUCER_FENCED
    assert driver.error(driver.end(producer, version=TV_0)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_timed_out_goes_on_with_a_new_epoch() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.pass_ms(TIMEOUT_MS + 1)
    assert driver.given(driver.end(producer, ABORT)) == Producer(100, 1), "a late abort: it is aborted already"
    assert driver.error(driver.end(producer)) is ErrorCode.INVALID_TXN_STATE


def test_a_transaction_whose_end_is_under_way_does_not_time_out() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.appends_at_once = False
    waiter = driver.end(producer)
    driver.pass_ms(TIMEOUT_MS + 1)
    driver.appends_at_once = True
    driver.settle_appends()
    assert driver.error(waiter) is ErrorCode.NONE
    assert driver.metadata().state is State.COMPLETE_COMMIT


def test_a_timed_out_abort_that_failed_is_tried_at_the_next_look() -> None:
    driver = Driver(level=TV_1)
    driver.add(driver.producer())
    driver.appends_at_once = False
    driver.pass_ms(TIMEOUT_MS + 1)
    driver.settle_appends(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.appends_at_once = True
    driver.pass_ms(1)
    assert driver.metadata().state is State.COMPLETE_ABORT
    assert driver.metadata().producer_epoch == 1


def test_an_id_that_is_not_used_is_removed_with_a_tombstone() -> None:
    driver = Driver()
    driver.producer()
    driver.pass_ms(ID_EXPIRATION_MS - 1)
    assert len(driver.log) == 1
    driver.pass_ms(1)
    assert driver.log[-1] == ("id", None)
    assert driver.coordinator.describe("id") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert driver.producer() == Producer(101, 0)


def test_an_id_is_not_removed_before_its_tombstone_is_in_the_log() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.appends_at_once = False
    driver.pass_ms(ID_EXPIRATION_MS)
    assert driver.error(driver.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.settle_appends(ErrorCode.REQUEST_TIMED_OUT)
    driver.appends_at_once = True
    assert driver.error(driver.add(producer)) is ErrorCode.NONE


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_COMMIT])
def test_an_id_with_an_open_transaction_is_not_removed(state: State) -> None:
    driver = at_epoch(0)
    driver.marks_at_once = False
    driver.start(
        {
            "id": StoredTransaction(
                producer_id=7,
                producer_epoch=0,
                timeout_ms=(1 << 31) - 1,  # never times out
                state=state,
                partitions=frozenset({ORDERS}),
                updated_ms=driver.now_ms,
                started_ms=driver.now_ms,
            )
        }
    )
    driver.pass_ms(10 * ID_EXPIRATION_MS)
    assert isinstance(driver.coordinator.describe("id"), Metadata)
    assert driver.metadata().state is state
