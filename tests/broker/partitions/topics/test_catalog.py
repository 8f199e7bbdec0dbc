"""What is derived from the catalog is kept while its state is the same."""

from pathlib import Path

from tests.broker.rig import rig
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.broker.partitions.topics.catalog import NO_LEADER


async def test_the_state_differs_whenever_a_partition_is_described_differently(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        catalog, seen = broker.partitions.catalog, list[object]()

        def is_new() -> bool:
            seen.append(catalog.state)
            return seen[-1] not in seen[:-1]

        partition = await broker.create("orders")
        topic = broker.partitions.topic("orders")
        assert topic is not None
        assert is_new()
        assert not is_new()
        epoch = catalog.partition(topic, 0).leader_epoch
        assign_epoch(partition.log, records_lost=True)
        assert is_new()
        assert catalog.partition(topic, 0).leader_epoch == epoch + 1
        broker.partitions.availability.resign(partition)
        assert is_new()
        assert catalog.partition(topic, 0).leader == NO_LEADER
        broker.partitions.availability.lead(partition)
        assert is_new()
        await broker.partitions.alter("orders", partitions=2)
        assert is_new()
        await broker.partitions.delete("orders")
        assert is_new()
