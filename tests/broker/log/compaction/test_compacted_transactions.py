"""Compaction of a log with transactions on real files."""

import struct

from tests.broker.log.compaction.compacting import (
    DAY_MS,
    START_MS,
    Bench,
    Pair,
    batch,
    compact,
    contents,
    fill,
)
from warmlog.broker.log.index.transaction import AbortedTransaction, encode_aborted, read_aborted
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT

COMMIT, ABORT = 1, 0


def marker(kind: int, producer_id: int) -> bytes:
    return build_batch(
        [(START_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), ())],
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT, producer_id=producer_id, producer_epoch=0,
    )  # fmt: skip


def transactional(pairs: list[Pair], producer_id: int, base_sequence: int = 0) -> bytes:
    return batch(
        pairs, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence, attributes=TRANSACTIONAL_BIT
    )


def write_raw(bench: Bench, base_offset: int, *batches: bytes) -> None:
    """Write a segment of batches, with offsets from `base_offset` on."""
    log, offset = b"", base_offset
    for each in batches:
        log += offset.to_bytes(8) + each[8:]
        offset += next(header.last_offset_delta for _, header in headers(each)) + 1
    bench.directory.mkdir(exist_ok=True)
    bench.path(base_offset, ".log").write_bytes(log)


def copied(bench: Bench) -> PartitionLog:
    """Open a directory that another broker wrote: two transactions, one aborted, and a small active segment."""
    write_raw(
        bench, 0,
        batch([("a", "before"), ("b", "before")]),
        transactional([("a", "aborted")], 1),
        transactional([("b", "committed")], 2),
        marker(ABORT, 1),
        marker(COMMIT, 2),
        batch([("c", "after")]),
    )  # fmt: skip
    bench.path(0, ".txnindex").write_bytes(encode_aborted([AbortedTransaction(1, 2, 4, 3)]))
    write_raw(bench, 7, batch([("d", "active")]))
    log: PartitionLog = bench.open(clean=False)
    return log


def kinds(bench: Bench, base_offset: int) -> list[tuple[int, int, bool, bool]]:
    """Return (base offset, records, is control, has a delete horizon) of each batch."""
    return [
        (header.base_offset, header.record_count, header.is_control, header.delete_horizon_ms is not None)
        for _, header in headers(bench.path(base_offset, ".log").read_bytes())
    ]


def test_aborted_records_go_first_and_markers_after_their_time(bench: Bench) -> None:
    log = copied(bench)
    for _ in range(2):
        log.producers.age(0)
    log.producers.forget_idle(START_MS, most=100)  # else the last batch of each would stay
    assert compact(log) is not None
    assert contents(log) == [(0, "a", "before"), (3, "b", "committed"), (6, "c", "after"), (7, "d", "active")]
    first = kinds(bench, 0)
    assert (4, 1, True, False) in first  # its transaction was still there when this began
    assert read_aborted(bench.disk, str(bench.path(0, ".txnindex")), 0) == [AbortedTransaction(1, 2, 4, 3)]
    bench.clock.now_ms = START_MS + 1
    log.rolls.roll()
    fill(log, [("e", "1")])
    compact(log, 7)
    assert (4, 1, True, True) in kinds(bench, 0)  # nothing is left of it: the horizon begins
    assert (5, 1, True, False) in kinds(bench, 0)  # a committed record is left
    assert not bench.path(0, ".txnindex").exists()
    bench.clock.now_ms += DAY_MS
    log.rolls.roll()
    fill(log, [("f", "1")])
    compact(log, 8)
    assert [(base, count) for base, count, control, _ in kinds(bench, 0) if control and base == 4] in (
        [],
        [(4, 0)],
    )
    assert [key for _, key, _ in contents(log)] == ["a", "b", "c", "d", "e", "f"]


def test_an_open_transaction_bounds_what_is_cleanable(bench: Bench) -> None:
    write_raw(bench, 0, batch([("a", "1")]))
    write_raw(bench, 1, batch([("a", "2")]), transactional([("a", "open")], 1))
    write_raw(bench, 3, batch([("a", "3")]))
    write_raw(bench, 4)
    log = bench.open(clean=False)
    log.durability.flush()
    assert log.cleaning.find(None).first_uncleanable_offset == 1
