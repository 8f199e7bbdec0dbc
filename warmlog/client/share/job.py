"""A job: a record held by a member of a share group, and its acknowledgement."""

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Self

import anyio

from warmlog.client.consuming.stream import ConsumedRecord
from warmlog.client.errors import WarmlogError
from warmlog.protocol.native.share import Acknowledgement


class Receipt:
    """The outcome of an acknowledgement. `await` it to wait until the broker has stored it.

    The acknowledgement is sent soon even if no task waits for it, so a program may ignore the receipt. If the lock had
    expired, the job is delivered again.
    """

    __slots__ = ("_event", "_on_wait", "done", "error")

    def __init__(self, on_wait: Callable[[], None]) -> None:
        """`on_wait` is called when a task waits."""
        self._on_wait = on_wait
        self._event: anyio.Event | None = None
        self.done = False
        self.error: WarmlogError | None = None

    def settle(self, error: WarmlogError | None = None) -> None:
        """Set the outcome."""
        self.done, self.error = True, error
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until the broker has stored it. Raises WarmlogError, such as JobLostError, if it is not stored."""
        if not self.done:
            self._on_wait()
            self._event = self._event or anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error.with_traceback(None)

    def __await__(self) -> Generator[object, None, None]:
        return self.wait().__await__()


class JobView:
    """The fields of a job: the record's, and `deliveries`, the number of deliveries including this one."""

    __slots__ = ("deliveries", "record")

    def __init__(self, record: ConsumedRecord, deliveries: int) -> None:
        self.record = record
        self.deliveries = deliveries

    @property
    def topic(self) -> str:
        """The topic."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """The offset."""
        return self.record.offset

    @property
    def timestamp(self) -> int:
        """The record's timestamp, ms since the epoch."""
        return self.record.timestamp

    @property
    def key(self) -> bytes | None:
        """The key."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """The value."""
        return self.record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers."""
        return self.record.headers

    def __str__(self) -> str:
        return f"job {self.topic}-{self.partition}@{self.offset}"

    def __repr__(self) -> str:
        return f"<{self}, deliveries {self.deliveries}>"


class Job(JobView):
    """A record that this member holds until it is acknowledged, or until its lock expires (30 s by default).

    Its fields are the record's, and `deliveries`, the number of deliveries including this one. Call one of `accept`,
    `release` and `reject`, or use the job as a context manager, which accepts it, or releases it after an exception.
    Jobs that are not acknowledged when the stream is left are released.
    """

    __slots__ = ("_acknowledge", "_given", "expires_at")

    def __init__(
        self,
        record: ConsumedRecord,
        deliveries: int,
        expires_at: float,
        acknowledge: Callable[["Job", Acknowledgement], Receipt],
    ) -> None:
        """Hold a record. `expires_at`: the end of the lock on the event loop's clock, or an earlier time."""
        super().__init__(record, deliveries)
        self.expires_at = expires_at
        self._acknowledge = acknowledge
        self._given: Receipt | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the job was accepted, released or rejected."""
        return self._given is not None

    def accept(self) -> Receipt:
        """Mark the job as done. Raises RuntimeError if it was acknowledged before."""
        return self.acknowledge(Acknowledgement.ACCEPT)

    def release(self) -> Receipt:
        """Return the job for another delivery, up to the group's limit. Raises RuntimeError as `accept`."""
        return self.acknowledge(Acknowledgement.RELEASE)

    def reject(self) -> Receipt:
        """Reject the job: it is not delivered again, or becomes a dead letter. Raises RuntimeError as `accept`."""
        return self.acknowledge(Acknowledgement.REJECT)

    def renew(self) -> Receipt:
        """Hold the job for another lock duration after the request's arrival. Raises RuntimeError as `accept`."""
        return self.acknowledge(Acknowledgement.RENEW)

    def acknowledge(self, acknowledgement: Acknowledgement) -> Receipt:
        """Acknowledge the job in the given way. Raises RuntimeError as `accept`."""
        if self._given is not None:
            raise RuntimeError(f"{self} was acknowledged before")
        receipt = self._acknowledge(self, acknowledgement)
        if acknowledgement is not Acknowledgement.RENEW:
            self._given = receipt
        return receipt

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(is_good=error is None)

    def close(self, *, is_good: bool) -> None:
        """Accept or release the job, unless it was acknowledged."""
        if self._given is None:
            (self.accept if is_good else self.release)()
