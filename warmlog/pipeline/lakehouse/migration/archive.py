"""The directory of an archive, as versions 0.1 and 0.2 of `warmlog pipeline archive` wrote it.

    DIR/batch=00000007/_commit.json                      offsets, files, losses and damage
    DIR/batch=00000007/hour=2026-11-20T10/orders-0-00000000000000001234-3f2a81c0.parquet
    DIR/.run-<id>/                                       files of a run that was killed before its commit
    DIR/_lock                                            locked by the run that writes

1. A batch became part of the archive when its directory was renamed to `batch=N`. Numbers begin with 1, without gaps.
2. Only files that a commit names are part of the archive. They were flushed to disk before the rename.
3. A commit has the offsets of all partitions that the archive knows, also of those without new records.
"""

import fcntl
import json
import os
import re
import shutil
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.offsets import Position
from warmlog.pipeline.source.options import COLUMNS
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64

COMMIT = "_commit.json"
LOCK = "_lock"
RUN = ".run-"
TABLE_LOG = "_delta_log"
TOPIC_ID_BYTES = 16
_BATCH = re.compile(r"batch=(\d+)")

Spans: TypeAlias = Mapping[str, Mapping[str, tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCommit:
    """A commit. `spans`: the covered offsets (end excluded) by topic and partition (as text, as in JSON).

    `partition_by`: none, day or hour. `lost_offsets`: number of offsets deleted before they were read, or between the
    previous commit and this one. `topic_ids`, `leader_epochs`: of the logs at the end of the spans; version 0.1 wrote
    neither.
    """

    number: int
    spans: Spans
    partition_by: str
    columns: tuple[str, ...]
    rows: int
    lost_offsets: int
    damaged: tuple[str, ...]
    files: tuple[str, ...]
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


def is_archive(directory: Path) -> bool:
    """Return whether a directory is an archive that has not become a table."""
    if any((directory / TABLE_LOG).glob("*.json")):  # a migration that was killed may leave the directory without one
        return False
    return any(directory.glob(f"batch=*/{COMMIT}"))


def damaged(path: Path, what: str) -> PipelineError:
    """Return the error for a damaged archive."""
    return PipelineError(
        f"{path} {what}: restore it from a copy, or copy the topic to a new table by warmlog pipeline table"
    )


def batch_directory(directory: Path, number: int) -> Path:
    """Return the directory of a batch."""
    return directory / f"batch={number:08d}"


def read_commits(directory: Path) -> list[ArchiveCommit]:
    """Return all commits of an archive, oldest first. Raises PipelineError if it is not one, or is damaged."""
    if not directory.is_dir():
        raise PipelineError(f"{directory}: no such directory")
    matches = (_BATCH.fullmatch(entry.name) for entry in os.scandir(directory))
    numbers = sorted(int(match[1]) for match in matches if match is not None)
    if not numbers:
        raise PipelineError(f"{directory} is not an archive: it has no commits")
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            raise damaged(batch_directory(directory, expected), "is missing, and later batches exist")
    commits = [_read(directory, number) for number in numbers]
    for commit in commits:
        if (commit.columns, commit.partition_by) != (commits[0].columns, commits[0].partition_by):
            path = batch_directory(directory, commit.number) / COMMIT
            raise damaged(path, "has other columns or another partitioning than the first commit")
    return commits


def _read(directory: Path, number: int) -> ArchiveCommit:
    path = batch_directory(directory, number) / COMMIT
    try:
        commit = _commit_of(json.loads(path.read_text()))
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, f"is not a commit of an archive ({error})") from error
    if commit.number != number:
        raise damaged(path, f"is the commit of batch {commit.number}")
    return commit


def _commit_of(form: dict[str, Any]) -> ArchiveCommit:
    spans = {
        topic: {partition: (int(first), int(end)) for partition, (first, end) in listed.items()}
        for topic, listed in form["spans"].items()
    }
    lists = {name: tuple(form[name]) for name in ("columns", "damaged", "files")}
    commit = ArchiveCommit(**{**form, **lists, "spans": spans})
    texts = (*commit.columns, *commit.damaged, *commit.files, *commit.topic_ids.values())
    epochs = (epoch for listed in commit.leader_epochs.values() for epoch in listed.values())
    numbers = (commit.number, commit.rows, commit.lost_offsets, *epochs)
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
        raise ValueError("a text or a number is none")
    for first, end in (span for listed in spans.values() for span in listed.values()):
        if not 0 <= first <= end <= MAX_INT64:
            raise ValueError(f"offsets {first} to {end}")
    if not set(commit.columns) <= set(COLUMNS):
        raise ValueError(f"columns {', '.join(commit.columns)}")
    for topic_id in commit.topic_ids.values():
        if len(urlsafe_b64decode(f"{topic_id}==")) != TOPIC_ID_BYTES:
            raise ValueError(f"topic id {topic_id}")
    if commit.partition_by not in {"none", "day", "hour"}:
        raise ValueError(f"partitioned by {commit.partition_by}")
    commit.positions()  # reads all fields
    return commit


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of an archive, against jobs of earlier versions. Raises PipelineError, OSError."""
    with open(directory / LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{directory}: another job is writing to it: stop that first") from None
        yield


def remove_runs(directory: Path) -> None:
    """Remove the files of runs that were killed before their commit."""
    for path in directory.glob(f"{RUN}*"):
        shutil.rmtree(path, ignore_errors=True)
