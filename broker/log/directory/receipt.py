"""Recovery receipts: files that record what startup after an unclean stop did to the logs of a data directory.

    DIR/recovery-receipt-20261121T101500123Z.json       one per startup and data directory, named by its start time

They are in the data directory itself: Kafka would treat a subdirectory as a partition with an invalid name and refuse
to start on a data directory that is moved to it.

Invariants:
1. A receipt is written when recovery has ended or startup was aborted (`complete` is false), so it only reports what
   happened. A missing receipt means nothing: on a full disk there is none.
2. At most KEPT_RECEIPTS are kept; the oldest are removed first.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import asdict

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.io.disk import Disk, read_file, replace_file

RECEIPT_PREFIX = "recovery-receipt-"
RECEIPT_SUFFIX = ".json"
KEPT_RECEIPTS = 20  # each takes a few hundred bytes per recovered log
VERSION = 1


class ReceiptError(LogError):
    """A receipt cannot be parsed."""


class LogReceipt(RecoveryReport, frozen=True, kw_only=True):
    """The recovery of one log: its report, and the number of repairs."""

    topic: str
    partition: int
    log_end_offset: int
    repairs: int


class Receipt(Struct, frozen=True, kw_only=True):
    """One startup of one data directory. Sizes in bytes; `seconds` is the duration of the startup.

    `reason`: why logs were recovered. `findings`: checkpoints that could not be read. `complete`: every log was opened.
    `log_count`: the number of logs opened; `logs`: those of them that were scanned or repaired.
    """

    version: int = VERSION
    started_at: str  # ISO 8601, UTC
    reason: str
    complete: bool
    seconds: float
    threads: int
    log_count: int
    scanned_bytes: int
    truncated_bytes: int
    findings: tuple[str, ...]
    logs: tuple[LogReceipt, ...]


_encode = Encoder().encode
_decode: Any = Decoder(Receipt).decode


def log_receipt(topic: str, partition: int, log_end_offset: int, report: RecoveryReport) -> LogReceipt:
    """Return a log's entry in a receipt."""
    fields: dict[str, Any] = asdict(report)
    return LogReceipt(topic=topic, partition=partition, log_end_offset=log_end_offset, repairs=report.repairs, **fields)


def time_of(timestamp_ms: int) -> str:
    """Format a receipt's time: ISO 8601, UTC, with milliseconds."""
    return f"{datetime.fromtimestamp(timestamp_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def write_receipt(disk: Disk, directory: str, receipt: Receipt) -> str:
    """Write a receipt, remove the oldest ones beyond KEPT_RECEIPTS, and return its name. Blocking. Raises OSError."""
    stamp = receipt.started_at.replace("-", "").replace(":", "").replace(".", "")
    name = f"{RECEIPT_PREFIX}{stamp}{RECEIPT_SUFFIX}"
    try:
        replace_file(disk, f"{directory}/{name}", _encode(receipt), sync=True)
    except OSError:
        with suppress(OSError):  # an incomplete receipt takes space on a full disk
            disk.unlink(f"{directory}/{name}.tmp")
        raise
    for old in receipt_names(disk, directory)[:-KEPT_RECEIPTS]:
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{old}")
    return name


def receipt_names(disk: Disk, directory: str) -> list[str]:
    """Return the names of a data directory's receipts, oldest first. Raises OSError."""
    names = (entry.name for entry in disk.scan(directory))
    return sorted(name for name in names if name.startswith(RECEIPT_PREFIX) and name.endswith(RECEIPT_SUFFIX))


def read_receipt(disk: Disk, path: str) -> Receipt:
    """Read a receipt. Raises ReceiptError, which names the file, if it cannot be parsed, and OSError."""
    try:
        receipt: Receipt = _decode(read_file(disk, path))
    except DecodeError as error:
        raise ReceiptError(f"{path}: no receipt of this version: {error}") from error
    if receipt.version != VERSION:
        raise ReceiptError(f"{path}: version {receipt.version}, expected {VERSION}")
    return receipt


def read_receipts(disk: Disk, directory: str) -> Iterator[Receipt | ReceiptError]:
    """Yield the receipts of a data directory, oldest first, or the error for one that cannot be parsed.

    Raises OSError.
    """
    for name in receipt_names(disk, directory):
        try:
            yield read_receipt(disk, f"{directory}/{name}")
        except ReceiptError as error:
            yield error
        except FileNotFoundError:
            continue  # a startup has just removed it
