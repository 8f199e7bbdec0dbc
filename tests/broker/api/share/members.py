"""Members of share groups on the Kafka listener, for tests: raw requests, and records as they are acquired."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.records.reader import records_in

SETTINGS = {"share.coordinator.state.topic.num.partitions": 1}
GROUP = "workers"
RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
SHARE = 2  # type of key
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Member:
    """One member, and its share session on one connection."""

    def __init__(self, client: KafkaClient, name: str, topic_id: bytes, group: str = GROUP) -> None:
        self.client = client
        self.name = name
        self.topic_id = topic_id
        self.group = group
        self.epoch = 0

    async def send_fetch(
        self, *acks: tuple[int, int, Sequence[int]], partitions: Sequence[int] = (0,), **fields: Any
    ) -> None:
        epoch = fields.pop("epoch", self.epoch)
        named = [*partitions] if not epoch else ([0] if acks else [])
        usual = {
            "group_id": self.group, "member_id": self.name, "share_session_epoch": epoch, "max_wait_ms": 0,
            "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100,
            "topics": self.topics(named, acks),
        }  # fmt: skip
        self.epoch = epoch + 1
        await self.client.send("ShareFetch", fields.pop("version", 2), **usual | fields)

    def topics(self, partitions: Sequence[int], acks: Sequence[tuple[int, int, Sequence[int]]]) -> list[dict[str, Any]]:
        ranges = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [*types]} for first, last, types in acks
        ]
        named = [
            {"partition_index": index, "acknowledgement_batches": [] if number else ranges}
            for number, index in enumerate(partitions)
        ]
        return [{"topic_id": self.topic_id, "partitions": named}] if named else []

    async def fetch(self, *acks: tuple[int, int, Sequence[int]], **fields: Any) -> dict[str, Any]:
        """Fetch, with acknowledgements; return the result of the only partition, or of the whole."""
        await self.send_fetch(*acks, **fields)
        return self.result(await self.client.reply())

    @staticmethod
    def result(reply: dict[str, Any]) -> dict[str, Any]:
        if reply["error_code"] or not reply["responses"]:
            return {"acquired_records": (), "records": b"", "acknowledge_error_code": 0, **reply}
        return dict(reply["responses"][0]["partitions"][0])

    async def acknowledge(self, *acks: tuple[int, int, Sequence[int]], **fields: Any) -> ErrorCode:
        epoch = fields.pop("epoch", self.epoch)
        self.epoch = epoch + 1
        asked = {"group_id": self.group, "member_id": self.name, "share_session_epoch": epoch}
        topics = self.topics([0] if acks else [], acks)
        reply = await self.client.ask("ShareAcknowledge", fields.pop("version", 2), **asked, topics=topics, **fields)
        return ErrorCode(reply["error_code"] or (reply["responses"][0]["partitions"][0]["error_code"] if acks else 0))


def acquired(result: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return (first offset, last offset, deliveries) of acquired records."""
    return [(each["first_offset"], each["last_offset"], each["delivery_count"]) for each in result["acquired_records"]]


def values(result: dict[str, Any]) -> list[bytes]:
    """Return the values of the records in a result, acquired or not."""
    return [bytes(record.value or b"") for record in records_in(bytes(result["records"]))]


class Share:
    """A broker with a topic, and a group whose state begins at offset 0."""

    def __init__(self, broker: Running, client: KafkaClient, native: RawClient, topic_id: bytes) -> None:
        self.broker = broker
        self.client = client
        self.native = native
        self.topic_id = topic_id

    async def produce(self, *values: bytes, partition: int = 0) -> None:
        reply = await self.native.produce("jobs", batch(*values), partition)
        assert reply.error is ErrorCode.NONE

    async def initialize(self, offset: int = 0, group: str = GROUP, partitions: int = 1, state_epoch: int = 1) -> None:
        named = [
            {"partition": index, "state_epoch": state_epoch, "start_offset": offset} for index in range(partitions)
        ]
        key = f"{group}:{topic_id_text(self.topic_id)}:0"
        while True:
            await self.client.ask("FindCoordinator", 6, key_type=SHARE, coordinator_keys=[key])
            topics = [{"topic_id": self.topic_id, "partitions": named}]
            reply = await self.client.ask("InitializeShareGroupState", group_id=group, topics=topics)
            (topic,) = reply["results"]
            codes = {ErrorCode(each["error_code"]) for each in topic["partitions"]}
            if not codes & RETRIABLE:
                assert codes == {ErrorCode.NONE}, topic
                return
            await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def member(self, name: str, group: str = GROUP) -> AsyncIterator[Member]:
        async with kafka_client(self.broker.addresses.kafka) as client:
            yield Member(client, name, self.topic_id, group)


@asynccontextmanager
async def sharing(
    data_dir: Path, *records: bytes, partitions: int = 1, offset: int | None = 0, **settings: Any
) -> AsyncIterator[Share]:
    """Serve the topic "jobs" with records in batches of one; `offset`: where the group begins, None: as stored."""
    async with running(data_dir, SETTINGS | settings) as broker, kafka_client(broker.addresses.kafka) as client:
        native = await broker.connect()
        if offset is not None:
            await native.create("jobs", partitions=partitions)
        asked = [{"name": "jobs", "topic_id": bytes(16)}]
        reply = await client.ask("Metadata", 13, topics=asked)
        share = Share(broker, client, native, bytes(reply["topics"][0]["topic_id"]))
        for record in records:
            await share.produce(record)
        if offset is not None:
            await share.initialize(offset, partitions=partitions)
        yield share
