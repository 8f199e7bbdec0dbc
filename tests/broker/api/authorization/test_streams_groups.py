"""What rights give in streams groups: members, internal topics, descriptions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.broker.api.authorization.rig import Certificates, Secured, acl, cluster, secured
from tests.broker.api.groups.test_streams_groups import NO_TASKS, internal, subtopology, topology
from warmlog.broker.groups.streams.status import Status
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode

TOPIC, CHANGELOG, GROUP = "secret-topic", "secret-group-store-changelog", "secret-group"
NO_TOPIC, NO_GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
SETTINGS = {"group_streams_initial_rebalance_delay_ms": 0, "group_streams_assignment_interval_ms": 0}
MISSING = f"Internal topics are missing: {CHANGELOG}"
READ = acl(ResourceType.GROUP, GROUP, Operation.READ)
BOTH = [acl(ResourceType.TOPIC, name, Operation.DESCRIBE) for name in (TOPIC, CHANGELOG)]


@asynccontextmanager
async def streaming(certificates: Certificates, directory: Path) -> AsyncIterator[Secured]:
    """A broker with a source topic."""
    async with secured(certificates, directory / "data", **SETTINGS) as broker:
        native = await broker.native("admin")
        await native.create(TOPIC)
        yield broker


async def join(client: Any, source: str = TOPIC) -> dict[str, Any]:
    given = topology(subtopology(source, state_changelog_topics=[internal(CHANGELOG)]))
    asked = {"group_id": GROUP, "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000, "process_id": "p"}
    return dict(await client.ask("StreamsGroupHeartbeat", 1, **asked, **NO_TASKS, topology=given))


async def test_a_member_needs_read_on_the_group_and_describe_on_all_topics(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with streaming(certificates, tmp_path) as broker:
        client = await broker.client("half")
        await broker.allow(*BOTH, acl(ResourceType.GROUP, GROUP, Operation.DESCRIBE))
        assert (await join(client))["error_code"] == NO_GROUP
        for described in BOTH:
            await broker.allow(READ, described)
            assert (await join(client))["error_code"] == NO_TOPIC
        internal_source = await join(client, "__consumer_offsets")
        assert internal_source["error_code"] == ErrorCode.STREAMS_INVALID_TOPOLOGY, "before the rights, as in Kafka"
        await broker.allow(READ, *BOTH)
        assert (await join(client))["error_code"] == ErrorCode.NONE


async def test_internal_topics_need_the_right_to_create_them(certificates: Certificates, tmp_path: Path) -> None:
    async with streaming(certificates, tmp_path) as broker:
        client = await broker.client("half")
        await broker.allow(READ, *BOTH)
        for _ in range(2):
            assert [(each["status_code"], each["status_detail"]) for each in (await join(client))["status"]] == [
                (Status.MISSING_INTERNAL_TOPICS, f"{MISSING}; Unauthorized to CREATE on topics {CHANGELOG}.")
            ]
        await broker.allow(READ, *BOTH, acl(ResourceType.TOPIC, CHANGELOG, Operation.CREATE))
        assert [each["status_detail"] for each in (await join(client))["status"]] == [MISSING]
        assert (await join(client))["status"] == ()


async def test_the_right_to_create_any_topic_is_enough(certificates: Certificates, tmp_path: Path) -> None:
    async with streaming(certificates, tmp_path) as broker:
        client = await broker.client("half")
        await broker.allow(READ, *BOTH, cluster(Operation.CREATE))
        await join(client)
        assert (await join(client))["status"] == ()


async def test_a_description_of_a_group_names_no_hidden_topics(certificates: Certificates, tmp_path: Path) -> None:
    async with streaming(certificates, tmp_path) as broker:
        await join(broker.admin)
        client = await broker.client("half")

        async def described() -> dict[str, Any]:
            asked = {"group_ids": [GROUP], "include_authorized_operations": True}
            return dict((await client.ask("StreamsGroupDescribe", 1, **asked))["groups"][0])

        assert (await described())["error_code"] == NO_GROUP
        describe = acl(ResourceType.GROUP, GROUP, Operation.DESCRIBE)
        await broker.allow(describe, BOTH[0])
        hidden = await described()
        assert (hidden["error_code"], hidden["members"], hidden["topology"]) == (NO_TOPIC, (), None)
        await broker.allow(describe, *BOTH)
        shown = await described()
        assert (shown["error_code"], len(shown["members"])) == (ErrorCode.NONE, 1)
        assert shown["authorized_operations"] == 1 << Operation.DESCRIBE
