"""An archive held against the log: what is in one and not in the other.

Owns: the comparison of one split. Must not know: Spark, or which splits there are.

Records are compared by their offsets. What compaction or retention has taken from the log since it was archived is no
fault of either; what the archive lacks, has twice, or has of what the log never had, is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from warmlog.pipeline.audit import Finding
from warmlog.pipeline.measured import Measured, Stopwatch
from warmlog.pipeline.origin import read_batches
from warmlog.pipeline.planning import Split
from warmlog.pipeline.reading import ReadRules
from warmlog.pipeline.table import TableFile, read_in_order

SHOWN_RUNS = 3  # of offsets, in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask:
    """A split of the log, and the files that may have its offsets."""

    split: Split
    files: tuple[TableFile, ...]
    first_offset: int
    end_offset: int
    cleaned_until: int


@dataclass(slots=True, kw_only=True)
class Compared:
    """Offsets in both, in one only, twice in the archive; and those that compaction took from the log since."""

    topic: str
    partition: int
    both: int = 0
    only_log: int = 0
    only_table: int = 0
    twice: int = 0
    compacted: int = 0
    findings: list[Finding] = field(default_factory=list)
    measured: Measured = field(default_factory=Measured)

    def add(self, other: "Compared") -> None:
        """Add what another split of the partition says."""
        for name in ("both", "only_log", "only_table", "twice", "compacted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings += other.findings


def compare_split(rules: ReadRules, task: TableTask) -> Compared:
    """Compare the offsets of one split. In a worker. Raises PipelineError, OSError."""
    import numpy as np

    watch = Stopwatch()
    done = Compared(topic=task.split.topic, partition=task.split.partition, measured=Measured(tasks=1))
    in_log, in_table = watch.timed(_log_offsets)(task, rules, done.measured), watch.timed(_table_offsets)(task)
    unique, counts = np.unique(in_table, return_counts=True)
    only_log, only_table = np.setdiff1d(in_log, unique), np.setdiff1d(unique, in_log)
    gone = only_table < task.cleaned_until
    done.compacted = int(gone.sum())
    only_table = only_table[~gone]
    twice = unique[counts > 1]
    done.both = len(unique) - done.compacted - len(only_table)
    done.only_log, done.only_table, done.twice = len(only_log), len(only_table), len(twice)
    for offsets, what in (
        (only_log, "in the log, and not in the archive"),
        (only_table, "in the archive, and not in the log"),
        (twice, "in the archive more than once"),
    ):
        if len(offsets):
            done.findings.append(_finding(task, f"{_runs(offsets)} {'is' if len(offsets) == 1 else 'are'} {what}"))
    done.measured.read_s = watch.seconds
    return done


def _finding(task: TableTask, what: str) -> Finding:
    split = task.split
    return Finding(
        topic=split.topic, partition=split.partition, kind="table", what=what, path=f"{split.topic}-{split.partition}"
    )


def _log_offsets(task: TableTask, rules: ReadRules, measured: Measured) -> Any:
    import numpy as np

    from warmlog.pipeline.arrow import ArrowDecoder, record_batches

    decoder = ArrowDecoder(task.split.topic, task.split.partition, ("offset",))
    steps, tally = read_batches(task.split, rules, decoder.add)
    parts = [_numbers(batch) for batch in record_batches(decoder, steps)]
    measured.take(tally)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _table_offsets(task: TableTask) -> Any:
    import numpy as np

    parts = [_numbers(batch) for batch in read_in_order(task.files, ("offset",))]
    offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return offsets[(offsets >= task.first_offset) & (offsets < task.end_offset)]


def _numbers(batch: Any) -> Any:
    return batch.column("offset").to_numpy(zero_copy_only=False)


def _runs(offsets: Any) -> str:
    """`offsets 3 to 9, 12 and 5 more`."""
    import numpy as np

    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:SHOWN_RUNS]]
    rest: Sequence[Any] = runs[SHOWN_RUNS:]
    more = f" and {sum(map(len, rest)):,} more" if rest else ""
    return f"{'offset' if len(offsets) == 1 else 'offsets'} {', '.join(shown)}{more}"
