"""The state of one connection, without a socket."""

import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.broker.rig import START_MS, rig
from warmlog.broker.api.context import Session
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.api.records.produce import Produce
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.net import connection as module
from warmlog.broker.net.connection import Connection, Exchange
from warmlog.broker.net.wire import NativeWire
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode, FrameError, OutOfTurnError
from warmlog.protocol.native.codec import encode_request
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import HelloRequest, MetadataRequest
from warmlog.protocol.response import ErrorResponse, ProducedPartition

REQUESTS = Metrics().requests("test", "native")


def opened(**limits: int) -> Connection:
    session = Session(listener="native", peer=("peer", 1), local=("here", 2), protocol_version=1)
    sizes = {"max_frame_bytes": 1000, "max_requests": 10} | limits
    return Connection(session, NativeWire(), Pacer(), 0.0, **sizes)


def frame(number: int) -> bytes:
    return encode_request(number, MetadataRequest())


def refusal(error: ErrorCode = ErrorCode.NONE) -> ProducedPartition:
    """What is done at once."""
    return ProducedPartition(topic="t", partition=0, error=error)


def unwritten(partition: Partition) -> Produce:
    """Done with the next write."""
    return Produce(1, [partition.append(build_batch([(START_MS, b"key", b"value", ())]))])


def produced(connection: Connection, call: int, produce: Produce) -> Exchange:
    """Begin a produce."""
    exchange = Exchange(0.0, REQUESTS, call)
    exchange.produces.append((call, produce))
    connection.add(exchange)
    connection.count(exchange, 100)
    return exchange


def answered(connection: Connection, call: int) -> Exchange:
    """Begin another request, and answer it."""
    exchange = Exchange(0.0, REQUESTS, call)
    connection.add(exchange)
    connection.count(exchange, 100)
    exchange.response = ErrorResponse(error=ErrorCode.NONE, message="")
    return exchange


def calls_of(items: list[Any]) -> list[int]:
    """The ids of the requests that replies belong to."""
    return [msgpack.unpackb(item[4:])["id"] for item in items]


def test_bytes_that_come_one_by_one_are_a_request_with_the_last_one() -> None:
    connection = opened()
    whole = frame(7)
    for number, byte in enumerate(whole):
        assert connection.next_request() is None
        connection.receive(bytes([byte]), float(number))
    received = connection.next_request()
    assert received is not None
    call, request, size = received
    assert (call, request.api, size) == (7, "metadata", len(whole) - 4)
    assert connection.next_request() is None
    assert connection.last_received == len(whole) - 1


def test_what_is_no_request_and_what_is_out_of_step_is_told() -> None:
    connection = opened()
    connection.session.protocol_version = None
    connection.receive(frame(1) + encode_request(2, HelloRequest(versions=(1,))) + struct.pack(">i", -1), 0.0)
    with pytest.raises(OutOfTurnError):
        connection.next_request()
    assert connection.next_request() is not None
    for _ in range(2):
        with pytest.raises(FrameError):
            connection.next_request()


