"""A broker that is killed in the middle of transactions: decided ones are completed, open ones can go on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.broker.api.transactions.asking import (
    commit_offset,
    committed_offset,
    create,
    end,
    init,
    produce,
    started,
    until,
    values,
)
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode

SETTINGS = ("transaction.abort.timed.out.transaction.cleanup.interval.ms=20",)


@contextmanager
def broker_process(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address for Kafka clients; killed at the end if it still runs."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(data_dir), "--kafka", "127.0.0.1:0"]
    command += ["--native", "none", "--http", "none", *(word for each in SETTINGS for word in ("--set", each))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "CI": ""})
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready"))
        yield process, dict(word.split("=") for word in ready.split()[1:])["kafka"]
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


async def open_transaction(client: KafkaClient, value: bytes = b"first") -> dict[str, Any]:
    """Create `words` and write a record of an open transaction to it."""
    await create(client, "words")
    producer = await started(client)
    assert await produce(client, producer, value=value) is ErrorCode.NONE
    return producer


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_whose_end_was_acknowledged_is_completed_by_the_next_broker(
    tmp_path: Path, commits: bool
) -> None:
    with broker_process(tmp_path) as (process, address):
        async with kafka_client(address) as client:
            producer = await open_transaction(client)
            assert await commit_offset(client, producer) is ErrorCode.NONE
            assert await end(client, producer, commits=commits) is ErrorCode.NONE
            kill(process)
    with broker_process(tmp_path) as (_, address):
        async with kafka_client(address) as client:
            await until(client, "CompleteCommit" if commits else "CompleteAbort")
            assert await values(client, "words") == ([b"first"] if commits else [], 2)
            offset = 7 if commits else -1
            assert await committed_offset(client, stable=True) == (ErrorCode.NONE, offset)
            assert await produce(client, producer, value=b"second") is ErrorCode.NONE
            assert await end(client, producer) is ErrorCode.NONE
            await until(client, "CompleteCommit")
            assert (await values(client, "words"))[0] == ([b"first", b"second"] if commits else [b"second"])


@pytest.mark.interop  # takes many seconds
async def test_an_open_transaction_is_hidden_after_a_kill_and_its_producer_can_commit_it(tmp_path: Path) -> None:
    with broker_process(tmp_path) as (process, address):
        async with kafka_client(address) as client:
            producer = await open_transaction(client)
            kill(process)
    with broker_process(tmp_path) as (_, address):
        async with kafka_client(address) as client:
            await until(client, "Ongoing")
            assert await values(client, "words") == ([], 0)
            assert await produce(client, producer, value=b"second", sequence=1) is ErrorCode.NONE
            assert await end(client, producer) is ErrorCode.NONE
            await until(client, "CompleteCommit")
            assert await values(client, "words") == ([b"first", b"second"], 3)


@pytest.mark.interop  # takes many seconds
async def test_a_transaction_whose_producer_was_killed_with_the_broker_is_aborted_in_time(tmp_path: Path) -> None:
    with broker_process(tmp_path) as (process, address):
        async with kafka_client(address) as client:
            await create(client, "words")
            producer = await started(client)
            found = await init(client, transaction_timeout_ms=1000)
            producer |= {"producer_epoch": found["producer_epoch"]}
            assert await produce(client, producer) is ErrorCode.NONE
            kill(process)
    with broker_process(tmp_path) as (_, address):
        async with kafka_client(address) as client:
            await until(client, "CompleteAbort")
            assert await values(client, "words") == ([], 2)


async def test_a_successor_after_a_kill_aborts_what_was_open_and_fences_its_producer(tmp_path: Path) -> None:
    with broker_process(tmp_path) as (process, address):
        async with kafka_client(address) as client:
            zombie = await open_transaction(client)
            kill(process)
    with broker_process(tmp_path) as (_, address):
        async with kafka_client(address) as client:
            await until(client, "Ongoing")
            assert (await init(client))["error_code"] == ErrorCode.CONCURRENT_TRANSACTIONS
            await until(client, "CompleteAbort")
            assert (await init(client))["error_code"] == ErrorCode.NONE
            assert await produce(client, zombie, sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
            assert await end(client, zombie) is ErrorCode.PRODUCER_FENCED
            assert await values(client, "words") == ([], 2)
