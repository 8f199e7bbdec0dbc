"""A real broker process, killed in the middle of writing: what was acknowledged is there."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.clients import RawClient, batch, produce_request
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.request import CreateTopicsRequest, NewTopic

SETTINGS = ("log.segment.bytes=200000", "log.index.interval.bytes=512")


@contextmanager
def broker_process(data_dir: Path, settings: Sequence[str] = SETTINGS) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its native address; killed at the end if it still runs."""
    command = [
        sys.executable,
        "-m",
        "warmlog",
        "serve",
        "--data-dir",
        str(data_dir),
        "--kafka",
        "none",
        "--native",
        "127.0.0.1:0",
    ]
    command += ["--http", "none", *(word for setting in settings for word in ("--set", setting))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "CI": ""})
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready"))
        yield process, dict(word.split("=") for word in ready.split()[1:])["native"]
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def connect(address: str) -> RawClient:
    host, port = address.rsplit(":", 1)
    client = RawClient(await trio.open_tcp_stream(host, int(port)))
    await client.hello()
    return client


async def produce_until_killed(
    process: subprocess.Popen[str], address: str, kill_after: int, seed: int
) -> dict[int, bytes]:
    """Keep requests in flight; kill the broker after so many replies. Gives what was acknowledged, {offset: value}."""
    random = Random(seed)
    client = await connect(address)
    values: list[bytes] = []
    acknowledged: dict[int, bytes] = {}

    async def send_one() -> None:
        value = b"%d:" % len(values) + random.randbytes(random.choice([10, 100, 1000, 90_000]))
        values.append(value)
        await client.send(produce_request("orders", batch(value)))

    try:
        for _ in range(8):
            await send_one()
        while (reply := await client.reply()) is not None:
            (partition,) = reply.partitions
            acknowledged[partition.base_offset] = values[len(acknowledged)]
            if len(acknowledged) == kill_after:
                process.send_signal(signal.SIGKILL)
            await send_one()
    except trio.BrokenResourceError:
        pass
    await client.stream.aclose()
    return acknowledged


async def read_all(address: str) -> dict[int, bytes]:
    client = await connect(address)
    found: dict[int, bytes] = {}
    while True:
        fetched = await client.fetch("orders", len(found), max_bytes=1 << 24)
        if not len(fetched.records):
            await client.stream.aclose()
            return found
        for record in records_in(fetched.records):
            assert record.offset == len(found), "offsets have no gap"
            found[record.offset] = record.value or b""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.interop) for seed in range(1, 5))])
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    stored: dict[int, bytes] = {}
    for kill_after in (1, 40, 150):
        with broker_process(tmp_path) as (process, address):
            client = await connect(address)
            await client.ask(CreateTopicsRequest(topics=(NewTopic(name="orders"),)))
            await client.stream.aclose()
            stored |= await produce_until_killed(process, address, kill_after, seed)
            assert process.wait() == -signal.SIGKILL
        with broker_process(tmp_path) as (process, address):
            found = await read_all(address)
            assert {offset: found.get(offset) for offset in stored} == stored
            stored = found
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
