"""A real broker process, killed while it compacts: the last value of each key is there, whatever the moment."""

import signal
from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.clients import RawClient, produce_request
from tests.crash.test_kill import broker_process, connect
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

SETTINGS = (
    "log.segment.bytes=4000",
    "log.index.interval.bytes=256",
    "log.cleanup.policy=compact",
    "log.cleaner.backoff.ms=0",
    "log.cleaner.min.cleanable.ratio=0.01",
    "log.initial.task.delay.ms=0",
    "log.segment.delete.delay.ms=0",
)
KEYS = 20
ENOUGH = 100  # records in three segments: what is closed has several of a key


async def produce_until_killed(client: RawClient, written: dict[int, tuple[bytes, bytes]], random: Random) -> None:
    """Append until the broker goes away; `written` gets what was acknowledged, {offset: (key, value)}."""
    try:
        while True:
            key, value = b"k%d" % random.randrange(KEYS), b"%d" % random.getrandbits(200)
            await client.send(produce_request("words", build_batch([(1_700_000_000_000, key, value, ())])))
            reply = await client.reply()
            if reply is None:
                return
            written[reply.partitions[0].base_offset] = (key, value)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def read_all(client: RawClient) -> dict[int, tuple[bytes, bytes]]:
    """Every record, by offset; they must ascend."""
    found: dict[int, tuple[bytes, bytes]] = {}
    offset = 0
    while True:
        fetched = await client.fetch("words", offset, max_bytes=1 << 20)
        whole = list(headers(fetched.records))
        if not whole:
            return found
        for record in records_in(fetched.records, from_offset=offset):
            assert record.offset >= offset
            found[record.offset] = (record.key or b"", record.value or b"")
        offset = whole[-1][1].next_offset


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.interop)])
async def test_the_last_value_of_each_key_survives_kill_9(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    written: dict[int, tuple[bytes, bytes]] = {}
    for _ in range(2):
        with broker_process(tmp_path, SETTINGS) as (process, address):
            client = await connect(address)
            if not written:
                await client.create("words")
            kept = await read_all(client)
            check(kept, written)
            async with client.stream, trio.open_nursery() as nursery:
                nursery.start_soon(produce_until_killed, client, written, random)
                await trio.sleep(random.uniform(0.3, 1.2))  # as long as it takes to be somewhere in a run
                while len(written) < ENOUGH:  # on a busy machine
                    await trio.lowlevel.checkpoint()
                process.send_signal(signal.SIGKILL)
    with broker_process(tmp_path, SETTINGS) as (_, address):
        client = await connect(address)
        async with client.stream:
            while len(kept := await read_all(client)) >= len(written):  # on a busy machine both were killed before it
                check(kept, written)
            check(kept, written)


def check(kept: dict[int, tuple[bytes, bytes]], written: dict[int, tuple[bytes, bytes]]) -> None:
    """Nothing was invented, and no last value of a key is missing (one that was not acknowledged may be later)."""
    if not written:
        return
    newest = max(written)
    assert all(written[offset] == row for offset, row in kept.items() if offset in written)
    later = {row[0] for offset, row in kept.items() if offset > newest}
    last = {row[0]: offset for offset, row in sorted(written.items())}
    for key, offset in last.items():
        assert offset in kept or key in later, (key, offset)
    assert list(kept) == sorted(kept)
