"""Strategies for requests and replies, and frames made and read by an independent msgpack library."""

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import strategies as st

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.native.codec import RequestError, decode_request
from warmlog.protocol.native.messages import ReceivedFetch, ReceivedPartition
from warmlog.protocol.request import (
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
from warmlog.protocol.response import (
    AlterTopicsResponse,
    BrokerMetadata,
    ConfigDescription,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    FetchedPartition,
    HelloResponse,
    ListedOffset,
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
                ListedOffset,
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
