"""Helpers for tests of recovery: filled logs, reports, and the files of a directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.partition_log import PartitionLog

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def fill(log: PartitionLog, batch: Batch, batches: int) -> None:
    for _ in range(batches):
        log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))


def report_of(log: PartitionLog) -> RecoveryReport:
    assert log.recovery is not None
    return log.recovery


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
