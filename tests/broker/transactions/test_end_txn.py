"""The end of a transaction as clients see it (EndTxn), and how the markers complete it."""

import pytest

from tests.broker.transactions.driver import (
    ABORT,
    COMMIT,
    LAST,
    ORDERS,
    STOCK,
    STRANGER,
    TV_0,
    TV_2,
    Driver,
    at_epoch,
)
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.metadata import State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionVersion

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
    driver.settle_appends(ErrorCode.UNKNOWN_SERVER_ERROR)
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
    driver.settle_appends(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
    driver.settle_appends(ErrorCode.NOT_COORDINATOR)
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


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_producer_that_missed_its_end_goes_on_after_a_restart(outcome: Outcome) -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    after = driver.given(driver.end(producer, outcome))
    driver.restart()
    assert driver.producer(producer) == after
    driver.restart()
    assert driver.error(driver.init(producer)) is ErrorCode.PRODUCER_FENCED, "the epoch may be a successor's by now"


def test_a_producer_that_missed_its_last_end_goes_on_after_a_restart_with_the_next_producer_id() -> None:
    driver = at_epoch(LAST, State.ONGOING)
    after = driver.given(driver.end(Producer(7, LAST)))
    driver.restart()
    assert driver.producer(Producer(7, LAST)) == after


def test_an_end_that_raises_no_epoch_lets_nobody_go_on_with_an_earlier_one() -> None:
    driver = Driver()
    first = driver.producer()
    second = driver.producer()
    driver.add(second, version=TV_0)
    driver.end(second, version=TV_0)
    driver.restart()
    assert driver.error(driver.init(first)) is ErrorCode.PRODUCER_FENCED
