"""`python -m benchmarks.questions.codec`: the cost of decoding requests and encoding replies.

The costs are given by API, version and shape.

With `--against DIR`, another checkout runs the same shapes in its own process, and the two alternate in short rounds,
so that other load on the machine affects both. The figures are microseconds of CPU time, the minimum of all rounds.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from time import process_time_ns
from typing import Any, NamedTuple

from tests.protocol.kafka.messages import TABLES, body, frame, with_defaults
from warmlog.protocol.groups import (
    CommittedPartition,
    FetchedOffset,
    FetchedOffsets,
    HeartbeatResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from warmlog.protocol.kafka.api import APIS, Codec
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchResponse
from warmlog.protocol.response import (
    BrokerMetadata,
    FetchedPartition,
    ListedOffset,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionMetadata,
    ProducedPartition,
    ProduceResponse,
    TopicMetadata,
)

ROUND_NS = 300_000  # short enough to fit between two interrupts
TOPIC_ID = b"i" * 16
CODEC = Codec(topic_names={TOPIC_ID: "orders"}.get)
BY_NAME = {api.name: api for api in APIS}
SLICE = memoryview(bytes(1000))


class Shape(NamedTuple):
    """A request and its response for a number of partitions. `versions`: oldest, middle and newest, if None."""

    api: str
    name: str
    partitions: int
    request: Callable[[int], dict[str, Any]]  # mapping of the request, by the number of partitions
    response: Callable[[int], Any]
    versions: tuple[int, ...] | None = None


def topics(partitions: int, field: str, fields: Callable[[int], Any], name: str = "name") -> tuple[dict[str, Any], ...]:
    """Return one topic with this many partitions."""
    return ({name: "orders", "topic_id": TOPIC_ID, field: tuple(map(fields, range(partitions)))},)


def produce(partitions: int) -> dict[str, Any]:
    data = topics(partitions, "partition_data", lambda index: {"index": index, "records": bytes(100)})
    return {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": data}


def produced(partitions: int) -> ProduceResponse:
    outcomes = [ProducedPartition(topic="orders", partition=one, base_offset=one) for one in range(partitions)]
    return ProduceResponse(partitions=tuple(outcomes))


def fetch(partitions: int) -> dict[str, Any]:
    one = {"current_leader_epoch": 0, "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    asked = topics(
        partitions, "partitions", lambda index: {"partition": index, "fetch_offset": 1 << 40, **one}, "topic"
    )
    limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 50 << 20, "isolation_level": 0}
    return {"replica_id": -1, **limits, "topics": asked if partitions else (), "forgotten_topics_data": ()}


def fetched(partitions: int, records: Any = b"") -> KafkaFetchResponse:
    found = [
        FetchedPartition(
            topic="orders", partition=one, high_watermark=9, last_stable_offset=9, log_start_offset=0, records=records
        )
        for one in range(partitions)
    ]
    return KafkaFetchResponse(session_id=7, partitions=tuple(found))


def list_offsets(partitions: int) -> dict[str, Any]:
    one = {"current_leader_epoch": 0, "timestamp": -1}
    asked = topics(partitions, "partitions", lambda index: {"partition_index": index, **one})
    return {"replica_id": -1, "isolation_level": 0, "topics": asked, "timeout_ms": 0}


def listed(partitions: int) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        partitions=tuple([ListedOffset(topic="orders", partition=one, offset=5) for one in range(partitions)])
    )


def commit(partitions: int) -> dict[str, Any]:
    one = {"committed_offset": 9, "committed_leader_epoch": 0, "committed_metadata": ""}
    asked = topics(partitions, "partitions", lambda index: {"partition_index": index, **one})
    return {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "m", "topics": asked}


def committed(partitions: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        partitions=tuple([CommittedPartition(topic="orders", partition=one) for one in range(partitions)])
    )


def offset_fetch(partitions: int) -> dict[str, Any]:
    asked = ({"name": "orders", "topic_id": TOPIC_ID, "partition_indexes": tuple(range(partitions))},)
    group = {"group_id": "g", "topics": asked}
    return {**group, "groups": (group,), "require_stable": False}


def offsets_fetched(partitions: int) -> OffsetFetchResponse:
    found = tuple([FetchedOffset(topic="orders", partition=one, offset=9) for one in range(partitions)])
    return OffsetFetchResponse(groups=(FetchedOffsets(group="g", partitions=found),))


def metadata(_: int) -> dict[str, Any]:
    no_operations = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
    return {"topics": ({"name": "orders"},), "allow_auto_topic_creation": True, **no_operations}


def described(partitions: int) -> MetadataResponse:
    one = {"leader": 1, "leader_epoch": 0, "replicas": (1,), "in_sync": (1,)}
    found = tuple([PartitionMetadata(partition=index, **one) for index in range(partitions)])
    topic = TopicMetadata(name="orders", topic_id="aWlpaWlpaWlpaWlpaWlpaQ", partitions=found)
    broker = BrokerMetadata(node_id=1, host="127.0.0.1", port=9092)
    return MetadataResponse(cluster_id="cluster", controller=1, brokers=(broker,), topics=(topic,))


def heartbeat(_: int) -> dict[str, Any]:
    return {"group_id": "group", "generation_id": 1, "member_id": "member"}


def shapes() -> Iterator[Shape]:
    every = tuple(range(3, 14))
    yield Shape("Produce", "1 partition", 1, produce, produced, every)
    yield Shape("Produce", "20 partitions", 20, produce, produced, every)
    yield Shape("Produce", "1,000 partitions", 1000, produce, produced)
    yield Shape("Fetch", "1 partition", 1, fetch, lambda count: fetched(count, SLICE), tuple(range(4, 19)))
    yield Shape("Fetch", "1,000 partitions, nothing new", 1000, fetch, fetched, tuple(range(4, 19)))
    yield Shape("Fetch", "in a session, nothing new", 0, fetch, fetched, (7, 12, 18))
    yield Shape("ListOffsets", "1,000 partitions", 1000, list_offsets, listed)
    yield Shape("OffsetCommit", "1 partition", 1, commit, committed)
    yield Shape("OffsetCommit", "1,000 partitions", 1000, commit, committed)
    yield Shape("OffsetFetch", "1,000 partitions", 1000, offset_fetch, offsets_fetched)
    yield Shape("Metadata", "1 topic, 1 partition", 1, metadata, described)
    yield Shape("Metadata", "1 topic, 1,000 partitions", 1000, metadata, described)
    yield Shape("Heartbeat", "", 1, heartbeat, lambda _: HeartbeatResponse())


class Task(NamedTuple):
    """One shape in one version."""

    shape: Shape
    version: int

    @property
    def name(self) -> str:
        return f"{self.shape.api} {self.version}, {self.shape.name}".removesuffix(", ")


def tasks(patterns: list[str]) -> list[Task]:
    found = []
    for shape in shapes():
        api = BY_NAME[shape.api]
        versions = shape.versions or sorted({api.first, api.first_flexible, api.last})
        found += [Task(shape, version) for version in versions]
    return [one for one in found if not patterns or any(fnmatchcase(one.name, pattern) for pattern in patterns)]


def steps(task: Task) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return functions that decode the request of a task and encode its reply."""
    shape, version = task
    api, name = BY_NAME[shape.api], f"{shape.api}Request"
    values = with_defaults(TABLES[name], version, shape.request(shape.partitions))
    data = frame(api, version, body(name, api, version, values))
    call, response = CODEC.decode(data), shape.response(shape.partitions)
    return lambda: CODEC.decode(data), lambda: CODEC.encode(call, response)


