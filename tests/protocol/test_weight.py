"""Counting the values in a request or response."""

import pytest

from protocol.groups import FetchedOffset, FetchedOffsets, OffsetFetchResponse
from protocol.response import ProducedPartition, ProduceResponse
from protocol.weight import weight

OFFSET = FetchedOffset(topic="t", partition=0)


def fetched(groups: int, partitions: int) -> OffsetFetchResponse:
    group = FetchedOffsets(group="g", partitions=(OFFSET,) * partitions)
    return OffsetFetchResponse(groups=(group,) * groups)


@pytest.mark.parametrize(("groups", "partitions", "expected"), [(0, 0, 1), (3, 0, 4), (3, 5, 19), (1, 100, 102)])
def test_values_within_values_count(groups: int, partitions: int, expected: int) -> None:
    assert weight(fetched(groups, partitions), 1000) == expected


@pytest.mark.parametrize(("groups", "partitions"), [(101, 0), (1, 101), (50, 2), (10_000, 10_000)])
def test_more_than_the_limit_is_seen_whatever_holds_it(groups: int, partitions: int) -> None:
    assert weight(fetched(groups, partitions), 100) > 100


def test_the_partitions_of_a_produce_count_once() -> None:
    response = ProduceResponse(partitions=(ProducedPartition(topic="t", partition=0),) * 7)
    assert weight(response, 1000) == 7
