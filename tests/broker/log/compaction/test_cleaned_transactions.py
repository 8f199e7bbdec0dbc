"""What compaction knows of transactions, batch by batch, and the index it reads them from."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.compaction.transactions import CleanedTransactions
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.transaction import ENTRY, AbortedTransaction, encode_aborted, read_aborted
from warmlog.broker.log.io.disk import Disk
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader

ABORT, COMMIT = struct.pack(">hh", 0, 0), struct.pack(">hh", 0, 1)


def header(offset: int, producer_id: int, attributes: int = TRANSACTIONAL_BIT) -> BatchHeader:
    data = build_batch(
        [(1, b"k", b"v", ())], base_offset=offset, producer_id=producer_id, producer_epoch=0, attributes=attributes
    )
    return read_header(data)


def marker(offset: int, producer_id: int) -> BatchHeader:
    return header(offset, producer_id, TRANSACTIONAL_BIT | CONTROL_BIT)


def test_records_of_an_aborted_transaction_are_void_and_those_of_others_not() -> None:
    walk = CleanedTransactions([AbortedTransaction(7, 10, 20, 20)])
    assert not walk.discards(header(9, 7))  # an earlier transaction of the same producer
    assert walk.discards(header(10, 7))
    assert not walk.discards(header(11, 8))
    assert not walk.discards(header(12, 7, attributes=0))
    assert walk.discards(header(15, 7))


def test_a_marker_stays_while_something_of_its_transaction_is_left() -> None:
    aborted = AbortedTransaction(7, 10, 20, 20)
    walk = CleanedTransactions([aborted])
    walk.discards(header(10, 7))
    walk.discards(header(11, 8))
    assert not walk.can_remove_marker(marker(20, 7), ABORT)
    assert walk.retained == [aborted]
    assert not walk.can_remove_marker(marker(21, 8), COMMIT)
    assert not walk.discards(header(30, 7))  # the next one


def test_a_marker_goes_once_nothing_is_left_of_its_transaction() -> None:
    walk = CleanedTransactions([AbortedTransaction(7, 10, 20, 20)])
    assert walk.can_remove_marker(marker(20, 7), ABORT)
    assert walk.can_remove_marker(marker(21, 8), COMMIT)
    assert walk.can_remove_marker(marker(22, 9), ABORT)
    assert walk.can_remove_marker(marker(23, 9), None)  # its record has gone before
    assert walk.retained == []


def test_a_marker_of_another_kind_stays() -> None:
    walk = CleanedTransactions([])
    assert not walk.can_remove_marker(marker(1, 7), struct.pack(">hh", 0, 3))
    assert not walk.can_remove_marker(marker(2, 7), b"")


# -- the index ---------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, (1 << 63) - 1)


@given(st.lists(st.builds(AbortedTransaction, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=5))
def test_an_index_says_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, found: list[AbortedTransaction]
) -> None:
    path = tmp_path_factory.mktemp("index") / "0.txnindex"
    path.write_bytes(encode_aborted(found))
    assert path.stat().st_size == 34 * len(found)
    assert read_aborted(Disk(), str(path), 0) == found


def test_no_file_is_no_transaction_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    assert read_aborted(Disk(), str(path), 0) == []
    path.write_bytes(encode_aborted([AbortedTransaction(1, 2, 3, 4)])[:-1])
    with pytest.raises(IndexCorruptError, match="not a multiple of 34"):
        read_aborted(Disk(), str(path), 0)
    path.write_bytes(ENTRY.pack(1, 1, 2, 3, 4))
    with pytest.raises(IndexCorruptError, match="another version"):
        read_aborted(Disk(), str(path), 0)
