"""Split requests with more entries than a broker accepts at a time.

A native request has at most MAX_ENTRIES entries per array and, unless it is a produce, MAX_PLAIN_BYTES bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from warmlog.protocol.native.codec import MAX_PLAIN_BYTES
from warmlog.protocol.request import MAX_ENTRIES

T = TypeVar("T")
ENTRY_BYTES = 110  # maximum bytes of an entry without its name: the keys of its map, and numbers
PART_BYTES = MAX_PLAIN_BYTES - (64 << 10)  # maximum bytes of all entries; the rest of a request is small


def parts(entries: Iterable[T], name_of: Callable[[T], str], times: int = 1) -> Iterator[tuple[T, ...]]:
    """Yield the entries of each request, in order. `times`: how often a request repeats each entry."""
    part: list[T] = []
    size = 0
    for entry in entries:
        taken = times * (ENTRY_BYTES + len(name_of(entry).encode()))
        if part and (len(part) == MAX_ENTRIES // times or size + taken > PART_BYTES):
            yield tuple(part)
            part, size = [], 0
        part.append(entry)
        size += taken
    if part:
        yield tuple(part)
