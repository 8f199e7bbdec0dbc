"""Share fetches and acknowledgements through the Kafka listener."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.broker.api.share.members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    Share,
    acquired,
    sharing,
    values,
)
from tests.broker.clients import batch
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

LONG_MS = 10_000
UNKNOWN_ID = b"\7" * 16
LOCK_S = 31.0
GROUP_RESOURCE, TOPIC_RESOURCE, SET = 32, 2, 0


async def configure(share: Share, kind: int, name: str, **configs: str) -> None:
    changes = [{"name": key.replace("_", "."), "config_operation": SET, "value": text} for key, text in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    reply = await share.client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=False)
    assert reply["responses"][0]["error_code"] == ErrorCode.NONE, reply


async def feature(share: Share, level: int) -> None:
    updates = [{"feature": "share.version", "max_version_level": level, "upgrade_type": 3 if level < 2 else 1}]
    reply = await share.client.ask("UpdateFeatures", 2, feature_updates=updates)
    assert reply["error_code"] == ErrorCode.NONE, reply


# -- delivery --


async def test_records_are_acquired_by_one_member_and_acknowledged(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a", b"b", b"c") as share, share.member("one") as one, share.member("two") as two:
        first = await one.fetch(max_records=2, max_wait_ms=LONG_MS)
        assert acquired(first) == [(0, 1, 1)]
        assert values(first) == [b"a", b"b"]
        assert acquired(await two.fetch(max_wait_ms=LONG_MS)) == [(2, 2, 1)]
        assert await one.acknowledge((0, 0, [ACCEPT]), (1, 1, [RELEASE])) is ErrorCode.NONE
        assert acquired(await two.fetch()) == [(1, 1, 2)]
        assert await two.acknowledge((1, 2, [REJECT, ACCEPT])) is ErrorCode.NONE
        assert acquired(await one.fetch()) == []
        await share.produce(b"d")
        assert acquired(await one.fetch()) == [(3, 3, 1)]


async def test_what_was_acknowledged_is_not_delivered_after_a_restart(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a", b"b", b"c", b"d") as share, share.member("one") as one:
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(0, 3, 1)]
        assert await one.acknowledge((1, 1, [ACCEPT]), (2, 2, [RELEASE])) is ErrorCode.NONE
    async with sharing(tmp_path, offset=None) as share, share.member("one") as one:
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(0, 0, 1), (2, 2, 2), (3, 3, 1)]


async def test_acknowledgements_in_a_fetch_are_stored_and_reported(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a", b"b") as share, share.member("one") as one:
        await one.fetch(max_wait_ms=LONG_MS)
        result = await one.fetch((0, 0, [ACCEPT]), (1, 1, [RELEASE]), max_wait_ms=LONG_MS)
        assert (result["acknowledge_error_code"], acquired(result)) == (ErrorCode.NONE, [(1, 1, 2)])
        result = await one.fetch((0, 0, [ACCEPT]), (1, 1, [ACCEPT]))
        assert (result["acknowledge_error_code"], acquired(result)) == (ErrorCode.NONE, [])
        result = await one.fetch((1, 3, [ACCEPT]))
        assert result["acknowledge_error_code"] == ErrorCode.INVALID_RECORD_STATE
        assert result["error_code"] == ErrorCode.NONE


async def test_records_are_sent_from_the_first_to_the_last_batch_that_was_acquired(tmp_path: Path) -> None:
    async with sharing(tmp_path, *map(bytes, [b"a", b"b", b"c", b"d", b"e"])) as share, share.member("one") as one:
        await one.fetch(max_wait_ms=LONG_MS)
        await one.acknowledge((0, 4, [ACCEPT, RELEASE, ACCEPT, RELEASE, ACCEPT]))
        result = await one.fetch()
        assert acquired(result) == [(1, 1, 2), (3, 3, 2)]
        assert values(result) == [b"b", b"c", b"d"]


async def test_a_batch_is_acquired_whole_unless_the_member_asks_for_not_one_record_more(tmp_path: Path) -> None:
    async with sharing(tmp_path) as share, share.member("one") as one, share.member("two") as two:
        await share.produce(b"a", b"b", b"c")
        await share.produce(b"d", b"e", b"f")
        assert acquired(await one.fetch(max_records=1, max_wait_ms=LONG_MS)) == [(0, 2, 1)]
        assert acquired(await two.fetch(max_records=1, share_acquire_mode=1)) == [(3, 3, 1)]
        assert acquired(await two.fetch(max_records=1, share_acquire_mode=1)) == [(4, 4, 1)]


async def test_partitions_are_served_in_turns(tmp_path: Path) -> None:
    async with sharing(tmp_path, partitions=3) as share, share.member("one") as one:
        for partition in range(3):
            await share.produce(b"a", partition=partition)
            await share.produce(b"b", partition=partition)
        await one.send_fetch(partitions=range(3), max_records=0)
        await one.client.reply()
        served = []
        for _ in range(3):
            result = await one.fetch(max_records=1, max_wait_ms=LONG_MS)
            served.append(result["partition_index"])
        assert sorted(served) == [0, 1, 2]


async def test_aborted_records_are_delivered_only_to_groups_that_read_uncommitted(tmp_path: Path) -> None:
    async with (
        sharing(tmp_path) as share,
        share.member("one") as one,
        share.member("two", "committed") as two,
        share.member("three", "switched") as three,
    ):
        for group in ("committed", "switched"):
            await share.initialize(group=group)
            await configure(share, GROUP_RESOURCE, group, share_isolation_level="read_committed")
        reply: dict[str, Any] = {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        while reply["error_code"]:
            await share.client.ask("FindCoordinator", 6, key_type=1, coordinator_keys=["t"])
            reply = await share.client.ask("InitProducerId", 4, transactional_id="t", transaction_timeout_ms=60_000)
        producer = {"producer_id": reply["producer_id"], "producer_epoch": reply["producer_epoch"]}
        topics = [{"name": "jobs", "partitions": [0]}]
        await share.client.ask("AddPartitionsToTxn", 3, v3_and_below_transactional_id="t",
            v3_and_below_producer_id=producer["producer_id"], v3_and_below_producer_epoch=producer["producer_epoch"],
            v3_and_below_topics=topics)  # fmt: skip
        row = (1_700_000_000_000, None, b"aborted", ())
        records = build_batch([row], base_sequence=0, attributes=1 << 4, **producer)
        topic_data = [{"name": "jobs", "partition_data": [{"index": 0, "records": records}]}]
        produced = await share.client.ask(
            "Produce", 9, transactional_id="t", acks=-1, timeout_ms=1000, topic_data=topic_data
        )
        assert produced["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE
        assert values(await one.fetch(max_wait_ms=LONG_MS)) == [b"aborted"]
        assert acquired(await two.fetch()) == []
        assert acquired(await three.fetch()) == []
        await configure(share, GROUP_RESOURCE, "switched", share_isolation_level="read_uncommitted")
        assert values(await three.fetch()) == [b"aborted"]
        await share.client.ask("EndTxn", 3, transactional_id="t", committed=False, **producer)
        await share.produce(b"after")
        result = await two.fetch(max_wait_ms=LONG_MS)
        assert acquired(result)[-1][1] == 2
        assert acquired(result)[0][0] == 1  # the marker; the record before it is archived


# -- waiting --


async def wait_for(member: Member, change: Callable[[], Any], **fields: Any) -> dict[str, Any]:
    """Return the result of a fetch that waits until something is changed."""
    await member.send_fetch(max_wait_ms=600_000, **fields)
    result: dict[str, Any] = {}

    async def take() -> None:
        result.update(member.result(await member.client.reply()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not result
        await change()
    return result


async def test_a_waiting_fetch_is_woken_by_new_records(tmp_path: Path) -> None:
    async with sharing(tmp_path) as share, share.member("one") as one:
        assert acquired(await one.fetch()) == []
        assert acquired(await wait_for(one, lambda: share.produce(b"a"))) == [(0, 0, 1)]


async def test_a_waiting_fetch_is_woken_by_a_release(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one, share.member("two") as two:
        await one.fetch(max_wait_ms=LONG_MS)
        assert acquired(await wait_for(two, lambda: one.acknowledge((0, 0, [RELEASE])))) == [(0, 0, 2)]


@pytest.mark.parametrize("how", ["disconnect", "final fetch", "final acknowledgement"])
async def test_what_a_member_holds_goes_to_others_when_its_session_ends(tmp_path: Path, how: str) -> None:
    async with sharing(tmp_path, b"a", b"b") as share, share.member("one") as one, share.member("two") as two:
        await one.fetch(max_wait_ms=LONG_MS)

        async def end() -> None:
            if how == "disconnect":
                await one.client.stream.aclose()
            elif how == "final fetch":
                await one.fetch((0, 0, [ACCEPT]), epoch=-1)
            else:
                assert await one.acknowledge((0, 0, [ACCEPT]), epoch=-1) is ErrorCode.NONE

        expected = [(0, 1, 2)] if how == "disconnect" else [(1, 1, 2)]
        assert acquired(await wait_for(two, end)) == expected


async def test_a_waiting_fetch_is_woken_by_a_lock_that_runs_out(tmp_path: Path, mock_clock: MockClock) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one, share.member("two") as two:
        await one.fetch(max_wait_ms=LONG_MS)

        async def expire() -> None:
            mock_clock.jump(LOCK_S)

        assert acquired(await wait_for(two, expire)) == [(0, 0, 2)]
        assert await one.acknowledge((0, 0, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE


async def test_a_renewed_lock_does_not_run_out(tmp_path: Path, mock_clock: MockClock) -> None:
    async with sharing(tmp_path, b"a", b"b") as share, share.member("one") as one, share.member("two") as two:
        await one.fetch(max_wait_ms=LONG_MS)
        mock_clock.jump(LOCK_S - 2)
        zero = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0, "is_renew_ack": True}
        assert (await one.fetch((0, 0, [RENEW]), **zero))["acknowledge_error_code"] == ErrorCode.NONE

        async def expire() -> None:
            mock_clock.jump(2)

        assert acquired(await wait_for(two, expire)) == [(1, 1, 2)]
        assert await one.acknowledge((0, 0, [RENEW]), is_renew_ack=True) is ErrorCode.NONE


async def test_one_of_many_waiting_fetches_gets_a_record_and_the_others_go_on_waiting(tmp_path: Path) -> None:
    async with sharing(tmp_path) as share, share.member("one") as one, share.member("two") as two:
        for member in (one, two):
            await member.fetch()
        await one.send_fetch(max_wait_ms=600_000)

        async def produce() -> None:
            await share.produce(b"a", b"b")
            await share.produce(b"c")

        got = await wait_for(two, produce)
        other = one.result(await one.client.reply())
        assert sorted([acquired(got), acquired(other)]) == [[(0, 1, 1)], [(2, 2, 1)]]


async def test_a_fetch_waits_for_as_many_bytes_as_it_wants(tmp_path: Path) -> None:
    async with sharing(tmp_path) as share, share.member("one") as one:
        await one.fetch()
        size = len(batch(b"a"))

        async def produce() -> None:
            await share.produce(b"a")
            await trio.testing.wait_all_tasks_blocked(0.01)
            await share.produce(b"b")

        assert acquired(await wait_for(one, produce, min_bytes=size + 1)) == [(0, 1, 1)]


async def test_a_waiting_fetch_ends_with_its_topic(tmp_path: Path) -> None:
    async with sharing(tmp_path) as share, share.member("one") as one:
        await one.fetch()

        async def delete() -> None:
            topics = [{"name": None, "topic_id": share.topic_id}]
            await share.client.ask("DeleteTopics", 6, topics=topics, timeout_ms=10_000)

        result = await wait_for(one, delete)
        assert ErrorCode(result["error_code"]) in {
            ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }  # fmt: skip
        assert (await one.fetch())["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


# -- where a group begins --


@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", 0), ("latest", 2), ("by_duration:PT1H", 1), (None, 2)], ids=str
)
async def test_a_group_without_an_offset_begins_where_its_setting_says(
    tmp_path: Path, reset: str | None, first: int
) -> None:
    async with sharing(tmp_path, offset=-1) as share, share.member("one") as one:
        if reset is not None:
            await configure(share, GROUP_RESOURCE, one.group, share_auto_offset_reset=reset)
        await share.produce(b"old")
        native = await share.broker.connect()
        now_ms = int(time.time() * 1000)
        await native.produce("jobs", batch(b"new", timestamp=now_ms))
        if first == 2:
            result = await wait_for(one, lambda: share.produce(b"last"))
        else:
            result = await one.fetch(max_wait_ms=LONG_MS)
        assert acquired(result)[0][0] == first


# -- sessions and refusals --


async def test_requests_out_of_order_are_refused(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one:
        assert await one.acknowledge(epoch=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await one.acknowledge(epoch=3) is ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await one.fetch(epoch=3))["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await one.fetch(epoch=-1))["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await one.fetch((0, 0, [ACCEPT]), epoch=0))["error_code"] == ErrorCode.INVALID_REQUEST
        await one.fetch(epoch=0, max_wait_ms=LONG_MS)
        assert (await one.fetch(epoch=2))["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await one.acknowledge(epoch=2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await one.acknowledge((0, 0, [ACCEPT]), epoch=1) is ErrorCode.NONE
        assert (await one.fetch(epoch=2))["error_code"] == ErrorCode.NONE
        assert (await one.fetch(epoch=-1))["error_code"] == ErrorCode.NONE
        assert (await one.fetch(epoch=3))["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND


@pytest.mark.parametrize("member_id", ["", "x" * 37])
async def test_impossible_member_ids_are_refused(tmp_path: Path, member_id: str) -> None:
    async with sharing(tmp_path) as share, share.member(member_id) as one:
        assert (await one.fetch())["error_code"] == ErrorCode.INVALID_REQUEST
        assert await one.acknowledge() is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("ack", "version"),
    [
        ((1, 0, [ACCEPT]), 2), ((0, 1, [ACCEPT, ACCEPT, ACCEPT]), 2), ((0, 0, []), 2), ((0, 0, [5]), 2),
        ((0, 0, [-1]), 2), ((0, 0, [RENEW]), 1), ((0, 0, [RENEW]), 2), ((0, 9, [ACCEPT]), 2),
    ],
)  # fmt: skip
async def test_impossible_acknowledgements_are_refused(tmp_path: Path, ack: Any, version: int) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one:
        await one.fetch(max_wait_ms=LONG_MS)
        assert await one.acknowledge(ack, version=version) is ErrorCode.INVALID_REQUEST
        assert await one.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


async def test_overlapping_batches_of_acknowledgements_are_refused(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a", b"b", b"c") as share, share.member("one") as one:
        await one.fetch(max_wait_ms=LONG_MS)
        assert await one.acknowledge((0, 2, [ACCEPT]), (1, 1, [ACCEPT])) is ErrorCode.INVALID_REQUEST


async def test_unknown_topics_and_groups_are_reported_by_partition(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one, share.member("two", "other") as two:
        assert (await one.fetch(partitions=[5]))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        one.topic_id, one.epoch = UNKNOWN_ID, 0
        assert (await one.fetch())["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await two.fetch(max_wait_ms=LONG_MS))["error_code"] != ErrorCode.NONE  # it has no state
        two.topic_id, two.epoch = UNKNOWN_ID, 0
        await two.fetch()
        assert await two.acknowledge((0, 0, [ACCEPT])) is ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_renewal_fetches_nothing(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one:
        await one.fetch(max_records=0)
        result = await one.fetch(is_renew_ack=True)
        assert result["error_code"] == ErrorCode.INVALID_REQUEST
        assert "maxBytes must be set to 0" in result["error_message"]


async def test_there_are_no_more_sessions_than_allowed(tmp_path: Path) -> None:
    async with (
        sharing(tmp_path, **{"group.share.max.share.sessions": 1}) as share,
        share.member("one") as one,
        share.member("two") as two,
    ):
        await one.fetch()
        assert (await two.fetch())["error_code"] == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        await one.fetch(epoch=-1)
        two.epoch = 0
        assert (await two.fetch())["error_code"] == ErrorCode.NONE


async def test_without_the_feature_members_are_refused(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one:
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(0, 0, 1)]
        await feature(share, 0)
        assert (await one.fetch())["error_code"] == ErrorCode.UNSUPPORTED_VERSION
        assert await one.acknowledge() is ErrorCode.UNSUPPORTED_VERSION
        await feature(share, 2)
        one.epoch = 0
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(0, 0, 1)]  # what was held has been forgotten


# -- dead letters --


async def dead_letters(share: Share, count: int, topic: str = "dlq.jobs") -> list[Any]:
    """Return the records of the dead-letter topic, once there are so many."""
    reply = await share.native.fetch(topic, 0, max_wait_ms=60_000, min_bytes=1)
    records = list(records_in(bytes(reply.records)))
    while len(records) < count:
        await trio.lowlevel.checkpoint()
        records = list(records_in(bytes((await share.native.fetch(topic, 0)).records)))
    return records


async def with_dead_letters(share: Share, *, copies: bool = False, takes: str = "true") -> None:
    await share.native.create("dlq.jobs", errors_deadletterqueue_group_enable=takes)
    own = {"errors_deadletterqueue_topic_name": "dlq.jobs"}
    copying = {"errors_deadletterqueue_copy_record_enable": "true"} if copies else {}
    await configure(share, GROUP_RESOURCE, GROUP, share_delivery_count_limit="2", **own, **copying)


@pytest.mark.parametrize("copies", [False, True])
async def test_records_that_are_given_up_become_dead_letters(tmp_path: Path, copies: bool) -> None:
    async with sharing(tmp_path, b"a", b"b", b"c") as share, share.member("one") as one:
        await with_dead_letters(share, copies=copies)
        await one.fetch(max_wait_ms=LONG_MS)
        await one.acknowledge((0, 2, [REJECT, RELEASE, ACCEPT]))
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(1, 1, 2)]
        await one.acknowledge((1, 1, [RELEASE]))
        first, second = await dead_letters(share, 2)
        usual = {"__dlq.errors.topic": b"jobs", "__dlq.errors.partition": b"0", "__dlq.errors.group": GROUP.encode()}
        assert {name: bytes(value) for name, value in first.headers} == usual | {
            "__dlq.errors.offset": b"0",
            "__dlq.errors.delivery.count": b"1",
            "__dlq.errors.message": b"Offset rejected by client.",
        }
        assert {name: bytes(value) for name, value in second.headers} == usual | {
            "__dlq.errors.offset": b"1",
            "__dlq.errors.delivery.count": b"2",
            "__dlq.errors.message": b"Offset delivery count exceeded the threshold.",
        }
        assert [first.value, second.value] == ([b"a", b"b"] if copies else [None, None])
        await share.produce(b"d")
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(3, 3, 1)]


async def test_a_topic_that_has_not_opted_in_gets_no_dead_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sharing(tmp_path, b"a") as share, share.member("one") as one:
        await with_dead_letters(share, takes="false")
        await one.fetch(max_wait_ms=LONG_MS)
        await one.acknowledge((0, 0, [REJECT]))
        while "archived without dead letters" not in caplog.text:
            await trio.lowlevel.checkpoint()
        await share.produce(b"b")
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(1, 1, 1)]
        assert len((await share.native.fetch("dlq.jobs", 0)).records) == 0


async def test_a_record_of_the_dead_letter_topic_gets_no_dead_letter_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"errors.deadletterqueue.topic.name.prefix": ""}
    async with sharing(tmp_path, b"a", **settings) as share, share.member("one") as one:
        await configure(share, TOPIC_RESOURCE, "jobs", errors_deadletterqueue_group_enable="true")
        await configure(share, GROUP_RESOURCE, GROUP, errors_deadletterqueue_topic_name="jobs")
        await one.fetch(max_wait_ms=LONG_MS)
        await one.acknowledge((0, 0, [REJECT]))
        while "jobs is the topic that the records are from" not in caplog.text:
            await trio.lowlevel.checkpoint()
        await share.produce(b"b")
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(1, 1, 1)]


@pytest.mark.parametrize("name", ["dlq.new", "other"])
async def test_a_dead_letter_topic_is_created_if_the_broker_may_and_its_name_has_the_prefix(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    async with sharing(tmp_path, b"a", **settings) as share, share.member("one") as one:
        await configure(share, GROUP_RESOURCE, GROUP, errors_deadletterqueue_topic_name=name)
        await one.fetch(max_wait_ms=LONG_MS)
        await one.acknowledge((0, 0, [REJECT]))
        if name == "other":
            while "does not begin with" not in caplog.text:
                await trio.lowlevel.checkpoint()
            return
        while name not in {each["name"] for each in (await share.client.ask("Metadata", 12, topics=None))["topics"]}:
            await trio.lowlevel.checkpoint()
        assert len(await dead_letters(share, 1, name)) == 1


async def test_dead_letters_that_were_not_written_before_a_restart_are_written_after_it(tmp_path: Path) -> None:
    async with sharing(tmp_path, b"a", b"b") as share, share.member("one") as one:
        await with_dead_letters(share)
        state = {"first_offset": 0, "last_offset": 0, "delivery_state": 3, "delivery_count": 1}
        written = {
            "partition": 0, "state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": 0,
            "state_batches": [state],
        }  # fmt: skip
        topics = [{"topic_id": share.topic_id, "partitions": [written]}]
        reply = await share.client.ask("WriteShareGroupState", group_id=GROUP, topics=topics)
        assert reply["results"][0]["partitions"][0]["error_code"] == ErrorCode.NONE
        assert acquired(await one.fetch(max_wait_ms=LONG_MS)) == [(1, 1, 1)]
        (letter,) = await dead_letters(share, 1)
        assert "__dlq.errors.message" not in dict(letter.headers)
