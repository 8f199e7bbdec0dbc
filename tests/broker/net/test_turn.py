"""Turns over real sockets, with stand-ins for connections: who is served when, and what happens together."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from select import EPOLLIN

import pytest
import trio
import trio.testing

from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.net.turns import turn as module
from warmlog.broker.net.turns.served import Served
from warmlog.broker.net.turns.turn import PROMPT_TURNS, ServingTurn


class FakeServed(Served):
    """Reads what comes, a byte at a time, and is due for each."""

    def __init__(self, turn: ServingTurn, name: str, events: list[str]) -> None:
        super().__init__()
        self.ours, self.peer = socket.socketpair()
        self.name = name
        self.defect: Exception | None = None
        self._turn = turn
        self._events = events
        self.ours.setblocking(False)
        turn.add(self, self.ours.fileno(), EPOLLIN)

    def ready(self, events: int) -> None:
        if self.defect is not None:
            raise self.defect
        self._events.append(f"{self.name} {self.ours.recv(1).decode()}" if events else f"{self.name} again")
        self._turn.due(self)

    def finish(self, now: float) -> None:
        self._events.append(f"{self.name} done")

    def close(self) -> None:
        self._events.append(f"{self.name} closed")
        self._turn.remove(self.ours.fileno())


class Served3:
    """Three stand-ins in running turns."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.turn = ServingTurn(lambda: self.events.append("write"), LoopGuard(0.0))
        self.a, self.b, self.c = (FakeServed(self.turn, name, self.events) for name in "abc")

    def take_events(self) -> list[str]:
        found = list(self.events)
        self.events.clear()
        return found


@asynccontextmanager
async def three() -> AsyncIterator[Served3]:
    async with trio.open_nursery() as nursery:
        made = Served3()
        with closing(made):
            nursery.start_soon(made.turn.run)
            await trio.testing.wait_all_tasks_blocked()
            made.take_events()
            yield made
            nursery.cancel_scope.cancel()


@contextmanager
def closing(made: Served3) -> Iterator[None]:
    yield
    for each in (made.a, made.b, made.c):
        each.ours.close()
        each.peer.close()


async def test_what_is_ready_together_is_written_once_and_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECEIVE_S", 3600.0)  # on a busy machine a turn may be cut
    async with three() as made:
        for each in (made.a, made.b, made.c):
            each.peer.send(b"1")
        await trio.testing.wait_all_tasks_blocked()
        events = made.take_events()
        assert sorted(events[:3]) == ["a 1", "b 1", "c 1"]
        assert events[3] == "write"
        assert sorted(events[4:7]) == ["a done", "b done", "c done"]


async def test_who_has_much_to_say_takes_turns_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECEIVE_S", 3600.0)
    async with three() as made:
        made.a.peer.send(b"1234")
        made.b.peer.send(b"12")
        await trio.testing.wait_all_tasks_blocked()
        events = made.take_events()
        assert events.index("b 2") < events.index("a 3")


async def test_a_turn_that_takes_too_long_answers_and_the_others_are_first_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RECEIVE_S", 0.0)  # the first one takes longer
    async with three() as made:
        for each in (made.a, made.b, made.c):
            each.peer.send(b"12")
        await trio.testing.wait_all_tasks_blocked()
        events = made.take_events()
        firsts = [events.index(f"{name} 1") for name in "abc"]
        assert [events[at + 1 : at + 3] for at in firsts] == [["write", f"{name} done"] for name in "abc"]
        assert max(firsts) < min(events.index(f"{name} 2") for name in "abc")


async def test_who_goes_on_again_needs_nothing_from_its_socket() -> None:
    async with three() as made:
        made.turn.again(made.b)
        made.turn.again(made.b)
        await trio.testing.wait_all_tasks_blocked()
        assert made.take_events() == ["b again", "write", "b done"]


async def test_what_settles_between_turns_is_answered_together() -> None:
    async with three() as made:
        for each in (made.c, made.a, made.c):
            made.turn.due(each)
        await trio.testing.wait_all_tasks_blocked()
        assert made.take_events() == ["write", "c done", "a done"]


async def test_a_defect_ends_its_own_connection_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with three() as made:
        made.a.defect = ArithmeticError("a defect")
        for each in (made.a, made.b):
            each.peer.send(b"1")
        await trio.testing.wait_all_tasks_blocked()
        assert set(made.take_events()) == {"a closed", "b 1", "write", "b done"}

        async def fail() -> None:
            raise ArithmeticError("another one")

        made.turn.spawn(made.c, fail)
        await trio.testing.wait_all_tasks_blocked()
        assert made.take_events() == ["c closed"]
        assert [record.message for record in caplog.records] == [
            "unexpected error while serving a connection, closing it"
        ] * 2


async def test_the_loop_stays_awake_for_a_client_that_comes_right_after_each_reply_and_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CAN_LINGER", True)
    monkeypatch.setattr(module, "PROMPT_S", 3600.0)  # so that nobody is too late, and the end is the test's
    async with three() as made:
        for _ in range(PROMPT_TURNS):
            await one_more(made, made.a)
            assert not made.turn.lingers
        await one_more(made, made.a)
        assert made.turn.lingers
        await one_more(made, made.b)
        assert not made.turn.lingers
        await one_more(made, made.a)
        assert not made.turn.lingers


async def one_more(made: Served3, served: FakeServed) -> None:
    """A request and its reply; a loop that lingers is never blocked, so this is not waited for."""
    made.take_events()
    served.peer.send(b"1")
    while f"{served.name} done" not in made.events:
        await trio.lowlevel.checkpoint()
    for _ in range(5):
        await trio.lowlevel.checkpoint()
