"""A member of a consumer group in a process of its own: `python member.py LIBRARY BOOTSTRAP GROUP TOPIC [INSTANCE]`.

It can be killed, which no library can do to itself: each leaves its group as it closes. Prints a line of JSON whenever
something has happened: {"assigned": [partitions]} or {"read": [[partition, offset], ...]}. Leaves when its standard
input ends.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

SESSION_TIMEOUT_MS = 4000
HEARTBEAT_INTERVAL_MS = 200
POLL_S = 0.1

LEAVE = threading.Event()


def report(**what: object) -> None:
    """Print one line, at once."""
    print(json.dumps(what), flush=True)


def wait_for_the_end() -> None:
    """Ask the member to leave when the one who started it closes the pipe."""
    sys.stdin.read()
    LEAVE.set()


class Reporter:
    """Tells of an assignment when it has changed, and of records."""

    def __init__(self) -> None:
        self._assigned: list[int] | None = None

    def tell(self, assigned: Iterable[int], records: Iterable[tuple[int, int]]) -> None:
        """Both as they are after one poll."""
        now, read = sorted(assigned), [list(each) for each in records]
        if read:
            report(read=read)
        if now != self._assigned:
            self._assigned = now
            report(assigned=now)


def run_confluent(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    """Poll until asked to leave; offsets are committed by the library itself."""
    from confluent_kafka import Consumer  # each process imports the one library that it needs

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 100,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "fetch.wait.max.ms": 50,
            **({"group.instance.id": instance} if instance else {}),
        }
    )
    consumer.subscribe([topic])
    reporter = Reporter()
    while not LEAVE.is_set():
        messages = consumer.consume(100, timeout=POLL_S)
        assert not [each.error() for each in messages if each.error()]
        reporter.tell(
            (each.partition for each in consumer.assignment()), ((each.partition(), each.offset()) for each in messages)
        )
    consumer.close()


def settings_of_python(bootstrap: str, group: str, instance: str | None) -> dict[str, Any]:
    """What kafka-python and aiokafka call by the same names."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 100,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        "fetch_max_wait_ms": 50,
        "group_instance_id": instance,
    }


def run_kafka_python(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    """The same with kafka-python."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, **settings_of_python(bootstrap, group, instance))
    reporter = Reporter()
    while not LEAVE.is_set():
        found = consumer.poll(timeout_ms=int(POLL_S * 1000))
        go_on_with_a_lost_join(consumer._coordinator)
        reporter.tell(
            (each.partition for each in consumer.assignment()),
            ((each.partition, each.offset) for records in found.values() for each in records),
        )
    consumer.close()


def go_on_with_a_lost_join(coordinator: Any) -> None:
    """Heal what kafka-python 3.0.12 does to itself on a busy machine, with any broker.

    A poll that ends during a join leaves a task behind, which may say that no join is needed while the next poll has
    begun another one: nobody takes its result then, and the member is silent for good.
    """
    if coordinator.rejoining and not coordinator.need_rejoin():
        coordinator.request_rejoin()


def run_aiokafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    """The same with aiokafka."""
    asyncio.run(_run_aiokafka(bootstrap, group, topic, instance))


async def _run_aiokafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = AIOKafkaConsumer(
        topic,
        partition_assignment_strategy=(RangePartitionAssignor,),
        **settings_of_python(bootstrap, group, instance),
    )
    reporter = Reporter()
    async with consumer:
        while not LEAVE.is_set():
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
            reporter.tell(
                (each.partition for each in consumer.assignment()),
                ((each.partition, each.offset) for records in found.values() for each in records),
            )


RUN = {"confluent": run_confluent, "kafka-python": run_kafka_python, "aiokafka": run_aiokafka}

if __name__ == "__main__":
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    library, bootstrap, group, topic, *rest = sys.argv[1:]
    RUN[library](bootstrap, group, topic, rest[0] if rest else None)
