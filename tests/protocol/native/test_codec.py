"""The native codec: round trips, compatibility with another msgpack implementation, and invalid frames."""

import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.frame import FrameReader
from protocol.kafka.codec.bounds import CUT_BYTES, NO_LIMIT, LargeMessageError, ReplyTooLargeError
from protocol.native import codec
from protocol.native.codec import (
    ReplyError,
    RequestError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocol.native.messages import OPERATIONS, ReceivedFetch, ReceivedPartition, VersionError, choose_version
from protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    Isolation,
    ListOffsetsRequest,
    MetadataRequest,
    NewTopic,
    OffsetQuery,
    PartitionRecords,
    ProduceRequest,
    Request,
    TopicAlteration,
)
from protocol.response import (
    AlterTopicsResponse,
    BrokerMetadata,
    ConfigDescription,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    ErrorResponse,
    FetchedPartition,
    FetchResponse,
    FoundOffset,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionDescription,
    PartitionMetadata,
    ProducedPartition,
    ProduceResponse,
    RecordError,
    Response,
    SegmentDescription,
    TopicDescription,
    TopicMetadata,
    TopicResult,
)

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
size32 = st.integers(0, (1 << 31) - 1)
request_ids = st.integers(0, (1 << 32) - 1)
text = st.text(max_size=12)
flags = st.booleans()
errors = st.sampled_from(ErrorCode)
messages = st.none() | text
record_views = st.binary(max_size=300).map(memoryview)


def many(items: st.SearchStrategy[Any], max_size: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=max_size).map(tuple)


def mapping(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(text, values, max_size=3)


requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(HelloRequest, versions=many(int32), client=text),
    st.builds(MetadataRequest, topics=st.none() | many(text), auto_create=flags),
    st.builds(
        CreateTopicsRequest,
        topics=many(st.builds(NewTopic, name=text, partitions=int32, configs=mapping(text))),
        validate_only=flags,
    ),
    st.builds(DeleteTopicsRequest, topics=many(text)),
    st.builds(DescribeTopicsRequest, topics=many(text)),
    st.builds(
        AlterTopicsRequest,
        topics=many(
            st.builds(TopicAlteration, name=text, configs=mapping(st.none() | text), partitions=st.none() | int32)
        ),
    ),
    st.builds(
        ProduceRequest,
        acks=st.sampled_from([-1, 0, 1]),
        timeout_ms=size32,
        partitions=many(st.builds(PartitionRecords, topic=text, partition=int32, records=record_views), 20),
    ),
    st.builds(
        FetchRequest,
        partitions=many(st.builds(FetchPartition, topic=text, partition=int32, offset=int64, max_bytes=int32)),
        max_wait_ms=size32,
        min_bytes=size32,
        max_bytes=size32,
        isolation=st.sampled_from(Isolation),
    ),
    st.builds(
        ListOffsetsRequest,
        partitions=many(st.builds(OffsetQuery, topic=text, partition=int32, timestamp=int64)),
        isolation=st.sampled_from(Isolation),
    ),
)

