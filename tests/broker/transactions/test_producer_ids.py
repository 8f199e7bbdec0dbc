"""Producers of a transactional id: epochs, fencing and new producer ids (InitProducerId)."""

import pytest

from tests.broker.transactions.driver import (
    ABORT,
    LAST,
    STRANGER,
    TV_1,
    TV_2,
    Driver,
    at_epoch,
)
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.metadata import State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.transactions import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, TransactionVersion


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
    driver.settle_appends(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
        driver.settle_appends(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
    driver.settle_appends(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
