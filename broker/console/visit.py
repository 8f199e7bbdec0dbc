"""One request to the console: its sender, its parameters, and the parts of the broker that its handler uses."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec
import trio

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.api.fair_queue import FairQueue
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.console.totals import Totals
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.maintenance.log_moves import LogMoves
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.broker.security.acls import Operation
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Request
from warmlog.protocol.response import ErrorResponse

THREADS: Final = 4
TURNS: Final = 4  # concurrent reads of records, each of which holds a slice or a batch of up to 16 MiB
MAX_WAITING: Final = 32  # requests waiting for a thread, or of one user for a turn; further ones are refused

A = TypeVar("A")

_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.OFFSET_OUT_OF_RANGE: 416,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: 421,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: 503,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: 503,
    ErrorCode.NOT_COORDINATOR: 421,
    ErrorCode.KAFKA_STORAGE_ERROR: 503,
    ErrorCode.UNKNOWN_SERVER_ERROR: 500,
}


class ConsoleError(Exception):
    """A request that fails: HTTP status, Kafka's name of the error, and a message for people."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = error


def _busy() -> ConsoleError:
    return ConsoleError(503, "BUSY", "too many requests wait for their turn; try again")


def kafka_error(code: ErrorCode, message: str | None) -> ConsoleError:
    """Return the error for an error code of Kafka."""
    return ConsoleError(_STATUS.get(code, 400), code.name, message or code.name.lower().replace("_", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The parts of the broker that endpoints use.

    `access` returns the rights of a session, None without an authorizer. `not_ready` returns why the broker does not
    serve. `threads` run work that may wait for a disk, `worker` work that takes processor time. Users or addresses get
    `turns` to read records, and turns of the worker (`computing`); `waiting` counts their requests.
    """

    dispatcher: Dispatcher
    partitions: Partitions
    node: StoreNode
    directories: DataDirectories
    metrics: Metrics
    moves: LogMoves
    reads: ReadAhead
    guard: LoopGuard
    page_faults: PageFaults
    cluster_id: str
    power_cut: str
    access: Callable[[Session], Access] | None
    clock_ms: Callable[[], int]
    totals: Totals = field(default_factory=Totals)
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))
    worker: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    computing: FairQueue = field(default_factory=lambda: FairQueue(1))
    turns: FairQueue = field(default_factory=lambda: FairQueue(TURNS))
    waiting: Counter[str] = field(default_factory=Counter)

    async def in_thread(self, work: Callable[[], A]) -> A:
        """Run blocking work. Raises ConsoleError if too many requests are waiting."""
        if self.threads.statistics().tasks_waiting >= MAX_WAITING:
            raise _busy()
        return await trio.to_thread.run_sync(work, limiter=self.threads)


class Visit:
    """A request and its sender; valid until `close`."""

    def __init__(
        self, tools: Tools, session: Session, context: Context, query: str, body: bytes = b"", *, may_write: bool
    ) -> None:
        self.tools = tools
        self.session = session
        self.context = context
        self.body = body
        self.may_write = may_write
        try:
            parameters = parse_qs(query, keep_blank_values=True, max_num_fields=200, errors="strict")
        except ValueError as error:
            raise ConsoleError(400, "INVALID_REQUEST", f"cannot parse the query: {error}") from None
        self.query: Mapping[str, list[str]] = parameters
        self.access = None if tools.access is None else tools.access(session)

    def close(self) -> None:
        """Release the sender's resources."""
        self.context.end()
        self.tools.dispatcher.forget(self.session)
        self.tools.reads.forget(self.session)

    # -- parameters --

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        return self.query[name][-1] if name in self.query else default

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a parameter that is one of several, the first if it is not given. Raises ConsoleError."""
        text = self.text(name, choices[0])
        if text not in choices:
            raise ConsoleError(400, "INVALID_REQUEST", f"{name}: expected one of {', '.join(choices)}, not {text!r}")
        return text

    def number(self, name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return a whole number of the query. Raises ConsoleError."""
        text = self.text(name)
        if not text:
            return default
        return whole_number(name, text, least=least, most=most)

    def flag(self, name: str) -> bool:
        """Return whether a parameter is given and true. Raises ConsoleError."""
        return self.choice(name, ("false", "true", "1", "0")) in {"true", "1"} if name in self.query else False

    def content(self, kind: type[A]) -> A:
        """Return the body as a value. Raises ConsoleError."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.MsgspecError as error:
            raise ConsoleError(400, "INVALID_REQUEST", f"the body is not as expected: {error}") from None

    # -- rights, and requests --

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Return whether the sender has a right on a topic."""
        return self.access is None or self.access.topic(operation, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Return whether the sender has a right on the cluster."""
        return self.access is None or self.access.cluster(operation)

    def require_topic(self, operation: Operation, name: str) -> None:
        """Raise ConsoleError unless the topic exists and the sender has the right; invisible topics appear missing."""
        may_see = self.may_topic(Operation.DESCRIBE, name)
        if may_see and self.tools.partitions.topic(name) is None:
            raise kafka_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
        if not (may_see and self.may_topic(operation, name)):
            raise kafka_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not authorized: {operation.name} on the topic")

    def local_partition(self, topic: str, index: int, operation: Operation = Operation.DESCRIBE) -> Partition:
        """Return a partition that has a log here. Raises ConsoleError."""
        self.require_topic(operation, topic)
        local = self.tools.partitions.local(topic, index)
        if local is None:
            with expected():
                raise self.tools.partitions.missing(topic, index)
        return local

    async def ask(self, request: Request | Any) -> Any:
        """Return the response of the broker's own handler, as for a client. Raises ConsoleError."""
        response = await self.tools.dispatcher.handle(request, self.context)
        if isinstance(response, ErrorResponse):
            raise kafka_error(response.error, response.message)
        return response

    @asynccontextmanager
    async def slot(self, queue: FairQueue) -> AsyncIterator[None]:
        """Hold a slot of a queue. Raises ConsoleError if too many requests of the sender are waiting."""
        holder, waiting = self.session.holder, self.tools.waiting
        if waiting[holder] >= MAX_WAITING:
            raise _busy()
        waiting[holder] += 1
        try:
            held = await self.context.wait(queue.acquire(holder))
        finally:
            waiting[holder] -= 1
            if not waiting[holder]:
                del waiting[holder]
        try:
            yield
        finally:
            queue.release(held)

    async def in_thread(self, work: Callable[[], A]) -> A:
        """Run work that may wait for a disk in one of the console's threads. Raises ConsoleError."""
        with expected():
            return await self.context.wait(self.tools.in_thread(work))
        raise AssertionError("unreachable")

    async def compute(self, work: Callable[[], A]) -> A:
        """Run work that takes processor time in the worker. Raises ConsoleError."""
        async with self.slot(self.tools.computing):
            with expected():
                return await self.context.wait(trio.to_thread.run_sync(work, limiter=self.tools.worker))
        raise AssertionError("unreachable")


Handler = Callable[..., Awaitable[Any]]  # (visit, *values of the path) -> a value to encode, or a Download


class Download(NamedTuple):
    """Bytes to send unchanged, and the name under which a browser saves them."""

    data: bytes
    name: str
    headers: tuple[tuple[str, str], ...] = ()


class expected:  # noqa: N801  # used as a function
    """Convert exceptions of requests and disks to ConsoleError."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Raise ConsoleError for an expected exception."""
        if isinstance(error, EXPECTED):
            raise kafka_error(*describe(error)) from error


def whole_number(name: str, text: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Parse a number. Raises ConsoleError."""
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 21 and least <= int(text) <= most):
        raise ConsoleError(400, "INVALID_REQUEST", f"{name}: expected a number from {least} to {most}, not {text!r}")
    return int(text)


def path_parts(path: str) -> tuple[str, ...]:
    """Return the decoded parts of a path. Raises ConsoleError."""
    try:
        return tuple(unquote(part, errors="strict") for part in path.split("/"))
    except UnicodeDecodeError:
        raise ConsoleError(400, "INVALID_REQUEST", "the path is not UTF-8") from None
