"""Records of the partitions assigned to a group member.

In a classic group there is one BatchStream per generation. In a consumer group a stream lasts until the member is
fenced: partitions are removed from it and added to it while it reads the others.

Invariants:
1. Partitions are given up only when the caller requests the next record, since all earlier ones are then processed.
2. A partition that the member keeps continues at its position; any other starts at the group's committed offset. If a
partition is given up, records of the kept partitions that were fetched but not taken are delivered next.
3. As in `consuming.stream`: an error is raised after the records before it, and a cancelled call has consumed nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from warmlog.client.connection.cluster import Cluster
from warmlog.client.consuming.stream import BatchStream, ConsumedRecord, lag_of
from warmlog.client.consuming.subscription import Start, Subscription
from warmlog.client.errors import UnknownTopicError, WarmlogError
from warmlog.client.groups.delivery_tracker import DeliveryTracker
from warmlog.client.groups.group_offsets import Member
from warmlog.client.groups.member_options import MemberOptions
from warmlog.client.groups.membership import Membership
from warmlog.client.settings import Settings
from warmlog.protocol.groups import NO_GENERATION, NO_OFFSET
from warmlog.protocol.partitions import TopicPartition


class GroupReader:
    """The shared part of all group streams: a membership and its current stream. For one task at a time."""

    def __init__(
        self, cluster: Cluster, settings: Settings, random: Random, subscription: Subscription, options: MemberOptions
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._subscription = subscription
        self._stream: BatchStream | None = None
        self._joins = self._changes = 0  # the membership's counters as of the stream's last update
        self._last_positions: tuple[int, Mapping[TopicPartition, int]] = (NO_GENERATION, {})  # generation, positions
        self._has_pattern = options.pattern is not None
        self._callbacks = options.callbacks
        self._held: tuple[TopicPartition, ...] = ()  # the partitions last reported to the callbacks
        self._paused: set[TopicPartition] = set()
        self._closed = False
        self._busy = False
        self.tracker = DeliveryTracker()
        self.membership = Membership(cluster, settings, random, options, self.tracker)

    # -- steps --

    async def open(self) -> None:
        """Join the group and open the stream. Raises WarmlogError."""
        with self._exclusive():
            await self._joined()

    async def next_records(self) -> list[ConsumedRecord]:
        """Return the next records, empty at the end; the caller passes them to `tracker`. Raises WarmlogError."""
        with self._exclusive():
            self.tracker.finish()
            await checkpoint()
            while not self._closed:
                stream = await self._joined()
                if stream is not None and not self.membership.must_join:
                    if kept_back := self.tracker.take_kept_back():
                        return kept_back
                    records = await self._read(stream)
                    if records is not None:
                        return records
        return []

    async def commit(self, positions: Mapping[TopicPartition, int] | None) -> None:
        """Commit these offsets, or those after all records taken. Raises GroupMovedOnError, WarmlogError."""
        await self.membership.commit(self.tracker.committable(include_last=True) if positions is None else positions)

    def transactional_commit(
        self, positions: Mapping[TopicPartition, int] | None
    ) -> tuple[Member, Mapping[TopicPartition, int]]:
        """Return the member and the offsets to commit in a transaction: those given, or those after all records taken.

        Raises GroupMovedOnError; ValueError if the stream commits automatically, which would bypass transactions.
        """
        if self.membership.commits_by_itself:
            raise ValueError("the stream commits offsets by itself: open it with auto_commit=False")
        member = self.membership.as_member()
        return member, self.tracker.committable(include_last=True) if positions is None else positions

    def seek(self, offset: int, *, partition: int, topic: str | None) -> None:
        """Continue a partition of the assignment at an offset, which the next commit includes. Raises ValueError."""
        stream = self._assigned_stream()
        ((topic, partition),) = stream.chosen(partition, topic=topic)
        stream.seek(offset, partition=partition, topic=topic)
        self.tracker.move((topic, partition), offset, keep_taken=False)

    def pause(self, *partitions: int, topic: str | None) -> None:
        """Stop reading partitions (by default all assigned ones) until `resume`, even across rebalances.

        Raises ValueError.
        """
        self._pause(self._assigned_stream().chosen(*partitions, topic=topic))

    def _pause(self, keys: Iterable[TopicPartition]) -> None:
        stream = self._assigned_stream()
        for topic, partition in keys:
            self._paused.add((topic, partition))
            stream.pause(partition, topic=topic)
            offset = self.tracker.first_left((topic, partition))
            if offset is not None:
                stream.seek(offset, partition=partition, topic=topic)
                self.tracker.move((topic, partition), offset, keep_taken=True)

    def resume(self, *partitions: int, topic: str | None) -> None:
        """Read paused partitions again, by default all, from where they were paused. Raises ValueError."""
        stream = self._assigned_stream()
        self._paused -= set(stream.chosen(*partitions, topic=topic))
        stream.resume(*partitions, topic=topic)

    def _assigned_stream(self) -> BatchStream:
        if self._stream is None:
            raise ValueError("the stream has no partitions: it is not open, or a rebalance is in progress")
        return self._stream

    @property
    def after(self) -> dict[TopicPartition, int]:
        """The positions after the last list of records."""
        return {} if self._stream is None else self._stream.positions

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from the last records taken to the ends of the partitions."""
        if self._stream is None:
            return {}
        return lag_of(self.tracker.committable(include_last=True), self._stream.high_watermarks)

    # -- closing --

    def close(self, *, include_last: bool) -> None:
        """Stop reading, and leave in the background. `include_last`: the record taken last is processed."""
        if not self._closed:
            self._closed = True
            self.membership.stop(include_last=include_last)
            if self._stream is not None:
                self._stream.close()
            if self.membership.on_change is not None:
                self.membership.on_change()

    async def aclose(self, *, include_last: bool) -> None:
        """Stop reading, and wait until the member has left."""
        if not self._closed and not include_last:
            self.tracker.revoke_last()  # so that callbacks do not commit the record taken last
        try:
            await self._give_up(self._held)
        finally:
            self.close(include_last=True)
        await self.membership.wait_ended()

    # -- internals --

    async def _joined(self) -> BatchStream | None:
        """Return the stream of the current assignment, joining first if needed; None if closed meanwhile."""
        try:
            if self.membership.must_join:
                await self._give_up(self.membership.leaving)
                if not self.membership.is_incremental:
                    self._close_stream()
                await self.membership.join()
            if self._stream is not None and self._joins != self.membership.joins:
                await self._lose_all()
            if self._stream is None and not self._closed:
                self._joins, self._changes = self.membership.joins, self.membership.changes
                self._stream = await self._open_stream(self._subscription_to(self._starts()))
                self.tracker.reset(self._stream.positions)
                await self._take_over(tuple(self._stream.positions))
            elif self._stream is not None and self._changes != self.membership.changes:
                await self._change_stream(self._stream)
        except WarmlogError as error:
            if self._is_deletion(error):
                self.membership.rejoin()
                return None
            with anyio.CancelScope(shield=True):
                await self._give_up(self._held)
            self.close(include_last=True)
            raise
        return self._stream

    def _is_deletion(self, error: WarmlogError) -> bool:
        """Return whether a topic that matched the pattern was deleted, in which case the group continues without it."""
        return self._has_pattern and isinstance(error, UnknownTopicError)

    async def _change_stream(self, stream: BatchStream) -> None:
        """Start reading added partitions and stop reading given-up ones, while the others continue."""
        changes = self.membership.changes
        await stream.assign(self._starts())
        self.tracker.add(stream.positions)
        self._changes = changes
        added = tuple(key for key in stream.positions if key not in self._held)
        if added:
            await self._take_over(added)

    async def _take_over(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Report to the callbacks that these partitions are now read."""
        self._pause(self._paused.intersection(partitions))
        self._held += partitions
        await self._callbacks.assigned(partitions)

    async def _lose_all(self) -> None:
        """Close the stream of a membership that has ended meanwhile."""
        self._close_stream()
        lost, self._held = self._held, ()
        if lost:
            await self._callbacks.lost(lost)

    async def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Report to the callbacks, once, that these partitions are given up or already lost."""
        leaving = tuple(key for key in self._held if key in partitions)
        self._held = tuple(key for key in self._held if key not in partitions)
        if leaving and not self._closed:
            is_member = self.membership.generation != NO_GENERATION and self.membership.failure is None
            await (self._callbacks.revoked if is_member else self._callbacks.lost)(leaving)

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._last_positions = (self.membership.generation, self.tracker.committable(include_last=True))
            self._stream.close()
            self._stream = None

    async def _open_stream(self, subscription: Subscription) -> BatchStream:
        with ExitStack() as stack:
            stream = BatchStream(self._cluster, self._settings, self._random, subscription)
            stack.callback(stream.close)
            await stream.__aenter__()
            stack.pop_all()
        return stream

    def _subscription_to(self, starts: Mapping[TopicPartition, Start]) -> Subscription:
        return replace(self._subscription, topics=tuple(dict.fromkeys(topic for topic, _ in starts)), starts=starts)

    def _starts(self) -> dict[TopicPartition, Start]:
        """Return the starts of the assigned partitions."""
        generation, held = self._last_positions
        is_next = generation != NO_GENERATION and self.membership.generation == generation + 1
        starts: dict[TopicPartition, Start] = {}
        for key, committed in self.membership.assignment.items():
            if is_next and key in held:
                starts[key] = held[key]
            else:
                starts[key] = self._subscription.start if committed == NO_OFFSET else committed
        return starts

    async def _read(self, stream: BatchStream) -> list[ConsumedRecord] | None:
        """Return the next records; None if partitions must be given up, empty at the end. Raises WarmlogError."""
        if not stream.positions:
            with self._interruptible():
                if not self._subscription.until_end:
                    await anyio.sleep_forever()  # interrupted by an assignment
                await self.membership.wait_settled()
            return None if self.membership.must_join or not self._subscription.until_end else []
        records: list[ConsumedRecord] = []
        try:
            with self._interruptible():
                records = await anext(stream, [])
        except WarmlogError as error:
            if self._is_deletion(error):
                self.membership.rejoin()
                return None
            self.close(include_last=True)
            raise
        return None if not records and self.membership.must_join else records

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Cancel the body when partitions must be given up."""
        with anyio.CancelScope() as scope:
            self.membership.on_change = scope.cancel
            try:
                yield
            finally:
                self.membership.on_change = None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._busy:
            raise RuntimeError("only one task at a time may read a stream")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False


class GroupStream:
    """The shared part of `GroupRecordStream` and `GroupBatchStream`.

    Read it inside `async with`: leaving the block commits processed records and leaves the group. After an exception,
    the record taken last does not count as processed; nor does it if the stream is only garbage collected.
    """

    def __init__(self, reader: GroupReader) -> None:
        self._reader = reader

    @property
    def reader(self) -> GroupReader:
        """The reader behind the stream."""
        return self._reader

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """By (topic, partition) of the assignment, the offset after the last record taken."""
        return self._reader.tracker.committable(include_last=True)

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """By (topic, partition) of the assignment, the number of offsets up to the last known high watermark."""
        return self._reader.lag

    def seek(self, offset: int, *, partition: int = 0, topic: str | None = None) -> None:
        """Continue at an offset, of the only topic unless one is named; commits also follow it.

        Raises ValueError unless the partition is assigned to this member.
        """
        self._reader.seek(offset, partition=partition, topic=topic)

    def pause(self, *partitions: int, topic: str | None = None) -> None:
        """Stop reading partitions, by default all that are assigned, until `resume`.

        Partitions that the member keeps in a rebalance remain paused. While all partitions are paused, the stream
        waits: only another task can resume it. Raises ValueError.
        """
        self._reader.pause(*partitions, topic=topic)

    def resume(self, *partitions: int, topic: str | None = None) -> None:
        """Read paused partitions again, by default all, from where they were paused. Raises ValueError."""
        self._reader.resume(*partitions, topic=topic)

    @property
    def member_id(self) -> str:
        """The id that the broker assigned; empty before the first join."""
        return self._reader.membership.member_id

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets, by (topic, partition); by default those after all records taken.

        Raises GroupMovedOnError if the partitions were reassigned, and other WarmlogErrors.
        """
        await self._reader.commit(offsets)

    async def aclose(self) -> None:
        """Commit records taken, if auto_commit is on, and leave the group."""
        await self._reader.aclose(include_last=True)

    async def __aenter__(self) -> Self:
        await self._reader.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._reader.aclose(include_last=error is None)

    def __aiter__(self) -> Self:
        return self

    def __del__(self) -> None:
        self._reader.close(include_last=False)

    async def _next(self) -> list[ConsumedRecord]:
        records = await self._reader.next_records()
        if not records:
            await self._reader.aclose(include_last=True)
            raise StopAsyncIteration
        return records


class GroupBatchStream(GroupStream):
    """An async iterator of lists of a group member's records. For one task at a time."""

    async def stop_within(self, taken: int) -> None:
        """Leave the group like `aclose`, with only the first `taken` records of the last list processed."""
        self._reader.tracker.revoke_after(taken)
        await self.aclose()

    async def __anext__(self) -> list[ConsumedRecord]:
        records = await self._next()
        self._reader.tracker.deliver_all(records, self._reader.after)
        return records


class GroupRecordStream(GroupStream):
    """An async iterator of a group member's records. For one task at a time."""

    async def __anext__(self) -> ConsumedRecord:
        tracker = self._reader.tracker
        for record in tracker.remaining:
            return record
        tracker.deliver(await self._next(), self._reader.after)
        return next(tracker.remaining)
