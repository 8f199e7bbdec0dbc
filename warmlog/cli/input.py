"""What `produce` reads: standard input as records.

Owns: cutting a stream of bytes into lines, and lines into keys and values; reading what is there without waiting for
more. Must not know: where the records go.

1. No byte is lost or changed: nothing is decoded, a carriage return stays part of its line, an empty line is an empty
   value. A last line without separator counts; after the last separator there is no further line.
2. Whole chunks are cut at once, so that a million lines cost a fraction of a second; a line has a call of its own only
   if it must be looked into (keys, JSON).
3. A line is given as soon as it has arrived whole, so that a person may type them.
4. Memory is bounded: a line over `max_line_bytes` is an error, not a growing buffer.
5. A line that is no record ends the input, with `failure` saying why; what came before it has been given.
"""

import os
import select
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from warmlog.cli.failure import Failure
from warmlog.cli.record_json import Headers, RecordInput, parse_record

CHUNK_BYTES = 1 << 18  # a pipe gives 64 KiB at most; from a file, four times that costs no more per line

# After so much, `ready` ends: what was given is acknowledged then, and counted as stored.
ROUND_BYTES = 1 << 24

# What a line becomes: a value, a (key, value), or more.
Item: TypeAlias = bytes | tuple[bytes, bytes] | RecordInput
Parse: TypeAlias = Callable[[bytes], Any]


class LineSplitter:
    """Cuts chunks of bytes into lines, at a separator of one byte."""

    def __init__(self, separator: bytes, *, max_line_bytes: int) -> None:
        self._separator = separator
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []  # of the line that is not yet whole; joined once, or it would cost its square
        self._begun_size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that the chunk completes, without their separator. Raises Failure for one that is too long."""
        lines = chunk.split(self._separator)
        self._begun.append(lines[0])
        self._begun_size += len(lines[0])
        if self._begun_size > self._max_line_bytes:
            raise Failure(f"a line is longer than the {self._max_line_bytes} bytes that a record may have")
        if len(lines) == 1:
            return []
        lines[0] = b"".join(self._begun)
        rest = lines.pop()
        self._begun, self._begun_size = [rest], len(rest)
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if it has no separator."""
        last, self._begun, self._begun_size = b"".join(self._begun), [], 0
        return [last] if last else []


class RecordInputStream:
    """The records on a descriptor.

    Wait until it is readable, then take what `ready()` gives, until `at_end`. `parse` None: each line is a value as it
    is. `advance` is told of lines and bytes as they are read.
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
        """Whether lines are given as they are."""
        return self._parse is None

    def ready(self) -> Iterator[Item]:
        """The records that are there, until there is nothing to read at the moment, or there were many.

        Raises OSError.
        """
        left = ROUND_BYTES
        while left > 0 and not self.at_end and self._poll.poll(0):
            left -= CHUNK_BYTES
            yield from self._records(self._lines())

    def _lines(self) -> list[bytes]:
        """The lines that one read completes."""
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
    """How to read a line; None where it is a value as it is. Key and headers are those of the command line."""
    if as_json:
        return lambda line: complete(parse_record(line), key, headers)
    if key_separator is not None:
        return key_parser(key_separator, headers)
    if key is not None or headers:
        return lambda line: RecordInput(key, line, headers)
    return None


def complete(record: RecordInput, key: bytes | None, headers: Headers) -> RecordInput:
    """The record with the command line's key, if it has none, and the command line's headers after its own."""
    return record._replace(key=key if record.key is None else record.key, headers=(*record.headers, *headers))


def key_parser(separator: bytes, headers: Headers) -> Callable[[bytes], Item]:
    """Each line is a key, the separator's first occurrence, a value."""

    def parse(line: bytes) -> Item:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"no key separator {separator.decode(errors='backslashreplace')!r} in it")
        return RecordInput(key, value, headers) if headers else (key, value)

    return parse
