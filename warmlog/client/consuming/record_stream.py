"""A stream of single records: a `BatchStream` whose lists are consumed one record at a time."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from warmlog.client.consuming.stream import BatchStream, ConsumedRecord, lag_of
from warmlog.protocol.partitions import TopicPartition


class RecordStream:
    """An async iterator of records, and an async context manager. For one task at a time."""

    def __init__(self, batches: BatchStream) -> None:
        self._batches = batches
        self._records: Iterator[ConsumedRecord] = iter(())

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """By topic and partition, the offset after the last decoded record."""
        return self._batches.positions

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """By topic and partition, the last known high watermark, -1 before the first."""
        return self._batches.high_watermarks

    async def __aenter__(self) -> Self:
        await self._batches.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._batches.close()

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """By topic and partition, the number of offsets from the last record taken to the last known high watermark."""
        return lag_of(self._next_offsets(), self.high_watermarks)

    def seek(self, offset: int, *, partition: int = 0, topic: str | None = None) -> None:
        """Continue at an offset, of the only topic unless one is named. Raises ValueError. Open the stream first."""
        self._batches.seek(offset, partition=partition, topic=topic)
        self._records = iter([record for record in self._records if not _is_of(record, topic, (partition,))])

    def pause(self, *partitions: int, topic: str | None = None) -> None:
        """Stop reading partitions, by default all, until `resume`. Raises ValueError. Open the stream first."""
        left = list(self._records)
        self._batches.pause(*partitions, topic=topic)
        for record in reversed(left):
            if _is_of(record, topic, partitions):  # decoded but not taken
                self._batches.seek(record.offset, partition=record.partition, topic=record.topic)
        self._records = iter([record for record in left if not _is_of(record, topic, partitions)])

    def resume(self, *partitions: int, topic: str | None = None) -> None:
        """Read paused partitions again, by default all, from where they were paused. Raises ValueError."""
        self._batches.resume(*partitions, topic=topic)

    def _next_offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets of the next records to take."""
        left = list(self._records)
        self._records = iter(left)
        offsets = self.positions
        for record in reversed(left):
            offsets[record.topic, record.partition] = record.offset
        return offsets

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        for record in self._records:
            return record
        self._records = iter(await self._batches.__anext__())
        return next(self._records)

    def close(self) -> None:
        """Stop reading; the iterator ends at its next step."""
        self._records = iter(())
        self._batches.close()

    async def aclose(self) -> None:
        """Stop reading; for `contextlib.aclosing`."""
        self.close()


def _is_of(record: ConsumedRecord, topic: str | None, partitions: tuple[int, ...]) -> bool:
    return topic in {None, record.topic} and (not partitions or record.partition in partitions)
