"""Raw loads in any version of a request: many connections, many partitions in a request, 1,000 partitions.

All requests are encoded before a measurement begins. Only a fetch session needs a client that writes its epoch into
each request; it has one request in flight, so that the client's cost is not counted.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from struct import Struct
from time import perf_counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import Flow, LoadError
from benchmarks.load.native import ANSWER_S, SetupError
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.questions.large_frames import kafka_frame
from benchmarks.questions.large_requests import Asker
from benchmarks.servers.contestants import Broker, Running, figures_of, records_in
from benchmarks.workloads.native import SMALL

PARTITIONS = 1_000
FILLED = 2  # batches in each partition before it is fetched
ACTIVE_SHARE = 0.01  # share of the partitions that get a record between two fetches
FETCH_VERSION = 12  # the last version that names topics by name
PARTITION_MAX_BYTES, MAX_BYTES = 1 << 20, 50 << 20  # as in a Java consumer
GROUP = "benchmark"
# Errors of a coordinator until it has loaded its groups.
NOT_YET = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
_REPLY = Struct(">iBihi")  # correlation id, tagged fields, throttle time, error, session id


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Connections with one request in flight, each of which appends a small batch to its own partitions."""

    connections: int
    version: int
    partitions: int = 1

    def measure(self, broker: Broker, conditions: Conditions) -> Figures:
        """Measure requests/s, latencies, and the server's processor time per record, request and MB."""
        connections = conditions.scaled(self.connections)
        with broker.serving(conditions, connections * self.partitions) as (server, topic):
            shares = [range(n * self.partitions, (n + 1) * self.partitions) for n in range(connections)]
            flows = [Flow(requests=(produce(topic, share, self.version),)) for share in shares]
            result = broker.drive(server, flows, conditions)
            broker.wire.check_count(server.address, topic, result.replies * self.partitions)
        batches = result.replies * self.partitions
        return figures_of(result, records=batches * records_in(SMALL), size=batches * len(SMALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class WideFetches:
    """Connections with one request in flight, each of which fetches `FILLED` small batches of every partition."""

    connections: int
    partitions: int

    def measure(self, broker: Broker, conditions: Conditions) -> Figures:
        """Measure requests/s, latencies, and the server's processor time per record, request and MB."""
        with broker.serving(conditions, self.partitions) as (server, topic):
            fill(server, topic, self.partitions)
            request = fetch(topic, dict.fromkeys(range(self.partitions), 0))
            flows = [Flow(requests=(request,))] * conditions.scaled(self.connections)
            result = broker.drive(server, flows, conditions)
        batches = result.replies * self.partitions * FILLED
        return figures_of(result, records=batches * records_in(SMALL), size=result.received_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WideRequests:
    """One connection with one request in flight that names 1,000 partitions, in one API after the other."""

    partitions: int = PARTITIONS

    def measure(self, broker: Broker, conditions: Conditions) -> Figures:
        """Measure the microseconds of the server's processor time per partition in a request."""
        count = max(2, conditions.scaled(self.partitions))
        with broker.serving(conditions, count) as (server, topic):
            fill(server, topic, count)
            commit_one(server, topic)
            requests = {
                "produce": (produce(topic, range(count), 11),),
                "produce_v7": (produce(topic, range(count), 7),),
                **{name: (request,) for name, request in questions(topic, count).items()},
            }
            return {f"{name}_us": self._cost(broker, server, each, conditions) for name, each in requests.items()}

    def measure_fetches(self, broker: Broker, conditions: Conditions) -> Figures:
        """Measure fetches: with and without a session, nothing new or 1 % of the partitions active."""
        count = max(2, conditions.scaled(self.partitions))
        with broker.serving(conditions, count) as (server, topic):
            fill(server, topic, count)
            active = range(0, count, round(1 / ACTIVE_SHARE))
            positions = [dict.fromkeys(range(count), FILLED) | dict.fromkeys(active, offset) for offset in (0, 1)]
            quiet = (fetch(topic, dict.fromkeys(range(count), FILLED)),)
            busy = tuple(fetch(topic, each) for each in positions)
            return {
                "fetch_us": self._cost(broker, server, quiet, conditions),
                "fetch_active_us": self._cost(broker, server, busy, conditions),
                "session_us": session_cost(server, topic, count, (), conditions) / count,
                "session_active_us": session_cost(server, topic, count, active, conditions) / count,
            }

    def _cost(self, broker: Broker, server: Running, requests: tuple[bytes, ...], conditions: Conditions) -> float:
        result = broker.drive(server, [Flow(requests=requests)], conditions)
        named = max(2, conditions.scaled(self.partitions))
        return result.server_cpu_s / max(1, result.replies) / named * 1e6


def session_cost(server: Running, topic: str, count: int, active: Sequence[int], conditions: Conditions) -> float:
    """Measure the microseconds of the server's processor time per fetch in a session of `count` partitions.

    `active` partitions are named in every request, alternately at offsets 0 and 1, and have records there. Raises
    LoadError.
    """
    asker = Asker(server.address)
    with closing(asker.sock):
        full = asker.ask(fetch(topic, dict.fromkeys(range(count), FILLED), session=(0, 0)))
        session = check_fetch(full)
        rounds = [fetch(topic, dict.fromkeys(active, offset), session=(session, 0)) for offset in (0, 1)]
        marked = fetch(topic, dict.fromkeys(active, 0), session=(session, -2))
        place = next(i for i in range(len(marked)) if marked[i] != rounds[0][i])
        requests = [bytearray(request) for request in rounds]
        epoch, began_at, meter = 0, perf_counter(), ProcessorMeter(server.pids)
        counted_from = 0
        until = began_at + conditions.warmup_s
        while (now := perf_counter()) < until or not counted_from:
            if now >= until:
                counted_from, meter, until = epoch, ProcessorMeter(server.pids), now + conditions.seconds
            epoch += 1
            request = requests[epoch % 2]
            request[place : place + 4] = epoch.to_bytes(4)
            check_fetch(asker.ask(bytes(request)))
        return meter.us_per(epoch - counted_from)


def check_fetch(reply: bytes) -> int:
    """Return the session id of a reply. Raises LoadError if the fetch failed."""
    _, _, _, error, session = _REPLY.unpack_from(reply)
    if error:
        raise LoadError(f"fetch failed with error {error}")
    return int(session)


def fill(server: Running, topic: str, count: int) -> None:
    """Append `FILLED` batches of one record to each partition."""
    asker = Asker(server.address)
    with closing(asker.sock):
        for _ in range(FILLED):
            asker.ask(produce(topic, range(count), 11))


def commit_one(server: Running, topic: str) -> None:
    """Commit an offset, retrying until the group's coordinator has loaded. Raises SetupError."""
    host, port = server.address
    consumer = Consumer({"bootstrap.servers": f"{host}:{port}", "group.id": GROUP})
    committed, until = False, perf_counter() + ANSWER_S
    try:
        while not committed:
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
                committed = True
            except KafkaException as error:
                if error.args[0].code() not in NOT_YET or perf_counter() > until:
                    raise SetupError(f"commit: {error}") from error
    finally:
        consumer.close()


def produce(topic: str, partitions: Sequence[int], version: int) -> bytes:
    """Append a small batch to each of the partitions, acks=1."""
    data = [{"index": partition, "records": SMALL} for partition in partitions]
    topics = [{"name": topic, "partition_data": data}]
    return kafka_frame("Produce", version, acks=1, timeout_ms=30_000, topic_data=topics)


def fetch(topic: str, positions: dict[int, int], session: tuple[int, int] = (0, -1)) -> bytes:
    """Fetch partitions from their offsets without waiting, in a session (id, epoch) or outside any."""
    partitions = [
        {"partition": partition, "fetch_offset": offset, "partition_max_bytes": PARTITION_MAX_BYTES}
        for partition, offset in positions.items()
    ]
    return kafka_frame(
        "Fetch",
        FETCH_VERSION,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=MAX_BYTES,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic": topic, "partitions": partitions}] if partitions else [],
    )


def questions(topic: str, count: int) -> dict[str, bytes]:
    """Return requests that name all partitions, or whose replies contain all of them."""
    ends: list[dict[str, Any]] = [{"partition_index": number, "timestamp": -1} for number in range(count)]
    commits = [{"partition_index": n, "committed_offset": 1, "committed_metadata": ""} for n in range(count)]
    return {
        "list_offsets": kafka_frame("ListOffsets", 7, topics=[{"name": topic, "partitions": ends}]),
        "offset_commit": kafka_frame(
            "OffsetCommit", 8, group_id=GROUP, member_id="", topics=[{"name": topic, "partitions": commits}]
        ),
        "metadata": kafka_frame("Metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False),
    }
