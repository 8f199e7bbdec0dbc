"""Frames: a 4-byte big-endian length, then that many bytes. Both wire formats are cut out of a stream this way.

Owns: finding frames in what was received, and the size limit. Must not know: sockets (who receives), what a frame holds
(who decodes).

    at  bytes
    0   4      length of what follows, int32 big-endian, 0 to max_frame_bytes
    4   length the frame

Invariants:
1. A length is checked as soon as its four bytes are there; nothing is allocated or received for a bad one.
2. A frame handed out is never written to again: it is a read-only view of a received chunk, or of a buffer that was
   made for it alone. So a caller may keep parts of it (record batches) as long as it likes, without a copy.
3. Small frames cost no copy beyond that of a cut tail. A large frame that has not arrived whole gets a buffer of its
   own, into which the rest can be received directly. The buffer takes FIRST_BUFFER_BYTES and then GROWTH times what has
   arrived, so that a length alone costs nothing. Before each allocation the caller has the time to find room for it
   (`announced_bytes`).
"""

from struct import Struct

from protocol.errors import FrameError

LENGTH = Struct(">i")
LENGTH_SIZE = LENGTH.size
# Kafka's socket.request.max.bytes.
DEFAULT_MAX_FRAME_BYTES = 100 << 20
# From here on a cut frame gets its own buffer. Below, joining its two parts costs less than a further system call: a
# receive brings 64 KiB at once.
LARGE_FRAME_BYTES = 64 << 10
# Covers a batch of the usual limit (1 MiB) with its request. Larger frames are copied as their buffer grows: by 4, a
# third of their size in all.
FIRST_BUFFER_BYTES = 2 << 20
GROWTH = 4

_NOTHING = memoryview(b"")


class FrameReader:
    """Cuts a stream into frames.

    Feed it what was received, then take frames until there is none. Where `buffer_for_next` gives a buffer, receive
    into that instead (and say how much by `received`), which saves a large frame one copy; feeding works just as well.
    Not thread-safe; holds no resources.
    """

    __slots__ = ("_announced", "_chunk", "_filled", "_large", "_large_size", "_position", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._chunk = _NOTHING  # received and not yet handed out from `_position` on; follows `_large`
        self._position = 0
        self._large: bytearray | None = None  # the large frame being received, as far as it has memory
        self._large_size = 0  # and in all
        self._filled = 0  # so many bytes of it are there
        self._announced = 0  # the size of a large frame that has no buffer yet; then `_position` is at its length

    @property
    def announced_bytes(self) -> int:
        """How much memory the next `buffer_for_next` takes, for a large frame that is announced or goes on; else 0."""
        if self._announced:
            return min(self._announced, FIRST_BUFFER_BYTES)
        return self._next_size() - len(self._large) if self._large is not None else 0

    @property
    def is_within_frame(self) -> bool:
        """Whether part of a frame was fed that cannot be handed out yet."""
        return self._large is not None or self._position < len(self._chunk)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory taken for frames that were not yet handed out."""
        large = 0 if self._large is None else len(self._large)
        return large + len(self._chunk) - self._position

    def feed(self, data: bytes) -> None:
        """Add what was received. `data` must not change afterwards (frames are views of it)."""
        if self._announced:
            self._begin_large()
        if self._large is not None and self._filled < self._large_size:
            data = self._fill_large(data)
        rest = self._chunk[self._position :]
        self._chunk = memoryview(b"".join((rest, data)) if rest else data).toreadonly()
        self._position = 0

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until more is fed.

        Raises FrameError (now and at each further call) where the next length is negative or over the limit.
        """
        if self._large is not None:
            return self._take_large()
        start = self._position + LENGTH_SIZE
        if start > len(self._chunk):
            return None
        (length,) = LENGTH.unpack_from(self._chunk, self._position)
        if not 0 <= length <= self.max_frame_bytes:
            raise FrameError(f"a frame of {length} bytes was announced; allowed are 0 to {self.max_frame_bytes}")
        end = start + length
        if end > len(self._chunk):
            if length >= LARGE_FRAME_BYTES:
                self._announced = length
            return None
        self._position = end
        return self._chunk[start:end]

    def buffer_for_next(self) -> memoryview | None:
        """Where more of a large frame can be received, or None: then receive anything and `feed` it.

        Ask after `next_frame` gave None. Allocates `announced_bytes`; a buffer given before is of no use then.
        """
        if self._announced:
            self._begin_large()
        if self._large is None or self._filled == self._large_size:
            return None
        self._grow_large(self._next_size())
        return memoryview(self._large)[self._filled :]

    def received(self, count: int) -> None:
        """`count` bytes were received into the start of `buffer_for_next()`."""
        assert self._large is not None
        assert 0 <= count <= len(self._large) - self._filled
        self._filled += count

    def _begin_large(self) -> None:
        here = self._chunk[self._position + LENGTH_SIZE :]
        self._large = bytearray(min(self._announced, FIRST_BUFFER_BYTES))
        self._large_size = self._announced
        self._announced = 0
        self._large[: len(here)] = here
        self._filled = len(here)
        self._chunk = _NOTHING
        self._position = 0

    def _next_size(self) -> int:
        """How much memory the large frame is to have: what it has, or more if that is full and not all of it."""
        assert self._large is not None
        has = len(self._large)
        return has if self._filled < has else min(self._large_size, has * GROWTH)

    def _grow_large(self, size: int) -> None:
        """Copies: a buffer that somebody still has cannot be resized."""
        assert self._large is not None
        if size > len(self._large):
            grown = bytearray(size)
            grown[: self._filled] = memoryview(self._large)[: self._filled]
            self._large = grown

    def _fill_large(self, data: bytes) -> bytes:
        assert self._large is not None
        take = min(len(data), self._large_size - self._filled)
        while self._filled + take > len(self._large):
            self._grow_large(min(self._large_size, len(self._large) * GROWTH))
        self._large[self._filled : self._filled + take] = memoryview(data)[:take]
        self._filled += take
        return data[take:]

    def _take_large(self) -> memoryview | None:
        assert self._large is not None
        if self._filled < self._large_size:
            return None
        frame = memoryview(self._large).toreadonly()
        self._large = None
        self._filled = 0
        return frame
