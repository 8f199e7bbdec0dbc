"""Transactional batches, of which the coordinator is asked whether they may begin a transaction."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import trio

from tests.broker.rig import NO_QUOTAS, START_MS, rig
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.records.produce import begin_in_pieces
from warmlog.broker.api.transactions.admission import OpenGuards
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.request import PartitionRecords, ProduceRequest


class Unpaced:
    """Nobody else wants to run."""

    clock = staticmethod(time.perf_counter)

    def piece_end(self) -> float:
        return time.perf_counter() + 60


async def test_a_partition_that_is_led_only_after_the_coordinator_was_asked_is_asked_for_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        for topic in ("led", "late"):
            await broker.create(topic)
        served = cast("dict[TopicPartition, Any]", broker.partitions.served)
        late = served.pop(("late", 0))

        async def admit(
            _: str, __: object, ___: Sequence[TopicPartition], ____: object, guards: OpenGuards
        ) -> Mapping[TopicPartition, ErrorCode]:
            guards.open()
            served["late", 0] = late
            return {}

        records = memoryview(
            build_batch(
                [(START_MS, b"k", b"v", ())],
                producer_id=7,
                producer_epoch=0,
                base_sequence=0,
                attributes=TRANSACTIONAL_BIT,
            )
        )
        asked = tuple([PartitionRecords(topic=topic, partition=0, records=records) for topic in ("led", "late")])
        context = Context(Session(listener="x", peer=("", 1), local=("", 2)), cast("Any", Unpaced()))
        context.version = 11
        context.start()
        request = ProduceRequest(transactional_id="id", partitions=asked)
        produce = await begin_in_pieces(
            request,
            context,
            broker.partitions,
            Newcomers("producers", "a limit", limit=1, of_connection=1, window_s=1.0, clock=trio.current_time),
            write=broker.writer.write_queued,
            admit=cast("Any", admit),
            quotas=NO_QUOTAS,
        )
        errors = [one.error for one in produce.response().partitions]
        assert errors == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
