"""Invalid requests are rejected with an error that names what is wrong, at bounded cost."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.native.frames import error_of, frame_of, plain, requests
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native import codec
from warmlog.protocol.native.codec import RequestError, decode_request, encode_request
from warmlog.protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    NewTopic,
    ProduceRequest,
    Request,
    TopicAlteration,
)


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    assert error_of(garbage).request_id == 0


@given(request=requests, data=st.data())
def test_a_cut_request_is_refused(request: Request, data: st.DataObject) -> None:
    frame = encode_request(9, request)[4:]
    error_of(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(request=requests, data=st.data())
def test_a_flipped_byte_gives_a_request_or_a_clear_error(request: Request, data: st.DataObject) -> None:
    frame = bytearray(encode_request(9, request)[4:])
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(RequestError):
        decode_request(frame)


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        ({"op": "hello", "versions": [1]}, HelloRequest(versions=(1,), client="")),
        ({"op": "metadata"}, MetadataRequest(topics=None, auto_create=False)),
        ({"op": "create_topics", "topics": [{"name": "t"}]}, CreateTopicsRequest(topics=(NewTopic(name="t"),))),
        ({"op": "alter_topics", "topics": [{"name": "t"}]}, AlterTopicsRequest(topics=(TopicAlteration(name="t"),))),
        ({"op": "produce", "partitions": []}, ProduceRequest(acks=-1, timeout_ms=30_000, partitions=())),
        (
            {"op": "fetch", "partitions": [{"topic": "t", "partition": 0, "offset": 5}]},
            FetchRequest(partitions=(FetchPartition(topic="t", partition=0, offset=5),)),
        ),
        ({"op": "list_offsets", "partitions": []}, ListOffsetsRequest(partitions=())),
    ],
)
def test_fields_with_a_default_may_be_left_out(fields: dict[str, Any], request_: Request) -> None:
    request_id, found = decode_request(frame_of(id=1, **fields))
    assert isinstance(found, type(request_))
    assert (request_id, plain(found)) == (1, {**plain(request_), "id": 1})


def test_bytes_after_the_map_are_refused() -> None:
    error = error_of(frame_of(op="metadata", id=5) + b"\xc0")
    assert "trailing" in str(error)


def test_an_unknown_op_names_the_known_ones_and_keeps_its_id() -> None:
    error = error_of(frame_of(op="prodvce", id=5))
    assert error.request_id == 5
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "'prodvce'" in str(error)
    assert "produce" in str(error)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"op": "fetch", "partitions": []}, "`id`"),
        ({"op": "fetch", "id": 3}, "`partitions`"),
        ({"op": "fetch", "id": 3, "partitions": [], "max_wait": 5}, "`max_wait`"),
        ({"op": "fetch", "id": 3, "partitions": {}}, "`$.partitions`"),
        ({"op": "fetch", "id": 3, "partitions": [{"topic": 7}]}, "`$.partitions[0].topic`"),
        ({"op": "fetch", "id": 3, "partitions": [], "max_wait_ms": -1}, "`$.max_wait_ms`"),
        ({"op": "fetch", "id": 3, "partitions": [], "max_wait_ms": 1.5}, "`$.max_wait_ms`"),
        ({"op": "fetch", "id": 3, "partitions": [], "max_wait_ms": True}, "`$.max_wait_ms`"),
        ({"op": "fetch", "id": 3, "partitions": [], "isolation": "none"}, "`$.isolation`"),
        ({"op": "produce", "id": 3, "partitions": [{"topic": "t", "partition": 0, "records": "text"}]}, "records"),
        ({"op": "create_topics", "id": 3, "topics": [{"name": b"bin"}]}, "`$.topics[0].name`"),
        ({"op": "delete_topics", "id": 3, "topics": None}, "`$.topics`"),
        ({"id": 3}, "unknown op None"),
        ({"op": 3, "id": 3}, "unknown op 3"),
    ],
)
def test_the_error_names_the_field(fields: dict[str, Any], told: str) -> None:
    error = error_of(frame_of(**fields))
    assert told in str(error)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert error.request_id == fields.get("id", 0)


@pytest.mark.parametrize("request_id", [-1, 1 << 32, "5", 5.0, None, True])
def test_an_id_that_is_no_uint32_is_refused_and_answered_as_0(request_id: Any) -> None:
    assert error_of(frame_of(op="metadata", id=request_id)).request_id == 0


@pytest.mark.parametrize("acks", [2, -2, "all"])
def test_acks_has_its_own_error_code(acks: Any) -> None:
    error = error_of(frame_of(op="produce", id=3, acks=acks, partitions=[]))
    expected = ErrorCode.INVALID_REQUIRED_ACKS
    assert (error.code, error.request_id) == (expected, 3)


@pytest.mark.parametrize("frame", [b"", b"\xc0", b"\x93\x01\x02\x03", b"\xc1", frame_of(), b"\x81\x01\x02"])
def test_a_frame_that_is_not_a_request_map_is_rejected(frame: bytes) -> None:
    assert error_of(frame).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("nested", [b"\x91", b"\x81\xa1a", b"\x82\xa2op\xa5fetch\xaapartitions"])
def test_deep_nesting_is_refused(nested: bytes) -> None:
    error_of(nested * 100_000)
    error_of(b"\x82\xa2op\xa5fetch\xa1x" + nested * 100_000)


@pytest.mark.parametrize(
    ("field", "count"),
    [(b"\xa8metadata\xa2id\x05\xa6topics", 10_001), (b"\xa5hello\xa2id\x05\xa8versions", 10_001)],
)
def test_an_array_that_is_too_long_is_refused_before_it_is_decoded(field: bytes, count: int) -> None:
    """Each one-byte name takes 300 bytes in the response: a frame of 8 MiB once took 2.5 GB and 18 s of the loop."""
    error = error_of(b"\x83\xa2op" + field + b"\xdd" + count.to_bytes(4, "big") + b"\xa0" * count)
    assert "length <= " in str(error)
    assert error.request_id == 5


def test_a_large_request_that_is_no_produce_is_refused_unread() -> None:
    partitions = [{"topic": "a" * 200, "partition": index} for index in range(6000)]
    frame = frame_of(op="describe_producer", id=5, producer_id=1, partitions=partitions)
    assert len(frame) > codec.MAX_PLAIN_BYTES
    error = error_of(frame)
    assert (error.code, error.request_id) == (ErrorCode.INVALID_REQUEST, 0)
    assert f"a request of {len(frame)} bytes" in str(error)


def test_a_produce_may_be_as_large_as_a_frame() -> None:
    records = bytes(3 * codec.MAX_PLAIN_BYTES)
    partitions = [{"topic": "orders", "partition": 0, "records": records}]
    _, request = decode_request(frame_of(op="produce", id=5, partitions=partitions))
    assert len(request.partitions[0].records) == len(records)
    error_of(frame_of(id=5, op="produce", partitions=partitions))
