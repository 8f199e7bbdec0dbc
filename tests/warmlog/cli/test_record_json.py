import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.records.record_json import RecordInput, parse_record, record_lines


class Stored(NamedTuple):
    """A consumed record with the fields that are printed."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    topic: str = "t"
    partition: int = 3


stored = st.builds(
    Stored,
    offset=st.integers(0, (1 << 63) - 1),
    timestamp=st.integers(-1, (1 << 63) - 1),
    key=st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
    value=st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))).map(tuple),
    topic=st.just("t"),
    partition=st.just(3),
)


def printed(record: Any) -> dict[str, Any]:
    line = record_lines([record])
    form = json.loads(line)
    assert isinstance(form, dict)
    return form


@given(record=stored)
def test_printed_records_are_parsed_byte_for_byte(record: Stored) -> None:
    line = record_lines([record])
    assert line.endswith(b"\n")
    assert parse_record(line) == RecordInput(record.key, record.value, record.headers, 3, record.timestamp)


@given(records=st.lists(stored, max_size=5))
def test_each_record_is_one_line(records: list[Stored]) -> None:
    assert record_lines(records).count(b"\n") == len(records)


def test_text_is_printed_as_text_and_other_bytes_as_base64() -> None:
    form = printed(Stored(7, 1000, "schlüssel".encode(), b"\xff\x00", (("h", b"\xfe"), ("n", None))))
    assert form == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1000,
        "key": "schlüssel",
        "value_base64": "/wA=",
        "headers": [{"key": "h", "value_base64": "/g=="}, {"key": "n", "value": None}],
    }


def test_every_field_is_optional() -> None:
    assert parse_record(b"{}") == RecordInput(None, None)


def test_a_value_that_is_neither_text_nor_null_is_stored_as_its_json_text() -> None:
    assert parse_record(b'{"key": 17, "value": {"a": [1, 2.50]}}')[:2] == (b"17", b'{"a": [1, 2.50]}')


def test_headers_may_be_one_object() -> None:
    assert parse_record(b'{"headers": {"a": "1", "b": null}}').headers == (("a", b"1"), ("b", None))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"not json", "malformed"),
        (b'{"vlaue": "x"}', "unknown field `vlaue`"),
        (b'{"value": "x", "value_base64": "eA=="}', "both `value` and `value_base64`"),
        (b'{"value_base64": "?"}', "base64"),
        (b'{"partition": "1"}', "partition"),
        (b'{"timestamp": 9223372036854775808}', "timestamp"),
        (b'{"headers": [{"key": null}]}', "headers"),
        (b'{"value": "\xff"}', "UTF-8"),
    ],
)
def test_an_invalid_line_is_rejected_with_the_reason(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        parse_record(line)
    assert message.lower() in str(caught.value).lower()
