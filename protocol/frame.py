"""Split a byte stream into length-prefixed frames, which both wire formats use.

    position  size
    0         4       length of the frame, int32 big-endian, 0 to max_frame_bytes
    4         length  the frame

Invariants:
1. A length is checked as soon as its four bytes have arrived; nothing is allocated for an invalid one.
2. A returned frame is immutable: it is a read-only view of a received chunk or of a separate buffer. Callers may retain
slices of it (record batches) for any time without copying.
3. Small frames are not copied, except for an incomplete one at the end of a chunk. A large incomplete frame gets its
   own buffer, into which the rest can be received directly, once FIRST_BYTES or 1/FIRST_GROWTH of it have arrived. The
   part in use starts at FIRST_BUFFER_BYTES and grows by the number of bytes received, at most STEP_BYTES at a time. So
   a peer cannot make the reader use memory by sending only a length. `announced_bytes` is the size of the next step, so
   that the caller can reserve memory first.
4. The buffer of a frame of more than FIRST_BUFFER_BYTES is a mapping of the full size, which takes memory page by page
   as bytes arrive. So growing it neither clears nor copies memory, which would take 0.6 ms per MiB without a pause.
"""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final

from warmlog.protocol.errors import FrameError

LENGTH: Final = Struct(">i")
LENGTH_SIZE: Final = LENGTH.size
# Kafka's socket.request.max.bytes.
DEFAULT_MAX_FRAME_BYTES: Final = 100 << 20
# Incomplete frames of at least this size get their own buffer. For smaller frames, joining the parts is cheaper than
# another system call, since one receive returns up to 64 KiB.
LARGE_FRAME_BYTES: Final = 64 << 10
# Fits a produce request with one batch of the default limit (1 MiB).
FIRST_BUFFER_BYTES: Final = 2 << 20
FIRST_BYTES: Final = 32 << 10
FIRST_GROWTH: Final = 32
STEP_BYTES: Final = 8 << 20
KEPT_BYTES: Final = 4 << 10  # an incomplete frame up to this size is copied, so that it does not keep a chunk alive

_NOTHING: Final = memoryview(b"")


class FrameReader:
    """Splits a stream into frames.

    Call `feed` with received bytes, then `next_frame` until it returns None. If `buffer_for_next` then returns a
    buffer, receiving into it and calling `received` saves one copy of a large frame; feeding works as well. Not
    thread-safe.
    """

    __slots__ = ("_announced", "_chunk", "_filled", "_granted", "_large", "_position", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._chunk = _NOTHING  # unread bytes start at `_position`; they follow `_large` in the stream
        self._position = 0
        self._large: memoryview | None = None  # buffer of the large frame being received
        self._granted = 0  # size of the part of `_large` that may be used
        self._filled = 0  # bytes received into `_large` so far
        self._announced = 0  # size of a large frame that has no buffer yet; `_position` is at its length prefix

    @property
    def announced_bytes(self) -> int:
        """Bytes of memory that the next `buffer_for_next` will take, or 0."""
        if self._announced:
            return min(self._announced, FIRST_BUFFER_BYTES)
        return self._next_size() - self._granted if self._large is not None else 0

    @property
    def is_within_frame(self) -> bool:
        """Whether an incomplete frame has been received."""
        return self._large is not None or self._position < len(self._chunk)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory held for frames not yet returned."""
        return len(self._chunk) if self._large is None else len(self._chunk) + self._granted

    def feed(self, data: bytes) -> None:
        """Add received bytes. `data` must not change afterwards: frames are views of it."""
        if self._announced:
            self._begin_large()
        if self._large is not None and self._filled < len(self._large):
            data = self._fill_large(data)
        if self._position < len(self._chunk):
            data = b"".join((self._chunk[self._position :], data))
        self._chunk = memoryview(data)
        self._position = 0

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its length prefix, or None if more bytes are needed.

        Raises FrameError, on this and every later call, if the length is negative or over the limit.
        """
        if self._large is not None:
            return self._take_large()
        start = self._position + LENGTH_SIZE
        if start > len(self._chunk):
            self._drop_returned()
            return None
        (length,) = LENGTH.unpack_from(self._chunk, self._position)
        if not 0 <= length <= self.max_frame_bytes:
            self._drop_returned()
            raise FrameError(f"a frame length of {length} bytes is out of range; the limit is {self.max_frame_bytes}")
        end = start + length
        if end > len(self._chunk):
            if length >= LARGE_FRAME_BYTES and len(self._chunk) - start >= min(FIRST_BYTES, length // FIRST_GROWTH):
                self._announced = length
            else:
                self._drop_returned()
            return None
        self._position = end
        return self._chunk[start:end]

    def buffer_for_next(self) -> memoryview | None:
        """Return a buffer to receive more of a large frame into, or None if bytes must be received and fed instead.

        Call after `next_frame` returned None. Takes `announced_bytes`. Raises OSError if there is no memory.
        """
        if self._announced:
            self._begin_large()
        if self._large is None or self._filled == len(self._large):
            return None
        self._granted = self._next_size()
        return self._large[self._filled : self._granted]

    def received(self, count: int) -> None:
        """Record that `count` bytes were received into the start of the buffer from `buffer_for_next`."""
        assert self._large is not None
        assert 0 <= count <= self._granted - self._filled
        self._filled += count

    def _drop_returned(self) -> None:
        """Copy a short remainder, so that the chunk is freed when its users release the frames returned from it."""
        left = len(self._chunk) - self._position
        if self._position and left <= KEPT_BYTES:
            self._chunk = memoryview(bytes(self._chunk[self._position :])) if left else _NOTHING
            self._position = 0

    def _begin_large(self) -> None:
        here = self._chunk[self._position + LENGTH_SIZE :]
        self._large = _buffer(self._announced)
        self._granted = min(self._announced, FIRST_BUFFER_BYTES)
        self._announced = 0
        self._large[: len(here)] = here
        self._filled = len(here)
        self._chunk = _NOTHING
        self._position = 0

    def _next_size(self) -> int:
        """Return the size the buffer should have: larger than now only if it is full and the frame is incomplete."""
        assert self._large is not None
        has = self._granted
        return has if self._filled < has else min(len(self._large), has + min(has, STEP_BYTES))

    def _fill_large(self, data: bytes) -> bytes:
        assert self._large is not None
        take = min(len(data), len(self._large) - self._filled)
        self._granted = max(self._granted, self._filled + take)
        self._large[self._filled : self._filled + take] = memoryview(data)[:take]
        self._filled += take
        return data[take:]

    def _take_large(self) -> memoryview | None:
        assert self._large is not None
        if self._filled < len(self._large):
            return None
        frame = self._large.toreadonly()
        self._large = None
        self._filled = 0
        return frame


def _buffer(size: int) -> memoryview:
    """Return memory for a frame. Raises OSError."""
    if size <= FIRST_BUFFER_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))
