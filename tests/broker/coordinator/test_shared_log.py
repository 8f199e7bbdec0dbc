"""The log of a coordinator takes its topic's name and layout as a value."""

import gzip
from pathlib import Path

import pytest

from tests.broker.coordinator.toy import SMALL, Toy, ToyShard
from tests.broker.rig import START_MS, rig
from tests.protocol.records.handmade import batch, record
from warmlog.broker.coordinator.reading import read_partition
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.topic import OFFSETS_TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.layout import Codec


async def test_the_topic_of_groups_is_created_as_kafka_does(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC, broker.partitions, broker.writer, lambda: START_MS
        )
        assert runtime.partition_count == 0
        assert await runtime.ensure() is ErrorCode.NONE
        assert runtime.partition_count == 50
        partition = broker.partitions.get("__consumer_offsets", 0)
        assert partition is not None
        assert partition.log.config.segment_bytes == 100 << 20


async def test_what_is_appended_to_a_topic_of_another_layout_is_read_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        runtime: CoordinatorRuntime[ToyShard] = CoordinatorRuntime(
            SMALL, broker.partitions, broker.writer, lambda: START_MS
        )
        runtime.bind(Toy())
        await runtime.ensure()
        assert runtime.partition_count == 3
        errors: list[ErrorCode] = []
        names = [str(number) for number in range(5)]
        for name in names:
            shard = runtime.shard_of(name)
            assert shard is not None
            runtime.append(shard.term, name, [(name.encode(), b"value")], lambda error, _: errors.append(error))
        for partition in broker.partitions:
            await partition.appends.settled()
        assert errors == [ErrorCode.NONE] * 5
        found: dict[bytes, int] = {}
        for index in range(runtime.partition_count):
            partition = broker.partitions.get(SMALL.name, index)
            assert partition is not None
            replay = await read_partition(partition)
            found |= dict.fromkeys(replay.latest, index)
        assert found == {name.encode(): runtime.partition_of(name) for name in names}


async def test_a_partition_is_loaded_without_a_batch_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as broker:
        runtime: CoordinatorRuntime[ToyShard] = CoordinatorRuntime(
            SMALL, broker.partitions, broker.writer, lambda: START_MS
        )
        await runtime.ensure()
        partition = broker.partitions.get(SMALL.name, 0)
        assert partition is not None
        odd_block = gzip.compress(record(key=b"one")) + bytes(30)
        for offset, block in enumerate((odd_block, b"no gzip at all", gzip.compress(record(key=b"two")))):
            append = partition.appends.append_copy(
                batch(block, attributes=Codec.GZIP, base_offset=offset, leader_epoch=0), None
            )
            broker.writer.write_queued()
            assert append is not None
            await append.wait()
        assert set((await read_partition(partition)).latest) == {b"one", b"two"}
        assert "cannot read the records of the batch at offset 1, loading the partition without it" in caplog.text
        assert dict(partition.log._state.context.files.unreadable.rows())[("coordinator",)] == 1
