"""What a partition of `__transaction_state` comes to."""

from pathlib import Path

import pytest

from warmlog.broker.coordinator_log.replay import Latest, Replay
from warmlog.broker.transactions.replay import ReplayedTransactions
from warmlog.protocol.kafka.transaction_records import StoredTransaction, encode_transaction, encode_transaction_key
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.transactions import TransactionState, TransactionVersion

LOG = Path(__file__).parents[2] / "fixtures/kafka/4.3.1/clean/__transaction_state-0/00000000000000000000.log"
VALUE = encode_transaction(
    StoredTransaction(producer_id=1, producer_epoch=0, timeout_ms=1, state=TransactionState.EMPTY, updated_ms=0),
    TransactionVersion.TV_2,
)


def replay(data: bytes) -> Replay:
    found = Replay()
    for position, header in headers(data):
        found.take(header, decode_batch(data, position, header))
    return found


def test_kafkas_log_comes_to_its_last_states() -> None:
    found = dict(ReplayedTransactions(replay(LOG.read_bytes()).latest, 0, lambda _: 0))
    assert {name: (each.producer_id, each.producer_epoch, each.state) for name, each in found.items()} == {
        "first": (2, 12, TransactionState.COMPLETE_ABORT),
        "second": (3, 1, TransactionState.COMPLETE_ABORT),
    }


def test_an_expired_id_is_gone() -> None:
    key = encode_transaction_key("id")
    data = build_batch([(0, key, VALUE, ()), (0, key, None, ())])
    assert dict(ReplayedTransactions(replay(data).latest, 0, lambda _: 0)) == {}


def test_unknown_types_and_versions_are_counted_and_ignored() -> None:
    latest = {b"\0\5x": Latest(0, VALUE), encode_transaction_key("id"): Latest(1, b"\0\2x")}
    found = ReplayedTransactions(latest, 0, lambda _: 0)
    assert list(found) == []
    assert found.foreign == 2


def test_ids_of_another_partition_are_counted_and_ignored() -> None:
    found = ReplayedTransactions({encode_transaction_key("id"): Latest(0, VALUE)}, 0, lambda _: 1)
    assert list(found) == []
    assert found.misplaced == 1


@pytest.mark.parametrize(("key", "value"), [(b"\0\0\0", VALUE), (encode_transaction_key("id"), VALUE[:-1])])
def test_a_record_that_cannot_be_decoded_is_noted(key: bytes, value: bytes) -> None:
    latest = {key: Latest(12, value), encode_transaction_key("other"): Latest(1, VALUE)}
    found = ReplayedTransactions(latest, 0, lambda _: 0)
    assert [name for name, _ in found] == ["other"]
    assert len(found.damage) == 1