async def test_replies_leave_in_the_order_of_their_requests(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        connection = opened()
        answered(connection, 1)
        produced(connection, 2, unwritten(await made.create("t")))
        answered(connection, 3)
        assert calls_of(connection.take_replies(1.0)) == [1]
        connection.sent(1.0)
        woken: list[str] = []
        connection.watch_first(lambda: woken.append("settled"))
        assert not connection.is_answered
        made.writer.write_queued()
        assert woken == ["settled"]
        assert calls_of(connection.take_replies(2.0)) == [2, 3]
        assert not connection.is_answered
        connection.sent(2.0)
        assert connection.is_answered


@pytest.mark.parametrize(("limits", "taken"), [({"max_requests": 3}, 3), ({}, 5)])
def test_past_the_limits_it_is_full_until_something_is_sent(
    limits: dict[str, int], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNANSWERED_BYTES", 400)
    connection = opened(**limits)
    begun = 0
    while not connection.is_full:
        begun += 1
        answered(connection, begun)
    assert begun == taken
    connection.take_replies(0.0)
    assert connection.is_full
    connection.sent(0.0)
    assert not connection.is_full


def test_a_failed_produce_without_acks_ends_the_replies() -> None:
    connection = opened()
    refused = Produce(0, [refusal(ErrorCode.CORRUPT_MESSAGE)])
    for call, produce in enumerate((Produce(1, [refusal()]), Produce(0, [refusal()]), refused)):
        produced(connection, call, produce)
    answered(connection, 3)
    assert calls_of(connection.take_replies(0.0)) == [0]
    assert connection.must_close


async def test_memory_is_held_for_requests_until_they_are_answered() -> None:
    connection = opened()
    assert connection.held_bytes == 0
    connection.receive(frame(1) + frame(2)[:7], 0.0)
    assert connection.next_request() is not None
    answered(connection, 1)
    assert connection.next_request() is None
    assert connection.held_bytes == 100 + 7
    connection.take_replies(0.0)
    connection.sent(0.0)
    assert connection.held_bytes == 7


def overdue(connection: Connection, now: float, *, is_receiving: bool = True) -> bool:
    limits = {"slow_peer_s": 10.0, "min_rate": 100.0, "idle_s": 100.0}
    return connection.overdue(now, **limits, is_receiving=is_receiving) is not None


def test_a_pause_of_the_broker_is_neither_idleness_nor_slowness_of_the_peer() -> None:
    connection = opened()
    connection.resume_receiving(500.0)
    assert not overdue(connection, 599.0)
    assert overdue(connection, 601.0)
    connection.receive(frame(1)[:2], 700.0)
    assert connection.next_request() is None
    connection.resume_receiving(800.0)
    assert not overdue(connection, 809.0)
    assert overdue(connection, 811.0)


def test_a_silent_peer_is_overdue_after_the_idle_limit_and_only_while_it_is_its_turn() -> None:
    connection = opened()
    assert not overdue(connection, 100.0)
    assert overdue(connection, 101.0)
    assert not overdue(connection, 101.0, is_receiving=False)
    connection.receive(frame(1), 90.0)
    connection.next_request()
    assert not overdue(connection, 101.0)
    answered(connection, 1)
    assert not overdue(connection, 1000.0)
    connection.take_replies(0.0)
    connection.sent(950.0)
    assert not overdue(connection, 1000.0)
    assert overdue(connection, 1051.0)


def test_within_a_frame_the_limit_for_slow_peers_holds() -> None:
    connection = opened()
    connection.receive(frame(1)[:3], 50.0)
    assert not overdue(connection, 60.0)
    assert overdue(connection, 60.1)


def test_a_frame_that_drips_is_overdue_at_the_second_check() -> None:
    connection = opened()
    whole = frame(1)
    for at, byte in enumerate(whole[:-1]):
        connection.receive(bytes([byte]), 50.0 + at)
        assert connection.next_request() is None
    now = 50.0 + len(whole)
    assert now > 50.0 + 10.0 + len(whole) / 100.0
    assert not overdue(connection, now)
    assert overdue(connection, now)


def test_a_frame_that_waited_for_replies_before_it_is_not_slow() -> None:
    connection = opened()
    answered(connection, 1)
    connection.receive(frame(1)[:3], 50.0)
    assert connection.next_request() is None
    connection.take_replies(90.0)
    connection.sent(90.0)
    assert connection.next_request() is None
    assert not overdue(connection, 91.0)
    assert not overdue(connection, 92.0)


def test_a_peer_that_reads_its_reply_too_slowly_is_overdue_at_the_second_check() -> None:
    connection = opened()
    connection.sending.begin(50.0)
    assert not overdue(connection, 60.0, is_receiving=False)
    assert not overdue(connection, 61.0, is_receiving=False)
    connection.sending.moved += 500  # 5 s at the rate of 100 bytes per second
    assert not overdue(connection, 64.9, is_receiving=False)
    assert not overdue(connection, 65.1, is_receiving=False)
    assert overdue(connection, 65.2, is_receiving=False)
