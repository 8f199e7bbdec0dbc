from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.client.producing.partitioner import StickyPartitions, partition_of


@pytest.mark.parametrize(
    ("key", "digest"),
    [  # Kafka's own vectors: org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_map_to_the_partitions_of_kafkas_java_client(key: bytes, digest: int) -> None:
    positive = digest % (1 << 31)  # what is left of a Java int without its sign bit
    for partitions in (1, 2, 3, 7, 10, 50, 1000):
        assert partition_of(key, partitions) == positive % partitions


@given(st.binary(max_size=50), st.integers(1, 10_000))
def test_a_key_always_maps_to_the_same_partition(key: bytes, partitions: int) -> None:
    partition = partition_of(key, partitions)
    assert 0 <= partition < partitions
    assert partition == partition_of(key, partitions)


@given(st.integers(2, 10), st.integers())
def test_records_without_a_key_stick_until_their_batch_is_full(partitions: int, seed: int) -> None:
    sticky = StickyPartitions(Random(seed))
    seen = set()
    for _ in range(100):
        before = sticky.current("t", partitions)
        assert sticky.current("t", partitions) == before
        sticky.move_on("t", (before + 1) % partitions, partitions)  # another one's batch: no reason to move
        assert sticky.current("t", partitions) == before
        sticky.move_on("t", before, partitions)
        after = sticky.current("t", partitions)
        assert after != before
        assert 0 <= after < partitions
        seen.add(after)
    assert len(seen) > 1


def test_a_single_partition_is_kept() -> None:
    sticky = StickyPartitions(Random(1))
    sticky.move_on("t", sticky.current("t", 1), 1)
    assert sticky.current("t", 1) == 0


def test_a_partition_that_does_not_exist_is_replaced() -> None:
    sticky = StickyPartitions(Random(1))
    while sticky.current("t", 9) == 0:
        sticky.move_on("t", 0, 9)
    assert sticky.current("t", 1) == 0
