"""The records that Kafka 4.3.1 wrote while it served two producers, written once more by this coordinator.

The requests that Kafka was sent follow from its records; the clock is set to the times in them.
"""

from pathlib import Path

from tests.broker.transactions.driver import ABORT, COMMIT, Driver
from warmlog.broker.transactions.effects import Producer
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import (
    StoredTransaction,
    TransactionKey,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
)
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.transactions import TransactionState, TransactionVersion

LOG = Path(__file__).parents[2] / "fixtures/kafka/4.3.1/clean/__transaction_state-0/00000000000000000000.log"
State = TransactionState


def kafkas_rows() -> list[tuple[str, bytes]]:
    rows = []
    for record in records_in(LOG.read_bytes()):
        assert record.key is not None
        assert record.value is not None
        key = decode_transaction_key(record.key)
        assert isinstance(key, TransactionKey)
        rows.append((key.transactional_id, record.value))
    return rows


def test_the_same_requests_make_the_same_records() -> None:
    driver = Driver(first_id=2)
    driver.appends_at_once = driver.marks_at_once = False
    producers: dict[str, Producer] = {}
    for number, (name, value) in enumerate(kafkas_rows()):
        stored = decode_transaction(value)
        assert isinstance(stored, StoredTransaction)
        driver.now_ms = stored.updated_ms
        match stored.state:
            case State.EMPTY:
                waiter = driver.init(name=name, timeout_ms=stored.timeout_ms)
            case State.ONGOING:
                waiter = driver.add(producers[name], *stored.partitions, name=name)
            case State.PREPARE_COMMIT | State.PREPARE_ABORT:
                outcome = COMMIT if stored.state is State.PREPARE_COMMIT else ABORT
                waiter = driver.end(producers[name], outcome, name=name)
            case _:
                waiter = -1
        # A completion carries the time at which its decision was in the log.
        (append,) = [each for each in driver.appends if each.source.transactional_id == name]
        assert append.value is not None
        assert encode_transaction(append.value, TransactionVersion.TV_2) == value, number
        driver.appends.remove(append)
        following = [decode_transaction(row) for other, row in kafkas_rows()[number + 1 :] if other == name]
        if following and isinstance(following[0], StoredTransaction):
            driver.now_ms = following[0].updated_ms
        driver.coordinator.appended(append, ErrorCode.NONE, driver.now_ms)
        driver.pump()
        driver.settle_markers()
        if waiter in driver.answers and stored.state is not State.ONGOING:
            producers[name] = driver.given(waiter)
    assert number == 40
