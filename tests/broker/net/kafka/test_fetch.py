"""Fetch on the Kafka listener: sessions as Kafka's clients use them, epochs, topic ids, replicas."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.errors import ErrorCode
from protocol.kafka.codec.writer import topic_id_bytes
from protocol.request import DeleteTopicsRequest, MetadataRequest
from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client

FOREVER_MS = 2**31 - 1
ALL = range(7, 19)
ONE = batch(b"x" * 100)


@pytest.fixture
async def native(broker: Running) -> RawClient:
    return await broker.connect()


@pytest.fixture
async def kafka(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


class Fetcher:
    """Fetches as a client does that keeps to one version and, in a session, counts its epochs."""

    def __init__(self, client: KafkaClient, version: int, names: dict[str, bytes]) -> None:
        self.client = client
        self.version = version
        self.names = names  # of topics, to their ids
        self.session_id = self.epoch = 0

    @classmethod
    async def of(cls, client: KafkaClient, native: RawClient, version: int) -> "Fetcher":
        topics = (await native.ask(MetadataRequest())).topics
        return cls(client, version, {topic.name: topic_id_bytes(topic.topic_id) for topic in topics})

    def topic(self, name: str) -> dict[str, Any]:
        return {"topic": name, "topic_id": self.names[name]}

    def wanted(
        self, offsets: dict[tuple[str, int], int], leader_epoch: int = -1, last_epoch: int = -1
    ) -> tuple[dict[str, Any], ...]:
        return tuple(
            {
                **self.topic(name),
                "partitions": (
                    {
                        "partition": index,
                        "fetch_offset": offset,
                        "partition_max_bytes": 1 << 20,
                        "current_leader_epoch": leader_epoch,
                        "last_fetched_epoch": last_epoch,
                        "log_start_offset": -1,
                    },
                ),
            }
            for (name, index), offset in offsets.items()
        )

    async def send(
        self, offsets: dict[tuple[str, int], int], forget: tuple[tuple[str, int], ...] = (), **options: Any
    ) -> None:
        epochs = options.pop("leader_epoch", -1), options.pop("last_epoch", -1)
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
        await self.client.send(
            "Fetch",
            self.version,
            **{**limits, "session_id": self.session_id, "session_epoch": self.epoch, **options},
            topics=self.wanted(offsets, *epochs),
            forgotten_topics_data=tuple({**self.topic(name), "partitions": (index,)} for name, index in forget),
        )

    async def reply(self) -> dict[tuple[str, int], dict[str, Any]]:
        """What was told of which partition."""
        reply = await self.raw_reply()
        assert reply["error_code"] == ErrorCode.NONE
        return self.told(reply)

    async def raw_reply(self) -> dict[str, Any]:
        reply = await self.client.reply()
        self.session_id = reply["session_id"]
        self.epoch += 1
        return reply

    def told(self, reply: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
        names = {topic_id: name for name, topic_id in self.names.items()}
        return {
            (topic["topic"] or names.get(topic["topic_id"], ""), one["partition_index"]): one
            for topic in reply["responses"]
            for one in topic["partitions"]
        }

    async def fetch(self, offsets: dict[tuple[str, int], int], *forget: tuple[str, int], **options: Any) -> Any:
        await self.send(offsets, forget, **options)
        return await self.reply()

    async def refused(self, **options: Any) -> ErrorCode:
        """The error that a whole fetch of nothing gets."""
        await self.send({}, **options)
        reply = await self.client.reply()
        assert reply["responses"] == ()
        return ErrorCode(reply["error_code"])


def offsets_of(name: str, count: int, offset: int = 0) -> dict[tuple[str, int], int]:
    return {(name, index): offset for index in range(count)}


async def served(broker: Running) -> None:
    """Some round trips: whatever was to happen in the broker's loop has happened."""
    client = await broker.connect()
    for _ in range(20):
        await client.ask(MetadataRequest())


# -- sessions --


