"""The audit log's topic: real brokers that append to it, alone and in a cluster, and who may do what with it."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.api.authorization.rig import STANDARD, Certificates, acl, cluster, creation, secured
from tests.broker.clients import batch, running
from tests.broker.clustered.three_brokers import three_brokers
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.partitions.disks.test_offline import CHECKPOINTS_OFTEN, BrokenDisk, offline_ones
from warmlog import connect
from warmlog.broker.log.io.disk import Disk, DiskSpace
from warmlog.broker.metadata.topic import AUDIT_TOPIC
from warmlog.broker.security.acls import Operation, Permission, ResourceType
from warmlog.broker.start_errors import StartError
from warmlog.protocol.errors import ErrorCode

LIMIT_S = 60.0
Event = dict[str, Any]


def settings(directory: Path, **others: object) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {"warmlog.audit.file": directory / "audit.jsonl", "warmlog.audit.topic": "true", **named}


def settings_of(directory: Path) -> dict[str, object]:
    return {name.replace(".", "_"): value for name, value in settings(directory).items()}


def in_file(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def in_topic(
    native: str, count: int, *, partitions: Sequence[int] | None = None, without: str = ""
) -> list[Event]:
    """Return the events of the topic once there are so many, each once, without those of an operation."""
    found: dict[str, Event] = {}
    with trio.fail_after(LIMIT_S):
        async with connect(native) as client:
            while not any(topic.name == AUDIT_TOPIC for topic in await client.list_topics()):
                await trio.lowlevel.checkpoint()
            if count:
                async for record in client.consume(AUDIT_TOPIC, partitions=partitions, auto_create=False):
                    assert record.value is not None
                    event = json.loads(record.value)
                    if operation(event) not in {without, ""}:
                        found[event["metadata"]["uid"]] = event
                    if len(found) == count:
                        break
    return sorted(found.values(), key=lambda event: (event["time"], event["metadata"]["uid"]))


def operation(event: Event) -> str:
    """Return what was asked for, nothing for an event of the log itself."""
    return str(event.get("api", {}).get("operation", ""))


async def create(client: KafkaClient, name: str) -> int:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": [], "assignments": []}
    reply = await client.ask("CreateTopics", topics=[topic], timeout_ms=30_000)
    return int(reply["topics"][0]["error_code"])


async def produce(client: KafkaClient, topic: str, version: int = 9) -> int:
    """Append a record to the first partition; return the error code."""
    partition = {"index": 0, "records": batch(b"forged")}
    data = [{"name": topic, "partition_data": [partition]}]
    reply = await client.ask("Produce", version, acks=-1, timeout_ms=10_000, topic_data=data)
    return int(reply["responses"][0]["partition_responses"][0]["error_code"])


async def delete(client: KafkaClient, topic: str) -> int:
    reply = await client.ask("DeleteTopics", topics=[{"name": topic, "topic_id": bytes(16)}], timeout_ms=30_000)
    return int(reply["responses"][0]["error_code"])


async def delete_records(client: KafkaClient) -> int:
    topic = {"name": AUDIT_TOPIC, "partitions": [{"partition_index": 0, "offset": -1}]}
    reply = await client.ask("DeleteRecords", topics=[topic], timeout_ms=30_000)
    return int(reply["topics"][0]["partitions"][0]["error_code"])


async def partition_ids(client: KafkaClient) -> list[int]:
    (found,) = (await client.ask("Metadata", topics=[{"name": AUDIT_TOPIC, "topic_id": bytes(16)}]))["topics"]
    return [each["partition_index"] for each in found["partitions"]]


async def fetch(client: KafkaClient) -> int:
    """Return the error of a fetch of the first partition."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    reply = await client.ask(
        "Fetch", 12, max_wait_ms=0, min_bytes=0, topics=[{"topic": AUDIT_TOPIC, "partitions": [partition]}]
    )
    return int(reply["responses"][0]["partitions"][0]["error_code"])


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not condition():
            await trio.to_thread.run_sync(time.sleep, 0.01)


