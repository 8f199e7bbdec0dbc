"""Records of `__transaction_state` that no coordinator can have written cost nobody else's ids."""

from pathlib import Path

import pytest

from tests.broker.transactions.serving import Serving, serving
from warmlog.broker.transactions.topic import TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import encode_transaction_key
from warmlog.protocol.records.builder import build_batch

IDS = tuple(f"id-{number}" for number in range(20))


async def write(broker: Serving, index: int, key: bytes, value: bytes) -> None:
    """Append a record as a client may that calls itself `__admin_client`."""
    partition = broker.rig.partitions.get(TOPIC, index)
    assert partition is not None
    append = partition.append(build_batch([(0, key, value, ())]))
    broker.rig.writer.write_queued()
    await append.wait()


@pytest.mark.parametrize("key", [b"", b"\0\0\0", b"hello", encode_transaction_key("another")])
async def test_a_malformed_record_is_left_out_and_named(
    key: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as broker:
        producers = {name: await broker.producer(name) for name in IDS}
        for index in range(3):
            await write(broker, index, key, b"\0\1garbage")
    async with serving(tmp_path) as broker:
        assert {broker.state(name) for name in IDS} == {"Empty"}
        for name, producer in producers.items():
            assert (await broker.producer(name)).epoch == producer.epoch + 1
    assert f"{TOPIC}-2: ignored the record at offset" in caplog.text or key == b"hello"  # of an unknown type


async def test_an_id_goes_on_from_its_record_before_a_malformed_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        producer = await broker.producer("id")
        assert await broker.add(producer, ("words", 0)) is ErrorCode.NONE
        index = broker.service.runtime.partition_of("id")
        for value in (b"", b"\0\1garbage"):
            await write(broker, index, encode_transaction_key("id"), value)
    async with serving(tmp_path) as broker:
        assert broker.state("id") == "Ongoing"
        assert (await broker.commit(producer, "id")).id == producer.id


async def test_many_malformed_records_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as broker:
        for number in range(15):
            await write(broker, 0, encode_transaction_key(f"x{number}"), b"\0\1")
    async with serving(tmp_path):
        pass
    assert caplog.text.count(f"{TOPIC}-0: ignored the record at offset") == 10
    assert f"{TOPIC}-0: ignored 5 more malformed records" in caplog.text
