"""Topics and directories through a broker's life: created, changed, deleted, found again, copied from Kafka."""

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.broker.clients import RawClient, batch, running
from tests.broker.rig import rig
from tests.broker.stored_topics import stored_topics
from tests.golden.followers import FIXTURES
from warmlog.broker.cluster import admin
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions import availability
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.availability import PARTITIONS_PER_TURN
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.batch import headers
from warmlog.protocol.request import (
    AlterTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    MetadataRequest,
    TopicAlteration,
)


async def alter(client: RawClient, **change: object) -> ErrorCode:
    request = AlterTopicsRequest(topics=(TopicAlteration(name="orders", **change),))  # type: ignore[arg-type]
    result = (await client.ask(request)).topics[0]
    assert (result.error is ErrorCode.NONE) == (result.message is None)
    return ErrorCode(result.error)


async def settings_of(client: RawClient) -> dict[str, tuple[str, str]]:
    topic = (await client.ask(DescribeTopicsRequest(topics=("orders",)))).topics[0]
    return {config.name: (config.value, config.source) for config in topic.configs}


async def test_topics_their_settings_and_their_data_are_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders", partitions=3, segment_bytes="2000")
        before = (await client.ask(MetadataRequest())).topics
        for i in range(30):
            await client.produce("orders", batch(b"%d" % i), partition=i % 3)
    async with running(tmp_path) as broker:
        client = await broker.connect()
        after = (await client.ask(MetadataRequest())).topics
        assert [(t.name, t.topic_id, len(t.partitions)) for t in after] == [
            (t.name, t.topic_id, len(t.partitions)) for t in before
        ]
        assert (await settings_of(client))["segment.bytes"] == ("2000", "topic")
        for partition in range(3):
            fetched = await client.fetch("orders", 0, partition)
            assert [header.base_offset for _, header in headers(fetched.records)] == list(range(10))
        assert (await client.produce("orders", batch(b"next"))).base_offset == 10


async def test_settings_take_effect_at_once_and_can_be_reset(tmp_path: Path) -> None:
    async with running(tmp_path, {"message.max.bytes": 5000}) as broker:
        client = await broker.connect()
        await client.create("orders")
        assert (await settings_of(client))["max.message.bytes"] == ("5000", "broker")
        assert (await settings_of(client))["segment.bytes"] == (str(1 << 30), "default")
        assert await alter(client, configs={"max.message.bytes": "500"}) is ErrorCode.NONE
        assert (await client.produce("orders", batch(b"x" * 600))).error is ErrorCode.MESSAGE_TOO_LARGE
        assert await alter(client, configs={"max.message.bytes": None}) is ErrorCode.NONE
        assert (await client.produce("orders", batch(b"x" * 600))).error is ErrorCode.NONE


