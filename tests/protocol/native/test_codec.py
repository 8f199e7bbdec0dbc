"""Requests and replies survive the round trip, and another msgpack library reads the same."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.native.frames import (
    Slice,
    errors,
    joined,
    messages,
    only_frame,
    plain,
    request_ids,
    requests,
    responses,
)
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.codec import decode_request, decode_response, encode_request, encode_response
from warmlog.protocol.native.messages import OPERATIONS, ReceivedFetch
from warmlog.protocol.request import PartitionRecords, ProduceRequest, Request
from warmlog.protocol.response import ErrorResponse, FetchedPartition, FetchResponse, Response


@given(request_id=request_ids, request=requests)
def test_a_request_survives_the_round_trip(request_id: int, request: Request) -> None:
    found_id, found = decode_request(only_frame(encode_request(request_id, request)))
    assert isinstance(found, type(request))
    assert (found_id, plain(found)) == (request_id, {**plain(request), "id": request_id})


@given(request_id=request_ids, response=responses)
def test_a_response_survives_the_round_trip(request_id: int, response: Response) -> None:
    frame = only_frame(joined(encode_response(request_id, response)))
    assert decode_response(frame, type(response)) == (request_id, response)


@given(request_id=request_ids, request=requests, response=responses)
def test_another_msgpack_implementation_reads_the_same(request_id: int, request: Request, response: Response) -> None:
    op = next(operation.name for operation in OPERATIONS if operation.request is type(request))
    asked = msgpack.unpackb(only_frame(encode_request(request_id, request)))
    assert asked == {"op": op, "id": request_id, **plain(request)}
    answered = msgpack.unpackb(only_frame(joined(encode_response(request_id, response))))
    assert answered == {"id": request_id, **plain(response)}


@given(request_id=request_ids, request=requests, data=st.data())
def test_keys_may_come_in_any_order(request_id: int, request: Request, data: st.DataObject) -> None:
    fields = list(msgpack.unpackb(encode_request(request_id, request)[4:]).items())
    shuffled = dict(data.draw(st.permutations(fields)))
    assert plain(decode_request(msgpack.packb(shuffled))[1]) == {**plain(request), "id": request_id}


@given(request_id=request_ids, error=errors.filter(bool), message=messages)
def test_any_reply_may_be_an_error_instead(request_id: int, error: ErrorCode, message: str | None) -> None:
    response = ErrorResponse(error=error, message=message)
    frame = only_frame(joined(encode_response(request_id, response)))
    for operation in OPERATIONS:
        assert decode_response(frame, operation.received) == (request_id, response)


@given(sizes=st.lists(st.integers(0, 3) | st.integers(0, 1 << 17), max_size=20), request_id=request_ids)
def test_fetched_records_are_separate_and_only_their_length_is_used(sizes: list[int], request_id: int) -> None:
    slices = [Slice(size) for size in sizes]
    response = FetchResponse(
        partitions=tuple(FetchedPartition(topic="t", partition=i, records=s) for i, s in enumerate(slices))
    )
    pieces = encode_response(request_id, response)
    assert [piece for piece in pieces if isinstance(piece, Slice)] == [s for s in slices if s.size]
    assert all(len(piece) for piece in pieces)
    _, reply = decode_response(only_frame(joined(pieces)), ReceivedFetch)
    assert isinstance(reply, ReceivedFetch)
    assert [len(partition.records) for partition in reply.partitions] == sizes


def test_produced_records_are_views_of_the_frame() -> None:
    records = memoryview(b"batch" * 100)
    request = ProduceRequest(partitions=(PartitionRecords(topic="t", partition=0, records=records),))
    frame = only_frame(encode_request(1, request))
    _, decoded = decode_request(frame)
    assert isinstance(decoded, ProduceRequest)
    assert decoded.partitions[0].records.obj is frame.obj


def test_records_is_the_last_field_of_a_fetched_partition() -> None:
    assert FetchedPartition.__struct_fields__[-1] == "records"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.name))
def test_no_value_needs_a_longer_map_header_than_one_byte(operation: Any) -> None:
    assert len(operation.request.__struct_fields__) + 2 < 16
    assert len(operation.response.__struct_fields__) + 1 < 16
    assert operation.received.__struct_fields__ == operation.response.__struct_fields__
