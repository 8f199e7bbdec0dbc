"""What groups hold in memory: counted exactly through joins, assignments, commits and restarts; limited per holder."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.broker.clients import running
from tests.broker.groups.serving import Serving, serving
from tests.broker.kafka_client import KafkaClient
from tests.broker.net.sasl import FAST, create_users, log_in
from warmlog.broker.groups.commits import Committer
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.offsets import ENTRY_BYTES
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupProtocol, MemberAssignment, SyncGroupRequest

LIMIT = 64_000
SHARE = LIMIT // 4
SETTINGS = {"warmlog_groups_memory_max_bytes": LIMIT}
STRANGER = Committer(generation=-1, member_id="", instance_id=None, holder="192.0.2.1")
BOB = Committer(generation=-1, member_id="", instance_id=None, holder="User:bob")
OTHER = Committer(generation=-1, member_id="", instance_id=None, holder="192.0.2.2")


def declared(size: int) -> tuple[GroupProtocol, ...]:
    return (GroupProtocol(name="range", metadata=b"m" * size),)


def holders(broker: Serving) -> dict[str, int]:
    return dict(broker.service.registry.holdings._by_holder)


def held(broker: Serving) -> int:
    return broker.service.registry.holdings.total


async def test_what_could_not_be_stored_is_refused_at_once(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path) as broker:
        joined = await broker.join(protocols=declared(1 << 21))
        assert joined.error is ErrorCode.MESSAGE_TOO_LARGE
        member = await broker.join()
        assignments = (MemberAssignment(member_id=member.member_id, assignment=b"a" * (1 << 21)),)
        request = SyncGroupRequest(
            group="g", generation=member.generation, member_id=member.member_id, assignments=assignments
        )
        assert (await broker.service.coordinator.sync(request)).error is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_an_address_creates_groups_up_to_its_share_and_others_still_can(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path, **SETTINGS) as broker:
        count = SHARE // (GROUP_BYTES + ENTRY_BYTES)
        for number in range(count):
            assert await broker.commit(1, f"g{number}", STRANGER) is ErrorCode.NONE
        with caplog.at_level(logging.WARNING):
            assert await broker.commit(1, "more", STRANGER) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert "of groups for 192.0.2.1, which holds 15,000" in caplog.text
        assert broker.service.registry.holdings.refused == 1
        assert await broker.commit(2, "g0", STRANGER) is ErrorCode.NONE  # in place of the one before
        assert await broker.commit(1, "more", OTHER) is ErrorCode.NONE
        assert (await broker.join("others")).error is ErrorCode.NONE
        for number in range(count):
            assert await broker.service.deletions.delete(f"g{number}") is ErrorCode.NONE
        assert await broker.commit(1, "again", STRANGER) is ErrorCode.NONE


async def test_long_texts_count(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path, **SETTINGS) as broker:
        codes = [await broker.commit(1, "g", STRANGER, metadata="x" * 4096) for _ in range(20)]
        assert codes == [ErrorCode.NONE] * 20  # one text, replaced each time
        await broker.partitions.create("words", 9)
        codes = [
            await broker.commit(1, "g", STRANGER, topic="words", partition=n, metadata="x" * 4096) for n in range(9)
        ]
        assert ErrorCode.INVALID_COMMIT_OFFSET_SIZE in codes
        assert (await broker.join("h", protocols=declared(SHARE))).error is ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_nothing_is_counted_when_all_is_gone(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path) as broker:
        assert held(broker) == 0
        member = await broker.member(protocols=declared(5_000))
        await broker.commit(1, "h", STRANGER, metadata="text")
        assert held(broker) > 5_000
        assert await broker.leave(member) == [ErrorCode.NONE]
        for name in ("g", "h"):
            assert await broker.service.deletions.delete(name) is ErrorCode.NONE
        assert held(broker) == 0
        await broker.commit(1, "h", STRANGER, metadata="text")
        before = held(broker)
    async with serving(tmp_path) as broker:
        assert held(broker) == before
        assert await broker.commit(1, "h", STRANGER, metadata="text") is ErrorCode.NONE
        assert held(broker) == before


async def test_a_stranger_in_the_group_of_others_uses_its_own_share(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path, **SETTINGS) as broker:
        assert await broker.commit(1, "g", OTHER) is ErrorCode.NONE
        assert (await broker.join("g", protocols=declared(SHARE - 2_000))).error is ErrorCode.NONE
        assert (await broker.join("h", protocols=declared(2_000))).error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await broker.commit(1, "new", OTHER) is ErrorCode.NONE


async def test_groups_that_were_loaded_count_for_the_holder_that_commits(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path) as broker:
        for number in range(20):
            assert await broker.commit(1, f"g{number}", OTHER) is ErrorCode.NONE
    async with serving(tmp_path, **SETTINGS) as broker:
        text = "x" * 1_000
        codes = [await broker.commit(1, f"g{number}", STRANGER, metadata=text) for number in range(20)]
        assert ErrorCode.INVALID_COMMIT_OFFSET_SIZE in codes
        assert await broker.commit(1, "new", OTHER) is ErrorCode.NONE


async def test_a_restored_member_counts_for_its_principal_when_it_joins_again(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path) as broker:
        member = await broker.member(holder="User:alice", protocols=declared(5_000))
        assert set(holders(broker)) == {"User:alice"}
    async with serving(tmp_path) as broker:
        assert set(holders(broker)) == {"127.0.0.1", ""}
        await broker.join(member_id=member.member_id, holder="User:alice", protocols=declared(5_001))
        found = holders(broker)
        assert found["User:alice"] > 5_000
        assert set(found) == {"User:alice", ""}


async def test_who_joins_with_the_id_of_another_needs_room_for_all_of_the_member(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path, **SETTINGS) as broker:
        member = await broker.member(holder="User:alice", protocols=declared(SHARE - 3_000))
        for number in range(10):
            assert await broker.commit(1, f"h{number}", BOB) is ErrorCode.NONE
        taken = await broker.join(member_id=member.member_id, holder="User:bob", protocols=declared(SHARE - 3_000))
        assert taken.error is ErrorCode.GROUP_MAX_SIZE_REACHED


async def committed(client: KafkaClient, number: int) -> int:
    """Commit an offset of a group of its own; return the error code."""
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    reply = await client.ask(
        "OffsetCommit", 8, group_id=f"g-{id(client)}-{number}", topics=[{"name": "t", "partitions": [partition]}]
    )
    return int(reply["topics"][0]["partitions"][0]["error_code"])


async def test_users_behind_one_address_have_a_share_each_and_a_user_has_one_share_everywhere(tmp_path: Path) -> None:
    settings = {**FAST, "warmlog.groups.memory.max.bytes": LIMIT, "offsets.topic.num.partitions": 1}
    async with running(tmp_path, settings) as broker, AsyncExitStack() as stack:

        async def connected(listener: str, host: str, user: str | None = None) -> KafkaClient:
            port = broker.addresses.named[listener].rsplit(":", 1)[1]
            stream = await trio.open_tcp_stream("127.0.0.1", int(port), local_address=host)
            client = KafkaClient(await stack.enter_async_context(stream))
            if user is not None:
                assert (await log_in(client, user))["error_code"] == 0
            return client

        await create_users(broker, "alice", "bob")
        alice, bob = await connected("sasl", "127.0.0.1", "alice"), await connected("sasl", "127.0.0.1", "bob")
        elsewhere = await connected("sasl", "127.0.0.2", "alice")
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        assert (await alice.ask("CreateTopics", topics=[topic], timeout_ms=30_000))["topics"][0]["error_code"] == 0
        await alice.ask("FindCoordinator", 3, key="g", key_type=0)
        count = SHARE // (GROUP_BYTES + ENTRY_BYTES)
        assert [await committed(alice, number) for number in range(count)] == [ErrorCode.NONE] * count
        for client, expected in (
            (alice, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
            (elsewhere, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
            (bob, ErrorCode.NONE),
            (await connected("open", "127.0.0.1"), ErrorCode.NONE),
        ):
            assert await committed(client, count) == expected
        stranger, other = await connected("open", "127.0.0.1"), await connected("open", "127.0.0.2")
        codes = [await committed(stranger, number) for number in range(count)]
        assert codes[-1] == ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "those without a principal have the address's share"
        assert await committed(other, 0) == ErrorCode.NONE
        joined = await alice.ask(
            "JoinGroup", 5, group_id="j", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=[{"name": "range", "metadata": b"m" * 2_000}],
        )  # fmt: skip
        assert joined["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
