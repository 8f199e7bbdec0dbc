"""Members of share groups: what they take, acknowledge and give back, on both event loops and blocking."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import anyio
import pytest
from confluent_kafka import ShareConsumer

from tests.warmlog.client.both_loops import on_both_loops
from warmlog import Client, GroupNotEmptyError, Job, JobLostError, connect
from warmlog.client import AsyncClient, ShareStream
from warmlog.testing import Broker

LIMIT_S = 30
SETTINGS = {
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
    "group.share.min.record.lock.duration.ms": 1000,
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}
KILLED = """
import sys
from warmlog import Client
with Client(sys.argv[1]) as client, client.share(sys.argv[2], group=sys.argv[3], start="beginning") as jobs:
    for job in jobs:
        print(job.offset, flush=True)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Names of a topic and a group for this test only, in the module's broker."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t-{name}", f"g-{name}"


async def fill(client: AsyncClient, topic: str, count: int) -> None:
    await client.create_topic(topic, partitions=1, if_not_exists=True)
    await client.produce_many(topic, [b"%d" % number for number in range(count)])


async def take(stream: ShareStream, count: int) -> list[Job]:
    with anyio.fail_after(LIMIT_S):
        return [await anext(stream) for _ in range(count)]


def values(jobs: list[Job]) -> list[bytes | None]:
    return sorted(job.value or b"" for job in jobs)


@on_both_loops
async def test_accepted_jobs_are_done_and_released_ones_come_again(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 4)
        async with client.share(topic, group=group, start="beginning") as jobs:
            first = await take(jobs, 4)
            assert values(first) == [b"0", b"1", b"2", b"3"]
            assert [job.deliveries for job in first] == [1] * 4
            first[0].accept()
            first[1].reject()
            await first[2].accept()
            await first[3].release()
            (again,) = await take(jobs, 1)
            assert (again.offset, again.deliveries) == (first[3].offset, 2)
            await again.accept()
        await fill(client, topic, 1)
        async with client.share(topic, group=group) as jobs:
            (last,) = await take(jobs, 1)
            assert last.offset == 4


@on_both_loops
async def test_what_is_not_acknowledged_is_released_when_the_stream_is_left(
    broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 3)
        async with client.share(topic, group=group, start="beginning") as jobs:
            first, *_ = await take(jobs, 2)
            first.accept()
        async with client.share(topic, group=group) as jobs:
            rest = await take(jobs, 2)
        assert sorted(job.offset for job in rest) == [1, 2]


@on_both_loops
async def test_a_job_as_a_context_manager_is_accepted_or_released(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 2)
        async with client.share(topic, group=group, start="beginning", max_jobs=1) as jobs:
            (job,) = await take(jobs, 1)
            async with job:
                pass
            with pytest.raises(RuntimeError, match="acknowledged before"):
                job.release()
            (job,) = await take(jobs, 1)
            with pytest.raises(ValueError, match="bad"):
                async with job:
                    raise ValueError("bad")
            (again,) = await take(jobs, 1)
            assert (again.offset, again.deliveries) == (job.offset, 2)


@on_both_loops
async def test_requesting_the_next_job_accepts_the_last_one(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 3)
        with pytest.raises(ValueError, match="fails"):
            async with client.share(topic, group=group, start="beginning", auto_accept=True) as jobs:
                await take(jobs, 3)
                raise ValueError("fails")
        async with client.share(topic, group=group) as jobs:
            (again,) = await take(jobs, 1)
            assert (again.offset, again.deliveries) == (2, 2)


