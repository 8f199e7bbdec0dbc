"""Count the bytes that become visible to consumers when the high watermark advances.

Waiting fetches are notified of the number of bytes that each advance adds, so that a fetch with a large `min_bytes`
does not read after every advance.
"""

from collections import deque

MAX_WRITES = 1000  # writes above the high watermark kept separately; further ones are merged


class HiddenBytes:
    """The sizes of the writes above a high watermark."""

    __slots__ = ("_shown", "_unknown_end", "_writes")

    def __init__(self, high_watermark: int, log_end: int) -> None:
        """Begin at a high watermark. The sizes of the writes between it and `log_end` are unknown."""
        self._shown = high_watermark
        self._unknown_end = log_end
        self._writes: deque[tuple[int, int]] = deque()  # (log end, bytes)

    def written(self, log_end: int, size: int) -> None:
        """Record a write of `size` bytes, after which the log ends at `log_end`."""
        writes = self._writes
        if len(writes) == MAX_WRITES:
            size += writes.pop()[1]
        writes.append((log_end, size))

    def show(self, high_watermark: int) -> int | None:
        """Advance to a high watermark; return how many bytes became visible, at least 1, or None if unknown."""
        size, writes = 0, self._writes
        while writes and writes[0][0] <= high_watermark:
            size += writes.popleft()[1]
        is_known = self._shown >= self._unknown_end
        self._shown = high_watermark
        return max(size, 1) if is_known else None
