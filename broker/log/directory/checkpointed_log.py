"""The values of a log that a data directory writes to its checkpoints; implemented by `PartitionLog` and by tools."""

from typing import Protocol


class _Offsets(Protocol):
    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read."""

    @property
    def log_start_offset(self) -> int:
        """The log start offset."""


class _Durability(Protocol):
    @property
    def recovery_point(self) -> int:
        """The offset up to which the log was flushed."""

    def checkpoint_epochs(self) -> None:
        """Write the leader epochs if they have changed."""


class _OldSegments(Protocol):
    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment."""


class CheckpointedLog(Protocol):
    """A log's entries in the checkpoints."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def partition(self) -> int:
        """The partition's index."""

    @property
    def offsets(self) -> _Offsets:
        """The offsets to write."""

    @property
    def durability(self) -> _Durability:
        """The flushed part."""

    @property
    def old_segments(self) -> _OldSegments:
        """The segments, as retention sees them."""
