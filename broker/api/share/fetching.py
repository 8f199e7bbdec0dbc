"""One share fetch: acquire available records, or wait for some.

Records are acquired in the same turn in which they are read or, after cold pages were read, only if the
share-partition would still be read from the same offset. A fetch without records in its response acquires none.

Source: kafka.server.share.DelayedShareFetch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import describe
from warmlog.broker.api.fetch.reader import MAX_CHECKED_BYTES, MAX_SLICES, UNREADABLE, FetchReader
from warmlog.broker.api.fetch.warming import Warming
from warmlog.broker.api.share.reading import read_batches
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.broker.share.partitions.acquiring import Wanted, acquire, reach
from warmlog.broker.share.partitions.delivery import Delivery, Status
from warmlog.broker.share.persister import Outcome
from warmlog.broker.share.sessions import ShareSession, ShareSessionError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.fetch import RECORD_LIMIT, AcquiredRange, SharedPartition, ShareFetchRequest
from warmlog.protocol.request import FetchPartition, FetchRequest, Isolation
from warmlog.protocol.response import FetchedPartition

NOT_READABLE = Outcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorized: READ on the topic")
_OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE

MayRead: TypeAlias = Callable[[str], bool]  # whether a topic may be read


@dataclass(slots=True, kw_only=True, eq=False)
class FetchedShare:
    """A partition of a fetch: its share-partition, or why there is none; later the acquired records."""

    topic_id: bytes
    partition: int
    delivery: Delivery | None = None
    failure: Outcome = field(default_factory=Outcome)
    records: FileSlice | None = None
    acquired: Sequence[AcquiredRange] = ()

    @property
    def has_failed(self) -> bool:
        """Whether there is nothing to wait for; sets `failure`."""
        if self.delivery is not None and self.delivery.status is Status.CLOSED:
            self.failure, self.delivery = self.delivery.failure, None
        return self.delivery is None

    def result(self) -> SharedPartition:
        """Return the partition's part of the response."""
        return SharedPartition(
            topic_id=self.topic_id,
            partition=self.partition,
            error=self.failure.error,
            message=self.failure.message,
            records=b"" if self.records is None else self.records,
            acquired=tuple(self.acquired),
        )


class ShareFetching:
    """The objects that all share fetches use."""

    def __init__(self, partitions: Partitions, reads: ReadAhead, quotas: ClientQuotas) -> None:
        self.partitions = partitions
        self.reads = reads
        self.quotas = quotas


