"""The offset checkpoints of one data directory: read at startup, replaced when their content has changed."""

from collections.abc import Callable, Iterable, Mapping
from threading import RLock

from warmlog.broker.log.directory.checkpoint import read_offsets, write_offsets
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.disk import Disk
from warmlog.protocol.partitions import TopicPartition


class CheckpointFiles:
    """The checkpoint files of a directory, by name. `findings` reports which were unreadable.

    `with_reserve` runs a write that must succeed on a full disk. For any thread.
    """

    def __init__(self, path: str, disk: Disk, with_reserve: Callable[[Callable[[], None]], None]) -> None:
        self._path = path
        self._disk = disk
        self._with_reserve = with_reserve
        self.findings: list[str] = []
        self._written: dict[str, dict[TopicPartition, int]] = {}  # the content of each checkpoint on the disk, by name
        self._doubtful: dict[str, dict[TopicPartition, int]] = {}  # the same, if a write has failed
        self._replacing = RLock()  # held while a checkpoint is replaced, because a topic may be created during the stop

    def read(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint at startup; one that is damaged counts as empty. Raises OSError."""
        try:
            offsets = read_offsets(self._disk, f"{self._path}/{name}")
        except CheckpointError as error:
            self.findings.append(str(error))
            self._doubtful[name] = {}
            return {}
        if offsets:  # otherwise the file may be missing or empty, and is written once
            self._written[name] = dict(offsets)
        return offsets

    def written(self, name: str) -> Mapping[TopicPartition, int]:
        """Return the content of a checkpoint on the disk."""
        return self._written.get(name, {})

    def may_have_entries(self, name: str) -> bool:
        """Return whether a checkpoint on the disk has entries, or may have some because a write failed."""
        return bool(self._written.get(name)) or name in self._doubtful

    def mention(self, keys: Iterable[TopicPartition]) -> bool:
        """Return whether a checkpoint on the disk may contain one of these partitions."""
        return any(
            not offsets.keys().isdisjoint(keys) for offsets in (*self._written.values(), *self._doubtful.values())
        )

    def replace(self, name: str, offsets: dict[TopicPartition, int]) -> bool:
        """Write a checkpoint unless it is unchanged; return whether it was written. Blocking. Raises OSError."""
        with self._replacing:
            if name not in self._doubtful and self._written.get(name) == offsets:
                return False
            self._doubtful[name] = offsets
            self._with_reserve(lambda: write_offsets(self._disk, f"{self._path}/{name}", offsets))
            self._written[name] = offsets
            del self._doubtful[name]
            return True

    def add(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Add the entries that a checkpoint lacks. Blocking. Raises OSError."""
        with self._replacing:
            self.replace(name, offsets | self._written.get(name, {}))
