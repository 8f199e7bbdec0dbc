"""The share session with one broker: acquires records of the partitions that it leads, and acknowledges them.

    wait -> fetch, with acknowledgements -> jobs, receipts -> wait ...
         -> acknowledge only                -> receipts

Invariants:
1. One request is in flight: the epoch of a session numbers its requests.
2. A fetch is sent only while a caller waits for a job: no records are held without being processed.
3. Acknowledgements are sent with the next fetch; without one they are sent after `ACKNOWLEDGE_S`, or immediately if a
   task waits for their receipts.
4. When the connection is lost, the broker releases the member's records: all receipts fail, and jobs not taken yet are
   dropped.

Source: org.apache.kafka.clients.consumer.internals.ShareConsumeRequestManager, ShareSessionHandler.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import anyio

from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.connection import Connection
from warmlog.client.consuming.stream import ConsumedRecord
from warmlog.client.errors import ClosedError, ConnectionLostError, WarmlogError, broker_error
from warmlog.client.settings import Settings
from warmlog.client.share.job import Job, Receipt
from warmlog.client.share.options import ShareOptions
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.native.messages import FIRST_WITH_SHARE_GROUPS
from warmlog.protocol.native.share import (
    AcknowledgedOffsets,
    AcknowledgedPartition,
    Acknowledgement,
    AcknowledgeShareGroupRequest,
    AcknowledgeShareGroupResponse,
    FetchShareGroupRequest,
    ReceivedSharedPartition,
    ReceivedShareFetch,
)
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.reader import decoded_batches

logger = logging.getLogger(__name__)

OPENING_EPOCH = 0
CLOSING_EPOCH = -1
MAX_EPOCH = (1 << 31) - 1
ACKNOWLEDGE_S = 0.1
LEAVE_TIMEOUT_S = 5.0
LOST = "the connection was lost, and the broker has released the records held through it"
# The broker does not have the session: open another one.
SESSION_ENDED = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})


class _Given(NamedTuple):
    """An acknowledgement that has not been sent yet."""

    offset: int
    acknowledgement: Acknowledgement
    receipt: Receipt
    job: Job


class BrokerSession:
    """The session with one broker. Event loop only.

    `wanted` returns the number of jobs that callers want now. `arrived` is called with the jobs of each successful
    fetch, `lost` when the member no longer holds any of this session's jobs, `unreadable` with a partition and its
    error: that partition is not fetched again before the next `assign`.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        options: ShareOptions,
        member_id: str,
        node_id: int,
        *,
        wanted: Callable[[], int],
        arrived: Callable[[list[Job]], None],
        lost: Callable[["BrokerSession"], None],
        unreadable: Callable[[TopicPartition, WarmlogError], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._options = options
        self._member_id = member_id
        self._node_id = node_id
        self._wanted = wanted
        self._arrived = arrived
        self._lost = lost
        self._unreadable = unreadable
        self._connection: Connection | None = None
        self._epoch = OPENING_EPOCH
        self._generation = 0  # number of the session; records acquired in an earlier session are no longer held
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._known: frozenset[TopicPartition] = frozenset()  # partitions in the broker's session
        self._given: dict[TopicPartition, list[_Given]] = {}
        self._acknowledge_at = 0.0
        self._wake = anyio.Event()
        self.is_closing = False

    # -- called by the stream --

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the partitions from which to acquire records from now on."""
        self._assigned = frozenset(partitions)
        self.wake()

    def wake(self) -> None:
        """Check again whether there is work to do."""
        self._wake.set()

    def _acknowledge(self, generation: int, job: Job, acknowledgement: Acknowledgement) -> Receipt:
        """Send an acknowledgement soon."""
        receipt = Receipt(self._hurry)
        if self.is_closing or generation != self._generation:
            receipt.settle(ConnectionLostError(LOST))
            return receipt
        if not self._given:
            self._acknowledge_at = anyio.current_time() + ACKNOWLEDGE_S
        given = _Given(job.offset, acknowledgement, receipt, job)
        self._given.setdefault((job.topic, job.partition), []).append(given)
        if acknowledgement is Acknowledgement.RENEW:
            self._hurry()
        self._wake.set()
        return receipt

    def _hurry(self) -> None:
        self._acknowledge_at = 0.0
        self._wake.set()

    # -- the task --

    async def run(self) -> None:
        """Serve the session until cancelled. Raises WarmlogError."""
        try:
            while True:
                await self._wait_for_work()
                try:
                    await self._work()
                except WarmlogError as error:
                    self._fail(error)
                    if error.code not in SESSION_ENDED:
                        raise
        finally:
            await self._close()

    async def _wait_for_work(self) -> None:
        while not self._is_fetch_due and not self._is_acknowledgement_due:
            limit_s = max(0.0, self._acknowledge_at - anyio.current_time()) if self._given else None
            with anyio.move_on_after(limit_s):
                await self._wake.wait()
            self._wake = anyio.Event()

    @property
    def _is_fetch_due(self) -> bool:
        return bool(self._assigned) and self._wanted() > 0

    @property
    def _is_acknowledgement_due(self) -> bool:
        return bool(self._given) and anyio.current_time() >= self._acknowledge_at

    async def _work(self) -> None:
        """Send one request. Raises WarmlogError."""
        connection = await self._connected()
        has_renewals = any(
            given.acknowledgement is Acknowledgement.RENEW for each in self._given.values() for given in each
        )
        if self._given and (has_renewals or not self._is_fetch_due):
            await self._send_acknowledgements(connection, self._epoch)
        elif self._is_fetch_due:
            await self._fetch(connection)

    async def _connected(self) -> Connection:
        """Return the connection; open a new one if it was closed. Raises WarmlogError."""
        if self._connection is None or self._connection.closed:
            if self._connection is not None:
                self._forget(ConnectionLostError(LOST))
            self._connection = await self._cluster.open(self._node_id)
            if self._connection.version < FIRST_WITH_SHARE_GROUPS:
                error = broker_error(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"share groups need version {FIRST_WITH_SHARE_GROUPS} of the native protocol: update the broker",
                )
                error.is_final = True
                raise error
        return self._connection

    # -- requests --

    async def _fetch(self, connection: Connection) -> None:
        settings, given = self._settings, self._given
        self._given = {}
        known = frozenset() if self._epoch == OPENING_EPOCH else self._known
        assigned = self._assigned
        request = FetchShareGroupRequest(
            group=self._options.group,
            member_id=self._member_id,
            session_epoch=self._epoch,
            max_wait_ms=settings.fetch_max_wait_ms,
            max_bytes=settings.fetch_bytes,
            max_records=self._wanted(),
            is_strict=True,
            partitions=_partitions(sorted({*(assigned - known), *given}), given),
            forgotten=_entries(known - assigned - given.keys()),
        )
        sent_at = anyio.current_time()
        reply = connection.submit(request, ReceivedShareFetch, extra_s=settings.fetch_max_wait_ms / 1000)
        try:
            response = await reply.wait()
        except WarmlogError as error:
            _settle(given, error)
            raise
        self._known = assigned | given.keys()
        self._advance()
        errors: dict[TopicPartition, WarmlogError] = {
            (each.topic, each.partition): broker_error(each.acknowledge_error, each.acknowledge_message)
            for each in response.partitions
            if each.acknowledge_error is not ErrorCode.NONE
        }
        _settle_each(given, errors)
        self._take(response, sent_at + response.lock_duration_ms / 1000)

    async def _send_acknowledgements(self, connection: Connection, epoch: int) -> None:
        given, self._given = self._given, {}
        request = AcknowledgeShareGroupRequest(
            group=self._options.group,
            member_id=self._member_id,
            session_epoch=epoch,
            partitions=_partitions(sorted(given), given),
        )
        sent_at = anyio.current_time()
        try:
            response = await connection.submit(request, AcknowledgeShareGroupResponse).wait()
        except WarmlogError as error:
            _settle(given, error)
            raise
        self._advance()
        errors: dict[TopicPartition, WarmlogError] = {
            (each.topic, each.partition): broker_error(each.error, each.message)
            for each in response.partitions
            if each.error is not ErrorCode.NONE
        }
        for partition, acknowledgements in given.items():
            if partition not in errors:
                for each in acknowledgements:
                    if each.acknowledgement is Acknowledgement.RENEW:
                        each.job.expires_at = sent_at + response.lock_duration_ms / 1000
        _settle_each(given, errors)

    def _advance(self) -> None:
        self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1

    def _take(self, response: ReceivedShareFetch, expires_at: float) -> None:
        """Hand over acquired records, and report partitions that could not be read."""
        jobs: list[Job] = []
        unreadable: dict[TopicPartition, WarmlogError] = {}
        for each in response.partitions:
            if each.error is ErrorCode.NONE:
                jobs += self._jobs(each, expires_at)
            else:
                key = each.topic, each.partition
                unreadable[key] = broker_error(each.error, each.message, about=f"{each.topic}-{each.partition}")
        if jobs or not unreadable:
            self._arrived(jobs)
        self._assigned -= unreadable.keys()
        for partition, error in unreadable.items():
            self._unreadable(partition, error)

    def _jobs(self, partition: ReceivedSharedPartition, expires_at: float) -> list[Job]:
        """Return the jobs among a partition's records. Records that cannot be read are rejected."""
        if not partition.acquired:
            return []
        held = {
            offset: each.deliveries
            for each in partition.acquired
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        jobs: list[Job] = []
        prefix = (partition.topic, partition.partition)
        acknowledge = partial(self._acknowledge, self._generation)
        try:
            for _, records in decoded_batches(partition.records, make=ConsumedRecord, prefix=prefix):
                for record in records:
                    deliveries = held.pop(record.offset, None)
                    if deliveries is not None:
                        jobs.append(Job(record, deliveries, expires_at, acknowledge))
        except ProtocolError as problem:
            logger.warning("%s-%d: rejecting records that cannot be read: %s", *prefix, problem)
            for offset, deliveries in held.items():
                record = ConsumedRecord(*prefix, offset, -1, None, None)
                Job(record, deliveries, expires_at, acknowledge).reject()
        return jobs

    # -- closing --

    def _fail(self, error: WarmlogError) -> None:
        """Fail all receipts, and open another session with the next request."""
        self._forget(error)
        if self._connection is not None and error.code not in SESSION_ENDED:
            self._connection.close()

    def _forget(self, error: WarmlogError) -> None:
        given, self._given = self._given, {}
        _settle(given, error)
        self._epoch, self._known = OPENING_EPOCH, frozenset()
        self._generation += 1
        self._lost(self)

    async def _close(self) -> None:
        """Send pending acknowledgements, release all other records, and end the session."""
        connection, self._connection = self._connection, None
        self.is_closing = True
        if connection is not None and not connection.closed:
            if self._epoch != OPENING_EPOCH:
                with anyio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
                    try:
                        await self._send_acknowledgements(connection, CLOSING_EPOCH)
                    except WarmlogError as error:
                        logger.info("group %s: cannot end the session: %s", self._options.group, error.message)
            connection.close()
        given, self._given = self._given, {}
        _settle(given, ClosedError("the stream was closed"))


def _entries(partitions: Iterable[TopicPartition]) -> tuple[PartitionEntry, ...]:
    return tuple([PartitionEntry(topic=topic, partition=index) for topic, index in sorted(partitions)])


def _partitions(
    partitions: Iterable[TopicPartition], given: dict[TopicPartition, list[_Given]]
) -> tuple[AcknowledgedPartition, ...]:
    return tuple(
        [
            AcknowledgedPartition(topic=topic, partition=index, acknowledgements=_ranges(given.get((topic, index), [])))
            for topic, index in partitions
        ]
    )


def _ranges(given: list[_Given]) -> tuple[AcknowledgedOffsets, ...]:
    """Combine adjacent offsets with the same acknowledgement. The last acknowledgement of an offset counts."""
    ranges: list[tuple[int, int, Acknowledgement]] = []
    latest = {each.offset: each.acknowledgement for each in given}
    for offset in sorted(latest):
        first, last, kind = ranges[-1] if ranges else (offset, offset, None)
        if last == offset - 1 and kind is latest[offset]:
            ranges[-1] = (first, offset, latest[offset])
        else:
            ranges.append((offset, offset, latest[offset]))
    return tuple(
        [
            AcknowledgedOffsets(first_offset=first, last_offset=last, acknowledgement=kind)
            for first, last, kind in ranges
        ]
    )


def _settle(given: dict[TopicPartition, list[_Given]], error: WarmlogError | None) -> None:
    for each in given.values():
        for acknowledgement in each:
            acknowledgement.receipt.settle(error)


def _settle_each(given: dict[TopicPartition, list[_Given]], errors: dict[TopicPartition, WarmlogError]) -> None:
    for partition, acknowledgements in given.items():
        _settle({partition: acknowledgements}, errors.get(partition))