topic_results = many(st.builds(TopicResult, name=text, error=errors, message=messages))
partition_metadata = st.builds(
    PartitionMetadata,
    partition=int32,
    leader=int32,
    leader_epoch=int32,
    replicas=many(int32),
    in_sync=many(int32),
    error=errors,
    message=messages,
)
segments = st.builds(
    SegmentDescription,
    base_offset=int64,
    next_offset=int64,
    size=int64,
    offset_index_entries=int32,
    time_index_entries=int32,
    max_timestamp=st.none() | int64,
    modified_ms=int64,
    active=flags,
)
partition_descriptions = st.builds(
    PartitionDescription,
    partition=int32,
    leader=int32,
    leader_epoch=int32,
    log_start_offset=int64,
    high_watermark=int64,
    log_end_offset=int64,
    flushed_offset=int64,
    size=int64,
    segments=many(segments, 2),
    error=errors,
    message=messages,
)
fetched = {
    "topic": text,
    "partition": int32,
    "high_watermark": int64,
    "last_stable_offset": int64,
    "log_start_offset": int64,
    "error": errors,
    "message": messages,
}
responses: st.SearchStrategy[Response] = st.one_of(
    st.builds(HelloResponse, version=int32, broker=text, cluster_id=text, node_id=int32, max_frame_bytes=size32),
    st.builds(
        MetadataResponse,
        cluster_id=text,
        controller=int32,
        brokers=many(st.builds(BrokerMetadata, node_id=int32, host=text, port=int32)),
        topics=many(
            st.builds(
                TopicMetadata,
                name=text,
                topic_id=messages,
                partitions=many(partition_metadata, 2),
                error=errors,
                message=messages,
            )
        ),
    ),
    st.builds(
        CreateTopicsResponse,
        topics=many(
            st.builds(CreatedTopic, name=text, topic_id=messages, partitions=int32, error=errors, message=messages)
        ),
    ),
    st.builds(DeleteTopicsResponse, topics=topic_results),
    st.builds(AlterTopicsResponse, topics=topic_results),
    st.builds(
        DescribeTopicsResponse,
        topics=many(
            st.builds(
                TopicDescription,
                name=text,
                topic_id=messages,
                configs=many(st.builds(ConfigDescription, name=text, value=text, source=text)),
                partitions=many(partition_descriptions, 2),
                error=errors,
                message=messages,
            ),
            2,
        ),
    ),
    st.builds(
        ProduceResponse,
        partitions=many(
            st.builds(
                ProducedPartition,
                topic=text,
                partition=int32,
                base_offset=int64,
                log_append_time=int64,
                log_start_offset=int64,
                error=errors,
                message=messages,
                record_errors=st.just(msgspec.UNSET) | many(st.builds(RecordError, index=int32, message=text)),
                duplicate=st.sampled_from([msgspec.UNSET, True]),
            )
        ),
    ),
    st.builds(ReceivedFetch, partitions=many(st.builds(ReceivedPartition, records=record_views, **fetched), 20)),
    st.builds(
        ListOffsetsResponse,
        partitions=many(
            st.builds(
                FoundOffset,
                topic=text,
                partition=int32,
                timestamp=int64,
                offset=int64,
                leader_epoch=int32,
                error=errors,
                message=messages,
            )
        ),
    ),
)


class Slice:
    """Stand in for a file slice: it has a length and nothing else."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def only_frame(stream: bytes) -> memoryview:
    reader = FrameReader()
    reader.feed(stream)
    frame = reader.next_frame()
    assert frame is not None
    assert reader.next_frame() is None
    assert reader.held_bytes == 0
    return frame


def joined(pieces: list[Any]) -> bytes:
    return b"".join(bytes(len(piece)) if isinstance(piece, Slice) else piece for piece in pieces)


def plain(value: Any) -> Any:
    """Return the value as an independent msgpack implementation decodes it."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        if isinstance(value, FetchedPartition) and value.aborted_transactions is None:
            del fields["aborted_transactions"]
        return {name: content for name, content in fields.items() if content is not msgspec.UNSET}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def frame_of(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def error_of(frame: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_request(frame)
    return caught.value


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


def decoded(pieces: list[Any]) -> Any:
    """Decode a response frame, in which arrays may have longer headers than necessary."""
    data = b"".join(pieces)
    assert int.from_bytes(data[:4]) == len(data) - 4
    return msgpack.unpackb(data[4:])


def metadata(topics: int, partitions: int) -> MetadataResponse:
    placed = [
        PartitionMetadata(partition=index, leader=1, leader_epoch=0, replicas=(1,), in_sync=(1,))
        for index in range(partitions)
    ]
    found = [TopicMetadata(name=f"t{number}", partitions=tuple(placed)) for number in range(topics)]
    return MetadataResponse(cluster_id="c", controller=1, brokers=(), topics=tuple(found))


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (300, 1), (2, 300), (300, 300)])
def test_a_reply_encoded_in_pieces_is_the_same(topics: int, partitions: int) -> None:
    response = metadata(topics, partitions)
    assert decoded(encode_response(7, response)) == decoded(encode_response(7, response, 1 << 40))


