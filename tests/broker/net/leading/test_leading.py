"""Produce with acks=all, and fetches by followers, over sockets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, batch, produce_request
from tests.broker.kafka_client import KafkaClient
from tests.broker.net.leading.serving import EPOCH, TOPIC, Serving, serving
from tests.broker.replication.leading.test_progress import state_of
from warmlog.broker.cluster.values import Member
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.batch import headers
from warmlog.protocol.request import ProduceRequest

LONG_MS = 60_000
VERSIONS = [15, 17]  # of fetches that name the broker's epoch


async def send_produce(client: KafkaClient, *values: bytes, acks: int = -1, timeout_ms: int = LONG_MS) -> None:
    part = {"index": 0, "records": batch(*values)}
    data = ({"name": TOPIC, "partition_data": (part,)},)
    await client.send("Produce", 8, acks=acks, timeout_ms=timeout_ms, topic_data=data)


async def produced(client: KafkaClient) -> dict[str, Any]:
    outcome: dict[str, Any] = (await client.reply())["responses"][0]["partition_responses"][0]
    return outcome


async def ask_offset(
    client: KafkaClient, timestamp: int, *, version: int = 7, replica_id: int = -1, isolation: int = 0
) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = ({"name": TOPIC, "partitions": (asked,)},)
    reply = await client.ask(
        "ListOffsets", version, replica_id=replica_id, isolation_level=isolation, topics=topics, timeout_ms=0
    )
    found: dict[str, Any] = reply["topics"][0]["partitions"][0]
    return found


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.lowlevel.checkpoint()


async def recreate(one: Serving, name: str) -> bytes:
    """Replace a topic by a new one of the same name; return the new id."""
    await one.partitions.delete(name)
    await one.partitions.create(name, 1, {})
    return one.id_of(name)


async def append(one: Serving, *values: bytes) -> None:
    """Append with acks=1."""
    one.partition.append(batch(*values))
    one.partition.appends.write_queued()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_produce_is_answered_when_all_in_sync_replicas_have_it(tmp_path: Path, version: int) -> None:
    async with (
        serving(tmp_path) as one,
        one.client() as producer,
        one.follower(1, version) as first,
        one.follower(2, version) as second,
    ):
        for follower in (first, second):
            assert (await follower.fetch(0))["high_watermark"] == 0
        await send_produce(producer, b"a", b"b")
        for follower in (first, second):
            found = await follower.fetch(0, wait_ms=LONG_MS)
            assert [header.next_offset for _, header in headers(memoryview(found["records"]))] == [2]
            assert found["high_watermark"] == 0
        await first.fetch(2)
        assert one.log.offsets.high_watermark == 0
        assert (await second.fetch(2))["high_watermark"] == 2, "the fetch itself counts"
        outcome = await produced(producer)
        assert (outcome["error_code"], outcome["base_offset"]) == (0, 0)


async def test_followers_of_earlier_versions_name_no_epoch_and_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0,)) as one, one.follower(1, 14) as follower:
        assert (await follower.fetch(0))["error_code"] == ErrorCode.STALE_BROKER_EPOCH
        assert one.leader.progress.followers[1].log_end == -1


async def test_a_waiting_follower_is_woken_by_an_append(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.follower(1) as follower:
        await follower.send(0, wait_ms=LONG_MS)
        await until(lambda: one.leader.progress.followers[1].log_end == 0)
        await append(one, b"a")
        found = await follower.reply()
        assert found is not None
        assert len(found["records"]) == len(batch(b"a"))


async def test_a_consumer_reads_up_to_the_high_watermark_and_is_woken_when_it_moves(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0, 1)) as one, one.client() as client, one.follower(1) as follower:
        await append(one, b"a")
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        topics = ({"topic": TOPIC, "partitions": (partition,)},)
        options = {"replica_id": -1, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
        await client.send("Fetch", 11, max_wait_ms=LONG_MS, topics=topics, session_epoch=-1, **options)
        await until(lambda: not one.partition.waiters.is_empty)
        await follower.fetch(1)
        (topic,) = (await client.reply())["responses"]
        assert topic["partitions"][0]["high_watermark"] == 1
        assert len(topic["partitions"][0]["records"]) == len(batch(b"a"))


async def test_a_produce_that_replicas_do_not_have_in_time_is_answered_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.client() as producer:
        await send_produce(producer, b"a", timeout_ms=1)
        assert (await produced(producer))["error_code"] == ErrorCode.REQUEST_TIMED_OUT
        assert one.log.offsets.log_end_offset == 1


async def test_a_produce_with_acks_1_is_answered_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.client() as producer:
        await send_produce(producer, b"a", acks=1)
        assert (await produced(producer))["error_code"] == 0


async def test_too_small_an_isr_refuses_acks_all_only(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0,), min_isr=2) as one, one.client() as producer:
        await send_produce(producer, b"a")
        assert (await produced(producer))["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS
        assert one.log.offsets.log_end_offset == 0
        await send_produce(producer, b"a", acks=1)
        assert (await produced(producer))["error_code"] == 0


async def test_an_isr_that_becomes_too_small_is_told_after_the_time(tmp_path: Path) -> None:
    async with serving(tmp_path, min_isr=2) as one, one.client() as producer:
        await send_produce(producer, b"a", timeout_ms=1000)
        await until(lambda: one.log.offsets.log_end_offset == 1)
        one.leader.update(state_of(0, revision=2), one.min_isr)
        assert (await produced(producer))["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_a_leader_that_resigns_answers_what_waits(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.client() as producer, one.follower(1) as follower:
        await send_produce(producer, b"a")
        await until(lambda: one.log.offsets.log_end_offset == 1)
        await follower.send(1, wait_ms=LONG_MS)
        await until(lambda: one.leader.progress.followers[1].log_end == 1)
        one.leader.resign()
        assert (await produced(producer))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        found = await follower.reply()
        assert found is not None
        assert found["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_native_producers_wait_as_well(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0, 1)) as one, one.follower(1) as follower:
        host, port = one.addresses["native"].split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            native = RawClient(stream)
            await native.hello()
            await native.send(_native_produce(native))
            await until(lambda: one.log.offsets.log_end_offset == 1)
            await follower.fetch(1)
            assert (await native.reply()).partitions[0].error is ErrorCode.NONE


def _native_produce(_: RawClient) -> ProduceRequest:
    return produce_request(TOPIC, batch(b"a"), acks=-1)


async def test_a_session_reports_progress_only_where_the_follower_asks_from_elsewhere(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0, 1)) as one, one.follower(1) as follower:
        assert await follower.fetch(0) is not None
        assert follower.session_id > 0
        assert await follower.fetch(None) is None
        await append(one, b"a")
        found = await follower.fetch(None)
        assert found is not None
        assert len(found["records"]) > 0
        found = await follower.fetch(1)
        assert found is not None
        assert found["high_watermark"] == one.log.offsets.high_watermark == 1
        assert await follower.fetch(None) is None


async def test_a_session_tells_a_follower_the_new_high_watermark_at_its_next_fetch(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.follower(1) as first, one.follower(2) as second:
        await append(one, b"a")
        await first.fetch(1)
        await second.fetch(1)
        found = await first.fetch(None)
        assert found is not None
        assert (found["high_watermark"], len(found["records"])) == (1, 0)


async def test_a_broker_that_has_registered_again_reports_its_epoch_by_the_same_session(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0,)) as one, one.follower(1) as follower:
        one.brokers.epochs[1] = 12
        follower.replica_epoch = 12
        await follower.fetch(0)
        one.brokers.epochs[1] = 13
        follower.replica_epoch = 13
        await follower.fetch(None)
        assert one.leader.progress.followers[1].member == Member(1, 13)


@pytest.mark.parametrize("epoch", [-1, 9, 11, 2**62])
async def test_another_epoch_than_that_of_the_registration_is_refused(tmp_path: Path, epoch: int) -> None:
    """Otherwise anybody could advance the high watermark, and keep the follower from doing it."""
    async with serving(tmp_path, isr=(0, 1)) as one, one.follower(1) as forger, one.follower(1) as follower:
        await append(one, b"a")
        forger.replica_epoch = epoch
        found = await forger.fetch(1)
        assert found is not None
        assert found["error_code"] == ErrorCode.STALE_BROKER_EPOCH
        assert one.leader.progress.followers[1].member == Member(1, -1)
        assert one.log.offsets.high_watermark == 0
        await follower.fetch(1)
        assert one.log.offsets.high_watermark == 1


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH, ErrorCode.NONE),
    ],
)
async def test_a_follower_of_another_epoch_is_refused(tmp_path: Path, epoch: int, error: ErrorCode) -> None:
    async with serving(tmp_path) as one, one.follower(1) as follower:
        follower.leader_epoch = epoch
        assert (await follower.fetch(0))["error_code"] == error
        assert (one.leader.progress.followers[1].log_end == 0) is (error is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("epoch", "error"), [(EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
async def test_a_broker_without_a_replica_is_refused(tmp_path: Path, epoch: int, error: ErrorCode) -> None:
    async with serving(tmp_path) as one, one.follower(9) as follower:
        follower.leader_epoch = epoch
        assert (await follower.fetch(0))["error_code"] == error


async def test_a_follower_that_has_diverged_is_told_where_and_does_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.follower(1) as follower:
        await append(one, b"a")
        one.leader.resign()
        one.log.epochs.assign(EPOCH + 2, one.log.offsets.log_end_offset)
        await append(one, b"b")
        one.lead(state_of(0, 1, revision=2, leader_epoch=EPOCH + 3))
        follower.leader_epoch = EPOCH + 3
        found = await follower.fetch(4, last_epoch=EPOCH + 1)
        assert found["diverging_epoch"] == {"epoch": EPOCH, "end_offset": 1}
        assert one.leader.progress.followers[1].log_end == -1


@pytest.mark.parametrize("offset", [0, 9])
async def test_an_offset_outside_of_the_log_does_not_count(tmp_path: Path, offset: int) -> None:
    async with serving(tmp_path, isr=(0,)) as one, one.follower(1) as follower:
        await append(one, b"a", b"b", b"c")
        one.partition.advance_start(2)
        assert (await follower.fetch(offset))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert one.leader.progress.followers[1].log_end == -1


async def test_a_follower_learns_of_the_log_start_and_tells_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0,)) as one, one.follower(1) as follower:
        await append(one, b"a", b"b", b"c")
        one.partition.advance_start(2)
        assert (await follower.fetch(2, log_start=1))["log_start_offset"] == 2
        assert one.leader.progress.followers[1].log_start == 1


async def test_a_follower_that_has_caught_up_is_proposed(tmp_path: Path) -> None:
    async with serving(tmp_path, isr=(0,)) as one, one.follower(1) as follower:
        await append(one, b"a")
        await follower.fetch(0)
        assert one.proposals == []
        await follower.fetch(1)
        assert [proposal.added for proposal in one.proposals] == [(Member(1, 10),)]


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (7, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
async def test_the_latest_offset_is_not_available_before_the_start_of_the_epoch(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    async with serving(tmp_path, isr=(0, 1)) as one, one.client() as client, one.follower(1) as follower:
        await append(one, b"a")
        one.leader.resign()
        one.lead(state_of(0, 1, revision=2, leader_epoch=EPOCH + 1))
        assert (await ask_offset(client, -1, version=version))["error_code"] == error
        assert (await ask_offset(client, 2**60, version=version))["error_code"] == error
        assert (await ask_offset(client, -2))["offset"] == 0, "the earliest one is"
        follower.leader_epoch = EPOCH + 1
        await follower.fetch(1)
        assert (await ask_offset(client, -1, version=version))["offset"] == 1


async def test_a_replica_asks_for_the_log_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.client() as client:
        await append(one, b"a")
        assert (await ask_offset(client, -1))["offset"] == 0
        assert (await ask_offset(client, -1, replica_id=1))["offset"] == 1


async def test_a_request_that_waits_for_a_produce_does_not_delete_a_new_topic_by_the_id_of_a_former_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as one, one.client() as client, one.follower(1) as first, one.follower(2) as second:
        await one.partitions.create("other", 1, {})
        former = one.id_of("other")
        await send_produce(client, b"a")
        await client.send("DeleteTopics", topics=({"name": None, "topic_id": former},), timeout_ms=LONG_MS)
        await until(lambda: one.log.offsets.log_end_offset == 1)
        new = await recreate(one, "other")
        for follower in (first, second):
            await follower.fetch(1)
        assert (await produced(client))["error_code"] == ErrorCode.NONE
        deleted = (await client.reply())["responses"][0]
        assert (deleted["error_code"], deleted["topic_id"]) == (ErrorCode.UNKNOWN_TOPIC_ID, former)
        assert one.id_of("other") == new


async def test_a_fetch_that_waits_for_a_produce_reads_no_new_topic_by_the_id_of_a_former_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as one, one.client() as client, one.follower(1) as first, one.follower(2) as second:
        await one.partitions.create("other", 1, {})
        requested = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        await send_produce(client, b"a")
        topics = ({"topic_id": one.id_of("other"), "partitions": (requested,)},)
        await client.send("Fetch", 17, max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=topics)
        await until(lambda: one.log.offsets.log_end_offset == 1)
        await recreate(one, "other")
        for follower in (first, second):
            await follower.fetch(1)
        await produced(client)
        partition = (await client.reply())["responses"][0]["partitions"][0]
        assert partition["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
