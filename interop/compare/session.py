"""One run of a scenario against one broker: sends requests, and records each with its normalised response."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from interop.compare.normal import Normaliser
from interop.compare.wire import BY_NAME, ClosedError, Connection
from warmlog.protocol.records.builder import Codec, build_batch

# The version of each API to use, as a fraction of the range from its first to its last version.
LEVELS = {"lowest": 0.0, "middle": 0.5, "highest": 1.0}
CLOSED = "connection closed"
UNANSWERED = "no answer"
BARRIER_TOPIC = "compare-barrier"
NO_ERROR = 0
WAIT_S = 60
# Longer than a busy machine takes; Kafka never responds to a few requests.
ANSWER_S = 15
# Topics and groups of other scenarios, of the program itself, and of the broker's internal use.
_FOREIGN = re.compile(rf"(\w+-({'|'.join(LEVELS)})-|{BARRIER_TOPIC}|__)")
# Kafka's broker applies the controller's changes from these with a delay.
_CHANGES = {
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "AlterClientQuotas",
    "AlterUserScramCredentials",
    "UpdateFeatures",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A request and its normalised response; `CLOSED` or `UNANSWERED` without one."""

    label: str
    api: str
    version: int
    request: Mapping[str, Any]
    answer: Any


class Session:
    """A scenario's access to a broker. `name` makes names of topics and groups unique to the scenario.

    level: selects the version of each API, one of LEVELS. newest: the last version of each API that both brokers
    support.
    """

    def __init__(
        self, address: str, scenario: str, level: str, base_time: int, barrier: "Barrier", *, newest: Mapping[int, int]
    ) -> None:
        self.steps: list[Step] = []
        self.level = level
        self.newness = LEVELS[level]
        self.base_time = base_time
        self.topic_ids: dict[str, bytes] = {}
        self._newest = newest
        self._prefix = f"{scenario}-{level}-"
        self._address = address
        self._barrier = barrier
        self._connections: dict[int, Connection] = {}
        self._waiting: dict[int, list[tuple[str, str, int, Mapping[str, Any]]]] = {}
        self._normal = Normaliser(base_time, keep=self._is_ours)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def name(self, name: str) -> str:
        """Return a name unique to this scenario."""
        return self._prefix + name

    def version(self, api: str) -> int:
        """Return the version of an API at this level, or at the `newness` set last."""
        first, last = BY_NAME[api].first, self._newest[BY_NAME[api].key]
        return first + int((last - first) * self.newness + 0.5)

    def serves(self, api: str) -> bool:
        """Return whether both brokers support an API; older versions of Kafka lack the newest ones."""
        return BY_NAME[api].key in self._newest

    def ask(self, label: str, api: str, /, *, on: int = 0, version: int | None = None, **fields: Any) -> dict[str, Any]:
        """Send a request, wait for the response and record both. Returns {} if there is none."""
        self.send(label, api, on=on, version=version, **fields)
        return self.receive(on=on)

    def send(self, label: str, api: str, /, *, on: int = 0, version: int | None = None, **fields: Any) -> None:
        """Send a request on a connection; `receive` returns the response."""
        chosen = self.version(api) if version is None else version
        self._waiting.setdefault(on, []).append((label, api, chosen, fields))
        with suppress(ClosedError):  # `receive` reports that
            self._connection(on).send(BY_NAME[api], chosen, fields)

    def receive(self, *, on: int = 0) -> dict[str, Any]:
        """Receive the response to the oldest request of a connection."""
        label, api, version, fields = self._waiting[on].pop(0)
        answer: dict[str, Any] = {}
        try:
            answer = self._connection(on).receive(ANSWER_S)
            shown: Any = self._normal.answer(answer)
        except (ClosedError, TimeoutError) as error:
            # The next request is sent over a new connection.
            self._connections.pop(on).close()
            shown = UNANSWERED if isinstance(error, TimeoutError) else CLOSED
        self.steps.append(Step(label, api, version, fields, shown))
        if api in _CHANGES:
            self.settle()
        return answer

    def quiet_receive(self, *, on: int) -> dict[str, Any]:
        """Receive the response to a request sent by `send`, one of several that race, without comparing it."""
        self._waiting[on].pop(0)
        return self._connection(on).receive()

    def quietly(self, api: str, /, *, version: int | None = None, **fields: Any) -> dict[str, Any]:
        """Send a request that is not compared, in the newest version unless one is given."""
        connection = self._connection(-1)
        connection.send(BY_NAME[api], self._newest[BY_NAME[api].key] if version is None else version, fields)
        return connection.receive()

    def note(self, label: str, value: Any) -> None:
        """Compare a value computed by the scenario."""
        self.steps.append(Step(label, "note", 0, {}, value))

    def settle(self) -> None:
        """Wait until acknowledged changes have taken effect."""
        self._barrier.wait(self._connection(-1))

    def topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic, wait until it can be used, and return its full name. `a_b` means the config `a.b`."""
        whole = self.name(name)
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        made = {"name": whole, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        answer = self.quietly("CreateTopics", topics=[made], timeout_ms=10_000)
        assert answer["topics"][0]["error_code"] == NO_ERROR, answer
        self.load(whole)
        return whole

    def load(self, *topics: str) -> None:
        """Wait until topics can be used, and store their ids."""
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = self.quietly("Metadata", topics=[{"name": name} for name in topics])
            partitions = [one for topic in answer["topics"] for one in topic["partitions"]]
            if partitions and not any(one["error_code"] for one in [*answer["topics"], *partitions]):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"topics without a leader: {answer}")
        for topic in answer["topics"]:
            self.topic_ids[topic["name"]] = topic["topic_id"]
            self._normal.name_topic(topic["topic_id"], topic["name"])
        asked = [
            {"partition_index": one["partition_index"], "timestamp": -1} for one in answer["topics"][0]["partitions"]
        ]
        while self._is_unready(topics[0], asked):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no offsets of {topics[0]}")

    def _is_unready(self, topic: str, asked: list[dict[str, int]]) -> bool:
        answer = self.quietly("ListOffsets", topics=[{"name": topic, "partitions": asked}], replica_id=-1)
        return any(one["error_code"] for one in answer["topics"][0]["partitions"])

    def both(self, name: str, key: str = "name") -> dict[str, Any]:
        """Return the fields that identify a topic, in versions by name and by id."""
        return {key: name, "topic_id": self.topic_ids.get(name, b"\1" * 16)}

    def group(self, name: str) -> str:
        """Return a group's full name."""
        return self.name(name)

    def batch(self, count: int = 1, *, at: int = 0, codec: Codec = Codec.NONE, size: int = 10, **fields: Any) -> bytes:
        """Return a batch of records whose timestamps are `at`, `at` + 1 … ms after the base time."""
        rows = [(self.base_time + at + place, b"key", bytes([97 + place % 26]) * size, ()) for place in range(count)]
        return build_batch(rows, compression=codec, **fields)

    def produce(
        self, label: str, topic: str, records: bytes | None, *, partition: int = 0, **fields: Any
    ) -> dict[str, Any]:
        """Produce to one partition as a step, by default with acks=all."""
        data = [{**self.both(topic), "partition_data": [{"index": partition, "records": records}]}]
        return self.ask(label, "Produce", **{"acks": -1, "timeout_ms": 5000, "topic_data": data, **fields})

    def fill(self, topic: str, *batches: bytes, partition: int = 0) -> None:
        """Produce batches, one per request, without comparing the responses."""
        for records in batches:
            data = [{**self.both(topic), "partition_data": [{"index": partition, "records": records}]}]
            answer = self.quietly("Produce", acks=-1, timeout_ms=5000, topic_data=data)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == NO_ERROR, answer

    def fetch(self, label: str, partitions: Iterable[tuple[str, int, int]], **fields: Any) -> dict[str, Any]:
        """Fetch from (topic, partition, offset) as a step; other fields have Kafka's names."""
        return self.ask(label, "Fetch", **self.fetch_fields(partitions, **fields))

    def fetch_fields(self, partitions: Iterable[tuple[str, int, int]], **fields: Any) -> dict[str, Any]:
        """Return the fields of a Fetch request; `each` has further fields of every partition."""
        each = {
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "partition_max_bytes": 1 << 20,
            **fields.pop("each", {}),
        }
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, partition, offset in partitions:
            topics.setdefault(topic, []).append({"partition": partition, "fetch_offset": offset, **each})
        asked = [{**self.both(topic, "topic"), "partitions": found} for topic, found in topics.items()]
        usual = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 24, "session_epoch": -1, "replica_id": -1}
        return {**usual, "topics": asked, **fields}

    def _connection(self, on: int) -> Connection:
        if on not in self._connections:
            self._connections[on] = Connection(self._address)
        return self._connections[on]

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._prefix) or not _FOREIGN.match(name)


