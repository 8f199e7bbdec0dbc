"""Under any sequence of faults, no acknowledged record is lost or reordered, and a reader misses none."""

from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warmlog.client.fake_broker import FakeCluster, Fault, HangUpError, fake_cluster
from warmlog import connect
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import FetchRequest, HelloRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest
from warmlog.protocol.response import (
    FetchedPartition,
    FetchResponse,
    ListedOffset,
    ListOffsetsResponse,
    ProducedPartition,
    ProduceResponse,
)

RECORDS = [b"%03d" % number for number in range(60)]
KINDS = [ProduceRequest, FetchRequest, MetadataRequest, ListOffsetsRequest, HelloRequest]
PASSING = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE]


def refusal(request: Any, code: ErrorCode) -> Any:
    """Return a reply with this error for each partition; without partitions, close the connection."""
    for kind, response, part in (
        (ProduceRequest, ProduceResponse, ProducedPartition),
        (FetchRequest, FetchResponse, FetchedPartition),
        (ListOffsetsRequest, ListOffsetsResponse, ListedOffset),
    ):
        if isinstance(request, kind):
            asked = request.partitions
            return response(partitions=tuple(part(topic=p.topic, partition=p.partition, error=code) for p in asked))
    raise HangUpError


@st.composite
def faults(draw: st.DrawFn) -> list[tuple[type[Any], str, Any]]:
    kind = st.sampled_from(KINDS)
    fault = st.one_of(
        st.tuples(kind, st.just("hang up"), st.none()),
        st.tuples(kind, st.just("cut"), st.integers(0, 60)),
        st.tuples(kind, st.just("refuse"), st.sampled_from(PASSING)),
        st.tuples(st.just(ProduceRequest), st.just("move"), st.integers(1, 2)),
    )
    return draw(st.lists(fault, max_size=4))


def arm(cluster: FakeCluster, kind: type[Any], what: str, how: Any) -> None:
    async def act(request: Any) -> Any:
        if what == "hang up":
            raise HangUpError
        if what == "move":
            cluster.topics["t"][0].leader = how
        return refusal(request, how) if what == "refuse" else None

    cluster.faults.append(Fault(kind, act, how if what == "cut" else None))


@settings(max_examples=20)
@given(first=faults(), later=faults(), in_flight=st.sampled_from([1, 5]), batch_bytes=st.sampled_from([30, 200]))
def test_nothing_acknowledged_is_lost_or_reordered(
    first: list[Any], later: list[Any], in_flight: int, batch_bytes: int
) -> None:
    async def scenario() -> None:
        async with (
            fake_cluster(brokers=2) as cluster,
            connect(cluster.address, max_in_flight=in_flight, batch_bytes=batch_bytes) as client,
        ):
            (log,) = cluster.create("t")
            seen: list[Any] = []

            async def read() -> None:
                async for record in client.consume("t"):
                    seen.append(record)
                    if record.value == RECORDS[-1]:
                        break

            async with anyio.create_task_group() as tasks:
                for fault in first:
                    arm(cluster, *fault)
                tasks.start_soon(read)
                await client.produce_many("t", RECORDS[:30])
                for fault in later:
                    arm(cluster, *fault)
                await client.produce_many("t", RECORDS[30:])
            stored = [record.value for record in log.records()]
            assert list(dict.fromkeys(stored)) == RECORDS if in_flight == 1 else set(stored) == set(RECORDS)
            assert [record.value for record in seen] == stored[: len(seen)]
            assert [record.offset for record in seen] == list(range(len(seen)))

    anyio.run(scenario)
