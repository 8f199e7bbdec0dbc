import os
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.failure import Failure
from warmlog.cli.input import json_parser, key_parser, parse_lines, read_chunks, split_lines, value_parser
from warmlog.cli.record_json import RecordInput

BIG = 1 << 20


def lines_of(chunks: Iterable[bytes], separator: bytes = b"\n", max_line_bytes: int = BIG) -> list[bytes]:
    return [line for block in split_lines(chunks, separator, max_line_bytes=max_line_bytes) for line in block]


def lines_as_defined(data: bytes, separator: bytes) -> list[bytes]:
    lines = data.split(separator)
    return lines if lines[-1] else lines[:-1]


@given(data=st.lists(st.binary(max_size=12)).map(b"\n".join), cuts=st.lists(st.integers(0, 200)), zero=st.booleans())
def test_lines_do_not_depend_on_how_the_stream_was_cut(data: bytes, cuts: list[int], zero: bool) -> None:
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


def test_a_line_is_passed_on_before_more_is_read() -> None:
    chunks = iter([b"one\ntw", b"o\n"])
    blocks = split_lines(chunks, b"\n", max_line_bytes=BIG)
    assert next(blocks) == [b"one"]
    assert next(blocks) == [b"two"]


def test_a_line_over_the_limit_fails_instead_of_growing() -> None:
    endless = iter(lambda: b"x" * 1000, None)
    with pytest.raises(Failure, match="longer than the 4096 bytes"):
        lines_of(endless, max_line_bytes=4096)


def test_a_descriptor_is_read_to_its_end() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"a\nb")
    os.close(write_end)
    try:
        assert b"".join(read_chunks(read_end)) == b"a\nb"
    finally:
        os.close(read_end)


def test_the_first_separator_parts_key_and_value() -> None:
    parse = key_parser(b": ", headers=(("h", b"1"),))
    assert parse(b"k: v: w") == RecordInput(b"k", b"v: w", (("h", b"1"),))
    assert parse(b": ") == RecordInput(b"", b"", (("h", b"1"),))


def test_every_line_gets_the_key_and_headers_of_the_command_line() -> None:
    assert value_parser(key=b"k", headers=(("h", b"1"),))(b"v") == RecordInput(b"k", b"v", (("h", b"1"),))


def test_a_json_line_keeps_its_own_key_and_adds_headers() -> None:
    parse = json_parser(key=b"k", headers=(("h", b"1"),))
    assert parse(b'{"value": "v"}').key == b"k"
    record = parse(b'{"value": "v", "key": "own", "headers": [{"key": "a", "value": null}]}')
    assert (record.key, record.headers) == (b"own", (("a", None), ("h", b"1")))


def test_records_before_a_bad_line_are_given_and_the_line_is_named() -> None:
    blocks = parse_lines([[b"a=1"], [b"b=2", b"broken", b"c=3"]], key_parser(b"=", headers=()))
    assert next(blocks) == [RecordInput(b"a", b"1")]
    assert next(blocks) == [RecordInput(b"b", b"2")]
    with pytest.raises(Failure, match=r"line 3: no key separator '='"):
        next(blocks)
