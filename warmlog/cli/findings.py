"""What `log verify` finds, and what it has looked at.

Owns: the two values. Must not know: what is checked.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """Something wrong: in which file or directory, at which byte of it where that is known, and what."""

    path: Path
    what: str
    position: int | None = None

    def line(self) -> str:
        """One line for people."""
        where = "" if self.position is None else f" at position {self.position}"
        return f"{self.path}{where}: {self.what}"


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was looked at so far; `size` is the bytes of the logs, `served` the directories that a broker has now."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0
    served: list[str] = field(default_factory=list)
