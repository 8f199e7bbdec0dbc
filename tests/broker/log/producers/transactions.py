"""Transactions on one log: batches, markers, and what a consumer of committed records keeps."""

from pathlib import Path
from random import Random

from warmlog.broker.log.appends.planned import PlannedAppend
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.committed import AbortedFilter
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.response import AbortedTransaction

NOW_MS = 1_700_000_000_000


def opened(
    directory: Path,
    config: LogConfig,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    high_watermark: int | None = None,
    files: OpenFiles | None = None,
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        topic="words",
        partition=0,
        config=config,
        files=files or OpenFiles(),
        clock=lambda: NOW_MS,
        random=Random(1),
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean=clean,
        high_watermark=high_watermark,
    )


def transactional(producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, size: int = 10) -> bytes:
    rows = [(NOW_MS, None, b"%d" % producer_id * size, ()) for _ in range(count)]
    return build_batch(
        rows,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )


def marker(
    producer_id: int, outcome: Outcome, *, epoch: int = 0, coordinator_epoch: int = 0, raises_epoch: bool = False
) -> TransactionMarker:
    return TransactionMarker(producer_id, epoch, coordinator_epoch, outcome, raises_epoch)


def send(log: PartitionLog, producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0) -> PlannedAppend:
    """Append a batch that the coordinator has agreed to."""
    guard = log.producers.guards.open(producer_id)
    return log.appends.append(transactional(producer_id, sequence, count, epoch=epoch), guard=guard)


def read(log: PartitionLog, offset: int, max_bytes: int) -> LogRead:
    return log.reads.read(
        offset, max_bytes, isolation_end=log.offsets.last_stable_offset, min_one_batch=True, with_aborted=True
    )


def committed(log: PartitionLog, max_bytes: int = 1 << 20) -> list[int]:
    """The offsets of what a consumer of committed records keeps, from the start of the log."""
    found: list[int] = []
    offset = log.offsets.log_start_offset
    while (part := read(log, offset, max_bytes)).slice is not None and len(part.slice):
        data = part.slice.read_all()
        aborted = AbortedFilter(
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in part.aborted
        )
        for position, header in headers(data):
            if not aborted.discards(header):
                found += [record.offset for record in decode_batch(data, position, header) if record.offset >= offset]
            offset = header.next_offset
    return found
