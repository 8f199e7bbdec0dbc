"""Replies encoded in pieces, limits of replies, hostile frames, and versions."""

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.native.frames import error_of, frame_of
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import CUT_BYTES, NO_LIMIT, LargeMessageError, ReplyTooLargeError
from warmlog.protocol.native.codec import ReplyError, decode_response, encode_response
from warmlog.protocol.native.messages import OPERATIONS, VersionError, choose_version
from warmlog.protocol.response import (
    DescribeTopicsResponse,
    MetadataResponse,
    PartitionDescription,
    PartitionMetadata,
    ProducedPartition,
    ProduceResponse,
    SegmentDescription,
    TopicDescription,
    TopicMetadata,
)


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
    assert choose_version([0, 1, 99]) == 1
    assert choose_version([0, 1, 2, 3, 99]) == 3


@pytest.mark.parametrize("offered", [[], [0], [98, 99]])
def test_without_a_common_version_there_is_none(offered: list[int]) -> None:
    with pytest.raises(VersionError, match="this side supports 1, 2, 3, 4, 5, 6") as caught:
        choose_version(offered)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
