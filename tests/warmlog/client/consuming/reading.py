"""Logs with numbered records, and reads that check them."""

from typing import Any

from tests.warmlog.client.fake_broker import Log
from warmlog.client import AsyncClient
from warmlog.protocol.records.builder import Codec, build_batch

NEW_YEAR = 1767225600000


def fill(log: Log, *batches: int, size: int = 10, codec: Codec = Codec.NONE) -> None:
    """Append batches with these record counts; the record at offset n has value n and time NEW_YEAR + n seconds."""
    for count in batches:
        rows = [(NEW_YEAR + 1000 * n, None, b"%0*d" % (size, n), ()) for n in range(log.end, log.end + count)]
        log.append(memoryview(build_batch(rows, compression=codec)))


async def read(client: AsyncClient, *args: Any, **options: Any) -> list[int]:
    """Return the offsets until the end; the values must match them."""
    offsets = []
    async for record in client.consume(*args, until_end=True, **options):
        assert record.value is not None
        assert int(record.value) == record.offset
        offsets.append(record.offset)
    return offsets


async def take(count: int, stream: Any) -> list[Any]:
    taken = []
    async for item in stream:
        taken.append(item)
        if len(taken) == count:
            break
    return taken
