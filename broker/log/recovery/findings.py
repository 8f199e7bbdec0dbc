"""Findings and changes of one log's recovery so far; the source of its `RecoveryReport`."""

from dataclasses import dataclass, field

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.producers.replay import NOTHING_SCANNED, Scanned


@dataclass(slots=True)
class Findings:
    """The fields of a `RecoveryReport` as they are collected, and what later steps reuse of the scans.

    `epochs`: the (leader epoch, base offset) pairs of scanned batches. `producers`: the batches of producers and
    transactions that were scanned, so that their states are rebuilt without a second read. `known_end`: the end of the
    log according to its checkpoints and indexes, if it is past the end of the log file.
    """

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_at: int | None = None
    reason: str | None = None
    known_end: int = 0
    scanned: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    rebuilt: list[int] = field(default_factory=list)
    rebuilt_times: list[int] = field(default_factory=list)
    rebuilt_transactions: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    lost_epochs: bool = False
    producers: Scanned = NOTHING_SCANNED
    leftovers: list[str] = field(default_factory=list)

    def report(self, recovery_point: int, end: int, seconds: float) -> RecoveryReport:
        """Return the report on a recovery that is over, of a log that ends at `end`."""
        return RecoveryReport(
            recovery_point=recovery_point,
            scanned_segments=len(self.scanned),
            scanned_bytes=self.scanned_bytes,
            truncated_bytes=self.truncated_bytes,
            truncated_at=self.truncated_at,
            truncation_reason=self.reason,
            removed_segments=tuple(sorted(self.removed)),
            rebuilt_indexes=tuple(self.rebuilt),
            seconds=seconds,
            rebuilt_time_indexes=tuple(self.rebuilt_times),
            rebuilt_transaction_indexes=tuple(self.rebuilt_transactions),
            removed_snapshots=tuple(sorted(self.snapshots)),
            rebuilt_epochs=self.lost_epochs,
            leftovers=tuple(sorted(self.leftovers)),
            lost_offsets=max(0, self.known_end - end),
        )
