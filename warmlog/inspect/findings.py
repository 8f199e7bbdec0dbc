"""The report of checks: findings, and totals of the checked files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

DEFAULT_INDEX_INTERVAL_BYTES = 4096  # Kafka's default; checks use the topic's own setting, if known


class Finding(NamedTuple):
    """A fault: its file or directory, a description, and the byte position if known."""

    path: Path
    what: str
    position: int | None = None

    def line(self) -> str:
        """Format the finding as one line of text."""
        where = "" if self.position is None else f" at position {self.position}"
        return f"{self.path}{where}: {self.what}"


@dataclass(slots=True, kw_only=True)
class Tally:
    """Totals so far. `size`: bytes of the logs. `served`: directories served by a running broker."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0
    served: list[str] = field(default_factory=list)
