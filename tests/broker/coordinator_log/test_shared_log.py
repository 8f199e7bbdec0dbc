"""The log of a coordinator takes its topic's name and layout as a value."""

import gzip
from pathlib import Path

import pytest

from tests.broker.coordinator_log.loads import Loads
from tests.broker.rig import START_MS, rig
from tests.protocol.records.handmade import batch, record
from warmlog.broker.coordinator_log.log import CoordinatorLog
from warmlog.broker.coordinator_log.reading import read_partition
from warmlog.broker.coordinator_log.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.groups.topic import OFFSETS_TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.layout import Codec

SMALL = CoordinatorTopic(
    name="__three_parts", keeps="name", layout=lambda _: TopicLayout(3, {"cleanup.policy": "compact"}, 1)
)


async def test_the_topic_of_groups_is_created_as_kafka_does(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        log = CoordinatorLog(OFFSETS_TOPIC, broker.partitions, broker.writer, lambda: START_MS)
        assert log.partition_count == 0
        assert await log.ensure() is ErrorCode.NONE
        assert log.partition_count == 50
        partition = broker.partitions.get("__consumer_offsets", 0)
        assert partition is not None
        assert partition.log.config.segment_bytes == 100 << 20


async def test_what_is_appended_to_a_topic_of_another_layout_is_read_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        log = CoordinatorLog(SMALL, broker.partitions, broker.writer, lambda: START_MS)
        log.bind(Loads())
        await log.ensure()
        assert log.partition_count == 3
        errors: list[ErrorCode] = []
        names = [f"name-{number}" for number in range(5)]
        for name in names:
            log.append(name, [(name.encode(), b"value")], lambda error, _: errors.append(error))
        for partition in broker.partitions:
            await partition.appends.settled()
        assert errors == [ErrorCode.NONE] * 5
        found: dict[bytes, int] = {}
        for index in range(log.partition_count):
            partition = broker.partitions.get(SMALL.name, index)
            assert partition is not None
            replay = await read_partition(partition)
            found |= dict.fromkeys(replay.latest, index)
        assert found == {name.encode(): log.partition_of(name) for name in names}


async def test_a_partition_is_loaded_without_a_batch_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as broker:
        log = CoordinatorLog(SMALL, broker.partitions, broker.writer, lambda: START_MS)
        await log.ensure()
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