class ShareFetch:
    """One fetch of the partitions of a session."""

    def __init__(
        self,
        shared: ShareFetching,
        request: ShareFetchRequest,
        session: ShareSession,
        shares: Sequence[FetchedShare],
        context: Context,
        *,
        rights: Callable[[], MayRead | None],
    ) -> None:
        """Fetch `shares` in this order. `rights` returns the current rights; None without READ on the group."""
        self._shared = shared
        self._request = request
        self._session = session
        self._epoch = session.epoch
        self._shares = shares
        self._context = context
        self._rights = rights
        self._event = trio.Event()
        self._warming = Warming(shared.reads, shared.partitions.get)
        self._max_bytes = request.max_bytes
        most = shared.quotas.max_fetch_bytes(context.session) if shared.quotas.is_on else None
        if most is not None:
            self._max_bytes = min(self._max_bytes, most)
        mode = request.acquire_mode == RECORD_LIMIT
        self._wanted = Wanted(request.member_id, request.max_records, request.batch_size, mode)

    def wake(self) -> None:
        """Record that records may have become available, or that a partition has failed."""
        self._event.set()

    async def run(self) -> None:
        """Acquire records; wait if there are none. Raises ShareSessionError if another request arrives."""
        if self._request.max_records <= 0 or self._max_bytes <= 0:
            return
        if await self._attempt(is_over=self._request.max_wait_ms == 0):
            return
        ends_at = trio.current_time() + self._request.max_wait_ms / 1000
        try:
            await self._each(lambda delivery: delivery.wait(self))
            is_over = False
            while not await self._attempt(is_over=is_over) and not is_over:
                with trio.CancelScope(deadline=ends_at):
                    await self._context.wait(self._event.wait())
                self._event = trio.Event()
                is_over = trio.current_time() >= ends_at
        finally:
            for share in self._shares:
                if share.delivery is not None:
                    share.delivery.dismiss(self)

    async def _each(self, call: Callable[[Delivery], None]) -> None:
        for share in self._shares:
            if share.delivery is not None:
                call(share.delivery)
            await self._context.checkpoint()

    async def _attempt(self, *, is_over: bool) -> bool:
        """Acquire available records if there are enough; return whether the fetch is complete.

        A fetch that has lost READ on its group completes without records; the next request is refused.
        """
        may_read = self._rights()
        if may_read is None:
            return True
        candidates, has_open = await self._candidates(may_read)
        if not has_open:
            return True
        planned, reader = await self._read(candidates)
        if reader.cold_lookups or reader.cold_slices:

            async def read_again() -> FetchReader:
                nonlocal planned
                planned, latest = await self._read(candidates)
                return latest

            await self._warming.warm_up(reader, self._context.session, read_again)
        if self._session.epoch != self._epoch:
            message = f"the share session of member {self._session.member} has got another request"
            raise ShareSessionError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        is_enough = reader.missing_bytes(self._request.min_bytes) <= 0 or reader.lags or is_over
        if not planned or not is_enough:
            return False
        if self._shared.quotas.is_on and self._is_throttled(reader.size):
            return True
        may_read = self._rights()  # again: cold pages may have been read
        if may_read is None:
            return True
        return await self._acquire([each for each in planned if may_read(each[2].topic)])

    def _is_throttled(self, size: int) -> bool:
        """Record the bytes for the client's quota; return whether it has to pause, and so gets no records."""
        client = self._context.session
        client.throttle_ms, is_empty = self._shared.quotas.fetched(client, size)
        return is_empty

    async def _candidates(self, may_read: MayRead) -> tuple[list[FetchedShare], bool]:
        """Return the share-partitions with available records, and whether any is open."""
        candidates: list[FetchedShare] = []
        has_open = False
        for share in self._shares:
            if not share.has_failed:
                has_open = True
                assert share.delivery is not None
                if share.delivery.has_something and len(candidates) < MAX_SLICES:
                    if may_read(share.delivery.partition.topic):
                        candidates.append(share)
                    else:  # no longer, after the wait
                        self._fail(share, NOT_READABLE)
            await self._context.checkpoint()
        return candidates, has_open

    def _fail(self, share: FetchedShare, failure: Outcome) -> None:
        """Report a failure of a partition."""
        delivery, share.failure, share.delivery = share.delivery, failure, None
        if delivery is not None:
            delivery.dismiss(self)
        self.wake()  # it may have been the last open one

    async def _read(
        self, candidates: Sequence[FetchedShare]
    ) -> tuple[list[tuple[FetchedShare, int, FetchedPartition]], FetchReader]:
        """Read the candidates, each within its part of the fetch's bytes."""
        is_committed = any(share.delivery is not None and share.delivery.is_committed for share in candidates)
        isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED
        request = FetchRequest(partitions=(), max_bytes=self._max_bytes, isolation=isolation)
        reader = FetchReader(request, self._shared.partitions, self._warming.failures)
        max_bytes = min(self._max_bytes // max(len(candidates), 1), MAX_CHECKED_BYTES)
        planned: list[tuple[FetchedShare, int, FetchedPartition]] = []
        for share in candidates:
            delivery = share.delivery
            if delivery is not None and delivery.has_something:
                offset, partition = delivery.state.fetch_offset(), delivery.partition
                requested = FetchPartition(
                    topic=partition.topic, partition=partition.index, offset=offset, max_bytes=max_bytes
                )
                result = reader.at(requested, partition)
                if result.error is _OUT_OF_RANGE:
                    delivery.moved()
                elif result.error is not ErrorCode.NONE:
                    self._fail(share, Outcome(result.error, result.message))
                elif len(result.records):
                    planned.append((share, offset, result))
            await self._context.checkpoint()
        return planned, reader

    async def _acquire(self, planned: Sequence[tuple[FetchedShare, int, FetchedPartition]]) -> bool:
        """Acquire records that were read; return whether there were any."""
        left = self._wanted.max_records
        for share, offset, result in planned:
            delivery = share.delivery
            if delivery is None or delivery.status is not Status.ACTIVE or left <= 0:
                continue
            if delivery.state.fetch_offset() == offset:
                left -= self._acquire_from(share, delivery, offset, result, left)
            await self._context.checkpoint()
        if left == self._wanted.max_records:
            self.wake()  # others were faster, or the records belonged to aborted transactions: retry
            return False
        return True

    def _acquire_from(
        self, share: FetchedShare, delivery: Delivery, offset: int, result: FetchedPartition, max_records: int
    ) -> int:
        """Acquire records of one share-partition, and return how many."""
        state, wanted = delivery.state, self._wanted._replace(max_records=max_records)
        assert isinstance(result.records, FileSlice)
        try:
            read = read_batches(result.records, reach(state, max_records, offset), result.aborted_transactions or ())
        except UNREADABLE as error:
            delivery.partition.cannot_read(error)
            share.failure = Outcome(*describe(error))
            return 0
        acquired = acquire(state, wanted, offset, read.batches, trio.current_time())
        delivery.acquired(acquired)
        if acquired:
            share.acquired, share.records = acquired, read.cut(acquired)
        return sum(each.last_offset - each.first_offset + 1 for each in acquired)


def in_turns(shares: list[FetchedShare], epoch: int) -> list[FetchedShare]:
    """Rotate the partitions: each request begins with the next one (PartitionRotateStrategy)."""
    at = epoch % len(shares) if len(shares) > 1 and epoch > 0 else 0
    return shares[at:] + shares[:at]
