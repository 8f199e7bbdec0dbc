"""Counting the values in a request or response, and freeing a large one in pieces."""

import sys
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

from warmlog.protocol.groups import FetchedOffset, FetchedOffsets, OffsetFetchResponse, OffsetToCommit
from warmlog.protocol.kafka.messages.records.offsets import KafkaOffsetQuery
from warmlog.protocol.request import PartitionRecords
from warmlog.protocol.response import DeleteTopicsResponse, ProducedPartition, ProduceResponse, TopicResult
from warmlog.protocol.weight import RELEASED, release, weight

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


class Freed:
    """Counts the values that were freed."""

    def __init__(self) -> None:
        self.count = 0

    def value(self) -> Any:
        return _Counted(self)


class _Counted:
    def __init__(self, freed: Freed) -> None:
        self._freed = freed

    def __del__(self) -> None:
        self._freed.count += 1


def freed_in_steps(owned: list[Any], freed: Freed) -> list[int]:
    """Release a list; how many values each step has freed."""
    counts, before = [], freed.count
    for _ in release(owned):
        counts.append(freed.count - before)
        before = freed.count
    return [*counts, freed.count - before]


def test_the_values_of_a_large_response_are_freed_a_few_at_a_time() -> None:
    freed = Freed()
    owned: list[Any] = [
        DeleteTopicsResponse(topics=tuple([TopicResult(name=freed.value()) for _ in range(20 * RELEASED)])),
        None,
        "text",
    ]
    steps = freed_in_steps(owned, freed)
    assert sum(steps) == freed.count == 20 * RELEASED
    assert max(steps) <= RELEASED
    assert not owned


def test_values_deep_within_a_response_are_freed_a_few_at_a_time() -> None:
    freed = Freed()
    offsets = [tuple([FetchedOffset(topic=freed.value(), partition=0) for _ in range(10 * RELEASED)]) for _ in range(3)]
    groups = tuple([FetchedOffsets(group="g", partitions=offsets.pop()) for _ in range(3)])
    owned: list[Any] = [OffsetFetchResponse(groups=groups)]
    del groups
    steps = freed_in_steps(owned, freed)
    assert sum(steps) == freed.count == 30 * RELEASED
    assert max(steps) <= RELEASED


def test_what_stands_many_times_in_a_response_is_gone_through_once() -> None:
    response = fetched(groups=10 * RELEASED, partitions=RELEASED + 1)
    owned: list[Any] = [response]
    del response
    assert len(freed_in_steps(owned, Freed())) < 40


def calls_of(run: Callable[[], object]) -> int:
    """Count the calls of functions, compiled ones included."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def test_values_without_parts_are_freed_without_a_look_at_each() -> None:
    """Among them those whose numbers have bounds, and records, which are views of a frame."""
    for value in (
        OffsetToCommit(topic="t", partition=0, offset=1),
        KafkaOffsetQuery(topic="t", partition=0, timestamp=1),
        PartitionRecords(topic="t", partition=0, records=memoryview(b"x")),
        TopicResult(name="t"),
    ):
        owned = [tuple([copy(value) for _ in range(10 * RELEASED)])]
        assert calls_of(lambda owned=owned: [*release(owned)]) < RELEASED  # type: ignore[misc]
