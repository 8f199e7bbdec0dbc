"""What the operating system sees of `flush.messages` = 1: no reply leaves before its sync, and producers share syncs.

A broker runs under strace, which writes down its writes, its syncs and what it sends. All requests are of the same size
and go to one partition, so the bytes that a write took tell which offsets it wrote.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeVar

import pytest

from tests.broker.clients import batch, produce_request
from tests.requires import lacks
from warmlog import Client
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.codec import decode_response, encode_request
from warmlog.protocol.request import HelloRequest, Value
from warmlog.protocol.response import HelloResponse, ProduceResponse

pytestmark = pytest.mark.interop

CALLS = "fdatasync,fsync,pwritev,pwritev2,sendto,sendmsg,write"
TOPIC = "synced"
RECORDS = batch(b"x" * 100)
PRODUCERS = 32
REQUESTS = 20  # of each
STOP_S = 60

R = TypeVar("R", bound=Value)

_BEGIN = re.compile(r"^(\d+) +(\d+\.\d+) (\w+)\((.*?)(?: <unfinished \.\.\.>$|\) += (-?\d+).*<(\d+\.\d+)>$)")
_END = re.compile(r"^(\d+) +(\d+\.\d+) <\.\.\. (\w+) resumed>.*\) += (-?\d+).*<\d+\.\d+>$")


@pytest.fixture(scope="module")
def strace() -> str:
    """The path of the tool. What is missing is said; in CI it is a failure."""
    path = shutil.which("strace")
    if path is None:
        lacks("strace is missing (apt: strace)")
    probe = subprocess.run([path, "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        lacks(f"strace may not trace here: {probe.stderr.strip()}")
    return path


class Call(NamedTuple):
    """A system call that is over: when it began and ended (seconds), its name, its arguments, what it returned."""

    began: float
    ended: float
    name: str
    arguments: str
    result: int


def calls_in(trace: str) -> list[Call]:
    """The calls of all threads, those that others interrupted put together again, by their ends."""
    calls, open_calls = [], dict[str, tuple[float, str]]()
    for line in trace.splitlines():
        begun = _BEGIN.match(line)
        if begun is not None:
            thread, at, name, arguments, result, took = begun.groups()
            if result is None:
                open_calls[thread] = float(at), arguments
            else:
                calls.append(Call(float(at), float(at) + float(took), name, arguments, int(result)))
            continue
        ended = _END.match(line)
        if ended is not None:
            thread, at, name, result = ended.groups()
            began, arguments = open_calls.pop(thread)
            calls.append(Call(began, float(at), name, arguments, int(result)))
    return sorted(calls, key=lambda call: call.ended)


@dataclass
class Traced:
    """A broker under strace; `calls` are there once it has stopped."""

    address: tuple[str, int]
    calls: list[Call] = field(default_factory=list)

    @property
    def syncs(self) -> list[Call]:
        """Those of the topic's files."""
        return [call for call in self.calls if "sync" in call.name and f"/{TOPIC}-0/" in call.arguments]

    @property
    def log_writes(self) -> list[Call]:
        """Those to the topic's log."""
        return [call for call in self.calls if "pwrite" in call.name and f"/{TOPIC}-0/{0:020}.log>" in call.arguments]

    def replies_to(self, port: int) -> list[Call]:
        """What was sent to the connection from a port, but for the answer to its greeting."""
        sent = [call for call in self.calls if "send" in call.name and f"->127.0.0.1:{port}]" in call.arguments]
        return sent[1:]

    def synced_before(self, moment: float) -> int:
        """The offset below which everything was on the disk: its write was over before a sync began that was over."""
        began = max(
            (sync.began for sync in self.syncs if sync.ended <= moment and ".log>" in sync.arguments), default=0
        )
        return sum(write.result for write in self.log_writes if write.ended <= began) // len(RECORDS)


@contextmanager
def traced(strace: str, directory: Path, *options: str) -> Iterator[Traced]:
    """A broker that syncs every append, whose calls are written down; stopped at the end, and its calls read.

    `options` are strace's.
    """
    trace = directory / "trace"
    command = [strace, "-f", "-yy", "-ttt", "-T", "-s", "0", "-e", f"trace={CALLS}", *options, "-o", str(trace)]
    serve = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory / "data"), "--kafka", "none"]
    serve += ["--native", "127.0.0.1:0", "--http", "none", "--set", "log.flush.interval.messages=1"]
    with subprocess.Popen([*command, *serve], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), None)
        assert ready is not None, "the broker did not start"
        host, port = dict(part.split("=") for part in ready.split()[1:])["native"].rsplit(":", 1)
        broker = Traced((host, int(port)))
        try:
            yield broker
        finally:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGTERM)
            process.wait(STOP_S)
    broker.calls = calls_in(trace.read_text())


class Produced(NamedTuple):
    """What a producer was told: the port of its connection, and the offsets in the order of the replies."""

    port: int
    offsets: list[int]


