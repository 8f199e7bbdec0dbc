"""Conversions of groups that cannot be stored, on a mock clock."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.broker.groups.modern.driver import REBALANCE_MS
from tests.broker.groups.requests import protocols
from tests.broker.groups.serving import Serving, serving
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    JoinGroupResponse,
    LeavingMember,
    MemberAssignment,
    PartitionEntry,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.consumer_protocol import Assignment, encode_assignment
from warmlog.protocol.kafka.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

ORDERS = encode_assignment(Assignment(partitions=(PartitionEntry(topic="orders", partition=0),)))


async def beat(broker: Serving, member: str, epoch: int) -> ConsumerGroupHeartbeatResponse:
    joins = {"topics": ("orders",), "owned": (), "rebalance_timeout_ms": REBALANCE_MS} if not epoch else {}
    request = ConsumerGroupHeartbeatRequest(group="g", member_id=member, member_epoch=epoch, **joins)
    return await broker.service.consumers.heartbeat(
        request, 1, client_id="c", host="/127.0.0.1", holder="127.0.0.1", sees=None
    )


async def sync(broker: Serving, joined: JoinGroupResponse, assignment: bytes = b"") -> SyncGroupResponse:
    given = (MemberAssignment(member_id=joined.member_id, assignment=assignment),) if assignment else ()
    request = SyncGroupRequest(group="g", generation=joined.generation, member_id=joined.member_id, assignments=given)
    return await broker.service.coordinator.sync(request)


async def classic(broker: Serving) -> JoinGroupResponse:
    """Begin a classic group with one member, which has everything."""
    joined = await broker.join(protocols=protocols("range"))
    assert (await sync(broker, joined, ORDERS)).error is ErrorCode.NONE
    return joined


def kind(broker: Serving) -> type[ClassicGroup | ConsumerGroup]:
    group = broker.service.registry.get("g")
    assert group is not None
    return type(group)


async def test_an_upgrade_that_cannot_be_stored_is_undone(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as broker:
        joined = await classic(broker)
        broker.disk.is_full = True
        assert (await beat(broker, "b", 0)).error is not ErrorCode.NONE
        assert kind(broker) is ClassicGroup
        assert broker.heartbeat(joined) is ErrorCode.NONE
        assert (await sync(broker, joined)).assignment == ORDERS


async def test_a_group_whose_upgrade_failed_is_upgraded_later(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as broker:
        joined = await classic(broker)
        broker.disk.is_full = True
        await beat(broker, "b", 0)
        broker.disk.is_full = False
        assert (await beat(broker, "b", 0)).error is ErrorCode.NONE
        assert kind(broker) is ConsumerGroup
        assert broker.heartbeat(joined) is ErrorCode.REBALANCE_IN_PROGRESS
    async with serving(tmp_path) as broker:
        assert kind(broker) is ConsumerGroup


async def test_a_group_whose_downgrade_failed_is_downgraded_later(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as broker:
        first = await classic(broker)
        await beat(broker, "b", 0)
        broker.disk.is_full = True
        await beat(broker, "b", -1)
        broker.disk.is_full = False
        assert (await beat(broker, "b", -1)).error is ErrorCode.NONE
        assert kind(broker) is ClassicGroup
        assert broker.heartbeat(first) is ErrorCode.ILLEGAL_GENERATION
    async with serving(tmp_path) as broker:
        assert kind(broker) is ClassicGroup


async def test_a_downgrade_that_cannot_be_stored_is_undone(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as broker:
        first = await classic(broker)
        epoch = (await beat(broker, "b", 0)).member_epoch
        broker.disk.is_full = True
        assert (await beat(broker, "b", -1)).error is not ErrorCode.NONE
        assert kind(broker) is ConsumerGroup
        assert broker.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
        assert (await beat(broker, "b", epoch)).error is ErrorCode.NONE


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_group_of_one_kind_is_loaded_after_each_conversion(
    tmp_path: Path, mock_clock: MockClock, *, leaves: bool
) -> None:
    async with serving(tmp_path) as broker:
        first = await classic(broker)
        await beat(broker, "b", 0)
        if leaves:
            await beat(broker, "b", -1)
    async with serving(tmp_path) as broker:
        assert kind(broker) is (ClassicGroup if leaves else ConsumerGroup)
        group = broker.service.registry.get("g")
        assert group is not None
        assert group.replaced == []
        assert broker.heartbeat(first) in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}


async def test_the_last_member_of_the_consumer_protocol_is_removed_by_an_administrator(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as broker:
        first = await classic(broker)
        await beat(broker, "b", 0)
        _, errors = await broker.service.coordinator.leave("g", [LeavingMember(member_id="b")])
        assert errors == [ErrorCode.NONE]
        assert kind(broker) is ClassicGroup
        assert (await broker.join(member_id=first.member_id, protocols=protocols("range"))).error is ErrorCode.NONE
