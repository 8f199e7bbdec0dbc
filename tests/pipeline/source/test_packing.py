"""Small splits share a task, large ones and few ones do not."""

from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.source.test_wire import produced
from warmlog.client.blocking import Client
from warmlog.pipeline.source.input import plan_batch
from warmlog.pipeline.source.options import ReadOptions, Topics, read_options
from warmlog.pipeline.source.packing import LEAST_TASKS, OPEN_BYTES, RECORD_BYTES, TASK_BYTES, packed
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.remote import RemoteSplit
from warmlog.pipeline.source.spark_splits import input_partitions, read_partition
from warmlog.testing import Broker

OPTIONS: dict[str, Any] = {"topics": Topics(names=("t",))}


def split(partition: int, records: int) -> RemoteSplit:
    return RemoteSplit(bootstrap="h:1", topic="t", partition=partition, first_offset=7, end_offset=7 + records)


@given(
    sizes=st.lists(st.integers(1, 200_000), max_size=300),
    least=st.none() | st.integers(1, 200),
    most=st.none() | st.just(1000),
)
def test_every_split_is_in_one_task_and_no_task_is_large(sizes: list[int], least: int | None, most: int | None) -> None:
    splits = [split(at, size) for at, size in enumerate(sizes)]
    options = ReadOptions(**OPTIONS, min_partitions=least, max_records_per_partition=most)
    packs = packed(splits, options)
    assert list(chain.from_iterable(packs)) == splits
    assert len(packs) >= min(len(splits), max(LEAST_TASKS, least or 0))
    for pack in packs:
        cost = sum(OPEN_BYTES + (each.end_offset - each.first_offset) * RECORD_BYTES for each in pack)
        assert len(pack) == 1 or (cost <= TASK_BYTES and most is None)


def test_a_thousand_small_partitions_are_some_tasks_and_few_partitions_are_their_own() -> None:
    options = ReadOptions(**OPTIONS)
    assert len(packed([split(at, 50) for at in range(1000)], options)) in range(LEAST_TASKS, 2 * LEAST_TASKS)
    assert len(packed([split(at, 50) for at in range(LEAST_TASKS)], options)) == LEAST_TASKS
    assert len(packed([split(at, 1 << 20) for at in range(1000)], options)) == 1000


def test_a_task_reads_its_splits_one_after_the_other() -> None:
    with Broker() as broker, Client(broker.native) as client:
        produced(client, "many", 900, partitions=150)
        for given in ({"path": str(broker.data_dir)}, {"bootstrap": broker.native}):
            options = read_options({"topic": "many", **given})
            partitions = input_partitions(plan_batch(options, Bounds()).splits, options)
            assert LEAST_TASKS <= len(partitions) < 150
            batches = [batch for one in partitions for batch in read_partition(one, options, Bounds())]
            found = [row for batch in batches for row in batch.select(["partition", "offset", "value"]).to_pylist()]
            assert sorted((row["partition"], row["offset"], row["value"]) for row in found) == [
                (partition, at, b"%d" % (partition + 150 * at)) for partition in range(150) for at in range(6)
            ]
