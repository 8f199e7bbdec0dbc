"""What a broker does about the deaths of others: it notices them, and lets clients wait until it knows."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from tests.broker.cluster.nodes import LEASE_S, Member, created, listening, three_nodes
from warmlog.broker.cluster.failover import CONNECT_WAIT_S, SILENCE_S, SILENT_WAIT_S, STORE_WAIT_S
from warmlog.broker.cluster.node import RENEW_S

Serve = Callable[[trio.StapledStream], Awaitable[None]]
STALL_S = 1.0  # which a broker may stand still for
UNNOTICED_S = 0.8  # of that


async def waited_s(member: Member) -> float:
    """How long a request for leaders waits now."""
    begun = trio.current_time()
    await member.node.failover.settled()
    return trio.current_time() - begun


async def test_requests_do_not_wait_while_nothing_happens(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        assert await waited_s(nodes[1]) == 0


async def test_requests_wait_until_a_dead_broker_leads_nothing(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3], [2, 3, 1]])
        nodes[0].kill()
        nodes[1].node.failover.suspect(1)
        assert await waited_s(nodes[1]) < CONNECT_WAIT_S
        assert 1 not in nodes[1].node.image.brokers
        await nodes[1].until(lambda: nodes[1].state().leader_id == 2)


async def test_requests_do_not_wait_for_a_broker_that_lives(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        listener = await listening(nodes)
        nodes[1].node.failover.suspect(1)
        assert await waited_s(nodes[1]) <= CONNECT_WAIT_S
        assert nodes[0].node.is_registered
        await listener.aclose()


async def test_a_port_that_closes_after_the_connections_is_noticed(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        listener = await listening(nodes)
        nodes[0].kill()
        nodes[1].node.failover.suspect(1)
        stream = await listener.accept()
        await trio.aclose_forcefully(stream)
        await trio.aclose_forcefully(listener)
        assert await waited_s(nodes[1]) <= CONNECT_WAIT_S
        assert 1 not in nodes[1].node.image.brokers


async def test_requests_wait_for_the_store_but_not_for_long(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        nodes[1].outage.lag_s = 10.0
        nodes[0].kill()
        nodes[1].node.failover.suspect(1)
        assert STORE_WAIT_S <= await waited_s(nodes[1]) < SILENT_WAIT_S
        assert nodes[1].state().leader_id == 1
        assert await waited_s(nodes[1]) == 0


async def test_requests_do_not_wait_while_the_store_is_away(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        for each in nodes[1:]:
            each.outage.is_away = True
        nodes[0].kill()
        nodes[1].node.failover.suspect(1)
        assert await waited_s(nodes[1]) == 0


async def test_requests_do_not_wait_for_a_machine_that_is_gone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_: object) -> None:
        await trio.sleep_forever()

    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        monkeypatch.setattr(trio, "open_tcp_stream", connect)
        nodes[1].node.failover.suspect(1)
        assert await waited_s(nodes[1]) == pytest.approx(CONNECT_WAIT_S)
        assert await waited_s(nodes[1]) == 0
        assert 1 in nodes[1].node.image.brokers


# -- brokers that stand still --


def serve_with(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, serve: Serve) -> None:
    """Let every connection be accepted, and served like this."""

    async def connect(*_: object, **__: object) -> trio.StapledStream:
        near, far = memory_stream_pair()
        nursery.start_soon(serve, far)
        await trio.lowlevel.checkpoint()
        return near

    monkeypatch.setattr(trio, "open_tcp_stream", connect)


def answer_after(delay_s: float) -> Serve:
    async def serve(stream: trio.StapledStream) -> None:
        await trio.sleep(delay_s)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"\0")

    return serve


async def gone_after_s(nodes: list[Member]) -> float:
    """How long it takes until the registration of the first node ends; infinite if it does not."""
    begun = trio.current_time()
    with trio.move_on_after(2 * LEASE_S):
        await nodes[1].until(lambda: 1 not in nodes[1].node.image.brokers)
        return trio.current_time() - begun
    return math.inf


async def test_a_broker_that_neither_answers_nor_renews_its_lease_is_replaced(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        await created(nodes, [[1, 2, 3]])
        serve_with(monkeypatch, nursery, answer_after(math.inf))
        nodes[0].outage.is_away = True
        nodes[1].node.failover.suspect(1, is_silent=True)
        assert SILENCE_S - RENEW_S <= await gone_after_s(nodes) < SILENCE_S + RENEW_S
        await nodes[1].until(lambda: nodes[1].state().leader_id == 2)
        nursery.cancel_scope.cancel()


async def test_requests_wait_until_a_broker_that_stands_still_leads_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        serve_with(monkeypatch, nursery, answer_after(math.inf))
        nodes[0].outage.is_away = True
        await trio.sleep(STALL_S)
        nodes[1].node.failover.suspect(1, is_silent=True)
        assert 0 < await waited_s(nodes[1]) <= SILENT_WAIT_S
        assert 1 not in nodes[1].node.image.brokers
        nursery.cancel_scope.cancel()


async def test_a_broker_that_stalls_for_a_second_stays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        serve_with(monkeypatch, nursery, answer_after(STALL_S - UNNOTICED_S))
        for _ in range(20):
            nodes[0].outage.is_away = True
            await trio.sleep(UNNOTICED_S)
            nodes[1].node.failover.suspect(1, is_silent=True)
            await trio.sleep(STALL_S - UNNOTICED_S)
            nodes[0].outage.is_away = False
            await trio.sleep(STALL_S)
        epochs = {each.node.image.brokers[1].epoch for each in nodes}
        assert epochs == {nodes[0].node.epoch}
        nursery.cancel_scope.cancel()


async def test_a_broker_that_only_others_reach_stays_and_holds_up_requests_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        serve_with(monkeypatch, nursery, answer_after(math.inf))
        nodes[1].node.failover.suspect(1, is_silent=True)
        assert await waited_s(nodes[1]) > CONNECT_WAIT_S
        await trio.sleep(STALL_S)
        nodes[1].node.failover.suspect(1, is_silent=True)
        assert await waited_s(nodes[1]) == pytest.approx(CONNECT_WAIT_S)
        assert await gone_after_s(nodes) == math.inf
        nursery.cancel_scope.cancel()


async def test_a_broker_that_is_silent_stays_while_the_store_does_not_answer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        serve_with(monkeypatch, nursery, answer_after(math.inf))
        for each in nodes:
            each.outage.is_away = True
        nodes[1].node.failover.suspect(1, is_silent=True)
        assert await waited_s(nodes[1]) <= SILENT_WAIT_S
        assert await gone_after_s(nodes) == math.inf
        nursery.cancel_scope.cancel()


async def test_a_silent_broker_that_dies_is_noticed_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    async with three_nodes() as nodes:
        nodes[0].kill()
        monkeypatch.setattr(trio, "open_tcp_stream", refuse)
        nodes[1].node.failover.suspect(1, is_silent=True)
        assert await gone_after_s(nodes) < CONNECT_WAIT_S
