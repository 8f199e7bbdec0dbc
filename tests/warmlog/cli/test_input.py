import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.records.input import (
    CHUNK_BYTES,
    ROUND_BYTES,
    Item,
    LineSplitter,
    Parse,
    RecordInputStream,
    line_parser,
)
from warmlog.cli.records.record_json import Headers, RecordInput

BIG = 1 << 20


def lines_of(chunks: Iterable[bytes], separator: bytes = b"\n") -> list[bytes]:
    splitter = LineSplitter(separator, max_line_bytes=BIG)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


def lines_as_defined(data: bytes, separator: bytes) -> list[bytes]:
    lines = data.split(separator)
    return lines if lines[-1] else lines[:-1]


@given(data=st.lists(st.binary(max_size=12)).map(b"\n".join), cuts=st.lists(st.integers(0, 200)), zero=st.booleans())
def test_lines_do_not_depend_on_chunk_boundaries(data: bytes, cuts: list[int], zero: bool) -> None:
    separator = b"\0" if zero else b"\n"
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert lines_of(chunks, separator) == lines_as_defined(data, separator)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\n", [b"a", b""]),
        (b"\r\n\xff\xfe\n", [b"\r", b"\xff\xfe"]),
        (b"a\x0bb\x1cc\x85d\n", [b"a\x0bb\x1cc\x85d"]),
    ],
)
def test_nothing_but_the_separator_ends_a_line(data: bytes, lines: list[bytes]) -> None:
    assert lines_of([data]) == lines


@contextmanager
def piped(parse: Parse | None = None, max_line_bytes: int = BIG) -> Iterator[tuple[int, RecordInputStream]]:
    """The writing end of a pipe, and the stream that reads it."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb", buffering=0), open(write_end, "wb", buffering=0, closefd=False):
        splitter = LineSplitter(b"\n", max_line_bytes=max_line_bytes)
        yield write_end, RecordInputStream(read_end, splitter, parse, lambda count, size: None)


def test_available_records_are_returned_without_waiting() -> None:
    with piped() as (write_end, stream):
        assert list(stream.ready()) == []
        os.write(write_end, b"one\ntw")
        assert list(stream.ready()) == [b"one"]
        os.write(write_end, b"o\n")
        assert list(stream.ready()) == [b"two"]
        os.write(write_end, b"rest")
        os.close(write_end)
        assert list(stream.ready()) == [b"rest"]
        assert stream.at_end
        assert list(stream.ready()) == []


def test_a_line_over_the_limit_ends_the_input_instead_of_growing() -> None:
    with piped(max_line_bytes=4096) as (write_end, stream):
        os.write(write_end, b"good\n")
        assert list(stream.ready()) == [b"good"]
        os.write(write_end, b"x" * 4097)
        assert list(stream.ready()) == []
        assert stream.at_end
        assert "longer than 4096 bytes" in str(stream.failure)
        os.close(write_end)


def test_records_before_an_invalid_line_are_returned_and_its_number_reported() -> None:
    parse = line_parser(as_json=False, key_separator=b"=", key=None, headers=())
    with piped(parse) as (write_end, stream):
        os.write(write_end, b"a=1\n")
        assert list(stream.ready()) == [(b"a", b"1")]
        os.write(write_end, b"b=2\nbroken\nc=3\n")
        assert list(stream.ready()) == [(b"b", b"2")]
        assert stream.at_end
        assert str(stream.failure) == "line 3: no key separator '=' in the line"
        os.close(write_end)


def test_a_file_is_read_to_its_end_round_by_round(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "words")
    lines = [b"%0999d" % number for number in range((ROUND_BYTES + CHUNK_BYTES) // 1000)]
    with open(path, "w+b", buffering=0) as file:
        file.write(b"\n".join(lines))
        file.seek(0)
        progress: list[tuple[int, int]] = []
        splitter = LineSplitter(b"\n", max_line_bytes=BIG)
        stream = RecordInputStream(file.fileno(), splitter, None, lambda count, size: progress.append((count, size)))
        rounds = []
        while not stream.at_end:
            rounds.append(list(stream.ready()))
    assert list(chain.from_iterable(rounds)) == lines
    assert len(rounds) > 1
    assert sum(count for count, _ in progress) == len(lines)
    assert sum(size for _, size in progress) == os.path.getsize(path)


def parsed(
    line: bytes,
    *,
    as_json: bool = False,
    separator: bytes | None = None,
    key: bytes | None = None,
    headers: Headers = (),
) -> Item:
    parse = line_parser(as_json=as_json, key_separator=separator, key=key, headers=headers)
    return line if parse is None else parse(line)


def test_a_plain_line_is_a_value() -> None:
    assert parsed(b"v") == b"v"


def test_the_first_separator_splits_key_and_value() -> None:
    assert parsed(b"k: v: w", separator=b": ") == (b"k", b"v: w")
    assert parsed(b": ", separator=b": ", headers=(("h", b"1"),)) == RecordInput(b"", b"", (("h", b"1"),))


def test_every_line_gets_the_key_and_headers_of_the_command_line() -> None:
    assert parsed(b"v", key=b"k") == RecordInput(b"k", b"v")
    assert parsed(b"v", headers=(("h", b"1"),)) == RecordInput(None, b"v", (("h", b"1"),))


def test_a_json_line_keeps_its_own_key_and_adds_headers() -> None:
    headers = (("h", b"1"),)
    assert parsed(b'{"value": "v"}', as_json=True, key=b"k") == RecordInput(b"k", b"v")
    own = parsed(b'{"key": "own", "headers": [{"key": "a", "value": null}]}', as_json=True, key=b"k", headers=headers)
    assert own == RecordInput(b"own", None, (("a", None), ("h", b"1")))
