"""The log of a coordinator takes its topic's name and layout as a value."""

from pathlib import Path

from broker.coordinator_log.log import CoordinatorLog, CoordinatorTopic, TopicLayout
from broker.groups.topic import OFFSETS_TOPIC
from protocol.errors import ErrorCode
from tests.broker.rig import START_MS, Rig, rig

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
            replay = await log.read(index)
            assert replay is not None
            found |= dict.fromkeys(replay.latest, index)
        assert found == {name.encode(): log.partition_of(name) for name in names}


async def _unread_log(broker: Rig) -> CoordinatorLog:
    """Return a log whose partitions have records that are not read yet."""
    log = CoordinatorLog(SMALL, broker.partitions, broker.writer, lambda: START_MS)
    await log.ensure()
    for number in range(9):
        log.append(f"name-{number}", [(b"key", b"value")], lambda *_: None)
    unread = CoordinatorLog(SMALL, broker.partitions, broker.writer, lambda: START_MS)
    assert unread.unread == [0, 1, 2]
    return unread


async def test_a_partition_that_goes_offline_while_it_is_read_is_not_served(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        log = await _unread_log(broker)
        name = next(name for name in map(str, range(99)) if log.partition_of(name) == 1)
        log.lose(1)
        log.finish_reading(1, good=True)
        assert log.state_of(name) is ErrorCode.NOT_COORDINATOR


async def test_a_topic_that_is_deleted_while_it_is_read_can_be_created_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        log = await _unread_log(broker)
        await broker.partitions.delete(SMALL.name)
        log.forget()
        log.finish_reading(1, good=False)
        await log.ensure()
        assert [log.state_of(name) for name in map(str, range(9))] == [ErrorCode.NONE] * 9