class Producer:
    """A connection on which one request at a time is answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.port: int = sock.getsockname()[1]
        self._sock = sock
        self._request = encode_request(1, produce_request(TOPIC, RECORDS))
        self._ask(encode_request(0, HelloRequest(versions=(1,), client="test")), HelloResponse)

    def append(self) -> tuple[ErrorCode, int]:
        """Append once; the error and the offset that the reply tells."""
        partition = self._ask(self._request, ProduceResponse).partitions[0]
        return partition.error, partition.base_offset

    def _ask(self, frame: bytes, kind: type[R]) -> R:
        self._sock.sendall(frame)
        size = int.from_bytes(self._receive(4))
        _, reply = decode_response(self._receive(size), kind)
        assert isinstance(reply, kind), reply
        return reply

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[Producer]:
    """A producer."""
    with socket.create_connection(address, timeout=STOP_S) as sock:
        yield Producer(sock)


def produce(address: tuple[str, int], requests: int) -> Produced:
    """Append one after the other, each after the reply to the one before."""
    with connected(address) as producer:
        answers = [producer.append() for _ in range(requests)]
        assert not any(error for error, _ in answers)
        return Produced(producer.port, [offset for _, offset in answers])


def test_no_reply_leaves_before_its_sync(strace: str, tmp_path: Path) -> None:
    with traced(strace, tmp_path) as broker:
        told = produce(broker.address, REQUESTS)
    assert told.offsets == list(range(REQUESTS))
    assert len(broker.log_writes) == REQUESTS
    check_replies(broker, [told])


def test_producers_share_syncs_and_none_is_answered_before_its_own(strace: str, tmp_path: Path) -> None:
    with traced(strace, tmp_path) as broker, ThreadPoolExecutor(PRODUCERS) as producers:
        told = list(producers.map(lambda _: produce(broker.address, REQUESTS), range(PRODUCERS)))
    offsets = sorted(offset for one in told for offset in one.offsets)
    assert offsets == list(range(PRODUCERS * REQUESTS))
    assert 0 < len(broker.syncs) <= len(offsets) // 2
    check_replies(broker, told)


def check_replies(broker: Traced, told: list[Produced]) -> None:
    for one in told:
        replies = broker.replies_to(one.port)
        assert len(replies) == len(one.offsets)
        for reply, offset in zip(replies, one.offsets, strict=True):
            assert offset < broker.synced_before(reply.began), f"offset {offset} was acknowledged before its sync"


def test_a_sync_that_the_system_fails_costs_a_log_a_moment_and_nothing_that_was_acknowledged(
    strace: str, tmp_path: Path
) -> None:
    """The fortieth sync of a thread fails, as a disk's would: the broker rebuilds the log in place.

    A start in a new directory syncs 15 times in one thread, for SQLite.
    """
    with traced(strace, tmp_path, "-e", "inject=fdatasync:error=EIO:when=40") as broker:
        with connected(broker.address) as producer:
            answers = [producer.append()]
            deadline = monotonic() + STOP_S
            while monotonic() < deadline and not came_back(answers):
                answers.append(producer.append())
        with Client(f"{broker.address[0]}:{broker.address[1]}") as client:
            found = {record.offset for record in client.consume(TOPIC, until_end=True)}
    assert came_back(answers)
    assert {code for code, _ in answers} == {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
    assert {offset for code, offset in answers if code is ErrorCode.NONE} <= found


def came_back(answers: list[tuple[ErrorCode, int]]) -> bool:
    """Whether there was an error, and none in the last appends."""
    codes = [code for code, _ in answers]
    return any(codes) and len(codes) > REQUESTS and not any(codes[-5:])


def test_calls_that_others_interrupt_are_put_together() -> None:
    """The reading of the trace itself."""
    trace = """\
7 10.000000 pwritev(9</d/synced-0/00000000000000000000.log>, [{iov_base=""..., iov_len=16}], 1, 0) = 170 <0.000100>
8 10.000200 fdatasync(9</d/synced-0/00000000000000000000.log> <unfinished ...>
7 10.000300 sendto(5<TCP:[127.0.0.1:9091->127.0.0.1:40000]>, ""..., 20, 0, NULL, 0) = 20 <0.000050>
8 10.000500 <... fdatasync resumed>)     = 0 <0.000300>
8 10.000600 +++ exited with 0 +++
"""
    write, send, sync = calls_in(trace)
    assert (write.name, write.result, send.name, sync.name, sync.result) == ("pwritev", 170, "sendto", "fdatasync", 0)
    assert (sync.began, sync.ended) == (10.0002, 10.0005)
    broker = Traced(("127.0.0.1", 9091), [write, send, sync])
    assert broker.synced_before(10.0006) == 170 // len(RECORDS)
    assert broker.synced_before(10.0003) == 0
