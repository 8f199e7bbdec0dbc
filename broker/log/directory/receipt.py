"""Receipts: what a start after an unclean stop did to the logs, as a file beside them that stays.

Owns: the files' names, form and number. Must not know: how logs are recovered, or who shows a receipt.

    DIR/recovery-receipt-20261121T101500123Z.json       one for each such start and data directory, named by its begin

They are files of the data directory itself: in a directory of their own Kafka would see a partition with a bad name,
and not start over a data directory that is moved to it.

Invariants:
1. A receipt is written when all is done, or when the start ended for another reason (`complete` is false): what it says
   happened. Its absence says nothing: on a full disk there is none.
2. At most KEPT_RECEIPTS are kept; the oldest go first.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import asdict

from broker.log.descriptions import RecoveryReport
from broker.log.errors import LogError
from broker.log.io.disk import Disk, read_file, replace_file

RECEIPT_PREFIX = "recovery-receipt-"
RECEIPT_SUFFIX = ".json"
KEPT_RECEIPTS = 20  # of some hundred bytes for each log that was recovered
VERSION = 1


class ReceiptError(LogError):
    """A receipt that cannot be understood."""


class LogReceipt(RecoveryReport, frozen=True, kw_only=True):
    """What was done to one log: what its report says, and how many things had to be put right."""

    topic: str
    partition: int
    log_end_offset: int
    repairs: int


class Receipt(Struct, frozen=True, kw_only=True):
    """One start over one data directory. Sizes in bytes; `seconds` from the begin of the start to its end.

    `reason`: why logs were recovered. `findings`: checkpoints that could not be read. `complete`: every log was opened.
    `log_count`: those that lie in the directory and were opened; `logs`: those of them where there was anything to do.
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
    """What a receipt says of a log."""
    told: dict[str, Any] = asdict(report)
    return LogReceipt(topic=topic, partition=partition, log_end_offset=log_end_offset, repairs=report.repairs, **told)


def time_of(timestamp_ms: int) -> str:
    """A receipt's time, ISO 8601 in UTC, to the millisecond."""
    return f"{datetime.fromtimestamp(timestamp_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def write_receipt(disk: Disk, directory: str, receipt: Receipt) -> str:
    """Leave a receipt and remove the oldest beyond those that are kept; gives its name.

    For a worker. Raises OSError.
    """
    stamp = receipt.started_at.replace("-", "").replace(":", "").replace(".", "")
    name = f"{RECEIPT_PREFIX}{stamp}{RECEIPT_SUFFIX}"
    try:
        replace_file(disk, f"{directory}/{name}", _encode(receipt), sync=True)
    except OSError:
        with suppress(OSError):  # half of a receipt takes room where there is none
            disk.unlink(f"{directory}/{name}.tmp")
        raise
    for old in receipt_names(disk, directory)[:-KEPT_RECEIPTS]:
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{old}")
    return name


def receipt_names(disk: Disk, directory: str) -> list[str]:
    """The names of a data directory's receipts, oldest first. Raises OSError."""
    names = (entry.name for entry in disk.scan(directory))
    return sorted(name for name in names if name.startswith(RECEIPT_PREFIX) and name.endswith(RECEIPT_SUFFIX))


def read_receipt(disk: Disk, path: str) -> Receipt:
    """A receipt. Raises ReceiptError, with its path, if it cannot be understood, and OSError."""
    try:
        receipt: Receipt = _decode(read_file(disk, path))
    except DecodeError as error:
        raise ReceiptError(f"{path}: no receipt of this version: {error}") from error
    if receipt.version != VERSION:
        raise ReceiptError(f"{path}: version {receipt.version}, expected {VERSION}")
    return receipt


def read_receipts(disk: Disk, directory: str) -> Iterator[Receipt | ReceiptError]:
    """All receipts of a data directory, oldest first; in the place of one that cannot be understood, why.

    Raises OSError.
    """
    for name in receipt_names(disk, directory):
        try:
            yield read_receipt(disk, f"{directory}/{name}")
        except ReceiptError as error:
            yield error
        except FileNotFoundError:
            continue  # a start has just removed it
