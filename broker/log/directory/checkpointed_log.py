"""What a data directory writes into its checkpoints of a log. `PartitionLog` has it, and so do tools."""

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
        """Its topic."""

    @property
    def partition(self) -> int:
        """Its partition."""

    @property
    def offsets(self) -> _Offsets:
        """Its offsets."""

    @property
    def durability(self) -> _Durability:
        """What is on disk."""

    @property
    def old_segments(self) -> _OldSegments:
        """Its segments, as retention sees them."""
