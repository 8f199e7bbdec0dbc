"""Partitions of a transaction: adding and verifying them (AddPartitionsToTxn)."""

from tests.broker.transactions.driver import (
    ORDERS,
    STOCK,
    STRANGER,
    TV_0,
    TV_1,
    Driver,
)
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.metadata import State
from warmlog.protocol.errors import ErrorCode

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
    driver.settle_appends(ErrorCode.NOT_COORDINATOR)
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
