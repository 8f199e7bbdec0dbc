"""The blocking version of a stream of jobs: an iterator in the caller's thread over a stream in the client's thread.

All jobs that have arrived are passed as a list. Acknowledgements are handed over without waiting.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self

from warmlog.client.errors import ClosedError
from warmlog.client.share.job import Job, JobView, Receipt
from warmlog.client.share.stream import ShareStream
from warmlog.protocol.native.share import Acknowledgement
from warmlog.protocol.partitions import TopicPartition


class BlockingReceipt:
    """The outcome of an acknowledgement, which is sent soon even if no task waits for it: see `Receipt`."""

    def __init__(self, receipt: "Future[Receipt]", call: Callable[..., Any]) -> None:
        self._receipt = receipt
        self._call = call

    def wait(self) -> None:
        """Wait until the broker has stored it. Raises WarmlogError, such as JobLostError, if it is not stored."""
        self._call(self._receipt.result().wait)


class BlockingJob(JobView):
    """A record that this member holds until it is acknowledged, or until its lock expires. See `Job`.

    `with job:` accepts the job, or releases it after an exception.
    """

    __slots__ = ("_call", "_given", "_job", "_start")

    def __init__(self, job: Job, call: Callable[..., Any], start: Callable[..., "Future[Receipt]"]) -> None:
        super().__init__(job.record, job.deliveries)
        self._job = job
        self._call = call
        self._start = start
        self._given = False

    @property
    def is_acknowledged(self) -> bool:
        """Whether the job was accepted, released or rejected."""
        return self._given

    def accept(self) -> BlockingReceipt:
        """Mark the job as done. Raises RuntimeError if it was acknowledged before."""
        return self._acknowledge(Acknowledgement.ACCEPT)

    def release(self) -> BlockingReceipt:
        """Return the job for another delivery, up to the group's limit. Raises RuntimeError as `accept`."""
        return self._acknowledge(Acknowledgement.RELEASE)

    def reject(self) -> BlockingReceipt:
        """Reject the job: it is not delivered again, or becomes a dead letter. Raises RuntimeError as `accept`."""
        return self._acknowledge(Acknowledgement.REJECT)

    def renew(self) -> BlockingReceipt:
        """Hold the job for another lock duration after the request's arrival. Raises RuntimeError as `accept`."""
        return self._acknowledge(Acknowledgement.RENEW)

    def _acknowledge(self, acknowledgement: Acknowledgement) -> BlockingReceipt:
        if self._given:
            raise RuntimeError(f"{self} was acknowledged before")
        self._given = acknowledgement is not Acknowledgement.RENEW
        return BlockingReceipt(self._start(_acknowledge, self._job, acknowledgement), self._call)

    def close(self, *, is_good: bool) -> None:
        """Accept or release the job, unless it was acknowledged."""
        if not self._given:
            (self.accept if is_good else self.release)()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(is_good=error is None)


class BlockingShareStream:
    """An iterator of jobs and a context manager: `with client.share("jobs", group="workers") as jobs`.

    Leaving the block sends acknowledgements, releases all other jobs and leaves the group. For one thread at a time;
    other threads may acknowledge jobs.
    """

    def __init__(
        self, stream: ShareStream, call: Callable[..., Any], start: Callable[..., Any], *, auto_accept: bool
    ) -> None:
        """`call` awaits a coroutine function in the client's thread, `start` starts one.

        Both raise ClosedError once the client is closed.
        """
        self._stream = stream
        self._call = call
        self._start = start
        self._auto_accept = auto_accept
        self._jobs: deque[Job] = deque()
        self._last: BlockingJob | None = None
        self._closed = False

    @property
    def member_id(self) -> str:
        """The id of the member."""
        return self._stream.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions from which the member acquires records, as (topic, partition)."""
        return self._stream.assignment

    def __enter__(self) -> Self:
        self._call(self._stream.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(is_good=error is None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingJob:
        if self._auto_accept and self._last is not None:
            self._last.close(is_good=True)
            self._last = None
        while not self._closed:
            while self._jobs:
                job = self._jobs.popleft()
                if monotonic() < job.expires_at:
                    self._last = BlockingJob(job, self._call, self._start)
                    return self._last
            self._jobs.extend(self._call(self._stream.next_jobs))
            if not self._jobs:
                self.close()
        raise StopIteration

    def close(self) -> None:
        """Send the acknowledgements, release all other jobs, and leave the group."""
        self._close(is_good=True)

    def _close(self, *, is_good: bool) -> None:
        if not self._closed:
            self._closed = True
            if self._auto_accept and self._last is not None:
                self._last.close(is_good=is_good)
            with suppress(ClosedError):  # the client was closed first, and has left the group
                self._call(self._stream.aclose)


async def _acknowledge(job: Job, acknowledgement: Acknowledgement) -> Receipt:
    return job.acknowledge(acknowledgement)