class Space:
    """How much room the disks below a path have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = "\0"
        real = Disk.space

        def space(disk: Disk, path: str) -> DiskSpace:
            found = real(disk, path)
            return found._replace(usable_bytes=0) if path.startswith(self.full) else found

        monkeypatch.setattr(Disk, "space", space)


# -- by itself ---------------------------------------------------------------------------------------------------------


async def test_the_topic_has_the_lines_of_the_file(tmp_path: Path) -> None:
    async with running(tmp_path / "data", settings(tmp_path)) as broker, kafka_client(broker.addresses.kafka) as client:
        for number in range(3):
            assert await create(client, f"t{number}") == ErrorCode.NONE
        assert await in_topic(broker.addresses.native, 3) == in_file(tmp_path / "audit.jsonl")
        resource = {"resource_type": 2, "resource_name": AUDIT_TOPIC, "configuration_keys": None}
        described = await client.ask("DescribeConfigs", resources=[resource])
        configs = {each["name"]: each["value"] for each in described["results"][0]["configs"]}
        (topic,) = (await client.ask("Metadata", topics=[{"name": AUDIT_TOPIC, "topic_id": bytes(16)}]))["topics"]
    found = in_file(tmp_path / "audit.jsonl")
    assert len({each["metadata"]["uid"] for each in found}) == 3
    assert all(each["unmapped"]["broker"] == 1 for each in found)
    assert configs["retention.ms"] == str(30 * 86_400_000)
    assert configs["retention.bytes"] == str(1 << 30)
    assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("delete", str(100 << 20))
    assert (topic["is_internal"], len(topic["partitions"])) == (True, 3)


async def test_there_is_no_topic_by_default(tmp_path: Path) -> None:
    given = {"warmlog.audit.file": tmp_path / "audit.jsonl"}
    async with running(tmp_path / "data", given) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await create(client, "t") == ErrorCode.NONE
        assert await create(client, AUDIT_TOPIC) == ErrorCode.INVALID_REQUEST
        assert await produce(client, AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
        names = {each["name"] for each in (await client.ask("Metadata", topics=None))["topics"]}
    assert names == {"t"}


async def test_the_topic_needs_the_file(tmp_path: Path) -> None:
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        async with running(tmp_path / "data", {"warmlog.audit.topic": "true"}):
            pass
    assert raised.group_contains(StartError, match="set warmlog.audit.file, too")


async def test_the_last_events_before_a_stop_are_in_the_topic_and_the_next_run_appends(tmp_path: Path) -> None:
    for run in range(3):
        async with (
            running(tmp_path / "data", settings(tmp_path)) as broker,
            kafka_client(broker.addresses.kafka) as client,
        ):
            assert await create(client, f"t{run}") == ErrorCode.NONE
    async with running(tmp_path / "data", settings(tmp_path)) as broker:
        assert await in_topic(broker.addresses.native, 3) == in_file(tmp_path / "audit.jsonl")
        assert len(in_file(tmp_path / "audit.jsonl")) == 3


async def test_the_topic_has_events_that_the_file_cannot_have(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to("/dev/full")
    async with running(tmp_path / "data", settings(tmp_path)) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await create(client, "t") == ErrorCode.NONE
        (found,) = await in_topic(broker.addresses.native, 1)
    assert found["resources"][0]["name"] == "t"


async def test_a_full_disk_delays_no_request_and_the_events_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space(monkeypatch)
    given = settings(tmp_path, warmlog_disk_reserve_bytes=1 << 20)
    async with (
        running(tmp_path / "data", given, http="127.0.0.1:0") as broker,
        kafka_client(broker.addresses.kafka) as client,
    ):
        assert await create(client, "t0") == ErrorCode.NONE
        await in_topic(broker.addresses.native, 1)
        space.full = str(tmp_path / "data")
        while await produce(client, "t0") == ErrorCode.NONE:
            await trio.to_thread.run_sync(time.sleep, 0.01)
        assert await delete(client, "t0") == ErrorCode.NONE
        samples = await broker.scrape()
        assert samples['warmlog_audit_topic_events_total{result="appended"}'] == 1
        assert samples["warmlog_audit_topic_queued_bytes"] > 0
        space.full = "\0"
        assert await in_topic(broker.addresses.native, 2) == in_file(tmp_path / "audit.jsonl")


async def test_events_of_a_partition_whose_directory_fails_go_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog.broker.api.audit.topic.PATIENCE_S", 0.0)
    disk, paths = BrokenDisk(monkeypatch), [tmp_path / "a", tmp_path / "b"]
    given = {
        **settings(tmp_path, warmlog_audit_topic_num_partitions=2),
        **CHECKPOINTS_OFTEN,
        "log.dirs": ",".join(map(str, paths)),
    }
    async with running(paths[0], given) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await create(client, "t0") == ErrorCode.NONE
        await in_topic(broker.addresses.native, 1)
        assert (paths[1] / f"{AUDIT_TOPIC}-0").is_dir()
        disk.fail(paths[1])
        while 0 not in await offline_ones(await broker.connect(), AUDIT_TOPIC):
            await trio.to_thread.run_sync(time.sleep, 0.01)
        assert await create(client, "t1") == ErrorCode.NONE
        (found,) = await in_topic(broker.addresses.native, 1, partitions=(1,))
    assert found["resources"][0]["name"] == "t1"


# -- rights ------------------------------------------------------------------------------------------------------------


async def test_only_those_with_read_can_read_it_and_no_client_can_write_or_delete_it(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with secured(certificates, tmp_path / "data", **settings_of(tmp_path)) as broker:
        await broker.prepare("t", "g", "x")
        half = await broker.client("half")
        every = (Operation.WRITE, Operation.DELETE, Operation.DESCRIBE, Operation.ALTER)
        await broker.allow(
            *(acl(ResourceType.TOPIC, AUDIT_TOPIC, each) for each in every),
            cluster(Operation.CREATE),
            cluster(Operation.CLUSTER_ACTION),
        )
        while not await partition_ids(half):
            await trio.lowlevel.checkpoint()
        for name in ("test", "__admin_client", "broker-1", "broker-2"):
            for client in (half, broker.admin):
                client.client_id = name
                assert await produce(client, AUDIT_TOPIC) in {
                    ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
                }  # fmt: skip
        for client in (half, broker.admin):
            assert await delete(client, AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await delete_records(client) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await fetch(half) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await broker.allow(acl(ResourceType.TOPIC, AUDIT_TOPIC, Operation.READ))
        assert await fetch(half) == ErrorCode.NONE
        assert await produce(half, AUDIT_TOPIC) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await delete(half, AUDIT_TOPIC) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert b"forged" not in b"".join(each.read_bytes() for each in tmp_path.glob(f"data/{AUDIT_TOPIC}-*/*.log"))


async def test_the_topic_can_be_deleted_when_it_is_no_longer_used(tmp_path: Path) -> None:
    async with running(tmp_path / "data", settings(tmp_path)) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await create(client, "t") == ErrorCode.NONE
        await in_topic(broker.addresses.native, 1)
    given = {"warmlog.audit.file": tmp_path / "audit.jsonl"}
    async with running(tmp_path / "data", given) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await produce(client, AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await delete(client, AUDIT_TOPIC) == ErrorCode.NONE


# -- in a cluster ------------------------------------------------------------------------------------------------------


async def test_the_events_of_all_brokers_are_in_one_replicated_topic(tmp_path: Path) -> None:
    given = settings(tmp_path, default_replication_factor=3)
    async with three_brokers(tmp_path, given) as found:
        for number in (1, 2, 3):
            assert await create(found.clients[number], f"t{number}") == ErrorCode.NONE
        written = await in_topic(found.brokers[2].addresses.native, 3)
        state = await found.partition(AUDIT_TOPIC)
        assert len(state["replica_nodes"]) == 3
        own = set(found.clients) - {state["leader_id"]}
        for number in own:
            assert await produce(found.clients[state["leader_id"]], AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await delete(found.clients[number], AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
    kept = in_file(tmp_path / "audit.jsonl")
    uids = [each["metadata"]["uid"] for each in written]
    assert sorted(uids) == sorted(
        each["metadata"]["uid"] for each in kept if each["resources"][0]["name"] != AUDIT_TOPIC
    )
    assert {each["unmapped"]["broker"] for each in written} == {1, 2, 3}


async def test_brokers_that_may_not_append_try_again_and_cause_no_events_by_that(tmp_path: Path) -> None:
    given = settings(
        tmp_path,
        default_replication_factor=3,
        authorizer_class_name=STANDARD,
        allow_everyone_if_no_acl_found="true",
    )
    async with three_brokers(tmp_path, given) as found:
        client = found.clients[1]
        assert await create(client, "t0") == ErrorCode.NONE
        await in_topic(found.brokers[1].addresses.native, 1)
        denied = cluster(Operation.CLUSTER_ACTION, permission=Permission.DENY, principal="User:ANONYMOUS")
        altering = cluster(Operation.ALTER, principal="User:ANONYMOUS")
        await client.ask("CreateAcls", creations=[creation(denied), creation(altering)])
        for number in (1, 2, 3):
            assert await create(found.clients[number], f"t{number}") == ErrorCode.NONE
        await until(lambda: '"produce"' in (tmp_path / "audit.jsonl").read_text())
        everything = {
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
            "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        await client.ask("DeleteAcls", filters=[everything])
        # Followers are refused, too, whether or not anything is appended.
        written = await in_topic(found.brokers[1].addresses.native, 6, without="fetch")
    names = [each["api"]["operation"] for each in written]
    assert sorted(names) == ["create_acls", *["create_topics"] * 4, "delete_acls"]
    # A broker that stops names in the file what the topic did not get any more; that event is of another class.
    refused = [each for each in in_file(tmp_path / "audit.jsonl") if operation(each) == "produce"]
    assert refused
    assert all(each["resources"][0]["name"].startswith(AUDIT_TOPIC) for each in refused)
