"""The state that the parts of one log share: offsets, segments, producers, settings, and how far readers may read.

Invariants:
1. log start <= last stable offset <= high watermark <= log end, recovery point <= log end.
2. The last stable offset is the first offset of the oldest open transaction, or the high watermark if none is open
   below it.
3. The high watermark has one source (`HighWatermarkSource`). It moves back only when the log is cut, not when the
   source changes. If it follows replicas, it comes from a checkpoint at startup, since the log does not contain it.
"""

from enum import Enum
from typing import Final

from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.segments.segment_map import Segments


class HighWatermarkSource(Enum):
    """The offset that the high watermark of a log follows."""

    END = "end"  # the log end
    SYNCED = "synced"  # the recovery point (`flush.messages` = 1): a power cut removes nothing that was read
    REPLICAS = "replicas"  # `advance_high_watermark`: the leader decides, by the progress of its followers


_END: Final = HighWatermarkSource.END  # bound once: reading an enum's member takes longer than the comparison
_SYNCED: Final = HighWatermarkSource.SYNCED
_REPLICAS: Final = HighWatermarkSource.REPLICAS


class LogState:
    """The directory and settings of a log (`context`), and its content. Each part of the log reads and replaces them.

    `failure` is why the log has failed, or None.
    """

    __slots__ = ("closed", "context", "epochs", "failure", "partition", "producers", "segments", "topic")

    def __init__(
        self,
        context: LogContext,
        segments: Segments,
        epochs: LeaderEpochs,
        producers: Producers,
        *,
        topic: str,
        partition: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.context = context
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.failure: str | None = None
        self.closed = False

    def fail(self, reason: object) -> None:
        """Mark the log as failed, so that it rejects appends; the first reason is kept."""
        if self.failure is None:
            self.failure = str(reason)

    def refusal(self) -> LogFailedError:
        """Return the error for a request to a log that has failed or is closed."""
        name = f"{self.topic}-{self.partition}"
        return LogFailedError(f"{name} is closed" if self.closed else f"{name} has failed: {self.failure}")


class LogOffsets:
    """The offsets of a log. `high_watermark_source`: the offset that the high watermark follows."""

    __slots__ = (
        "_state",
        "high_watermark",
        "high_watermark_source",
        "last_stable_offset",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(
        self, state: LogState, *, log_start_offset: int, log_end_offset: int, source: HighWatermarkSource
    ) -> None:
        """Begin without a high watermark; `show` sets it."""
        self._state = state
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = self.last_stable_offset = log_start_offset
        self.high_watermark_source = source

    @property
    def shows_all(self) -> bool:
        """Whether the high watermark follows the log end."""
        return self.high_watermark_source is _END

    @property
    def shows_synced_only(self) -> bool:
        """Whether the high watermark follows the recovery point."""
        return self.high_watermark_source is _SYNCED

    @property
    def shows_replicated(self) -> bool:
        """Whether the high watermark moves by `advance_high_watermark` only."""
        return self.high_watermark_source is _REPLICAS

    def advance_high_watermark(self, offset: int) -> bool:
        """Move the high watermark up to an offset, but not past the log end; return False if it is not lower."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.show(offset)
        return True

    def show(self, high_watermark: int) -> None:
        """Set the high watermark, and the last stable offset that follows from it."""
        self.high_watermark = self.last_stable_offset = high_watermark
        producers = self._state.producers
        if producers.open_transactions or producers.unstable.ended:
            first_unstable = producers.first_unstable_offset(high_watermark)
            if first_unstable is not None:
                self.last_stable_offset = min(high_watermark, max(first_unstable, self.log_start_offset))

    def end_of_transactions(self) -> int:
        """Return the first offset of the oldest open transaction; the log end without one."""
        return next(iter(self._state.producers.open_transactions.values()), self.log_end_offset)