@pytest.mark.parametrize("version", ALL)
async def test_a_session_tells_what_has_changed_and_nothing_else(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders", partitions=3)
    fetcher = await Fetcher.of(kafka, native, version)
    first = await fetcher.fetch(offsets_of("orders", 3))
    assert list(first) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert {one["high_watermark"] for one in first.values()} == {0}
    assert fetcher.session_id > 0
    assert await fetcher.fetch({}) == {}
    await native.produce("orders", batch(b"a"), 1)
    told = await fetcher.fetch({})
    assert list(told) == [("orders", 1)]
    assert (told["orders", 1]["high_watermark"], told["orders", 1]["last_stable_offset"]) == (1, 1)
    assert len(told["orders", 1]["records"]) == len(batch(b"a"))
    assert list(await fetcher.fetch({})) == [("orders", 1)]  # the client has not said that it has it
    assert await fetcher.fetch({("orders", 1): 1}) == {}


async def test_a_fetch_in_a_session_waits_and_is_woken_by_one_of_its_partitions(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders", partitions=3)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 3))
    for turn in range(3):
        await fetcher.send({("orders", 2): turn}, max_wait_ms=FOREVER_MS)
        await served(broker)
        await native.produce("orders", batch(b"a"), 2)
        assert list(await fetcher.reply()) == [("orders", 2)]


async def test_a_fetch_in_a_session_waits_for_as_many_bytes_as_it_asks_for(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders", partitions=3)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 3))
    await fetcher.send({}, max_wait_ms=FOREVER_MS, min_bytes=3 * len(ONE))
    for index in range(3):
        await served(broker)
        await native.produce("orders", ONE, index)
    assert sorted(await fetcher.reply()) == [("orders", 0), ("orders", 1), ("orders", 2)]


async def test_what_came_too_late_or_too_little_is_told_when_the_time_is_over(
    native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders", partitions=2)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 2))
    await native.produce("orders", batch(b"a"), 1)
    assert list(await fetcher.fetch({}, max_wait_ms=20, min_bytes=1_000_000)) == [("orders", 1)]


async def test_partitions_are_added_changed_and_forgotten(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders", partitions=4)
    for index in range(4):
        await native.produce("orders", batch(b"a"), index)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 2, 1))
    assert list(await fetcher.fetch({("orders", 2): 1})) == [("orders", 2)]  # a new one is told of in any case
    assert list(await fetcher.fetch({("orders", 0): 0})) == [("orders", 0)]
    assert list(await fetcher.fetch({("orders", 3): 0}, ("orders", 0))) == [("orders", 3)]
    await native.produce("orders", batch(b"a"), 0)
    assert list(await fetcher.fetch({("orders", 3): 1})) == []
    assert list(await fetcher.fetch({}, ("orders", 9))) == []  # one that was never there


async def test_a_session_that_forgets_everything_ends(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    known = fetcher.session_id
    assert await fetcher.fetch({}, ("orders", 0)) == {}
    assert fetcher.session_id == 0
    assert await fetcher.refused(session_id=known, session_epoch=2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_whoever_had_data_goes_to_the_end_so_that_nobody_starves(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders", partitions=3)
    for index in range(3):
        for _ in range(3):
            await native.produce("orders", ONE, index)
    fetcher = await Fetcher.of(kafka, native, 18)
    read, wanted, turns = [0, 0, 0], offsets_of("orders", 3), []
    for _ in range(6):
        told = await fetcher.fetch(wanted, max_bytes=len(ONE))
        (index,) = [index for (_, index), one in told.items() if one["records"]]
        turns.append(index)
        read[index] += 1
        wanted = {("orders", index): read[index]}
    assert turns == [0, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("epoch", [0, -1])
async def test_a_full_fetch_ends_the_session_it_names(native: RawClient, kafka: KafkaClient, epoch: int) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    known = fetcher.session_id
    await fetcher.fetch({("orders", 0): 0}, session_epoch=epoch)
    assert (fetcher.session_id == 0) == (epoch == -1)
    assert fetcher.session_id != known
    assert await fetcher.refused(session_id=known, session_epoch=1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_sessions_and_epochs_that_are_not_are_refused(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 12)
    await fetcher.fetch({("orders", 0): 0})
    assert await fetcher.refused(session_id=0, session_epoch=7) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await fetcher.refused(session_id=-3, session_epoch=1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (2, 5, -7, FOREVER_MS):
        assert await fetcher.refused(session_epoch=epoch) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    fetcher.version = 13
    assert await fetcher.refused() is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    fetcher.version = 12
    assert await fetcher.fetch({}) == {}  # it is still there, and at that epoch
    assert await fetcher.refused(session_epoch=1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_fetch_whose_client_has_gone_on_ends(broker: Running, native: RawClient, kafka: KafkaClient) -> None:
    """A client that lost its connection goes on with the next epoch on another one; the session is the same."""
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await served(broker)
    async with kafka_client(broker.addresses.kafka) as other:
        again = Fetcher(other, 18, fetcher.names)
        again.session_id, again.epoch = fetcher.session_id, 2
        assert await again.fetch({}) == {}
        given_up = await kafka.reply()
        assert given_up["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        await native.produce("orders", batch(b"a"))
        assert list(await again.fetch({})) == [("orders", 0)]


async def test_a_session_outlives_a_connection_that_drops_while_its_fetch_waits(
    broker: Running, native: RawClient
) -> None:
    await native.create("orders")
    async with kafka_client(broker.addresses.kafka) as first:
        fetcher = await Fetcher.of(first, native, 18)
        await fetcher.fetch({("orders", 0): 0})
        await fetcher.send({}, max_wait_ms=FOREVER_MS)
        await served(broker)
    await served(broker)
    async with kafka_client(broker.addresses.kafka) as second:
        fetcher.client, fetcher.epoch = second, 2
        await fetcher.send({}, max_wait_ms=FOREVER_MS)
        await served(broker)
        await native.produce("orders", batch(b"a"))
        assert list(await fetcher.reply()) == [("orders", 0)]


async def test_a_waiting_fetch_holds_up_nobody_but_its_own_connection(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await kafka.send("ApiVersions", 0)
    async with kafka_client(broker.addresses.kafka) as other:
        assert (await other.ask("ApiVersions", 0))["error_code"] == ErrorCode.NONE
    await native.produce("orders", batch(b"a"))
    assert list(await fetcher.reply()) == [("orders", 0)]
    assert (await kafka.reply())["error_code"] == ErrorCode.NONE


async def test_without_slots_every_fetch_is_served_without_a_session(tmp_path: Path) -> None:
    async with running(tmp_path, {"max.incremental.fetch.session.cache.slots": 0}) as broker:
        native = await broker.connect()
        await native.create("orders")
        async with kafka_client(broker.addresses.kafka) as kafka:
            fetcher = await Fetcher.of(kafka, native, 18)
            assert list(await fetcher.fetch({("orders", 0): 0})) == [("orders", 0)]
            assert fetcher.session_id == 0


# -- topics that come and go --


@pytest.mark.parametrize("version", [12, 13, 18])
async def test_a_deleted_topic_is_told_of_once_a_fetch_and_others_are_waited_for(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders")
    await native.create("others")
    fetcher = await Fetcher.of(kafka, native, version)
    await fetcher.fetch({("orders", 0): 0, ("others", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    await native.produce("others", batch(b"a"))
    told = await fetcher.reply()
    assert told["orders", 0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told["others", 0]["error_code"] == ErrorCode.NONE
    told = await fetcher.fetch({("others", 0): 1})
    assert list(told) == [("orders", 0)]
    assert await fetcher.fetch({}, ("orders", 0)) == {}


async def test_a_session_of_nothing_but_deleted_topics_is_answered_at_once(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await served(broker)
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    assert list(await fetcher.reply()) == [("orders", 0)]
    assert list(await fetcher.fetch({}, max_wait_ms=FOREVER_MS)) == [("orders", 0)]


@pytest.mark.parametrize("version", [12, 18])
async def test_a_topic_of_the_same_name_is_another_one_to_who_asks_by_id(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    assert list(await fetcher.fetch({("orders", 0): 1})) == [("orders", 0)]
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    await native.create("orders")
    told = await fetcher.fetch({}, max_wait_ms=FOREVER_MS)
    wanted = ErrorCode.OFFSET_OUT_OF_RANGE if version < 13 else ErrorCode.INCONSISTENT_TOPIC_ID
    assert told["orders", 0]["error_code"] == wanted
    told = await fetcher.fetch({("orders", 0): 0})
    assert told["orders", 0]["error_code"] == (ErrorCode.NONE if version < 13 else wanted)


async def test_an_unknown_topic_id_is_told_and_found_when_it_gets_a_name(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("others")
    fetcher = await Fetcher.of(kafka, native, 18)
    fetcher.names["nobody"] = b"n" * 16
    told = await fetcher.fetch({("nobody", 0): 0, ("others", 0): 0})
    assert told["nobody", 0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert told["others", 0]["error_code"] == ErrorCode.NONE
    assert list(await fetcher.fetch({})) == [("nobody", 0)]


async def test_a_partition_that_is_made_later_is_found(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("others")
    fetcher = await Fetcher.of(kafka, native, 12)
    fetcher.names["orders"] = bytes(16)
    told = await fetcher.fetch({("orders", 0): 0, ("others", 0): 0})
    assert told["orders", 0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await native.create("orders")
    told = await fetcher.fetch({})
    assert told["orders", 0]["error_code"] == ErrorCode.NONE
    assert await fetcher.fetch({}) == {}
    await native.produce("orders", batch(b"a"))
    assert list(await fetcher.fetch({})) == [("orders", 0)]


async def test_a_log_start_that_moves_is_told_when_the_time_is_over(native: RawClient, kafka: KafkaClient) -> None:
    """No log tells its waiters of it: a session looks for it at each end of a wait."""
    await native.create("orders", partitions=2)
    await native.produce("orders", batch(b"a", b"b"), 1)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0, ("orders", 1): 2})
    assert await fetcher.fetch({}) == {}
    moved = {"name": "orders", "partitions": ({"partition_index": 1, "offset": 1},)}
    await kafka.ask("DeleteRecords", topics=(moved,), timeout_ms=1000)
    told = await fetcher.fetch({}, max_wait_ms=20)
    assert list(told) == [("orders", 1)]
    assert told["orders", 1]["log_start_offset"] == 1
    assert await fetcher.fetch({}) == {}


# -- epochs, replicas, isolation --


@pytest.mark.parametrize("version", range(9, 19))
@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ErrorCode.NONE), (0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_newer_leader_epoch_is_unknown(
    native: RawClient, kafka: KafkaClient, version: int, epoch: int, error: ErrorCode
) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, version)
    told = await fetcher.fetch({("orders", 0): 0}, leader_epoch=epoch)
    assert told["orders", 0]["error_code"] == error


@pytest.mark.parametrize("version", [4, 8, 9, 12, 14])
async def test_a_replica_that_nobody_made_is_refused(native: RawClient, kafka: KafkaClient, version: int) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = await fetcher.fetch({("orders", 0): 0}, replica_id=7, max_wait_ms=FOREVER_MS)
    assert (told["orders", 0]["error_code"], told["orders", 0]["records"]) == (error, b"")
    assert fetcher.session_id == 0
    if version >= 9:
        fetcher.epoch = 0
        told = await fetcher.fetch({("orders", 0): 0}, replica_id=7, leader_epoch=0)
        assert told["orders", 0]["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(4, 19))
async def test_who_reads_committed_data_is_told_of_no_aborted_transactions(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    told = (await fetcher.fetch({("orders", 0): 0}, isolation_level=1))["orders", 0]
    assert told["aborted_transactions"] == ()
    assert (told["high_watermark"], told["last_stable_offset"]) == (1, 1)
    assert told["preferred_read_replica"] == -1
    fetcher.epoch = fetcher.session_id = 0
    told = (await fetcher.fetch({("orders", 0): 0}))["orders", 0]
    assert told["aborted_transactions"] is None
    told = (await fetcher.fetch({("orders", 1): 0}))["orders", 1]
    assert (told["error_code"], told["aborted_transactions"]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())


@pytest.mark.parametrize("version", [4, 18])
async def test_a_negative_size_is_answered_without_records(native: RawClient, kafka: KafkaClient, version: int) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    told = (await fetcher.fetch({("orders", 0): 0}, max_bytes=-1))["orders", 0]
    assert (told["error_code"], told["records"]) == (ErrorCode.INVALID_FETCH_SIZE, b"")


@pytest.mark.parametrize("version", [4, 9, 10, 18])
async def test_a_topic_of_zstd_alone_is_not_for_clients_that_do_not_know_it(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders", compression_type="zstd")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    told = (await fetcher.fetch({("orders", 0): 0}))["orders", 0]
    assert told["error_code"] == (ErrorCode.NONE if version >= 10 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert bool(told["records"]) == (version >= 10)


async def test_an_offset_out_of_range_is_told_at_once(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders", partitions=2)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 2))
    with trio.fail_after(30):
        told = await fetcher.fetch({("orders", 1): 5}, max_wait_ms=FOREVER_MS)
    assert told["orders", 1]["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await fetcher.fetch({("orders", 1): 0}) != {}  # it is told that all is well
    assert await fetcher.fetch({}) == {}
