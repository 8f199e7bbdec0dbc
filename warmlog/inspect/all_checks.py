"""Everything that can be checked of a data directory or of one partition's, in the order in which it must be looked at.

Owns: that order, and who is told what of whom. Must not know: what makes a part sound (the other `*_checks`), or how
findings are told.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.log.directory.checkpoint import TopicPartition
from broker.log.directory.data_directory import METADATA_TOPIC
from broker.log.io.directory_names import PartitionName, parse_partition_directory
from warmlog.inspect.circumstances import broker_is_running, was_clean
from warmlog.inspect.directory_checks import (
    CheckpointCheck,
    LogEnd,
    name_findings,
    property_findings,
)
from warmlog.inspect.findings import DEFAULT_INDEX_INTERVAL_BYTES, Finding, Tally
from warmlog.inspect.metadata import StoredMetadata, place_findings
from warmlog.inspect.partition_checks import PartitionCheck
from warmlog.inspect.paths import is_partition_directory, partition_directories
from warmlog.inspect.segment_checks import Circumstances


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """How to look: see Circumstances."""

    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    progress: Callable[[int, int], None] = lambda _records, _size: None


def all_findings(
    directories: Sequence[Path], looking: Looking, tally: Tally, *, locked: bool = False
) -> Iterator[Finding]:
    """Everything that is wrong in data directories, or in directories of partitions.

    The data directories are taken as those of one broker: a partition may lie in any of them. `locked`: it is who asks
    that has them. Raises WrongPathError for what is neither, OSError.
    """
    found: dict[TopicPartition, Path] = {}
    topic_ids: dict[Path, object] = {}
    stored: list[StoredMetadata] = []
    for directory in directories:
        check = DirectoryCheck(directory, looking, tally, locked_clean=was_clean(directory) if locked else None)
        yield from check.findings()
        found |= check.partitions
        topic_ids |= check.topic_ids
        if check.metadata is not None and not check.running:  # a running broker makes topics before their directories
            stored.append(check.metadata)
    yield from place_findings(stored, found, topic_ids)


class DirectoryCheck:
    """Checks a data directory, or the directory of a partition.

    `findings()` does it, once; then `partitions` says what lies in it, `checks` what was seen of each, `topic_ids`
    whose each says that it is, and `metadata` which topics there should be (None: the directory is a partition's).
    """

    def __init__(self, directory: Path, looking: Looking, tally: Tally, *, locked_clean: bool | None = None) -> None:
        """`locked_clean`: nobody else has the directory, and whether it was left in order; None: find out.

        Raises WrongPathError if it is neither kind.
        """
        parent = directory.absolute().parent
        self.directory = directory
        self.partitions: dict[TopicPartition, Path] = {}
        self.checks: dict[TopicPartition, PartitionCheck] = {}
        self.topic_ids: dict[Path, object] = {}
        self.metadata: StoredMetadata | None = None
        self._found = partition_directories(directory)
        self._tally = tally
        running = locked_clean is None and (broker_is_running(directory) or broker_is_running(parent))
        clean = not running and (was_clean(directory) or was_clean(parent))
        self._circumstances = Circumstances(
            running=running,
            clean=clean if locked_clean is None else locked_clean,
            index_interval_bytes=looking.index_interval_bytes,
            progress=looking.progress,
        )

    @property
    def running(self) -> bool:
        """Whether a broker serves it."""
        return self._circumstances.running

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong. Raises OSError."""
        if self.running:
            self._tally.served.append(str(self.directory))
        if is_partition_directory(self.directory):
            yield from PartitionCheck(self.directory, self._circumstances, self._tally).findings()
            return
        running, clean = self._circumstances.running, self._circumstances.clean
        yield from name_findings(self.directory, running=running)
        yield from property_findings(self.directory)
        self.metadata = StoredMetadata(self.directory, running=running)
        yield from self.metadata.findings()
        checkpoints = CheckpointCheck(self.directory)
        log_ends: dict[TopicPartition, LogEnd] = {}
        for path in self._found:
            name = parse_partition_directory(path.name)
            if name is not None and name.topic != METADATA_TOPIC:
                yield from self._partition_findings(path, name, checkpoints, log_ends)
        yield from checkpoints.findings(log_ends, running=running, clean=clean)

    def _partition_findings(
        self, path: Path, name: PartitionName, checkpoints: CheckpointCheck, log_ends: dict[TopicPartition, LogEnd]
    ) -> Iterator[Finding]:
        assert self.metadata is not None, "a data directory's were looked for"
        gapless = self.metadata.is_gapless(name.topic) and not checkpoints.was_cleaned(name.topic, name.partition)
        check = PartitionCheck(path, self._circumstances, self._tally, gapless=gapless)
        yield from check.findings()
        key = (name.topic, name.partition)
        log_ends[key] = LogEnd(check.log_end_offset, check.is_whole)
        self.partitions[key], self.checks[key] = path, check
        if check.topic_id is not None:
            self.topic_ids[path] = check.topic_id
