"""What a handler knows of its request, and how long requests share the event loop."""

import itertools
from itertools import pairwise

import pytest
import trio

from tests.broker.kafka_client import BY_NAME
from tests.protocol.kafka.messages import TABLES, body, frame, with_defaults
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.pacing import LONG_REQUESTS, PIECE_S, SHORT_PIECES, Pacer
from warmlog.broker.net.wire import KafkaWire, NativeWire
from warmlog.protocol.kafka.api import Codec
from warmlog.protocol.native.codec import encode_request
from warmlog.protocol.request import HelloRequest, MetadataRequest
from warmlog.protocol.weight import RELEASED

A_PIECE = 8  # a power of two: the sums of floats are exact


def session() -> Session:
    return Session(listener="kafka", peer=("127.0.0.1", 40_000), local=("127.0.0.1", 9092))


class Work:
    """A clock that goes on by what is done: a piece has room for `A_PIECE` items."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done: list[object] = []

    def __call__(self) -> float:
        return self.now_s

    def do(self, item: object) -> object:
        self.now_s += PIECE_S / A_PIECE
        self.done.append(item)
        return item


@pytest.fixture
def work() -> Work:
    return Work()


class Passes(trio.abc.Instrument):
    """Counts the passes of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.count += 1


async def answered(work: Work, count: int, pacer: Pacer) -> None:
    context = Context(session(), pacer)
    context.start()
    try:
        assert await context.answer(work.do, range(count)) == tuple(range(count))
    finally:
        context.end()


async def test_what_is_large_is_freed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on by a piece with each reading, so every piece that is freed is followed by a pause."""
    pauses = []

    async def pause(pacer: Pacer) -> None:
        pauses.append(pacer)

    monkeypatch.setattr(Pacer, "pause", pause)
    names = [f"none-{number}" for number in range(40 * RELEASED)]
    await Pacer(itertools.count(step=PIECE_S).__next__).free([MetadataRequest(topics=tuple(names))])
    assert len(pauses) >= 40


async def test_a_long_request_lets_others_run_after_each_piece(work: Work) -> None:
    held = []

    async def other() -> None:
        while len(work.done) < 100:
            held.append(len(work.done))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await answered(work, 100, Pacer(work))
    longest = max(after - before for before, after in zip(held, [*held[1:], 100], strict=True))
    assert longest <= 2 * A_PIECE  # of two tasks that are ready in every pass, either may go first


async def test_a_short_request_does_not_pause(work: Work) -> None:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    await answered(work, A_PIECE - 1, Pacer(work))
    assert passes.count == 0
    trio.lowlevel.remove_instrument(passes)


async def test_of_many_long_requests_one_gets_a_piece_per_pass_of_the_loop(work: Work) -> None:
    pacer, done_by_pass = Pacer(work), []

    class Watch(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            del timeout
            done_by_pass.append(len(work.done))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(answered, work, 50, pacer)
        trio.lowlevel.add_instrument(Watch())
    done_by_pass.append(len(work.done))
    first, *others = [after - before for before, after in pairwise(done_by_pass) if after > before]
    assert first == 20 * A_PIECE  # each had a piece in the pass in which it began
    assert max(others) <= A_PIECE
    assert len(work.done) == 1000


async def test_few_long_requests_are_in_progress_at_a_time(work: Work) -> None:
    """Each may hold values for a reply of many megabytes."""
    pacer = Pacer(work)
    waiting = trio.Event()

    async def begun() -> None:
        context = Context(session(), pacer)
        context.start()
        for _ in range(SHORT_PIECES):
            await context.pause()
        work.done.append(1)
        await waiting.wait()
        context.end()

    async with trio.open_nursery() as nursery:
        for _ in range(2 * LONG_REQUESTS):
            nursery.start_soon(begun)
        await trio.testing.wait_all_tasks_blocked()
        assert len(work.done) == LONG_REQUESTS
        waiting.set()
    assert len(work.done) == 2 * LONG_REQUESTS


async def test_a_request_of_a_few_pieces_does_not_wait_for_the_end_of_a_long_one(work: Work) -> None:
    pacer = Pacer(work)
    async with trio.open_nursery() as nursery:
        for _ in range(2 * LONG_REQUESTS):
            nursery.start_soon(answered, work, 1000, pacer)
        await trio.lowlevel.checkpoint()
        before = len(work.done)
        await answered(work, 2 * A_PIECE, pacer)
        assert len(work.done) - before < 4 * LONG_REQUESTS * A_PIECE * 2
        nursery.cancel_scope.cancel()


async def test_a_long_request_that_waits_for_other_tasks_lets_another_one_begin(work: Work) -> None:
    pacer = Pacer(work)
    others = trio.Event()

    async def waits() -> None:
        context = Context(session(), pacer)
        context.start()
        for _ in range(SHORT_PIECES):
            await context.pause()
        await context.wait(others.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(LONG_REQUESTS):
            nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked()
        await answered(work, 50, pacer)
        others.set()


async def test_one_that_is_cancelled_while_it_pauses_holds_nobody_up(work: Work) -> None:
    pacer = Pacer(work)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(answered, work, 50, pacer)
        for _ in range(3):
            given_up = await nursery.start(cancellable, work, pacer)
            given_up.cancel()
    assert len([item for item in work.done if item == 49]) == 3


async def cancellable(work: Work, pacer: Pacer, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await answered(work, 40, pacer)


async def test_a_wait_is_not_work(work: Work) -> None:
    context = Context(session(), Pacer(work))
    context.start()

    async def other() -> str:
        work.now_s += 10 * PIECE_S
        return "done"

    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    assert await context.wait(other()) == "done"
    await context.map(work.do, range(A_PIECE - 1))
    trio.lowlevel.remove_instrument(passes)
    assert passes.count == 0


async def test_answers_that_are_there_at_once_are_work(work: Work) -> None:
    """As where a thousand groups are deleted that do not exist."""
    context = Context(session(), Pacer(work))
    context.start()

    async def answer(item: int) -> object:
        return work.do(item)

    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    for item in range(10 * A_PIECE):
        await context.wait(answer(item))
        await context.checkpoint()
    context.end()
    trio.lowlevel.remove_instrument(passes)
    assert passes.count >= 9


async def test_equal_questions_are_answered_once(work: Work) -> None:
    context = Context(session(), Pacer(work))
    context.start()
    assert await context.answer(work.do, ["a", "b", "a", "a"]) == ("a", "b", "a", "a")
    assert work.done == ["a", "b"]


def test_a_kafka_request_brings_its_version_and_its_clients_name() -> None:
    context, api = Context(session(), Pacer()), BY_NAME["Heartbeat"]
    for version, client in ((0, b"first"), (4, b"second")):
        values = with_defaults(TABLES["HeartbeatRequest"], version, {"group_id": "g", "member_id": "m"})
        asked = frame(api, version, body("HeartbeatRequest", api, version, values), client=client)
        KafkaWire(Codec()).decode(memoryview(asked), context)
        assert (context.version, context.session.client_id) == (version, client.decode())


def test_a_native_request_has_the_version_of_its_connection() -> None:
    context = Context(session(), Pacer())
    NativeWire().decode(memoryview(encode_request(1, HelloRequest(versions=(1,))))[4:], context)
    context.session.protocol_version = 1  # as the hello's handler does
    NativeWire().decode(memoryview(encode_request(2, MetadataRequest()))[4:], context)
    assert context.version == 1
