"""Records of `__consumer_offsets` that no coordinator can have written cost neither offsets nor members of others."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.broker.groups.serving import Serving, serving
from warmlog.broker.groups.topic import TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.group_records import encode_group_key, encode_offset_key
from warmlog.protocol.records.builder import build_batch

GROUPS = tuple(f"group {number}" for number in range(10))


async def write(broker: Serving, index: int, key: bytes, value: bytes) -> None:
    """Append a record as a client may that calls itself `__admin_client`."""
    partition = broker.partitions.get(TOPIC, index)
    assert partition is not None
    append = partition.append(build_batch([(0, key, value, ())]))
    broker.writer.write_queued()
    await append.wait()


async def test_offsets_go_on_from_their_records_before_malformed_ones(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as broker:
        for name in GROUPS:
            assert await broker.commit(7, name) is ErrorCode.NONE
            index = broker.service.registry.runtime.partition_of(name)
            await write(broker, index, encode_offset_key(name, "orders", 0), b"\0\3garbage")
            await write(broker, index, encode_group_key(name), b"\0\3garbage")
            await write(broker, index, b"\0", b"")
    async with serving(tmp_path) as broker:
        found = [broker.committed(name) for name in GROUPS]
        assert [None if each is None else each.offset for each in found] == [7] * len(GROUPS)
    assert f"{TOPIC}-0: ignored the record at offset" in caplog.text
