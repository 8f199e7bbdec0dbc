"""Choose the number of offsets of the next commit, to meet targets of rows, bytes and time."""

from dataclasses import dataclass

DEFAULT_ROWS = 10_000_000
DEFAULT_BYTES = 1 << 30
DEFAULT_SECONDS = 60.0
GROWTH = 4  # maximum growth factor from one commit to the next, since the last one may have been atypical


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Targets of a commit: rows, bytes of files, seconds. A commit may exceed bytes and time, which are estimated."""

    rows: int = DEFAULT_ROWS
    bytes: int = DEFAULT_BYTES
    seconds: float = DEFAULT_SECONDS


class Pace:
    """Chooses the size of commits from the measurements of the last one.

    `bytes_per_offset`: an estimate for the first commit, 0 if unknown.
    """

    def __init__(self, targets: Targets, bytes_per_offset: float = 0.0) -> None:
        self._targets = targets
        self._most = float(targets.rows)
        if bytes_per_offset:
            self._most = min(self._most, targets.bytes / bytes_per_offset)

    @property
    def offsets(self) -> int:
        """Maximum number of offsets of the next commit."""
        return max(int(self._most), 1)

    def measured(self, offsets: int, size: int, seconds: float) -> None:
        """Adapt to a commit: its offsets, bytes of files, and seconds."""
        if not offsets:
            return
        targets = self._targets
        fitting = [float(targets.rows), max(self._most, float(offsets)) * GROWTH]
        if size:
            fitting.append(targets.bytes * offsets / size)
        if seconds:
            fitting.append(targets.seconds * offsets / seconds)
        self._most = min(fitting)
