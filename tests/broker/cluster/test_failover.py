"""What a broker does about the deaths of others: it notices them, and lets clients wait until it knows."""

import pytest
import trio
from trio.testing import MockClock

from tests.broker.cluster.nodes import Member, created, listening, three_nodes
from warmlog.broker.cluster.failover import CONNECT_WAIT_S, STORE_WAIT_S


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
        assert await waited_s(nodes[1]) == STORE_WAIT_S
        await trio.sleep(STORE_WAIT_S)
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
