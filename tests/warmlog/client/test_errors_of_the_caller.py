"""A program's own errors, time-outs and cancellations inside `async with connect(...)`, with asyncio's own tools."""

import asyncio
from collections.abc import Iterator

import pytest

from warmlog import UnknownTopicError, connect
from warmlog.testing import Broker


class OwnError(Exception):
    """An error of the program that uses the client."""


async def fail() -> None:
    await asyncio.sleep(0)
    raise OwnError


@pytest.fixture(scope="module")
def native() -> Iterator[str]:
    with Broker() as broker:
        yield broker.native


def test_an_error_in_a_task_group_is_raised(native: str) -> None:
    async def main() -> None:
        async with connect(native), asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(OwnError)


def test_a_failed_request_in_a_task_group_is_raised(native: str) -> None:
    async def main() -> None:
        async with connect(native) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(client.delete_topic("missing"))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(UnknownTopicError)


def test_an_error_in_a_task_group_within_a_transaction_is_raised(native: str) -> None:
    async def main() -> None:
        async with connect(native) as client, client.transaction("t") as transaction, asyncio.TaskGroup() as tasks:
            await transaction.produce("t", value=b"v")
            tasks.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(OwnError)


def test_a_timeout_is_raised(native: str) -> None:
    async def main() -> None:
        async with connect(native) as client, asyncio.timeout(0.05):
            async for _ in client.consume("waiting", start="end"):
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_a_cancelled_task_stays_cancelled(native: str) -> None:
    async def main() -> None:
        connected = asyncio.Event()

        async def consume() -> None:
            async with connect(native) as client:
                connected.set()
                async for _ in client.consume("waiting", start="end"):
                    pass

        task = asyncio.create_task(consume())
        await connected.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
