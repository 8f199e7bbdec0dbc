"""A shard takes over the latest record of each key, and ignores and reports what cannot be its own."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.broker.coordinator.toy import Serving, serving
from tests.broker.rig import START_MS
from warmlog.broker.coordinator import loading
from warmlog.broker.coordinator.appends import LogProducer
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome


def write(one: Serving, index: int, key: bytes, value: bytes | None) -> None:
    """Append a record as a client may that calls itself `__admin_client`."""
    one.partition(index).append(build_batch([(START_MS, key, value, ())]))
    one.made.writer.write_queued()


async def test_the_latest_record_of_each_key_is_replayed_with_its_offset(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        first, second, third = one.names_in(1, 3)
        for name, value in ((first, b"a"), (second, b"b"), (third, b"c"), (first, b"d"), (second, None)):
            write(one, 1, name.encode(), value)
    async with serving(tmp_path) as one:
        assert one.texts(1) == {first: "d", third: "c"}
        assert one.shard(1).offsets == {first: 3, third: 2}
        assert one.shard(1).term.loaded_to == 5


async def test_records_of_open_transactions_are_replayed_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        first, second, third = one.names_in(1, 3)
        for producer_id, name in ((7, first), (8, second), (9, third)):
            producer = LogProducer(producer_id, 0, one.partition(1).log.producers.guards.open(producer_id))
            rows = [(name.encode(), b"pending")]
            one.runtime.append(one.shard(1).term, name, rows, lambda *_: None, producer=producer)
        for producer_id, outcome in ((8, Outcome.COMMIT), (9, Outcome.ABORT)):
            one.partition(1).append_marker(TransactionMarker(producer_id, 0, 1, outcome))
        one.made.writer.write_queued()
    async with serving(tmp_path) as one:
        assert one.texts(1) == {second: "pending"}
        assert one.shard(1).pending == {7: {first: "pending"}}


async def test_a_malformed_record_is_left_out_and_an_earlier_one_applies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as one:
        first, second, third = one.names_in(1, 3)
        for name, value in (
            (first, b"early"),
            (first, b"later"),
            (first, b"!"),
            (first, b"!!"),
            (second, b"gone"),
            (second, None),
            (second, b"!"),
            (third, b"good"),
        ):
            write(one, 1, name.encode(), value)
    async with serving(tmp_path) as one:
        assert one.texts(1) == {first: "later", third: "good"}
        assert one.shard(1).offsets[first] == 1
    for offset in (3, 6):
        assert f"__three_parts-1: ignored the record at offset {offset}, which is malformed" in caplog.text
    assert caplog.text.count("ignored the record") == 2


async def test_many_malformed_records_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as one:
        one.append(1, count=15, value=b"!")
    async with serving(tmp_path) as one:
        assert one.state(1) is ErrorCode.NONE
    assert caplog.text.count("__three_parts-1: ignored the record at offset") == loading.REPORTED
    assert "__three_parts-1: ignored 5 more malformed records" in caplog.text


async def test_records_of_other_partitions_and_of_unknown_types_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path) as one:
        for name in (*one.names_in(0, 3), *one.names_in(1, 1)):
            write(one, 1, name.encode(), b"value")
        for key in (b"?one", b"?two"):
            write(one, 1, key, b"!")
    async with serving(tmp_path) as one:
        assert one.texts(1) == {one.name_in(1): "value"}
    assert "__three_parts-1: ignored 3 records of names that belong to another partition" in caplog.text
    assert "(names.partitions)" in caplog.text
    assert "__three_parts-1: ignored 2 records of unknown types" in caplog.text


async def test_records_are_decoded_in_pieces_and_large_ones_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as one:
        one.append(1, count=20, value=bytes(1 << 10))
        one.append(2, count=3, value=bytes(20 << 10))
    pieces: list[tuple[int, bool]] = []
    decode = loading._decode

    def noted(*args: Any) -> Any:
        decoded = decode(*args)
        pieces.append((len(decoded.rows), threading.current_thread() is threading.main_thread()))
        return decoded

    monkeypatch.setattr(loading, "_decode", noted)
    async with serving(tmp_path) as one:
        assert [len(one.texts(index) or {}) for index in range(3)] == [0, 20, 3]
    assert sorted(pieces) == [(1, False)] * 3 + [(4, True), (8, True), (8, True)]
