"""The load generator against servers that are odd in one way each: real sockets, a thread for the other end."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.generator import RECEIVE_BYTES, Flow, Load, LoadError, LoadResult, drive, generate

REQUEST = b"\0\0\0\4ask?"
GOOD = b"fine"


def a_frame(size: int) -> bytes:
    return (len(GOOD) + size).to_bytes(4) + GOOD + bytes(size)


@contextmanager
def served_by(serve: Callable[[socket.socket], None], connections: int = 1) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [Thread(target=serve_one, args=(listener, serve)) for _ in range(connections)]
        for thread in threads:
            thread.start()
        yield listener.getsockname()
        for thread in threads:
            thread.join()


def serve_one(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    sock, _ = listener.accept()
    with sock:
        serve(sock)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


def until_closed(sock: socket.socket) -> None:
    with suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass


def answering(replies: list[bytes], cut: int) -> Callable[[socket.socket], None]:
    """Answers that many requests, all of them together, in pieces of `cut` bytes."""

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_exactly(sock, len(REQUEST) * len(replies))
        stream = b"".join(replies)
        with suppress(ConnectionError):  # the other end may have seen enough
            for start in range(0, len(stream), cut):
                sock.sendall(stream[start : start + cut])
        until_closed(sock)

    return serve


def a_load(address: tuple[str, int], *flows: Flow, processes: int = 1) -> Load:
    return Load(
        address=address,
        flows=flows,
        seconds=0.05,
        warmup_s=0.01,
        pids=(os.getpid(),),
        good=GOOD,
        processes=processes,
    )


def loaded(replies: list[bytes], cut: int) -> LoadResult:
    with served_by(answering(replies, cut)) as address:
        return generate(a_load(address, Flow(requests=(REQUEST,), depth=len(replies), total=len(replies))))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 200))
def test_replies_are_counted_however_they_are_cut(sizes: list[int], cut: int) -> None:
    replies = [a_frame(size) for size in sizes]
    result = loaded(replies, cut)
    assert result.replies == len(replies)
    assert result.received_bytes == sum(map(len, replies))


@pytest.mark.parametrize("cut", [700, RECEIVE_BYTES, 10 * RECEIVE_BYTES])
def test_replies_larger_than_the_buffer_are_passed_over(cut: int) -> None:
    sizes = [3 * RECEIVE_BYTES, 5, RECEIVE_BYTES - 8, RECEIVE_BYTES - 7, 2 * RECEIVE_BYTES + 1]
    assert loaded([a_frame(size) for size in sizes], cut).replies == len(sizes)


@pytest.mark.parametrize("size", [10, 2 * RECEIVE_BYTES])
def test_a_reply_that_is_not_good_ends_the_measurement(size: int) -> None:
    bad = a_frame(size).replace(GOOD, b"oops")
    with pytest.raises(LoadError, match="oops"):
        loaded([a_frame(3), bad, a_frame(3)], cut=1 << 20)


def test_a_contestant_that_closes_ends_the_measurement() -> None:
    with served_by(lambda sock: None) as address, pytest.raises((LoadError, OSError)):
        generate(a_load(address, Flow(requests=(REQUEST,))))


def echo(sock: socket.socket) -> None:
    with suppress(ConnectionError):
        while data := sock.recv(1 << 16):
            sock.sendall(data)


def test_a_window_of_time_counts_replies_and_their_latencies() -> None:
    request = a_frame(0)
    with served_by(echo) as address:
        result = generate(a_load(address, Flow(requests=(request,))))
    assert result.replies == len(result.latencies_s) > 0
    assert result.received_bytes == result.replies * len(request)
    assert result.elapsed_s >= 0.05


def test_requests_go_round_in_their_order_with_the_greeting_first() -> None:
    requests = tuple(a_frame(size) for size in (1, 20, 300))
    seen = bytearray()

    def serve(sock: socket.socket) -> None:
        for _ in range(1 + 7):
            size = read_exactly(sock, 4)
            seen.extend(size + read_exactly(sock, int.from_bytes(size)))
            sock.sendall(a_frame(0))
        until_closed(sock)

    greeting = a_frame(5)
    with served_by(serve) as address:
        generate(a_load(address, Flow(requests=requests, depth=2, total=7, greeting=greeting)))
    assert bytes(seen) == greeting + b"".join(requests * 2) + requests[0]


def test_processes_share_the_connections_and_add_up() -> None:
    flow = Flow(requests=(a_frame(0),), depth=3, total=50)
    with served_by(echo, connections=3) as address:
        result = drive(a_load(address, flow, flow, flow, processes=2))
    assert result.replies == 150


def test_what_goes_wrong_in_the_other_process_is_raised_here() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(LoadError, match="refused"):
            drive(a_load(unheard.getsockname(), Flow(requests=(REQUEST,))))
