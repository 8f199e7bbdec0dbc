"""Records of the partitions that a member of a group has, as a user gets them.

Owns: streams whose partitions change: when to give up the old ones, where to begin in the new ones. Must not know: how
a member lives (`membership`), or how records are read (`stream`: one BatchStream for each generation).

Invariants:
1. Partitions are given up when the user asks for the next record, and not before: then what it had is done.
2. A partition that stays with this member is read on where it was read to; any other where the group has committed.
3. As in `stream`: an error comes after the records before it, and a call that is cancelled has taken nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from protocol.groups import NO_GENERATION, NO_OFFSET
from warmlog.client.cluster import Cluster
from warmlog.client.errors import WarmlogError
from warmlog.client.group_options import GroupOptions
from warmlog.client.handed import Handed, Place
from warmlog.client.membership import Membership
from warmlog.client.reading import Reading
from warmlog.client.settings import Settings
from warmlog.client.start import Start
from warmlog.client.stream import BatchStream, ConsumedRecord


class GroupReader:
    """What all faces of a group's stream share: a member, and what it reads. Not for several tasks at a time."""

    def __init__(
        self, cluster: Cluster, settings: Settings, random: Random, reading: Reading, options: GroupOptions
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._reading = reading
        self._stream: BatchStream | None = None
        self._left_at: tuple[int, Mapping[Place, int]] = (NO_GENERATION, {})  # and how far it was read then
        self._closed = False
        self._busy = False
        self.handed = Handed()
        self.membership = Membership(cluster, settings, random, options, self.handed)

    # -- steps --

    async def open(self) -> None:
        """Join the group, and find out where to begin. Raises WarmlogError."""
        with self._alone():
            await self._joined()

    async def next_records(self) -> list[ConsumedRecord]:
        """What comes next, empty at the end; it is for the caller to give it to `handed`. Raises WarmlogError."""
        with self._alone():
            self.handed.settle()
            await checkpoint()
            while not self._closed:
                stream = await self._joined()
                if stream is not None and not self.membership.must_join:
                    records = await self._read(stream)
                    if records is not None:
                        return records
        return []

    async def commit(self, positions: Mapping[Place, int] | None) -> None:
        """Commit these offsets, or those after all that was taken. Raises GroupMovedOnError, WarmlogError."""
        await self.membership.commit(self.handed.done(with_last=True) if positions is None else positions)

    @property
    def after(self) -> dict[Place, int]:
        """The positions behind the records that came last."""
        return {} if self._stream is None else self._stream.positions

    # -- the end --

    def close(self, *, with_last: bool) -> None:
        """Stop reading, and leave in the background. `with_last`: what was taken last is done."""
        if not self._closed:
            self._closed = True
            self.membership.stop(with_last=with_last)
            if self._stream is not None:
                self._stream.close()
            if self.membership.on_change is not None:
                self.membership.on_change()

    async def aclose(self, *, with_last: bool) -> None:
        """Stop reading, leave, and wait until that is done."""
        self.close(with_last=with_last)
        await self.membership.wait_ended()

    # -- inside --

    async def _joined(self) -> BatchStream | None:
        """The stream over the partitions at hand; None where the reader was closed meanwhile."""
        try:
            if self.membership.must_join:
                self._give_up()
                await self.membership.join()
            if self._stream is None and not self._closed:
                self._stream = await self._opened(self._reading_now())
                self.handed.reset(self._stream.positions)
        except WarmlogError:
            self.close(with_last=True)
            raise
        return self._stream

    def _give_up(self) -> None:
        if self._stream is not None:
            self._left_at = (self.membership.generation, self.handed.done(with_last=True))
            self._stream.close()
            self._stream = None

    async def _opened(self, reading: Reading) -> BatchStream:
        with ExitStack() as stack:
            stream = BatchStream(self._cluster, self._settings, self._random, reading)
            stack.callback(stream.close)
            await stream.__aenter__()
            stack.pop_all()
        return stream

    def _reading_now(self) -> Reading:
        generation, held = self._left_at
        is_next = generation != NO_GENERATION and self.membership.generation == generation + 1
        places: dict[Place, Start] = {}
        for place, committed in self.membership.places.items():
            if is_next and place in held:
                places[place] = held[place]
            else:
                places[place] = self._reading.start if committed == NO_OFFSET else committed
        return replace(self._reading, topics=tuple(dict.fromkeys(topic for topic, _ in places)), places=places)

    async def _read(self, stream: BatchStream) -> list[ConsumedRecord] | None:
        """What the partitions have; None when they must be given up, an empty list at the end. Raises WarmlogError."""
        if not stream.positions and not self._reading.until_end:
            with self._interruptible():
                await anyio.sleep_forever()  # a member without partitions waits for some
            return None
        records: list[ConsumedRecord] = []
        try:
            with self._interruptible():
                records = await anext(stream, [])
        except WarmlogError:
            self.close(with_last=True)
            raise
        return None if not records and self.membership.must_join else records

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """What is awaited here ends when partitions must be given up."""
        with anyio.CancelScope() as scope:
            self.membership.on_change = scope.cancel
            try:
                yield
            finally:
                self.membership.on_change = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._busy:
            raise RuntimeError("a stream is read by one task at a time")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False


class GroupStream:
    """What `GroupRecordStream` and `GroupBatchStream` have in common.

    Read it within `async with`: leaving the block commits what is done and leaves the group. Where the block ends by an
    exception, what was taken last is not done. A stream that is just forgotten leaves, too, and then what it gave last
    is not done either.
    """

    def __init__(self, reader: GroupReader) -> None:
        self._reader = reader

    @property
    def positions(self) -> dict[Place, int]:
        """The member's partitions, as (topic, partition), and in each the offset after the last record taken."""
        return self._reader.handed.done(with_last=True)

    @property
    def member_id(self) -> str:
        """As the broker calls this member; empty while it is none."""
        return self._reader.membership.member_id

    async def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        """Commit these offsets, by (topic, partition); by default those after everything that was taken.

        Raises GroupMovedOnError where the partitions are others' by now, and other WarmlogErrors.
        """
        await self._reader.commit(offsets)

    async def aclose(self) -> None:
        """Commit what was taken, if that is automatic, and leave the group."""
        await self._reader.aclose(with_last=True)

    async def __aenter__(self) -> Self:
        await self._reader.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._reader.aclose(with_last=error is None)

    def __aiter__(self) -> Self:
        return self

    def __del__(self) -> None:
        self._reader.close(with_last=False)

    async def _next(self) -> list[ConsumedRecord]:
        records = await self._reader.next_records()
        if not records:
            await self._reader.aclose(with_last=True)
            raise StopAsyncIteration
        return records


class GroupBatchStream(GroupStream):
    """An async iterator of lists of records of a group's member. Not for several tasks at a time."""

    async def stop_within(self, taken: int) -> None:
        """Leave the group as `aclose`, with only so many records of the last list done."""
        self._reader.handed.cut_at(taken)
        await self.aclose()

    async def __anext__(self) -> list[ConsumedRecord]:
        records = await self._next()
        self._reader.handed.give_whole(records, self._reader.after)
        return records


class GroupRecordStream(GroupStream):
    """An async iterator of records of a group's member. Not for several tasks at a time."""

    async def __anext__(self) -> ConsumedRecord:
        handed = self._reader.handed
        for record in handed.left:
            return record
        handed.give(await self._next(), self._reader.after)
        return next(handed.left)