@on_both_loops
async def test_members_share_the_records_of_one_partition(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    count = 60
    done: Counter[int] = Counter()
    by_member: Counter[int] = Counter()

    async with connect(broker.native) as client:
        await fill(client, topic, count)

        async def work(number: int, jobs: ShareStream) -> None:
            async for job in jobs:
                done[job.offset] += 1
                by_member[number] += 1
                await job.accept()
                if len(done) == count:
                    tasks.cancel_scope.cancel()

        with anyio.fail_after(LIMIT_S):
            async with (
                client.share(topic, group=group, start="beginning", max_jobs=2) as first,
                client.share(topic, group=group, max_jobs=2) as second,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(work, 0, first)
                tasks.start_soon(work, 1, second)
        assert done == Counter(range(count))
        assert all(by_member[number] for number in range(2))


@on_both_loops
async def test_a_job_whose_lock_has_expired_is_lost(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await client.alter_group(group, configs={"share.record.lock.duration.ms": "1000"})
        await fill(client, topic, 1)
        async with (
            client.share(topic, group=group, start="beginning") as jobs,
            client.share(topic, group=group) as others,
        ):
            (job,) = await take(jobs, 1)
            (again,) = await take(others, 1)
            assert (again.offset, again.deliveries) == (job.offset, 2)
            with pytest.raises(JobLostError):
                await job.accept()
            await again.accept()


@on_both_loops
async def test_a_renewed_job_is_held_on(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await client.alter_group(group, configs={"share.record.lock.duration.ms": "1500"})
        await fill(client, topic, 1)
        async with client.share(topic, group=group, start="beginning") as jobs:
            (job,) = await take(jobs, 1)
            first = job.expires_at
            for _ in range(4):
                await anyio.sleep(0.5)
                await job.renew()
            assert job.expires_at > first
            await job.accept()


@on_both_loops
async def test_a_group_with_kafkas_members(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 4)
        async with client.share(topic, group=group, start="beginning", max_jobs=1) as jobs:
            (job,) = await take(jobs, 1)
            read = await anyio.to_thread.run_sync(_read_with_kafka, broker.kafka, topic, group, 3)
            await job.accept()
        assert len(set(read) | {(job.partition, job.offset)}) == 4
        (described,) = await client.describe_groups(group)
        assert described.state == "Empty"


def _read_with_kafka(bootstrap: str, topic: str, group: str, count: int) -> list[tuple[int, int]]:
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    read: list[tuple[int, int]] = []
    for _ in range(LIMIT_S):
        if len(read) == count:
            break
        read += [(each.partition(), each.offset()) for each in consumer.poll(timeout=1) if each.error() is None]
    consumer.close()
    return read


@on_both_loops
async def test_a_group_is_reset_once_it_has_no_members(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 3)
        async with client.share(topic, group=group, start="beginning") as jobs:
            for job in await take(jobs, 3):
                job.accept()
            with pytest.raises(GroupNotEmptyError):
                await client.reset_share_group(group, {(topic, 0): 1})
        await client.reset_share_group(group, {(topic, 0): 1})
        async with client.share(topic, group=group) as jobs:
            again = await take(jobs, 2)
            assert [(job.offset, job.deliveries) for job in again] == [(1, 1), (2, 1)]
            await again[0].accept()


@on_both_loops
async def test_jobs_of_a_killed_member_come_again(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        await fill(client, topic, 2)
        command = [sys.executable, "-c", KILLED, broker.native, topic, group]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 - a few ms
            assert process.stdout is not None
            offsets = [int(await anyio.to_thread.run_sync(process.stdout.readline)) for _ in range(2)]
            process.kill()
        async with client.share(topic, group=group) as jobs:
            again = await take(jobs, 2)
        assert [job.offset for job in again] == offsets
        assert [job.deliveries for job in again] == [2, 2]


@on_both_loops
async def test_a_restarted_broker_is_found_again(names: tuple[str, str]) -> None:
    topic, group = names
    with Broker(settings=SETTINGS) as broker:
        async with connect(broker.native) as client:
            await fill(client, topic, 1)
            async with client.share(topic, group=group, start="beginning") as jobs:
                (job,) = await take(jobs, 1)
                await job.accept()
                await anyio.to_thread.run_sync(broker.restart)
                await fill(client, topic, 2)
                assert [job.offset for job in await take(jobs, 2)] == [1, 2]


@on_both_loops
async def test_an_error_ends_the_stream(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(broker.native) as client:
        with pytest.raises(ValueError, match="start"):
            client.share(topic, group=group, start="middle")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="group"):
            client.share(topic, group="")
        async with client.consume(topic, group=group, group_protocol="classic") as stream:
            assert stream.member_id
            async with client.share(topic, group=group) as jobs:
                with pytest.raises(Exception, match="group"), anyio.fail_after(LIMIT_S):
                    await anext(jobs)


def test_blocking(broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    with Client(broker.native) as client:
        client.create_topic(topic, partitions=1)
        client.produce_many(topic, [b"%d" % number for number in range(5)])
        with client.share(topic, group=group, start="beginning") as jobs:
            job = next(jobs)
            assert (job.topic, job.partition, job.offset, job.value, job.deliveries) == (topic, 0, 0, b"0", 1)
            job.accept().wait()
            with next(jobs) as second:
                assert second.offset == 1
            assert second.is_acknowledged
            next(jobs).reject()
            renewed = next(jobs)
            renewed.renew().wait()
            renewed.release()
        with client.share(topic, group=group, auto_accept=True) as jobs:
            assert [next(jobs).offset for _ in range(2)] == [3, 4]
        with client.share(topic, group=group) as jobs:
            client.produce(topic, value=b"last")
            assert next(jobs).value == b"last"