class Barrier:
    """Waits until a broker has applied all earlier changes, by making one more change, which is applied after them."""

    def __init__(self) -> None:
        self._changes = 0

    def prepare(self, connection: Connection) -> None:
        """Create the topic whose configuration is changed."""
        made = {"name": BARRIER_TOPIC, "num_partitions": 1, "replication_factor": 1}
        connection.send(BY_NAME["CreateTopics"], 7, {"topics": [made], "timeout_ms": 10_000})
        connection.receive()

    def wait(self, connection: Connection) -> None:
        """Make a change and return when it is visible."""
        self._changes += 1
        value = str(1_000_000_000 + self._changes)
        config = {"name": "retention.ms", "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": BARRIER_TOPIC}
        deadline = time.monotonic() + WAIT_S
        connection.send(BY_NAME["IncrementalAlterConfigs"], 1, {"resources": [{**resource, "configs": [config]}]})
        connection.receive()
        while True:
            asked = {"resources": [{**resource, "configuration_keys": ["retention.ms"]}]}
            connection.send(BY_NAME["DescribeConfigs"], 4, asked)
            (result,) = connection.receive()["results"]
            if result["configs"] and result["configs"][0]["value"] == value:
                return
            if time.monotonic() > deadline:
                raise TimeoutError("a change of a topic's configuration did not take effect")
