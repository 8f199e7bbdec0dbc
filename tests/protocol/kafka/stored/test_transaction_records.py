"""The records of `__transaction_state`, compared with what Kafka wrote."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.transaction_records import (
    StoredTransaction,
    TransactionKey,
    UnknownKey,
    UnknownValue,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.records.record import Record
from warmlog.protocol.transactions import TransactionState, TransactionVersion

CLEAN = Path(__file__).parents[3] / "fixtures" / "kafka" / "4.3.1" / "clean"
int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
STATES = [
    state for state in TransactionState if state not in {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}
]


def golden() -> list[Record]:
    return list(records_in((CLEAN / "__transaction_state-0" / "00000000000000000000.log").read_bytes()))


def test_what_kafka_wrote_is_read_and_written_alike() -> None:
    records = golden()
    assert len(records) == 41
    for record in records:
        assert record.key is not None
        assert record.value is not None
        key = decode_transaction_key(record.key)
        assert isinstance(key, TransactionKey)
        assert encode_transaction_key(key.transactional_id) == record.key
        stored = decode_transaction(record.value)
        assert isinstance(stored, StoredTransaction)
        assert encode_transaction(stored, TransactionVersion.TV_2) == record.value


def test_a_commit_of_kafkas_reads_as_its_parts() -> None:
    record = golden()[3]
    assert record.key is not None
    assert record.value is not None
    assert decode_transaction_key(record.key) == TransactionKey("first")
    assert decode_transaction(record.value) == StoredTransaction(
        producer_id=2,
        previous_producer_id=2,
        producer_epoch=1,
        timeout_ms=60_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset({("transactional", 0)}),
        updated_ms=1_795_250_020_204,
        started_ms=1_795_250_020_188,
        client_version=TransactionVersion.TV_2,
    )


@given(
    stored=st.builds(
        StoredTransaction,
        producer_id=int64,
        previous_producer_id=int64,
        next_producer_id=int64,
        producer_epoch=int16,
        timeout_ms=int32,
        state=st.sampled_from(STATES),
        partitions=st.frozensets(st.tuples(st.text(max_size=8), int32), max_size=8),
        updated_ms=int64,
        started_ms=int64,
        client_version=st.sampled_from(TransactionVersion),
    )
)
def test_every_state_survives_a_round_trip(stored: StoredTransaction) -> None:
    if stored.state is TransactionState.EMPTY:
        stored = StoredTransaction(**{**_fields(stored), "partitions": frozenset()})
    assert decode_transaction(encode_transaction(stored, TransactionVersion.TV_2)) == stored
    untagged = {"previous_producer_id": -1, "next_producer_id": -1, "client_version": TransactionVersion.TV_0}
    old = StoredTransaction(**{**_fields(stored), **untagged})
    assert decode_transaction(encode_transaction(stored, TransactionVersion.TV_0)) == old


def _fields(stored: StoredTransaction) -> dict[str, object]:
    return {name: getattr(stored, name) for name in stored.__struct_fields__}


def test_version_0_has_classic_strings_and_no_tags() -> None:
    stored = StoredTransaction(
        producer_id=7,
        producer_epoch=3,
        timeout_ms=1000,
        state=TransactionState.ONGOING,
        partitions=frozenset({("b", 1), ("a", 2), ("a", 0)}),
        updated_ms=20,
        started_ms=10,
    )
    expected = struct.pack(">hqhib", 0, 7, 3, 1000, 1)
    expected += struct.pack(">i", 2)
    expected += struct.pack(">h1sii", 1, b"a", 2, 0) + struct.pack(">i", 2)
    expected += struct.pack(">h1sii", 1, b"b", 1, 1)
    expected += struct.pack(">qq", 20, 10)
    assert encode_transaction(stored, TransactionVersion.TV_0) == expected


def test_the_epoch_of_a_next_producer_id_is_read_past() -> None:
    value = golden()[0].value
    assert value is not None
    assert value.endswith(bytes.fromhex("0100080000000000000002"))
    tagged = value[: -len("0100080000000000000002") // 2] + bytes.fromhex("02000800000000000000020302000a")
    assert decode_transaction(tagged) == decode_transaction(value)


def test_unknown_types_and_versions_are_foreign() -> None:
    assert decode_transaction_key(b"\0\5xyz") == UnknownKey(5)
    assert decode_transaction(b"\0\2xyz") == UnknownValue(2)


@pytest.mark.parametrize("state", [-1, 6, 7, 8])
def test_a_state_that_is_never_stored_is_malformed(state: int) -> None:
    value = struct.pack(">hqhibiqq", 0, 7, 3, 1000, state, -1, 20, 10)
    with pytest.raises(MalformedError):
        decode_transaction(value)


@given(data=st.binary(max_size=80))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    for decode in (decode_transaction_key, decode_transaction):
        with contextlib.suppress(MalformedError):
            decode(data)


@pytest.mark.parametrize("end", range(45))
def test_a_value_cut_anywhere_is_malformed(end: int) -> None:
    value = golden()[0].value
    assert value is not None
    if end < len(value):
        with pytest.raises(MalformedError):
            decode_transaction(value[:end])


def test_an_id_that_a_record_cannot_hold_is_refused() -> None:
    with pytest.raises(MalformedError):
        encode_transaction_key("x" * (1 << 15))
