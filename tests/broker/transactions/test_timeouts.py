"""Transactions that time out, and transactional ids that expire."""

import pytest

from tests.broker.transactions.driver import (
    ABORT,
    ID_EXPIRATION_MS,
    ORDERS,
    TIMEOUT_MS,
    TV_0,
    TV_1,
    TV_2,
    Driver,
    at_epoch,
)
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.metadata import Metadata, State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import StoredTransaction
from warmlog.protocol.transactions import TransactionVersion


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
    driver.settle_appends(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
    driver.settle_appends(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