async def test_partitions_can_be_added_and_not_taken_away(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders", partitions=2)
        assert await alter(client, partitions=4) is ErrorCode.NONE
        assert (await client.produce("orders", batch(b"x"), partition=3)).base_offset == 0
        assert await alter(client, partitions=3) is ErrorCode.INVALID_PARTITIONS
        assert await alter(client, partitions=4) is ErrorCode.INVALID_PARTITIONS


class Steps(trio.abc.Instrument):
    """Numbers the steps of all tasks."""

    def __init__(self) -> None:
        self.number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.number += 1


async def test_a_topic_of_many_partitions_is_put_into_service_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, made = Steps(), Counter[int]()
    count = 5 * PARTITIONS_PER_TURN

    def counted(log: PartitionLog, writer: Writer) -> Partition:
        if log.topic == "wide":  # a broker of another test may run in a thread
            made[steps.number] += 1
        return Partition(log, writer)

    async with rig(tmp_path) as rigged:
        monkeypatch.setattr(availability, "Partition", counted)
        trio.lowlevel.add_instrument(steps)
        await rigged.partitions.create("wide", count)
        trio.lowlevel.remove_instrument(steps)
        assert made.total() == len(rigged.partitions) == count
        assert max(made.values()) <= PARTITIONS_PER_TURN


async def test_a_change_that_is_refused_in_part_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        bad = {"segment.bytes": "5000", "no.such": "1"}
        assert await alter(client, configs=bad) is ErrorCode.INVALID_CONFIG
        assert await alter(client, configs={"segment.bytes": "5000"}, partitions=1) is ErrorCode.INVALID_PARTITIONS
        assert (await settings_of(client))["segment.bytes"] == (str(1 << 30), "default")


async def test_a_deleted_topic_is_gone_and_its_name_begins_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        await client.produce("orders", batch(b"old"))
        assert (await client.ask(DeleteTopicsRequest(topics=("orders", "none")))).topics[1].error
        assert (await client.ask(MetadataRequest())).topics == ()
        await client.create("orders")
        assert (await client.produce("orders", batch(b"new"))).base_offset == 0
        assert len(list(tmp_path.glob("orders-0.*-delete"))) == 1
    async with running(tmp_path) as broker:  # what waited for its delay is removed at the next start
        assert list(tmp_path.glob("*-delete")) == []
        client = await broker.connect()
        fetched = await client.fetch("orders", 0)
        assert b"new" in bytes(fetched.records)


async def test_a_topic_that_the_store_cannot_forget_is_gone_all_the_same_and_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the deletion was refused when all but its last step was done, and the files stayed."""

    async def failing(_: object, names: Sequence[str], __: object) -> dict[str, Exception]:
        return dict.fromkeys(names, MetadataError("database or disk is full"))

    async with running(tmp_path, {"log.segment.delete.delay.ms": 0}) as broker:
        client = await broker.connect()
        await client.create("orders")
        with monkeypatch.context() as patched:
            patched.setattr(admin, "finish_local_deletion", failing)
            (deleted,) = (await client.ask(DeleteTopicsRequest(topics=("orders",)))).topics
            assert deleted.error is ErrorCode.NONE
        while list(tmp_path.glob("orders-0*")):
            assert (await client.ask(MetadataRequest())).topics == ()
        await client.create("orders", partitions=2)
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert len((await client.ask(MetadataRequest())).topics[0].partitions) == 2


async def test_a_checkpoint_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "recovery-point-offset-checkpoint.tmp").mkdir()  # in the way
    async with running(tmp_path, {"log.flush.offset.checkpoint.interval.ms": 5}) as broker:
        client = await broker.connect()
        await client.create("orders")
        while "checkpoint failed" not in caplog.text:
            await client.ask(MetadataRequest())
    assert "Traceback" not in caplog.text


async def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders", partitions=2)
    with stored_topics(tmp_path) as stored:
        stored.begin_deletion("orders")
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.ask(MetadataRequest())).topics == ()
        assert list(tmp_path.glob("orders-*")) == []


async def test_a_creation_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path, node_id=1), stored_topics(tmp_path) as stored:
        stored.create(Topic(name="orders", partitions=2))
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.produce("orders", batch(b"x"), partition=1)).base_offset == 0


async def test_a_directory_that_kafka_wrote_is_served_in_place_of_a_topics(
    tmp_path: Path, kafka_fixtures: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("plain")
    source = next(path for path in kafka_fixtures.rglob("plain-0") if path.is_dir())
    shutil.rmtree(tmp_path / "plain-0")
    shutil.copytree(source, tmp_path / "plain-0")
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path) as broker:
            client = await broker.connect()
            fetched = await client.fetch("plain", 0)
            assert fetched.high_watermark > 0
            assert next(headers(fetched.records))[1].base_offset == 0
            assert (await client.produce("plain", batch(b"x"))).base_offset == fetched.high_watermark
    assert "replaced foreign topic id" in caplog.text


async def test_what_is_no_partition_is_named_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"jpg")
    (tmp_path / "stray-0").mkdir()
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path):
            pass
    assert "holiday.jpg" in caplog.text
    assert "data of topic stray (partition directories: 1) is not served" in caplog.text
    assert (tmp_path / "holiday.jpg").exists()


async def test_partitions_without_a_topic_keep_their_checkpoints_until_the_topic_is_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Path(shutil.copytree(FIXTURES / "4.0.0" / "leader", tmp_path / "data"))
    (source / "log-start-offset-checkpoint").write_text("0\n1\ncopied 0 500\n")
    with caplog.at_level(logging.WARNING):
        async with running(source) as broker:
            await (await broker.connect()).create("other")
    assert "data of topic copied (partition directories: 1) is not served" in caplog.text
    assert "copied 0 500" in (source / "log-start-offset-checkpoint").read_text().splitlines()
    assert "copied 0 750" in (source / "recovery-point-offset-checkpoint").read_text().splitlines()
    async with running(source) as broker:
        client = await broker.connect()
        await client.create("copied", retention_ms="-1")
        assert (await client.fetch("copied", 500)).log_start_offset == 500
    assert "copied 0 500" in (source / "log-start-offset-checkpoint").read_text().splitlines()


async def test_a_topic_with_data_is_not_created_by_its_first_use(tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / "4.0.0" / "leader", tmp_path / "data"))
    async with running(source) as broker:
        client = await broker.connect()
        assert (await client.produce("copied", batch(b"x"))).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await client.produce("new", batch(b"x"))).error == ErrorCode.NONE
        await client.create("copied", retention_ms="-1")
        assert (await client.produce("copied", batch(b"x"))).base_offset == 750
        await client.ask(DeleteTopicsRequest(topics=("copied",)))
        assert (await client.produce("copied", batch(b"x"))).base_offset == 0, "its data is gone"


async def test_partitions_past_the_end_of_a_topic_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as broker:
        await (await broker.connect()).create("orders")
    (tmp_path / "orders-3").mkdir()
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path):
            pass
    assert "topic orders has no partition 3; its data here is not served" in caplog.text


def test_a_directory_of_a_kafka_node_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    for name in ("__cluster_metadata-0", "orders-0", "orders-1", "words-0", "gone-0.0123-delete"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataDirectoryError, match=r"orders \(partitions: 2\), words \(partitions: 1\)\. Serve another"):
        DataDirectories.open([tmp_path], node_id=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "__cluster_metadata-0", "orders-0", "orders-1", "words-0", "gone-0.0123-delete"
    }  # fmt: skip


def test_of_a_kafka_node_with_many_topics_the_first_are_named(tmp_path: Path) -> None:
    for name in ("__cluster_metadata-0", *[f"t{number}-0" for number in range(9)]):
        (tmp_path / name).mkdir()
    with pytest.raises(DataDirectoryError, match=r"t4 \(partitions: 1\), 4 more topics\. Serve"):
        DataDirectories.open([tmp_path], node_id=1)


async def test_a_served_directory_to_which_a_kafka_nodes_log_was_copied_is_served(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "__cluster_metadata-0").mkdir()
    async with running(tmp_path):
        pass


async def test_a_partition_that_cannot_be_opened_is_offline_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        for topic in ("first", "second"):
            await client.create(topic)
            await client.produce(topic, batch(b"x"))
    shutil.rmtree(tmp_path / "second-0")
    (tmp_path / "second-0").write_text("no directory")
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.produce("first", batch(b"x"))).base_offset == 1
        assert (await client.produce("second", batch(b"x"))).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert "second 0 1\n" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


async def test_a_checkpoint_that_cannot_be_written_at_the_stop_leaves_no_marker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        await client.produce("orders", batch(b"x"))
        (tmp_path / "recovery-point-offset-checkpoint.tmp").mkdir()  # where it would be written
    assert "cannot record a clean shutdown" in caplog.text
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


async def test_a_topic_that_takes_the_name_of_a_deleted_one_begins_at_its_own_start(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        for _ in range(3):
            await client.produce("orders", batch(b"x"))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 2\n")
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.fetch("orders", 2)).log_start_offset == 2
        await client.ask(DeleteTopicsRequest(topics=("orders",)))
        await client.create("orders")
        assert (await client.produce("orders", batch(b"x"))).base_offset == 0


async def test_partitions_that_cannot_be_made_leave_the_topic_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        (tmp_path / "orders-1").write_text("no directory")
        assert await alter(client, partitions=2) is ErrorCode.KAFKA_STORAGE_ERROR
        (tmp_path / "orders-1").unlink()
        assert (await client.produce("orders", batch(b"x"), partition=1)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(client, partitions=2) is ErrorCode.NONE
        assert (await client.produce("orders", batch(b"x"), partition=1)).base_offset == 0
