"""Standard input of `produce`: bytes split into lines, and lines parsed into records.

1. No byte is lost or changed: nothing is decoded, a carriage return is part of its line, an empty line is an empty
value. A last line without a separator is a line; no line follows the last separator.
2. Chunks are split as a whole: a million lines take a fraction of a second. Only lines with keys or JSON are parsed
individually.
3. A line is returned as soon as it is complete, for interactive use.
4. Memory is bounded: a line longer than `max_line_bytes` is an error.
5. An invalid line ends the input, with the reason in `failure`; the records before it are returned.
"""

import os
import select
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from warmlog.cli.failure import Failure
from warmlog.cli.records.record_json import Headers, RecordInput, parse_record

CHUNK_BYTES = 1 << 18  # a pipe returns at most 64 KiB; larger chunks would not be faster for files

# `ready` ends after this many bytes, so that their records are acknowledged and counted.
ROUND_BYTES = 1 << 24

# A parsed line: a value, a pair (key, value), or a record.
Item: TypeAlias = bytes | tuple[bytes, bytes] | RecordInput
Parse: TypeAlias = Callable[[bytes], Any]


class LineSplitter:
    """Splits chunks of bytes into lines at a separator of one byte."""

    def __init__(self, separator: bytes, *, max_line_bytes: int) -> None:
        self._separator = separator
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []  # pieces of the incomplete line, joined when it is complete
        self._begun_size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by a chunk, without separators. Raises Failure if a line is too long."""
        lines = chunk.split(self._separator)
        self._begun.append(lines[0])
        self._begun_size += len(lines[0])
        if self._begun_size > self._max_line_bytes:
            raise Failure(f"a line is longer than {self._max_line_bytes} bytes, the maximum for a record")
        if len(lines) == 1:
            return []
        lines[0] = b"".join(self._begun)
        rest = lines.pop()
        self._begun, self._begun_size = [rest], len(rest)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it has no separator."""
        last, self._begun, self._begun_size = b"".join(self._begun), [], 0
        return [last] if last else []


class RecordInputStream:
    """Records read from a descriptor.

    Wait until the descriptor is readable, then iterate over `ready()`; repeat until `at_end`. If `parse` is None, each
    line is a value. `advance(lines, bytes)` is called for each chunk.
    """

    def __init__(
        self, descriptor: int, splitter: LineSplitter, parse: Parse | None, advance: Callable[[int, int], None]
    ) -> None:
        self.descriptor = descriptor
        self.at_end = False
        self.failure: Failure | None = None
        self._splitter = splitter
        self._parse = parse
        self._advance = advance
        self._line_number = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @property
    def as_values(self) -> bool:
        """Whether each line is a value."""
        return self._parse is None

    def ready(self) -> Iterator[Item]:
        """Yield records until reading would block or `ROUND_BYTES` are read. Raises OSError."""
        left = ROUND_BYTES
        while left > 0 and not self.at_end and self._poll.poll(0):
            left -= CHUNK_BYTES
            yield from self._records(self._lines())

    def _lines(self) -> list[bytes]:
        """Read one chunk and return the completed lines."""
        chunk = os.read(self.descriptor, CHUNK_BYTES)
        self.at_end = not chunk
        try:
            lines = self._splitter.feed(chunk) if chunk else self._splitter.finish()
        except Failure as failure:
            self._fail(failure)
            return []
        self._advance(len(lines), len(chunk))
        return lines

    def _records(self, lines: list[bytes]) -> Iterator[Item]:
        parse = self._parse
        if parse is None:
            yield from lines
            return
        for line in lines:
            self._line_number += 1
            try:
                record = parse(line)
            except ValueError as error:
                self._fail(Failure(f"line {self._line_number}: {error}"))
                return
            yield record

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        self.at_end = True


def line_parser(
    *, as_json: bool, key_separator: bytes | None, key: bytes | None, headers: Headers
) -> Callable[[bytes], Item] | None:
    """Return the parser of lines, or None if each line is a value. `key`, `headers`: from the command line."""
    if as_json:
        return lambda line: complete(parse_record(line), key, headers)
    if key_separator is not None:
        return key_parser(key_separator, headers)
    if key is not None or headers:
        return lambda line: RecordInput(key, line, headers)
    return None


def complete(record: RecordInput, key: bytes | None, headers: Headers) -> RecordInput:
    """Add the command line's key to a record without a key, and the command line's headers after its own headers."""
    return record._replace(key=key if record.key is None else record.key, headers=(*record.headers, *headers))


def key_parser(separator: bytes, headers: Headers) -> Callable[[bytes], Item]:
    """Return a parser that splits a line into key and value at the first separator."""

    def parse(line: bytes) -> Item:
        key, separated, value = line.partition(separator)
        if not separated:
            raise ValueError(f"no key separator {separator.decode(errors='backslashreplace')!r} in the line")
        return RecordInput(key, value, headers) if headers else (key, value)

    return parse
