"""A group's stream for programs without an event loop.

Owns: an iterator in the caller's thread over a reader in the client's. Must not know: how groups work (`group_stream`).

The next records are not fetched before they are asked for, as `Client.consume` does without a group: asking says that
the last ones are done.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from warmlog.client.errors import ClosedError
from warmlog.client.group_stream import GroupReader
from warmlog.client.handed import Place
from warmlog.client.stream import ConsumedRecord


class BlockingGroupStream:
    """An iterator of a group's records, and a context manager: `with client.consume("orders", group="g") as stream`.

    Leaving the block commits what is done and leaves the group; by an exception, without the record that was taken
    last. So does a stream that is just forgotten. To be used in one thread at a time.
    """

    def __init__(self, reader: GroupReader, call: Callable[..., Any], start: Callable[..., object]) -> None:
        """`call` awaits a coroutine function in the client's thread, `start` does not wait for its end.

        Both raise ClosedError where the client is closed.
        """
        self._reader = reader
        self._call = call
        self._start = start
        self._closed = False

    def __del__(self) -> None:
        if self._closed:
            return
        try:
            self._start(_forget, self._reader)
        except ClosedError:
            return
        except RuntimeError:  # the garbage collector came by in the client's own thread
            self._reader.close(with_last=False)

    @property
    def positions(self) -> dict[Place, int]:
        """The member's partitions, as (topic, partition), and in each the offset after the last record taken."""
        return self._reader.handed.done(with_last=True)

    def batches(self) -> Iterator[list[ConsumedRecord]]:
        """The records in lists, as they come. Instead of iterating over the stream itself, not beside it."""
        while records := self._next_records(whole=True):
            yield records

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        """Commit these offsets, or those after everything that was taken. See `GroupStream.commit`."""
        self._call(self._reader.commit, offsets)

    def close(self) -> None:
        """Commit what was taken, if that is automatic, and leave the group."""
        self._close(with_last=True)

    def __enter__(self) -> Self:
        self._call(self._reader.open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(with_last=error is None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        handed = self._reader.handed
        while True:
            for record in handed.left:
                return record
            if not self._next_records(whole=False):
                raise StopIteration

    def _next_records(self, *, whole: bool) -> list[ConsumedRecord]:
        records: list[ConsumedRecord] = [] if self._closed else self._call(_next_records, self._reader, whole)
        if not records:
            self.close()
        return records

    def _close(self, *, with_last: bool) -> None:
        if not self._closed:
            self._closed = True
            with suppress(ClosedError):  # the client was left first, and has left the group
                self._call(_close, self._reader, with_last)


async def _next_records(reader: GroupReader, whole: bool) -> list[ConsumedRecord]:
    """The next records, noted as given before the loop goes on."""
    records = await reader.next_records()
    (reader.handed.give_whole if whole else reader.handed.give)(records, reader.after)
    return records


async def _forget(reader: GroupReader) -> None:
    reader.close(with_last=False)


async def _close(reader: GroupReader, with_last: bool) -> None:
    await reader.aclose(with_last=with_last)
