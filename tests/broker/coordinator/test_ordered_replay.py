"""Records that add to earlier ones of their key are replayed one by one, in the order of the log."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.rig import START_MS, Rig, rig
from warmlog.broker.coordinator import loading, reading
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.coordinator.term import Term, TermState
from warmlog.broker.coordinator.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome

TOPIC = "__additions"


def decode(key: bytes, value: bytes) -> tuple[str, str] | None:
    """Keys that begin with `?` are of an unknown type; values that begin with `!` are malformed."""
    if key.startswith(b"?"):
        return None
    if value.startswith(b"!"):
        raise MalformedError("an exclamation")
    return key.decode(), value.decode()


ADDITIONS = CoordinatorTopic(
    name=TOPIC,
    keeps="name",
    count_setting="names.partitions",
    layout=lambda _: TopicLayout(1, {"cleanup.policy": "delete"}, 1),
    decode=decode,
    decode_tombstone=lambda key: (key.decode(), ""),
)


class Additions:
    """A shard: texts by name, each longer by every record; an empty one begins again."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self.texts: dict[str, str] = {}
        self.offsets: list[int] = []

    def replay(self, name: str, row: str, offset: int) -> None:
        self.texts[name] = self.texts.get(name, "") + row if row else ""
        self.offsets.append(offset)

    def replay_pending(self, producer_id: int, name: str, row: str, offset: int) -> None:
        raise AssertionError("records of transactions are left out")

    def free(self) -> Iterator[None]:
        return iter(())


class Adding:
    """The coordinator of these shards."""

    def begin(self, term: Term) -> Additions:
        return Additions(term)

    def loaded(self, shard: Additions) -> Iterator[None]:
        return iter(())

    def close(self, shard: Additions) -> Iterator[None]:
        return iter(())


@asynccontextmanager
async def logged(directory: Path) -> AsyncIterator[tuple[Rig, Partition]]:
    """An open log without a coordinator."""
    async with rig(directory) as made:
        yield made, made.partitions.get(TOPIC, 0) or await made.create(TOPIC)


async def loaded(made: Rig) -> Additions:
    runtime: CoordinatorRuntime[Additions] = CoordinatorRuntime(
        ADDITIONS, made.partitions, made.writer, lambda: START_MS
    )
    runtime.bind(Adding())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        while runtime.is_loading:
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    shard = runtime.shard_at(0)
    assert shard is not None
    assert shard.term.state is TermState.SERVING
    return shard


def write(made: Rig, partition: Partition, *rows: tuple[bytes, bytes | None]) -> None:
    partition.append(build_batch([(START_MS, key, value, ()) for key, value in rows]))
    made.writer.write_queued()


@pytest.mark.parametrize("piece_bytes", [1, 10, 8 << 10])
async def test_all_records_are_replayed_in_order(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(reading, "READ_BYTES", 200)
    async with logged(tmp_path) as (made, partition):
        for number in range(10):
            rows: list[tuple[bytes, bytes | None]] = [(b"a", b"%d" % number), (b"b", b"%d" % (9 - number))]
            write(made, partition, *rows, *([(b"c", None)] if number == 5 else [(b"c", b"x")]))
        shard = await loaded(made)
        assert shard.texts == {"a": "0123456789", "b": "9876543210", "c": "xxxx"}
        assert shard.offsets == [*range(30)]
        assert shard.term.loaded_to == 30


async def test_what_cannot_be_decoded_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with logged(tmp_path) as (made, partition):
        write(made, partition, (b"a", b"1"), (b"a", b"!"), (b"?", b"2"), (b"a", b"3"))
        partition.append_marker(TransactionMarker(7, 0, 1, Outcome.COMMIT))
        made.writer.write_queued()
        assert (await loaded(made)).texts == {"a": "13"}
        assert "ignored the record at offset 1, which is malformed: an exclamation" in caplog.text


async def test_records_that_are_not_replicated_yet_are_not_served(tmp_path: Path) -> None:
    """Another broker may become leader that lacks them."""
    async with logged(tmp_path) as (made, partition):
        write(made, partition, (b"a", b"1"))
        offsets = partition.log.offsets
        runtime: CoordinatorRuntime[Additions] = CoordinatorRuntime(
            ADDITIONS, made.partitions, made.writer, lambda: START_MS
        )
        runtime.bind(Adding())
        kept = offsets.high_watermark
        offsets.high_watermark = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await wait_all_tasks_blocked()
            while trio.to_thread.current_default_thread_limiter().borrowed_tokens:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            assert runtime.availability("a") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            offsets.high_watermark = kept
            write(made, partition, (b"a", b"2"))
            while runtime.is_loading:
                await wait_all_tasks_blocked()
            shard = runtime.shard_at(0)
            assert shard is not None
            assert shard.texts == {"a": "1"}
            nursery.cancel_scope.cancel()
