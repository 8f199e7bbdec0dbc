"""What `produce` reads: standard input as records.

Owns: cutting a stream of bytes into lines, and lines into keys and values. Must not know: where the records go.

1. No byte is lost or changed: nothing is decoded, a carriage return stays part of its line, an empty line is an empty
   value. A last line without separator counts; after the last separator there is no further line.
2. Whole chunks are cut at once, so that a million lines cost a fraction of a second; a line never has a call of its own
   unless it must be looked into (keys, JSON).
3. A line is passed on as soon as it has arrived whole, so that a person may type them.
4. Memory is bounded: a line over `max_line_bytes` is an error, not a growing buffer.
"""

import os
from collections.abc import Callable, Iterable, Iterator

from warmlog.cli.failure import Failure
from warmlog.cli.record_json import Headers, RecordInput, parse_record

CHUNK_BYTES = (
    1 << 18
)  # a pipe gives 64 KiB at most; from a file, four times that costs no more per line and stays in cache

Parse = Callable[[bytes], RecordInput]


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """What a descriptor gives, as it comes, until its end."""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        yield chunk


def split_lines(chunks: Iterable[bytes], separator: bytes, *, max_line_bytes: int) -> Iterator[list[bytes]]:
    """The lines that each chunk completes, without their separator (one byte).

    Raises Failure for one that is too long.
    """
    begun: list[
        bytes
    ] = []  # pieces of the line that is not yet whole: joined once, or a long line would cost its square
    begun_size = 0
    for chunk in chunks:
        lines = chunk.split(separator)
        begun.append(lines[0])
        begun_size += len(lines[0])
        if begun_size > max_line_bytes:
            raise Failure(f"a line is longer than the {max_line_bytes} bytes that the broker takes")
        if len(lines) == 1:
            continue
        lines[0] = b"".join(begun)
        rest = lines.pop()
        begun, begun_size = [rest], len(rest)
        yield lines
    if begun_size:
        yield [b"".join(begun)]


def parse_lines(blocks: Iterable[list[bytes]], parse: Parse) -> Iterator[list[RecordInput]]:
    """The records of lines.

    Raises Failure that names the first line that is none, after the records before it are out.
    """
    number = 0
    for lines in blocks:
        records = []
        for line in lines:
            number += 1
            try:
                records.append(parse(line))
            except ValueError as error:
                yield records
                raise Failure(f"line {number}: {error}") from error
        yield records


def value_parser(*, key: bytes | None, headers: Headers) -> Parse:
    """Each line is a value; key and headers are the same for all."""
    return lambda line: RecordInput(key, line, headers)


def key_parser(separator: bytes, *, headers: Headers) -> Parse:
    """Each line is a key, the separator's first occurrence, a value."""

    def parse(line: bytes) -> RecordInput:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"no key separator {separator.decode(errors='backslashreplace')!r} in it")
        return RecordInput(key, value, headers)

    return parse


def json_parser(*, key: bytes | None, headers: Headers) -> Parse:
    """Each line is a JSON object; key and headers are added where it has none of its own."""

    def parse(line: bytes) -> RecordInput:
        record = parse_record(line)
        return record._replace(key=record.key if record.key is not None else key, headers=(*record.headers, *headers))

    return parse
