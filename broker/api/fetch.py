"""Fetch: slices of partitions, now or when there is something.

Size rules (KIP-74): partitions are served in the order asked for; `max_bytes` bounds the whole, each partition's own
bound its part; but the first batch of the first partition that has one is always whole, so that a batch larger than the
bounds can be read at all.

So many partitions of a reply can have records as files may be held open for it (`MAX_SLICES`).
"""

import trio

from broker.api.errors import EXPECTED, describe
from broker.partition import FetchWaiter, Partition
from broker.partitions import Partitions, unknown_partition
from protocol.errors import ErrorCode, ProtocolError
from protocol.request import FetchPartition, FetchRequest
from protocol.response import FetchedPartition, FetchResponse

# Partitions of one reply that can have records: each slice keeps a file open until it is sent, beyond those that the
# broker keeps open for itself. The others have their turn in the next fetch.
MAX_SLICES = 128
MAX_REPLY_BYTES = (
    1 << 30
)  # with the batch that is always whole and what surrounds it, less than a frame's length can say


class FetchSizeError(ProtocolError):
    """A fetch that asks for a negative number of bytes."""

    code = ErrorCode.INVALID_FETCH_SIZE


class Slices:
    """What one look at all partitions of a fetch found."""

    __slots__ = ("failed", "missing_bytes", "partitions", "size", "slices")

    def __init__(self) -> None:
        self.partitions: list[FetchedPartition] = []
        self.size = 0
        self.slices = 0  # partitions with records
        self.missing_bytes = 0  # to what is enough to answer with
        self.failed = False


def read_now(request: FetchRequest, partitions: Partitions) -> Slices:
    """Read what is there."""
    found = Slices()
    left = most = min(request.max_bytes, partitions.settings.fetch_max_bytes, MAX_REPLY_BYTES)
    for asked in request.partitions:
        fetched = _read(asked, partitions, left, first=found.size == 0)
        size = len(fetched.records)
        left = max(0, left - size)
        found.size += size
        found.failed = found.failed or fetched.error is not ErrorCode.NONE
        found.partitions.append(fetched)
        found.slices += size > 0
        if found.slices == MAX_SLICES:
            most, left = found.size, 0
    found.missing_bytes = min(request.min_bytes, max(most, 1)) - found.size  # what no reply can hold is not waited for
    return found


def is_enough(found: Slices, request: FetchRequest) -> bool:
    """Whether to answer at once.

    Enough data, an error that the client should see, nothing asked for, or no wish to wait.
    """
    return found.missing_bytes <= 0 or found.failed or request.max_wait_ms == 0 or not request.partitions


async def wait_and_read(request: FetchRequest, partitions: Partitions, found: Slices) -> Slices:
    """Wait until there is enough, at most `max_wait_ms` in all; then the latest look."""
    with trio.move_on_after(request.max_wait_ms / 1000):
        while not is_enough(found, request):
            await _wait_for_growth(request, partitions, found.missing_bytes)
            found = read_now(request, partitions)
    return found


def response(found: Slices) -> FetchResponse:
    """The answer."""
    return FetchResponse(partitions=tuple(found.partitions))


async def _wait_for_growth(request: FetchRequest, partitions: Partitions, missing_bytes: int) -> None:
    waiter = FetchWaiter(missing_bytes)
    waited_on = [
        partition for asked in request.partitions if (partition := partitions.get(asked.topic, asked.partition))
    ]
    for partition in waited_on:
        partition.enlist(waiter)
    try:
        await waiter.wait()
    finally:
        for partition in waited_on:
            partition.dismiss(waiter)


def _read(asked: FetchPartition, partitions: Partitions, left: int, *, first: bool) -> FetchedPartition:
    partition = partitions.get(asked.topic, asked.partition)
    try:
        if partition is None:
            raise unknown_partition(asked.topic, asked.partition)
        if asked.max_bytes < 0:
            raise FetchSizeError(f"max_bytes of {asked.topic}-{asked.partition} is negative: {asked.max_bytes}")
        return _slice(asked, partition, left, first=first)
    except EXPECTED as error:
        code, message = describe(error)
        log_start = -1 if partition is None else partition.log.log_start_offset
        high_watermark = -1 if partition is None else partition.log.high_watermark
        return FetchedPartition(
            topic=asked.topic,
            partition=asked.partition,
            error=code,
            message=message,
            log_start_offset=log_start,
            high_watermark=high_watermark,
        )


def _slice(asked: FetchPartition, partition: Partition, left: int, *, first: bool) -> FetchedPartition:
    found = partition.read(asked.offset, min(asked.max_bytes, left), min_one_message=first)
    log = partition.log
    return FetchedPartition(
        topic=asked.topic,
        partition=asked.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.high_watermark,
        log_start_offset=log.log_start_offset,
        records=b"" if found is None or found.slice is None or found.first_batch_incomplete else found.slice,
    )