@pytest.mark.parametrize("kind", [ProduceResponse, DescribeTopicsResponse])
def test_fields_that_are_not_there_are_not_there_in_pieces_either(kind: Any) -> None:
    """Produce results omit `UNSET` fields, and descriptions have nested arrays."""
    if kind is ProduceResponse:
        produced = [ProducedPartition(topic="t", partition=index, duplicate=True) for index in range(400)]
        response: Any = ProduceResponse(partitions=(*produced, ProducedPartition(topic="t", partition=400)))
    else:
        segment = SegmentDescription(
            base_offset=0, next_offset=1, size=1, offset_index_entries=0, time_index_entries=0, max_timestamp=None,
            modified_ms=5, active=True,
        )  # fmt: skip
        partition = PartitionDescription(
            partition=0, leader=1, leader_epoch=0, log_start_offset=0, high_watermark=1, log_end_offset=1,
            flushed_offset=0, size=1, segments=(segment,) * 500,
        )  # fmt: skip
        response = DescribeTopicsResponse(topics=(TopicDescription(name="t", partitions=(partition,) * 3),))
    assert decoded(encode_response(7, response)) == decoded(encode_response(7, response, 1 << 40))


@pytest.mark.parametrize(("topics", "partitions"), [(5000, 0), (3, 2000), (1, 5000)])
def test_more_values_than_the_limit_are_not_encoded_at_once(topics: int, partitions: int) -> None:
    response = metadata(topics, partitions)
    with pytest.raises(LargeMessageError):
        encode_response(7, response, 4096)
    encode_response(7, response, 20_000)


@pytest.mark.parametrize("topics", [1, 60_000])
def test_a_reply_of_more_bytes_than_allowed_is_refused_and_a_long_one_is_cut(topics: int) -> None:
    response = metadata(topics, 0)
    pieces: Any = encode_response(7, response)
    whole = b"".join(pieces)
    assert decoded(pieces) == decoded(encode_response(7, response, 1 << 40))
    assert all(CUT_BYTES <= len(piece) < 2 * CUT_BYTES for piece in pieces[:-1])
    assert len(pieces) == 1 + len(whole) // (CUT_BYTES + 100)
    with pytest.raises(ReplyTooLargeError):
        encode_response(7, response, NO_LIMIT, len(whole) - 100)


@pytest.mark.parametrize("place", [b"\x82\xa2op", b"\x83\xa2op\xa8metadata\xa2id"], ids=["op", "id"])
def test_a_hostile_op_or_id_is_skipped_and_not_decoded(place: bytes) -> None:
    count = 1 << 20
    frame = place + b"\xdd" + count.to_bytes(4, "big") + b"\xa3abc" * count + b"\xa1x\xc0"
    tracemalloc.start()
    try:
        error = error_of(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(frame)
    assert len(str(error)) < 400


def test_only_part_of_a_frame_is_quoted() -> None:
    assert len(str(error_of(frame_of(op="metadata", id=1, **{"x" * 1_000_000: 1})))) < 400


@pytest.mark.parametrize("item", [b"\x80", b"\x90", b"\xc0", b"\xa0"], ids=["maps", "arrays", "nils", "texts"])
def test_a_hostile_frame_allocates_no_more_than_a_small_multiple_of_its_size(item: bytes) -> None:
    count = 1 << 19
    partitions = b"\xdd" + count.to_bytes(4, "big") + item * count
    frame = b"\x83\xa2op\xa5fetch\xa2id\x05\xaapartitions" + partitions
    tracemalloc.start()
    try:
        error = error_of(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.request_id == 5
    assert peak < 9 * len(frame)  # at most one pointer per stated item


@given(st.binary(max_size=100))
def test_a_garbled_reply_is_an_error_of_its_own(garbage: bytes) -> None:
    for operation in OPERATIONS:
        with pytest.raises(ReplyError):
            decode_response(garbage, operation.received)


def test_the_greatest_common_version_is_chosen() -> None:
    assert choose_version([0, 1, 7]) == 1
    assert choose_version([0, 1, 2, 3, 7]) == 3


@pytest.mark.parametrize("offered", [[], [0], [5, 6]])
def test_without_a_common_version_there_is_none(offered: list[int]) -> None:
    with pytest.raises(VersionError, match="this side supports 1, 2, 3, 4") as caught:
        choose_version(offered)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
