"""A client that fetches on the Kafka listener, with or without a session."""

from typing import Any

from tests.broker.clients import RawClient, Running
from tests.broker.kafka_client import KafkaClient
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.writer import topic_id_bytes
from warmlog.protocol.request import MetadataRequest

FOREVER_MS = 2**31 - 1


class Fetcher:
    """Send fetches of one version, and count the epochs of a session."""

    def __init__(self, client: KafkaClient, version: int, names: dict[str, bytes]) -> None:
        self.client = client
        self.version = version
        self.names = names  # of topics, to their ids
        self.session_id = self.epoch = 0

    @classmethod
    async def of(cls, client: KafkaClient, native: RawClient, version: int) -> "Fetcher":
        topics = (await native.ask(MetadataRequest())).topics
        return cls(client, version, {topic.name: topic_id_bytes(topic.topic_id) for topic in topics})

    def topic(self, name: str) -> dict[str, Any]:
        return {"topic": name, "topic_id": self.names[name]}

    def wanted(
        self, offsets: dict[tuple[str, int], int], leader_epoch: int = -1, last_epoch: int = -1
    ) -> tuple[dict[str, Any], ...]:
        return tuple(
            {
                **self.topic(name),
                "partitions": (
                    {
                        "partition": index,
                        "fetch_offset": offset,
                        "partition_max_bytes": 1 << 20,
                        "current_leader_epoch": leader_epoch,
                        "last_fetched_epoch": last_epoch,
                        "log_start_offset": -1,
                    },
                ),
            }
            for (name, index), offset in offsets.items()
        )

    async def send(
        self, offsets: dict[tuple[str, int], int], forget: tuple[tuple[str, int], ...] = (), **options: Any
    ) -> None:
        epochs = options.pop("leader_epoch", -1), options.pop("last_epoch", -1)
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
        await self.client.send(
            "Fetch",
            self.version,
            **{**limits, "session_id": self.session_id, "session_epoch": self.epoch, **options},
            topics=self.wanted(offsets, *epochs),
            forgotten_topics_data=tuple({**self.topic(name), "partitions": (index,)} for name, index in forget),
        )

    async def reply(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the replies by partition."""
        reply = await self.raw_reply()
        assert reply["error_code"] == ErrorCode.NONE
        return self.told(reply)

    async def raw_reply(self) -> dict[str, Any]:
        reply = await self.client.reply()
        self.session_id = reply["session_id"]
        self.epoch += 1
        return reply

    def told(self, reply: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
        names = {topic_id: name for name, topic_id in self.names.items()}
        return {
            (topic["topic"] or names.get(topic["topic_id"], ""), one["partition_index"]): one
            for topic in reply["responses"]
            for one in topic["partitions"]
        }

    async def fetch(self, offsets: dict[tuple[str, int], int], *forget: tuple[str, int], **options: Any) -> Any:
        await self.send(offsets, forget, **options)
        return await self.reply()

    async def refused(self, **options: Any) -> ErrorCode:
        """Return the error of a fetch without partitions."""
        await self.send({}, **options)
        reply = await self.client.reply()
        assert reply["responses"] == ()
        return ErrorCode(reply["error_code"])


def offsets_of(name: str, count: int, offset: int = 0) -> dict[tuple[str, int], int]:
    return {(name, index): offset for index in range(count)}


async def served(broker: Running) -> None:
    """Make some round trips, so that the broker's loop has run everything that is due."""
    client = await broker.connect()
    for _ in range(20):
        await client.ask(MetadataRequest())
