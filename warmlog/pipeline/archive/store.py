"""The directory of an archive: its layout, and atomic commits of batches.

    DIR/batch=00000007/_commit.json                      offsets, files, losses and damage
    DIR/batch=00000007/hour=2026-11-20T10/orders-0-00000000000000001234-3f2a81c0.parquet
    DIR/.run-<id>/                                       files that a run is writing, not yet committed
    DIR/_lock                                            locked by the run that writes

Invariants:
1. A batch and the offsets it covers become visible together, when their directory is renamed to `batch=N`. A listing
shows either a whole batch or nothing, and no other checkpoint exists that could differ. So a run that is killed at
any moment neither loses nor duplicates a record.
2. A committed file is never renamed, changed or removed. A batch number is used once: a second rename to it fails.
3. The files of a batch were moved there by the run that commits it. A task that was abandoned or outlives its run
   writes to a directory that no commit reads.
4. A run starts where the last commit ended.

Engines that list Parquet files skip names that begin with a dot or an underscore, and treat `batch`, `hour` and `day`
as partition columns.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from warmlog.pipeline.copying.parquet import sync
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

COMMIT = "_commit.json"
LOCK = "_lock"
RUN = ".run-"
TABLE_LOG = "_delta_log"  # exists after a migration to a table
_BATCH = re.compile(r"batch=(\d+)")

Spans: TypeAlias = Mapping[str, Mapping[str, tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A file written by a task: its name in the run's directory, and its name in the batch's directory."""

    staged: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit. `spans`: the covered offsets (end excluded) by topic and partition (as text, for JSON).

    `lost_offsets`: number of offsets deleted before they were read, including those between the previous commit and
    this one. `topic_ids`, `leader_epochs`: values of the logs at the end of the spans, if known.
    """

    number: int
    spans: Spans
    partition_by: str
    columns: tuple[str, ...]
    rows: int = 0
    lost_offsets: int = 0
    damaged: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the positions at which the next run starts."""
        return {
            (topic, int(partition)): Position(
                offset=end,
                topic_id=self.topic_ids.get(topic),
                leader_epoch=self.leader_epochs.get(topic, {}).get(partition),
            )
            for topic, listed in self.spans.items()
            for partition, (_, end) in listed.items()
        }


def check_archive(directory: Path) -> None:
    """Raise PipelineError if an archive was migrated to a table."""
    if (directory / TABLE_LOG).exists():
        raise PipelineError(
            f"{directory} has become a Delta table: use warmlog pipeline table, and audit TOPIC {directory}"
        )


class ArchiveStore:
    """The directory of an archive. A writer must hold `locked`; readers need no lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._run = directory / f"{RUN}{uuid4().hex[:12]}"

    @property
    def run_directory(self) -> Path:
        """The directory to which the tasks of this run write."""
        return self._run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the archive's lock, and remove files of earlier runs. Raises PipelineError, OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / LOCK, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"{self.directory}: another job is writing to it") from None
            check_archive(self.directory)
            self._remove_runs()
            self._run.mkdir()
            try:
                yield
            finally:
                self._remove_runs()

    def _remove_runs(self) -> None:
        for path in self.directory.glob(f"{RUN}*"):
            shutil.rmtree(path, ignore_errors=True)  # a task that outlives its run may still be writing

    def commits(self) -> Iterator[Commit]:
        """Yield all commits, oldest first. Raises PipelineError for a commit that cannot be read."""
        for number in self._numbers():
            yield self._read(number)

    def last_commit(self) -> Commit | None:
        """Return the last commit, or None. Raises PipelineError if it cannot be read."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def _numbers(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        matches = (_BATCH.fullmatch(entry.name) for entry in os.scandir(self.directory))
        return sorted(int(match[1]) for match in matches if match is not None)

    def _read(self, number: int) -> Commit:
        path = self.batch_directory(number) / COMMIT
        try:
            return _commit_of(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise PipelineError(f"{path} is not a commit of an archive: {error}") from error

    def batch_directory(self, number: int) -> Path:
        """Return the directory of a batch."""
        return self.directory / f"batch={number:08d}"

    def commit(self, commit: Commit, staged: Sequence[StagedFile]) -> None:
        """Add a batch to the archive. Raises PipelineError if its number is taken, OSError."""
        batch = self._run / f"commit-{commit.number}"
        batch.mkdir()
        for file in staged:
            path = batch / file.name
            path.parent.mkdir(exist_ok=True)
            os.rename(self._run / file.staged, path)
        (batch / COMMIT).write_text(json.dumps(asdict(commit), indent=1))
        sync(batch / COMMIT)
        for directory in {(batch / file.name).parent for file in staged} | {batch}:
            sync(directory)
        try:
            os.rename(batch, self.batch_directory(commit.number))
        except OSError as error:
            if self.batch_directory(commit.number).exists():
                raise PipelineError(f"{self.directory}: another job has written batch {commit.number}") from error
            raise
        sync(self.directory)


def _commit_of(form: dict[str, Any]) -> Commit:
    spans = {
        topic: {partition: (int(first), int(end)) for partition, (first, end) in listed.items()}
        for topic, listed in form["spans"].items()
    }
    lists = {name: tuple(form[name]) for name in ("columns", "damaged", "files")}
    return Commit(**{**form, **lists, "spans": spans})
