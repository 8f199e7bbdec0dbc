"""A process that uses warmlog's Python client as an application would.

    python -m benchmarks.load.client asyncio|trio produce|consume HOST:PORT TOPIC RECORDS SIZE

Prints the seconds from the first record to the last acknowledgement (or the last record), excluding the connection
setup.
"""

import sys
from itertools import repeat
from time import perf_counter

import anyio

from warmlog import connect


async def produce(address: str, topic: str, records: int, size: int) -> float:
    """Produce `records` records of `size` bytes."""
    async with connect(address) as client:
        began_at = perf_counter()
        summary = await client.produce_many(topic, repeat(b"x" * size, records))
        assert summary.records == records
        return perf_counter() - began_at


async def consume(address: str, topic: str, records: int, size: int) -> float:
    """Consume all records of a topic, each as an object with its value."""
    async with connect(address) as client:
        began_at = perf_counter()
        count = total = 0
        async for record in client.consume(topic, start="beginning", until_end=True):
            count += 1
            total += len(record.value or b"")
        assert (count, total) == (records, records * size)
        return perf_counter() - began_at


def main() -> None:
    """Produce or consume, and print the time."""
    loop, verb, address, topic, records, size = sys.argv[1:]
    work = {"produce": produce, "consume": consume}[verb]
    print(anyio.run(work, address, topic, int(records), int(size), backend=loop))


if __name__ == "__main__":
    main()
