"""Tell gaps in the sequences of idempotent producers that refusals have made from errors of the producers.

A producer may have several batches in flight. If only the first of two was refused, for no fault of the producer, the
second one is behind a gap. It is refused as well, and the producer sends both again.
"""

import trio

from warmlog.broker.log.errors import LogFailedError, NoSpaceError, OutOfOrderSequenceError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.appends.errors import EarlierBatchRefusedError
from warmlog.protocol.records.batch import read_header

REPEAT_S = 1.0  # after a refusal: until then producers have sent again what was refused


class SequenceGaps:
    """Knows whether appends to one log were refused a moment ago. Belongs to the event loop."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._refused_at: float | None = None  # by trio's clock; None: not lately

    def note_refusal(self) -> None:
        """Record that appends are refused, or were until now, for reasons that are not their producers'."""
        self._refused_at = trio.current_time()

    def check_beginning(self, records: bytes | memoryview) -> None:
        """After a refusal, refuse a batch of an unknown producer that is not its first one.

        At other times such a batch is appended, since the log may have removed the state of an idle producer. Raises
        EarlierBatchRefusedError.
        """
        if self._refused_at is None or not self._has_just_refused():
            return
        header = read_header(records)
        producer_id, sequence = header.producer_id, header.base_sequence
        if producer_id >= 0 and sequence > 0 and self._log.producers.latest(producer_id) is None:
            batch = f"batch of producer {producer_id}, sequence {sequence}"
            raise EarlierBatchRefusedError(f"{batch}: an earlier one is missing; appends were refused a moment ago")

    def reason(self, error: Exception) -> Exception:
        """Return the error to report for an append that cannot be planned; note it if it is a refusal."""
        if isinstance(error, (LogFailedError, NoSpaceError)):
            self.note_refusal()
        elif isinstance(error, OutOfOrderSequenceError) and self._has_just_refused():
            return EarlierBatchRefusedError(f"{error}; appends were refused a moment ago")
        return error

    def _has_just_refused(self) -> bool:
        if self._refused_at is not None and trio.current_time() >= self._refused_at + REPEAT_S:
            self._refused_at = None
        return self._refused_at is not None
