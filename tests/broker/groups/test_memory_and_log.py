"""Whatever is requested at the same time, the group coordinator knows what a restart would read from its log."""

from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.groups.serving import OUTSIDE, Serving, serving
from tests.broker.share.memory_persister import MemoryPersister
from warmlog.broker.coordinator.appends import LogProducer
from warmlog.broker.groups.registry import GroupRegistry
from warmlog.broker.groups.service import GroupService
from warmlog.broker.groups.topic import TOPIC
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.partitions.topics.errors import UnknownTopicError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetToCommit
from warmlog.protocol.records.markers import Outcome

GROUPS, TOPICS, PRODUCERS = ("a", "b", "c"), ("orders", "stock"), (7, 8)
SEGMENT_BYTES = (10_000, 20_000, 1 << 20)  # writes that roll take longer than others
ROUNDS, SEEDS = 25, 12
VERBS = {"commit": 1, "transact": 4, "end": 2, "delete offset": 1, "delete group": 1}
# Not both: on a full disk the offsets of a deleted topic stay in the log.
FAULTS = ("delete topic", "fill disk")


async def step(broker: Serving, random: Random, number: int, fault: str) -> None:
    """Send one request, which may fail, or cause the fault."""
    group, topic, producer = random.choice(GROUPS), random.choice(TOPICS), random.choice(PRODUCERS)
    commits, runtime = broker.service.commits, broker.service.registry.runtime
    verb = random.choices([*VERBS, fault], [*VERBS.values(), 1])[0]
    if verb == "commit":
        await broker.commit(number, group, topic=topic)
    elif verb == "transact":
        offsets = [OffsetToCommit(topic=topic, partition=0, offset=number)] * random.choice((1, 1, 300))
        shard = runtime.shard_of(group)
        guard = 0 if shard is None else shard.term.partition.log.producers.guards.open(producer)
        owner = LogProducer(producer, 0, guard)
        await commits.commit(group, OUTSIDE, offsets, retention_ms=None, producer=owner)
    elif verb == "end":
        await end_transaction(broker, runtime.partition_of(group), producer, random.choice(list(Outcome)))
    elif verb == "delete offset":
        if commits.check_delete_offsets(group) is ErrorCode.NONE:
            await commits.delete_offsets(group, [(topic, 0)])
    elif verb == "delete group":
        await broker.service.deletions.delete(group)
    elif verb == "fill disk":
        broker.disk.is_full = random.random() < 0.5
    else:
        await replace_topic(broker, topic)


async def end_transaction(broker: Serving, index: int, producer: int, outcome: Outcome) -> None:
    """Write a marker, and report it as the transaction coordinator does."""
    partition = broker.partitions.get(TOPIC, index)
    assert partition is not None
    append = partition.append_marker(TransactionMarker(producer, 0, 0, outcome))
    partition.appends.write_queued()
    await append.wait()
    if append.error is None:
        broker.service.end_transaction((TOPIC, index), producer, append.planned.base_offset, outcome)


async def replace_topic(broker: Serving, topic: str) -> None:
    """Delete a topic and create one of the same name, unless a concurrent step does."""
    try:
        await broker.partitions.delete(topic)
    except UnknownTopicError:
        return
    await broker.partitions.ensure(topic)


def known(registry: GroupRegistry) -> tuple[dict[tuple[str, str, int], int], set[tuple[str, str, int]]]:
    """Return the committed offsets, and the partitions with pending ones."""
    committed: dict[tuple[str, str, int], int] = {}
    pending: set[tuple[str, str, int]] = set()
    for group in GROUPS:
        shard = registry.shard_of(group)
        assert shard is not None
        committed |= {(group, topic, at): value.offset for topic, at, value in shard.offsets.of(group)}
        pending |= {(group, *place) for place in shard.pending.of(group)}
    return committed, pending


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_memory_is_what_the_log_says(tmp_path: Path, seed: int, fault: str) -> None:
    random = Random(seed)
    size = random.choice(SEGMENT_BYTES)
    async with serving(tmp_path, topics=TOPICS, offsets_topic_segment_bytes=size) as broker:
        for number in range(ROUNDS):
            async with trio.open_nursery() as nursery:
                for _ in range(random.choice((1, 1, 3, 6))):
                    nursery.start_soon(step, broker, random, number, fault)
            for partition in broker.partitions:
                await partition.appends.settled()
        broker.disk.is_full = False
        registry = broker.service.registry
        again = GroupService(
            broker.partitions,
            broker.writer,
            registry.settings,
            clock=registry.clock,
            new_id=lambda: "new",
            persister=MemoryPersister(),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.registry.run)
            while again.registry.available_all() is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert known(registry) == known(again.registry)
