"""What aiokafka does in its own way: an event loop with producer and consumer at once, listeners, its admin client."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError

from tests.clients.conftest import NewTopicFactory
from tests.clients.waiting import LIMIT_S


def in_loop(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main()

    asyncio.run(limited())


def test_a_producer_and_a_consumer_on_one_loop(bootstrap: str, new_topic: NewTopicFactory, name: str) -> None:
    """Idempotent, keyed, many partitions, each record committed by hand."""
    topic = new_topic(partitions=4)
    sent = {b"%d" % i for i in range(100)}

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            await asyncio.gather(*[producer.send_and_wait(topic, each, key=each) for each in sent])

    async def consume() -> set[bytes]:
        found: set[bytes] = set()
        settings: dict[str, Any] = {"group_id": name, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, fetch_max_wait_ms=50, **settings) as consumer:
            async for record in consumer:
                found.add(record.value)
                if len(found) == len(sent):
                    await consumer.commit()
                    break
            committed = [await consumer.committed(TopicPartition(topic, i)) or 0 for i in range(4)]
            assert sum(committed) == len(sent)
        return found

    async def main() -> None:
        _, found = await asyncio.gather(produce(), consume())
        assert found == sent

    in_loop(main)


def test_a_listener_hears_of_every_change(bootstrap: str, new_topic: NewTopicFactory, name: str) -> None:
    topic = new_topic(partitions=2)

    class Listener(ConsumerRebalanceListener):
        def __init__(self) -> None:
            self.assigned: asyncio.Queue[int] = asyncio.Queue()

        def on_partitions_revoked(self, revoked: object) -> None:
            pass

        def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            self.assigned.put_nowait(len(assigned))

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=name, heartbeat_interval_ms=100)

    async def main() -> None:
        first, second = Listener(), Listener()
        async with member() as one:
            one.subscribe([topic], listener=first)
            assert await first.assigned.get() == 2
            async with member() as two:
                two.subscribe([topic], listener=second)
                assert await second.assigned.get() == 1
                assert await first.assigned.get() == 1
            assert await first.assigned.get() == 2

    in_loop(main)


def test_its_admin_client(bootstrap: str, name: str) -> None:
    async def main() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000"})])
            while name not in await admin.list_topics():
                pass  # real Kafka has created a topic before each of its parts knows it
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 2
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            (resource,) = answer.resources
            assert "5000" in {value for setting, value, *_ in resource[4] if setting == "retention.ms"}
            answer = await admin.create_topics([NewTopic(name, 2, 1)])
            assert [(topic, code) for topic, code, *_ in answer.topic_errors] == [(name, TopicAlreadyExistsError.errno)]
            await admin.delete_topics([name])
        finally:
            await admin.close()

    in_loop(main)


def test_a_transaction_is_read_once_it_is_committed_and_never_once_it_is_aborted(
    bootstrap: str, new_topic: NewTopicFactory, name: str
) -> None:
    topic = new_topic()

    async def main() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
            for value in (b"aborted", b"committed"):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value)
                await (producer.abort_transaction() if value == b"aborted" else producer.commit_transaction())
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
        async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, **settings) as consumer:
            record = await consumer.getone()
            assert (record.offset, record.value) == (2, b"committed")

    in_loop(main)