def cost(step: Callable[[], Any]) -> float:
    """Return the microseconds per call of a round."""
    count = 1
    while True:
        start = process_time_ns()
        for _ in range(count):
            step()
        taken = process_time_ns() - start
        if taken >= ROUND_NS:
            return taken / count / 1000
        count = max(count + 1, min(count * 10, int(count * ROUND_NS / max(taken, 1) * 1.2)))


def serve() -> None:
    """Measure the tasks requested by number, one per line."""
    known: dict[int, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    every = tasks([])
    for line in sys.stdin:
        number = int(line)
        if number not in known:
            known[number] = steps(every[number])
        print(*map(cost, known[number]), flush=True)


class Other:
    """Another checkout that runs the same measurements."""

    def __init__(self, directory: Path, *, pure: bool) -> None:
        environment = os.environ | {"PYTHONPATH": str(directory), "WARMLOG_PURE": "1" if pure else ""}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], env=environment, cwd=directory, stdin=-1, stdout=-1, text=True
        )

    def costs(self, number: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        decoding, encoding = map(float, self._process.stdout.readline().split())
        return decoding, encoding

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.codec", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="shapes to measure, such as `Produce *, 1 partition`")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout to compare with")
    parser.add_argument("--against-pure", action="store_true", help="compare with the pure engine")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve()
        return
    here = Path(__file__).parents[2]
    sides = [Other(here, pure=False)]
    if chosen.against or chosen.against_pure:
        sides.append(Other(chosen.against or here, pure=chosen.against_pure))
    print(f"{'':42}{'decode':>8}{'encode':>8}{'both':>8}   microseconds" + "   other  ratio" * (len(sides) - 1))
    every = [task.name for task in tasks([])]
    for task in tasks(chosen.tasks):
        number = every.index(task.name)
        rounds = [[side.costs(number) for side in sides] for _ in range(chosen.rounds)]
        best = [[min(one[side][part] for one in rounds) for part in (0, 1)] for side in range(len(sides))]
        line = f"{task.name:42}{best[0][0]:8.2f}{best[0][1]:8.2f}{sum(best[0]):8.2f}"
        if len(sides) > 1:
            line += f"{'':15}{sum(best[1]):8.2f}{sum(best[0]) / sum(best[1]):7.2f}"
        print(line, flush=True)
    for side in sides:
        side.close()


if __name__ == "__main__":
    main()
