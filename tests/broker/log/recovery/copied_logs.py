"""Logs with transactions, written into a data directory before a broker serves it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree
from struct import pack

from tests.broker.log.recovery.ledger import START_MS, Stored, stored
from warmlog.broker.log.index.transaction import AbortedTransaction, encode_aborted
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT

LogDirectory = Path
ABORT, COMMIT = 0, 1
FIXTURES = Path(__file__).parents[3] / "fixtures" / "kafka" / "4.3.1" / "clean"

Pair = tuple[bytes, bytes | None]
_Made = Callable[[int], bytes]  # of the time of its first record


def written_by_kafka(directory: LogDirectory) -> list[Stored]:
    """The head of Kafka's own: committed and aborted transactions that reach over segments."""
    copytree(FIXTURES / "transactional-0", directory)
    for path in directory.iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) >= 68:
            path.unlink()
    return _batches(directory)


def with_transactions(directory: LogDirectory) -> list[Stored]:
    """Of three producers: records before and after others of their keys, tombstones, a fenced one, compressed ones."""
    directory.mkdir()
    segments: Sequence[Sequence[_Made]] = [
        [_plain((b"k0", b"old"), (b"a", None), (b"k1", b"old")), _of(1, 0, (b"k2", b"void"), (b"k3", b"void")),
         _of(2, 0, (b"k3", b"kept"), (b"b", b"old"))],
        [_marker(ABORT, 1), _of(1, 2, (b"k0", b"kept")), _marker(COMMIT, 2), _plain((b"k4", None), (b"c", b"old"))],
        [_of(3, 0, (b"k1", b"void"), (b"b", None)), _marker(COMMIT, 1), _marker(ABORT, 3, epoch=1)],
        [_of(2, 2, (b"c", b"void"))],
        [_marker(ABORT, 2), _of(1, 3, (b"c", None)), _marker(COMMIT, 1)],
        [_plain((b"k2", b"last"))],
    ]  # fmt: skip
    aborted = [AbortedTransaction(1, 3, 7, 5), AbortedTransaction(3, 12, 15, 16), AbortedTransaction(2, 16, 17, 18)]
    offset = 0
    for batches in segments:
        base = offset
        log = bytearray()
        for make in batches:
            batch = make(START_MS + offset)
            log += offset.to_bytes(8) + batch[8:]
            offset = stored(batch, at_offset=offset)[-1].last_offset + 1
        path = directory / f"{base:020d}.log"
        path.write_bytes(log)
        ended = [each for each in aborted if base <= each.last_offset < offset]
        if ended:
            path.with_suffix(".txnindex").write_bytes(encode_aborted(ended))
    return _batches(directory)


def _batches(directory: LogDirectory) -> list[Stored]:
    return [batch for path in sorted(directory.glob("*.log")) for batch in stored(path.read_bytes())]


def _plain(*pairs: Pair) -> _Made:
    return lambda time: build_batch([(time + i, key, value, ()) for i, (key, value) in enumerate(pairs)])


def _of(producer_id: int, base_sequence: int, *pairs: Pair) -> _Made:
    return lambda time: build_batch(
        [(time + i, key, value, ()) for i, (key, value) in enumerate(pairs)],
        producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence, attributes=TRANSACTIONAL_BIT,
    )  # fmt: skip


def _marker(kind: int, producer_id: int, *, epoch: int = 0) -> _Made:
    return lambda time: build_batch(
        [(time, pack(">hh", 0, kind), pack(">hi", 0, 0), ())],
        producer_id=producer_id, producer_epoch=epoch, attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
    )  # fmt: skip
