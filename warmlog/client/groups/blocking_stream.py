"""The blocking version of a group's stream: an iterator in the caller's thread over a reader in the client's thread.

Unlike `Client.consume` without a group, it does not fetch ahead of the caller, because requesting the next list marks
the last one as processed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from warmlog.client.consuming.stream import ConsumedRecord
from warmlog.client.errors import ClosedError
from warmlog.client.groups.group_stream import GroupReader
from warmlog.protocol.partitions import TopicPartition


class BlockingGroupStream:
    """An iterator of a group's records and a context manager: `with client.consume("orders", group="g") as stream`.

    Leaving the block commits processed records and leaves the group. After an exception, the record taken last does not
    count as processed; nor does it if the stream is only garbage collected. For one thread at a time.
    """

    def __init__(self, reader: GroupReader, call: Callable[..., Any], start: Callable[..., object]) -> None:
        """`call` awaits a coroutine function in the client's thread, `start` starts one.

        Both raise ClosedError once the client is closed.
        """
        self._reader = reader
        self._call = call
        self._start = start
        self._closed = False

    def __del__(self) -> None:
        if self._closed:
            return
        try:
            self._start(_abandon, self._reader)
        except ClosedError:
            return
        except RuntimeError:  # garbage collected in the client's own thread
            self._reader.close(include_last=False)

    @property
    def reader(self) -> GroupReader:
        """The reader behind the stream, which lives in the client's thread."""
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
        """Continue at an offset. See `GroupStream.seek`."""
        self._call(_in_loop, partial(self._reader.seek, offset, partition=partition, topic=topic))

    def pause(self, *partitions: int, topic: str | None = None) -> None:
        """Stop reading partitions, by default all that are assigned. See `GroupStream.pause`."""
        self._call(_in_loop, partial(self._reader.pause, *partitions, topic=topic))

    def resume(self, *partitions: int, topic: str | None = None) -> None:
        """Read paused partitions again, by default all. Raises ValueError."""
        self._call(_in_loop, partial(self._reader.resume, *partitions, topic=topic))

    def batches(self) -> Iterator[list[ConsumedRecord]]:
        """Iterate over lists of records. Use either this or the stream's own iterator."""
        while records := self._next_records(whole=True):
            yield records

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets, or those after all records taken. See `GroupStream.commit`."""
        self._call(self._reader.commit, offsets)

    def close(self) -> None:
        """Commit records taken, if auto_commit is on, and leave the group."""
        self._close(include_last=True)

    def __enter__(self) -> Self:
        self._call(self._reader.open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(include_last=error is None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        tracker = self._reader.tracker
        while True:
            for record in tracker.remaining:
                return record
            if not self._next_records(whole=False):
                raise StopIteration

    def _next_records(self, *, whole: bool) -> list[ConsumedRecord]:
        records: list[ConsumedRecord] = [] if self._closed else self._call(_next_records, self._reader, whole)
        if not records:
            self.close()
        return records

    def _close(self, *, include_last: bool) -> None:
        if not self._closed:
            self._closed = True
            with suppress(ClosedError):  # the client was closed first, and has left the group
                self._call(_close, self._reader, include_last)


async def _next_records(reader: GroupReader, whole: bool) -> list[ConsumedRecord]:
    """Return the next records, which are tracked as delivered before the event loop continues."""
    records = await reader.next_records()
    (reader.tracker.deliver_all if whole else reader.tracker.deliver)(records, reader.after)
    return records


async def _in_loop(function: Callable[[], None]) -> None:
    function()


async def _abandon(reader: GroupReader) -> None:
    reader.close(include_last=False)


async def _close(reader: GroupReader, include_last: bool) -> None:
    await reader.aclose(include_last=include_last)
