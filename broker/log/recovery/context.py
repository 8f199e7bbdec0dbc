"""The directory and settings of a log, and the objects it shares with all logs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.producers.idle import CapturedProducers, ProducerBudget
from warmlog.broker.log.producers.replay import NOTHING_SCANNED, Scanned, rebuild_producers
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """A log's directory, its settings and the shared objects it is opened with.

    `clock` returns ms since the epoch. `scanned` is called with the number of bytes that recovery has checked since the
    last call. All logs share one `budget`.
    """

    directory: str
    config: LogConfig
    files: OpenFiles
    clock: Callable[[], int]
    random: Random
    scanned: Callable[[int], None] = lambda _: None
    budget: ProducerBudget = field(default_factory=ProducerBudget)

    @property
    def disk(self) -> Disk:
        """The disk that holds the log's files."""
        return self.files.disk

    def new_tail(self, base_offset: int) -> Tail:
        """Return the end of an empty segment, with a random jitter by which it rolls before `segment.ms` is over."""
        config = self.config
        most_ms = min(config.segment_jitter_ms, config.segment_ms)
        jitter_ms = self.random.randrange(most_ms) if most_ms else 0
        return Tail(base_offset, config, created_ms=self.clock(), jitter_ms=jitter_ms)

    def segment(self, base_offset: int, size: int, next_base_offset: int | None) -> Segment:
        """Return a segment whose files exist."""
        return Segment(
            self.files,
            self.directory,
            base_offset,
            size=size,
            next_base_offset=next_base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
        )

    def start_over(self, segments: Sequence[Segment], offset: int) -> tuple[Segment, Tail]:
        """Replace `segments` by one empty segment at `offset`; return it and its end. Raises OSError."""
        tail = self.new_tail(offset)
        fresh = Segment.create(self.files, self.directory, tail, self.config)
        for segment in reversed(segments):
            segment.removed = True
            segment.remove_files()
        return fresh, tail

    def rebuild_producers(
        self,
        snapshots: ProducerSnapshots,
        segments: Sequence[Segment],
        end: int,
        *,
        scan_without: bool = True,
        scanned: Scanned = NOTHING_SCANNED,
        before: CapturedProducers | None = None,
    ) -> Producers:
        """Rebuild the producer states at the end of the log, see `producers.replay`. Blocking. Raises OSError.

        A caller that does not use the states must `release` them.
        """
        producers = Producers(self.clock, self.budget)
        try:
            rebuild_producers(
                producers, snapshots, segments, end, scan_without=scan_without, scanned=scanned, before=before
            )
        except BaseException:
            producers.release()
            raise
        return producers
