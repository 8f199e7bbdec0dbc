"""Distinguish sequence gaps caused by refused appends from errors of idempotent producers.

A producer may have several batches in flight. If only the first of two was refused, through no fault of the producer,
the second one follows a gap. It is refused as well, and the producer sends both again.
"""

from typing import Final

import trio

from warmlog.broker.log.errors import LogFailedError, NoSpaceError, OutOfOrderSequenceError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.appends.errors import EarlierBatchRefusedError
from warmlog.protocol.records.batch import read_header

REPEAT_S: Final = 1.0  # after a refusal: by then producers have repeated the refused batches


class SequenceGaps:
    """Tracks whether appends to one log were refused recently. Belongs to the event loop."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._refused_at: float | None = None  # by trio's clock; None: not recently

    def note_refusal(self) -> None:
        """Record that appends are, or were until now, refused through no fault of their producers."""
        self._refused_at = trio.current_time()

    def check_beginning(self, records: bytes | memoryview) -> None:
        """Refuse a batch of an unknown producer that is not its first one, if appends were refused recently.

        At other times such a batch is appended, since the log may have removed the state of an idle producer. Raises
        EarlierBatchRefusedError.
        """
        if self._refused_at is None or not self._has_just_refused():
            return
        header = read_header(records)
        producer_id, sequence = header.producer_id, header.base_sequence
        if producer_id >= 0 and sequence > 0 and self._log.producers.latest(producer_id) is None:
            batch = f"batch of producer {producer_id}, sequence {sequence}"
            raise EarlierBatchRefusedError(f"{batch}: an earlier one is missing; appends were refused recently")

    def reason(self, error: Exception) -> Exception:
        """Return the error to report for an append that cannot be planned; record refusals."""
        if isinstance(error, (LogFailedError, NoSpaceError)):
            self.note_refusal()
        elif isinstance(error, OutOfOrderSequenceError) and self._has_just_refused():
            return EarlierBatchRefusedError(f"{error}; appends were refused recently")
        return error

    def _has_just_refused(self) -> bool:
        if self._refused_at is not None and trio.current_time() >= self._refused_at + REPEAT_S:
            self._refused_at = None
        return self._refused_at is not None
