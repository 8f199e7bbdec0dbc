"""Small splits share a task, large ones and few ones do not."""

from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.source.test_wire import produced
from warmlog.client.blocking import Client
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.packing import OPEN_BYTES, TASK_BYTES, packed
from warmlog.pipeline.runner import TASKS_PER_CORE, SparkRunner
from warmlog.pipeline.source.input import plan_batch
from warmlog.pipeline.source.options import ReadOptions, Topics, read_options
from warmlog.pipeline.source.plan import RemoteSplit
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.spark_splits import LEAST_TASKS, SplitPartition, input_partitions, read_partition
from warmlog.testing import Broker


@given(sizes=st.lists(st.integers(0, 20 << 20), max_size=300), least=st.integers(1, 200))
def test_every_item_is_in_one_task_and_no_task_is_large(sizes: list[int], least: int) -> None:
    items = list(enumerate(sizes))
    packs = packed(items, lambda item: item[1], least)
    assert list(chain.from_iterable(packs)) == items
    most = min(TASK_BYTES, sum(OPEN_BYTES + size for size in sizes) // least)
    for pack in packs:
        assert len(pack) == 1 or sum(OPEN_BYTES + size for _, size in pack) <= most
    assert len(items) > least or len(packs) == len(items)


def tasks_of(splits: int, records: int, **options: Any) -> int:
    found = input_partitions(
        [
            RemoteSplit(
                brokers=Brokers(addresses="h:1"), topic="t", partition=at, first_offset=7, end_offset=7 + records
            )
            for at in range(splits)
        ],
        ReadOptions(topics=Topics(names=("t",)), **options),
    )
    assert sum(len(one.splits) for one in found if isinstance(one, SplitPartition)) == splits
    return len(found)


def test_a_thousand_small_partitions_are_some_tasks_and_few_partitions_are_their_own() -> None:
    assert tasks_of(1000, 50) in range(LEAST_TASKS, 2 * LEAST_TASKS)
    assert tasks_of(LEAST_TASKS, 50) == LEAST_TASKS
    assert tasks_of(1000, 1 << 20) == 1000
    assert tasks_of(1000, 50, min_partitions=500) == 500
    assert tasks_of(1000, 50, max_records_per_partition=50) == 1000


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


def test_a_job_runs_small_items_in_few_tasks_of_spark(spark: Any) -> None:
    run = SparkRunner(spark)
    least = TASKS_PER_CORE * run.parallelism
    found = run(range(1000), in_task, lambda _: 0)
    assert [item for item, _ in found] == list(range(1000))
    assert least <= len({task for _, task in found}) < 100
    large = run(range(20), in_task, lambda _: TASK_BYTES)
    assert large == [(item, item) for item in range(20)]


def in_task(item: int) -> tuple[int, int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return item, context.partitionId()
