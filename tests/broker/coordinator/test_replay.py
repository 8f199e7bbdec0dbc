"""The partition of a group by Java's hash, and the replay of batches."""

import pytest

from warmlog.broker.coordinator.replay import Replay
from warmlog.broker.coordinator.topic import abs_int32
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.codec import java_hash
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT
from warmlog.protocol.records.reader import decode_batch

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


@pytest.mark.parametrize(
    ("text", "expected"),  # of String.hashCode
    [
        ("", 0),
        ("abc", 96354),
        ("golden-group", -1429646149),
        ("polygenelubricants", -(1 << 31)),
        ("grüppe", -1233264812),
        ("\U0001f600", 1772899),
    ],
)
def test_the_hash_equals_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_the_absolute_value_of_the_smallest_int32_is_0() -> None:
    assert [abs_int32(number) for number in (-(1 << 31), -1, 1)] == [0, 1, 1]


class Log:
    """Build batches at consecutive offsets, and pass them to a replay."""

    def __init__(self) -> None:
        self.replay = Replay()
        self._offset = 0

    def batch(self, *rows: tuple[bytes | None, bytes | None], attributes: int = 0, producer_id: int = -1) -> None:
        data = build_batch(
            [(0, key, value, ()) for key, value in rows],
            base_offset=self._offset,
            attributes=attributes,
            producer_id=producer_id,
        )
        ((position, header),) = headers(data)
        self.replay.take(header, decode_batch(data, position, header))
        self._offset = header.next_offset

    def transactional(self, producer_id: int, *rows: tuple[bytes | None, bytes | None]) -> None:
        self.batch(*rows, attributes=TRANSACTIONAL_BIT, producer_id=producer_id)

    def end(self, producer_id: int, marker: bytes) -> None:
        self.batch((marker, b""), attributes=TRANSACTIONAL_BIT | CONTROL_BIT, producer_id=producer_id)

    def values(self) -> dict[bytes, bytes]:
        return {key: latest.value for key, latest in self.replay.latest.items()}


def test_the_latest_value_of_a_key_applies_and_a_tombstone_removes_it() -> None:
    log = Log()
    log.batch((b"a", b"1"), (b"b", b"1"), (None, b"nobody's"))
    log.batch((b"a", b"2"), (b"b", None))
    assert log.values() == {b"a": b"2"}
    assert log.replay.latest[b"a"].offset == 3


def test_a_transaction_applies_when_it_is_committed() -> None:
    log = Log()
    log.batch((b"a", b"1"))
    log.transactional(7, (b"a", b"2"), (b"b", b"2"))
    log.transactional(8, (b"c", b"3"))
    assert log.values() == {b"a": b"1"}
    log.end(7, COMMIT)
    log.end(8, ABORT)
    assert log.values() == {b"a": b"2", b"b": b"2"}
    assert not log.replay.open_transactions


def test_a_transaction_does_not_override_later_records() -> None:
    log = Log()
    log.transactional(7, (b"a", b"old"), (b"b", b"old"))
    log.batch((b"a", b"new"), (b"b", None))
    log.end(7, COMMIT)
    assert log.values() == {b"a": b"new"}


def test_an_open_transaction_does_not_apply() -> None:
    log = Log()
    log.transactional(7, (b"a", b"1"))
    assert not log.values()
    assert len(log.replay.open_transactions) == 1
