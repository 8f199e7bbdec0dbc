"""Requests that would name more than a broker takes are split."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog.client.connection.request_parts import parts
from warmlog.protocol.groups import OffsetCommitRequest, OffsetToCommit
from warmlog.protocol.native.codec import MAX_PLAIN_BYTES, encode_request
from warmlog.protocol.request import MAX_ENTRIES


@given(
    lengths=st.lists(st.sampled_from([1, 30, 249]), min_size=1, max_size=20),
    count=st.integers(0, 25_000),
    times=st.sampled_from([1, 3]),
)
def test_parts_have_all_entries_in_order_and_each_is_as_large_as_it_may_be(
    lengths: list[int], count: int, times: int
) -> None:
    entries = [(number, "é" * lengths[number % len(lengths)]) for number in range(count)]
    found = list(parts(entries, lambda entry: entry[1], times))
    assert [entry for part in found for entry in part] == entries
    assert all(0 < len(part) <= MAX_ENTRIES // times for part in found)


def test_a_request_with_the_longest_names_is_not_too_long() -> None:
    offsets = [OffsetToCommit(topic="t" * 249, partition=number, offset=(1 << 63) - 1) for number in range(20_000)]
    found = list(parts(offsets, lambda one: one.topic))
    assert len(found) > 2
    for part in found:
        request = OffsetCommitRequest(group="g" * 30_000, partitions=part)
        assert 0.8 * MAX_PLAIN_BYTES < len(encode_request(1, request)) < MAX_PLAIN_BYTES or part is found[-1]
