"""What groups hold in memory: counted exactly through joins, assignments, commits and restarts; limited per address."""

import logging
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.broker.groups.serving import Serving, serving
from warmlog.broker.groups.commits import Committer
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.offsets import ENTRY_BYTES
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupProtocol, MemberAssignment, SyncGroupRequest

LIMIT = 64_000
SHARE = LIMIT // 4
SETTINGS = {"warmlog_groups_memory_max_bytes": LIMIT}
STRANGER = Committer(generation=-1, member_id="", instance_id=None, address="192.0.2.1")
OTHER = Committer(generation=-1, member_id="", instance_id=None, address="192.0.2.2")


def declared(size: int) -> tuple[GroupProtocol, ...]:
    return (GroupProtocol(name="range", metadata=b"m" * size),)


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
            assert await broker.service.commits.delete(f"g{number}") is ErrorCode.NONE
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
        assert broker.leave(member) == [ErrorCode.NONE]
        for name in ("g", "h"):
            assert await broker.service.commits.delete(name) is ErrorCode.NONE
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


async def test_groups_that_were_loaded_count_for_the_address_that_commits(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = 0
    async with serving(tmp_path) as broker:
        for number in range(20):
            assert await broker.commit(1, f"g{number}", OTHER) is ErrorCode.NONE
    async with serving(tmp_path, **SETTINGS) as broker:
        text = "x" * 1_000
        codes = [await broker.commit(1, f"g{number}", STRANGER, metadata=text) for number in range(20)]
        assert ErrorCode.INVALID_COMMIT_OFFSET_SIZE in codes
        assert await broker.commit(1, "new", OTHER) is ErrorCode.NONE
