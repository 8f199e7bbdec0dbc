"""A mirror of a broker that serves: topics, records and offsets arrive, and topics become writable when promoted."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.groups.serving import Serving, serving
from warmlog.broker.mirror.options import MirrorOptions
from warmlog.broker.mirror.service import MirrorService
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetCommitRequest, OffsetToCommit
from warmlog.protocol.request import AlterTopicsRequest, DeleteTopicsRequest, TopicAlteration

GROUP = "readers"


class Mirroring:
    """A source with its client, and a mirror of it."""

    def __init__(self, source: Running, client: RawClient, here: Serving, mirror: MirrorService) -> None:
        self.source = source
        self.client = client
        self.here = here
        self.mirror = mirror

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.here.partitions.require(topic, index)

    def data(self, topic: str, index: int = 0) -> bytes:
        return log_bytes(Path(self.partition(topic, index).log.directory))


def log_bytes(directory: Path) -> bytes:
    return b"".join([path.read_bytes() for path in sorted(directory.glob("*.log"))])


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # of several tasks, none of which tells
            await trio.sleep(0.005)


def mirror_of(source: Running, here: Serving, **options: Any) -> MirrorService:
    host, port = source.addresses.kafka.rsplit(":", 1)
    chosen = {"topics": lambda name: name != "orders", "groups": lambda _: True, "interval_s": 0.01, **options}
    return MirrorService(MirrorOptions(bootstrap=[(host, int(port))], **chosen), here.partitions, here.service)


@asynccontextmanager
async def mirroring(directory: Path, **options: Any) -> AsyncIterator[Mirroring]:
    async with running(directory / "source") as source, serving(directory / "here") as here:
        client = await source.connect()
        async with trio.open_nursery() as nursery:
            mirror = mirror_of(source, here, **options)
            nursery.start_soon(mirror.run)
            yield Mirroring(source, client, here, mirror)
            nursery.cancel_scope.cancel()
        source.stop.set()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("source", "here"):
        (tmp_path / name).mkdir()
    return tmp_path


async def test_topics_arrive_with_their_records_byte_for_byte(directory: Path) -> None:
    async with mirroring(directory) as made:
        await made.client.create("words", 2, segment_bytes="1000000")
        for number in range(20):
            await made.client.produce("words", batch(b"x" * number), partition=number % 2)
        await until(lambda: made.here.partitions.get("words", 1) is not None)
        await until(lambda: [made.partition("words", index).log.offsets.high_watermark for index in (0, 1)] == [10, 10])
        for index in (0, 1):
            assert made.data("words", index) == log_bytes(directory / "source" / f"words-{index}")
        topic = made.here.partitions.topic("words")
        assert topic is not None
        assert topic.configs == {"segment.bytes": "1000000"}
        assert made.mirror.problem is None
        found = [made.mirror.copies.describe(made.partition("words", index)) for index in (0, 1)]
        assert [(one.end, one.source_end, one.lag_records, one.problem) for one in found] == [(10, 10, 0, None)] * 2


async def test_changes_at_the_source_follow(directory: Path) -> None:
    async with mirroring(directory, deletes=True) as made:
        await made.client.create("words", 1)
        await until(lambda: made.here.partitions.get("words", 0) is not None)
        await made.client.ask(
            AlterTopicsRequest(topics=(TopicAlteration(name="words", partitions=2, configs={"retention.ms": "7"}),))
        )
        await until(lambda: made.here.partitions.get("words", 1) is not None)
        await until(lambda: made.partition("words").log.config.retention_ms == 7)
        words = made.here.partitions.topic("words")
        assert words is not None
        await made.client.ask(DeleteTopicsRequest(topics=("words",)))
        await until(lambda: made.here.partitions.topic("words") is None)
        await until(lambda: not made.mirror.copies.follows(words))


async def test_a_topic_that_exists_here_is_left_alone_and_the_others_are_mirrored(directory: Path) -> None:
    async with mirroring(directory, topics=lambda _: True) as made:
        await made.client.create("orders", 1)  # is here, too
        await made.client.create("words", 1)
        await made.client.produce("orders", batch(b"a"))
        await made.client.produce("words", batch(b"a"))
        await until(lambda: made.here.partitions.get("words", 0) is not None)
        await until(lambda: made.partition("words").log.offsets.high_watermark == 1)
        assert list(made.mirror.refused) == ["orders"]
        assert made.partition("orders").log.offsets.log_end_offset == 0


async def test_a_group_goes_on_here_after_a_promotion(directory: Path) -> None:
    async with mirroring(directory) as made:
        await made.client.create("words", 1)
        await made.client.produce("words", batch(b"a", b"b", b"c"))
        commit = OffsetCommitRequest(group=GROUP, partitions=(OffsetToCommit(topic="words", partition=0, offset=2),))
        while (await made.client.ask(commit)).partitions[0].error is not ErrorCode.NONE:
            pass  # the coordinator's topic is being created

        def offset() -> int:
            committed = made.here.committed(GROUP, "words")
            return -1 if committed is None else committed.offset

        await until(lambda: offset() == 2)  # never past the end of the copy
        await until(lambda: made.partition("words").log.offsets.high_watermark == 3)
        topic = await made.mirror.promote("words")
        assert topic.mirror is not None
        assert topic.mirror.promoted_at == (3,)
        own = made.partition("words").append(batch(b"own"))
        made.here.writer.write_queued()
        await own.wait()
        assert own.error is None
        assert made.partition("words").log.offsets.high_watermark == 4
        await made.client.produce("words", batch(b"not copied"))
        await made.client.create("later", 1)
        await until(lambda: made.here.partitions.get("later", 0) is not None)
        assert made.partition("words").log.offsets.log_end_offset == 4


async def test_a_source_that_comes_later_is_found(directory: Path) -> None:
    async with running(directory / "source") as first:
        address = first.addresses.kafka
        first.stop.set()
    host, port = address.rsplit(":", 1)
    async with serving(directory / "here") as here, trio.open_nursery() as nursery:
        options = MirrorOptions(bootstrap=[(host, int(port))], topics=lambda _: True)
        mirror = MirrorService(options, here.partitions, here.service)
        nursery.start_soon(mirror.run)
        await until(lambda: mirror.problem is not None and "cannot reach the source" in mirror.problem)
        nursery.cancel_scope.cancel()


async def test_a_broker_mirrors_what_its_settings_say(directory: Path) -> None:
    async with running(directory / "source") as source:
        client = await source.connect()
        for name in ("words", "others"):
            await client.create(name, 1)
        await client.produce("words", batch(b"a", b"b"))
        settings = {
            "warmlog.mirror.from": source.addresses.kafka,
            "warmlog.mirror.topics": "w.*",
            "warmlog.mirror.interval.ms": 10,
        }
        async with running(directory / "here", settings) as here:
            reader = await here.connect()
            with trio.fail_after(30):
                while (found := await reader.fetch("words", 0)).error or not found.records:
                    pass
            assert found.high_watermark == 2
            assert (await reader.produce("words", batch(b"c"))).error is ErrorCode.POLICY_VIOLATION
            assert (await reader.fetch("others", 0)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            here.stop.set()
        async with running(directory / "here", settings) as here:  # and goes on after a restart
            reader = await here.connect()
            await client.produce("words", batch(b"c"))
            with trio.fail_after(30):
                while not (await reader.fetch("words", 2)).records:
                    pass
            here.stop.set()
        source.stop.set()
