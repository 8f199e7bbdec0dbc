"""Check data directories or directories of partitions: run all checks in the order of their dependencies.

A data directory's own files come first, then each partition; then the checkpoints and the metadata are compared with
the partitions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmlog.broker.log.directory.names import METADATA_TOPIC
from warmlog.broker.log.io.directory_names import PartitionName, parse_partition_directory
from warmlog.inspect.broker_state import broker_is_running, was_clean
from warmlog.inspect.checks.directory_files import (
    CheckpointCheck,
    LogEnd,
    name_findings,
    property_findings,
)
from warmlog.inspect.checks.partition import PartitionCheck
from warmlog.inspect.checks.segment import CheckContext
from warmlog.inspect.findings import DEFAULT_INDEX_INTERVAL_BYTES, Finding, Tally
from warmlog.inspect.metadata import StoredMetadata, missing_partition_findings
from warmlog.inspect.paths import is_partition_directory, partition_directories
from warmlog.protocol.partitions import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The options of the caller; see CheckContext."""

    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    progress: Callable[[int, int], None] = lambda _records, _size: None


def check_directories(
    directories: Sequence[Path], options: CheckOptions, tally: Tally, *, locked: bool = False
) -> Iterator[Finding]:
    """Check data directories or directories of partitions, and yield findings.

    The data directories are treated as `log.dirs` of one broker: a partition may be in any of them. `locked`: the
    caller holds their locks. Raises WrongPathError for another kind of path, OSError.
    """
    paths: dict[TopicPartition, Path] = {}
    topic_ids: dict[Path, object] = {}
    stored: list[StoredMetadata] = []
    for directory in directories:
        check = DirectoryCheck(directory, options, tally, locked_clean=was_clean(directory) if locked else None)
        yield from check.findings()
        paths |= check.partitions
        topic_ids |= check.topic_ids
        if check.metadata is not None and not check.running:  # a broker stores topics before their directories
            stored.append(check.metadata)
    yield from missing_partition_findings(stored, paths, topic_ids)


class DirectoryCheck:
    """Checks one data directory, or the directory of one partition. `findings()` may be called once.

    Afterwards `partitions` maps the partitions to their directories, and `checks` to their finished checks;
    `topic_ids` holds the topic id stored in each directory, `metadata` the topics of the metadata store (None for the
    directory of a partition).
    """

    def __init__(
        self, directory: Path, options: CheckOptions, tally: Tally, *, locked_clean: bool | None = None
    ) -> None:
        """`locked_clean`: whether the last stop was clean, if the caller holds the lock; None: determine both.

        Raises WrongPathError for another kind of path.
        """
        parent = directory.absolute().parent
        self.directory = directory
        self.partitions: dict[TopicPartition, Path] = {}
        self.checks: dict[TopicPartition, PartitionCheck] = {}
        self.topic_ids: dict[Path, object] = {}
        self.metadata: StoredMetadata | None = None
        self._partitions = partition_directories(directory)
        self._tally = tally
        running = locked_clean is None and (broker_is_running(directory) or broker_is_running(parent))
        clean = not running and (was_clean(directory) or was_clean(parent))
        self._context = CheckContext(
            running=running,
            clean=clean if locked_clean is None else locked_clean,
            index_interval_bytes=options.index_interval_bytes,
            progress=options.progress,
        )

    @property
    def running(self) -> bool:
        """Whether a broker serves the directory."""
        return self._context.running

    def findings(self) -> Iterator[Finding]:
        """Check everything in the directory. Raises OSError."""
        if self.running:
            self._tally.served.append(str(self.directory))
        if is_partition_directory(self.directory):
            yield from PartitionCheck(self.directory, self._context, self._tally).findings()
            return
        running, clean = self._context.running, self._context.clean
        yield from name_findings(self.directory, running=running)
        yield from property_findings(self.directory)
        self.metadata = StoredMetadata(self.directory, running=running)
        yield from self.metadata.findings()
        checkpoints = CheckpointCheck(self.directory)
        log_ends: dict[TopicPartition, LogEnd] = {}
        for path in self._partitions:
            name = parse_partition_directory(path.name)
            if name is not None and name.topic != METADATA_TOPIC:
                yield from self._partition_findings(path, name, checkpoints, log_ends)
        yield from checkpoints.findings(log_ends, running=running, clean=clean)

    def _partition_findings(
        self, path: Path, name: PartitionName, checkpoints: CheckpointCheck, log_ends: dict[TopicPartition, LogEnd]
    ) -> Iterator[Finding]:
        assert self.metadata is not None, "the metadata of a data directory is read first"
        gapless = self.metadata.is_gapless(name.topic) and not checkpoints.was_cleaned(name.topic, name.partition)
        check = PartitionCheck(path, self._context, self._tally, gapless=gapless)
        yield from check.findings()
        key = (name.topic, name.partition)
        log_ends[key] = LogEnd(check.log_end_offset, check.is_whole)
        self.partitions[key], self.checks[key] = path, check
        if check.topic_id is not None:
            self.topic_ids[path] = check.topic_id
