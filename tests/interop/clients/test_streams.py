"""Kafka Streams counts words with `exactly_once_v2`, killed and restarted: every count is there once."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from interop.kafka_node import KAFKA_VERSION, launch
from interop.warmlog_nodes import WarmlogNode
from tests.clients.waiting import until
from tests.interop.clients.conftest import SETTINGS
from tests.interop.clients.exactly_once import LIMIT_S, PARTITIONS, Member, create, fill, members, wait_for
from tests.interop.clients.word_count import WORDS, check, instances, line, printed, tasks, wait_for_tasks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

LINES = 450
THIRD = LINES // 3
#: So many counts are committed before the kill: fewer than those of the first third.
SEEN = 50
SUBTOPOLOGIES = 2  # before and behind the repartition topic
#: What Streams gives its internal topics.
REPARTITION = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}
CHANGELOG = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
DYNAMIC_TOPIC_CONFIG = 1


@pytest.fixture(params=["fresh_kafka", "fresh_warmlog"])
def both(request: pytest.FixtureRequest) -> str:
    """Kafka of the version whose messages warmlog speaks, and warmlog, one after the other."""
    address: str = request.getfixturevalue(request.param)
    return address


def settings_of(bootstrap: str, topic: str) -> Mapping[str, str]:
    """Return the settings that a topic was given."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.describe_configs([resource]).values()
    entries = future.result(LIMIT_S).values()
    return {entry.name: entry.value for entry in entries if entry.source == DYNAMIC_TOPIC_CONFIG}


def replicate(bootstrap: str, group: str, replicas: int) -> None:
    """Set how many standby tasks a group has for each task with a state."""
    entry = ConfigEntry("streams.num.standby.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)


def test_words_are_counted_exactly_once_by_streams_killed_and_restarted(
    bootstrap: str, java_tools: None, tmp_path: Path
) -> None:
    create(bootstrap, "words-in", "words-out")
    lines = [line(number) for number in range(LINES)]
    fill(bootstrap, "words-in", lines[:THIRD])
    main = [*launch(), "warmlog.interop.WordCount", bootstrap, "words", str(tmp_path)]
    with members(lambda: main) as start:
        first = start()
        wait_for(bootstrap, "words-out", SEEN)
        fill(bootstrap, "words-in", lines[THIRD : 2 * THIRD])
        first.kill()
        fill(bootstrap, "words-in", lines[2 * THIRD :])
        second = start()
        wait_for(bootstrap, "words-out", LINES * WORDS)
        second.stop()
    assert "ERROR" not in printed(first, "state") + printed(second, "state")
    check(bootstrap, "words-out", lines)


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_words_are_counted_exactly_once_by_a_streams_group_of_which_members_are_killed(
    both: str, java_tools: None, tmp_path: Path, store: str
) -> None:
    name = f"group-{store}"
    create(both, f"{name}-in", f"{name}-out")
    lines = [line(number) for number in range(LINES)]
    with instances(both, name, tmp_path, f"store={store}") as start:
        first, second = start(1), start(2)
        wait_for_tasks([first, second], "active", SUBTOPOLOGIES * PARTITIONS)
        fill(both, f"{name}-in", lines[:THIRD])
        wait_for(both, f"{name}-out", SEEN)
        fill(both, f"{name}-in", lines[THIRD : 2 * THIRD])
        first.kill()
        third = start(3)
        wait_for(both, f"{name}-out", 2 * THIRD * WORDS)
        wait_for_tasks([second, third], "active", SUBTOPOLOGIES * PARTITIONS)
        fill(both, f"{name}-in", lines[2 * THIRD :])
        wait_for(both, f"{name}-out", LINES * WORDS)
        second.stop()
        third.stop()
    assert "ERROR" not in [state for each in (first, second, third) for state in printed(each, "state")]
    check(both, f"{name}-out", lines)
    assert settings_of(both, f"{name}-counts-repartition") == REPARTITION
    assert settings_of(both, f"{name}-counts-changelog") == CHANGELOG


def test_members_of_two_versions_share_the_tasks(both: str, java_tools: None, tmp_path: Path) -> None:
    """Streams 4.3 sends heartbeats of version 0."""
    create(both, "versions-in", "versions-out")
    lines = [line(number) for number in range(LINES)]
    with (
        instances(both, "versions", tmp_path, version=KAFKA_VERSION) as start_older,
        instances(both, "versions", tmp_path) as start_newer,
    ):
        older, newer = start_older(1), start_newer(2)
        wait_for_tasks([older, newer], "active", SUBTOPOLOGIES * PARTITIONS)
        fill(both, "versions-in", lines[:THIRD])
        wait_for(both, "versions-out", THIRD * WORDS)
        older.stop()
        fill(both, "versions-in", lines[THIRD:])
        wait_for(both, "versions-out", LINES * WORDS)
        newer.stop()
    check(both, "versions-out", lines)


def test_a_standby_task_takes_over_without_restoring_its_state(both: str, java_tools: None, tmp_path: Path) -> None:
    create(both, "standby-in", "standby-out")
    replicate(both, "standby", 1)
    lines = [line(number) for number in range(LINES)]
    with instances(both, "standby", tmp_path, "store=rocksdb") as start:
        first, second = start(1), start(2)
        wait_for_tasks([first, second], "active", SUBTOPOLOGIES * PARTITIONS)
        wait_for_tasks([first, second], "standby", PARTITIONS)
        assert {task for task in tasks(first) if task.startswith("1_")} == tasks(second, "standby")
        fill(both, "standby-in", lines[: 2 * THIRD])
        wait_for(both, "standby-out", 2 * THIRD * WORDS)
        first.kill()
        wait_for_tasks([second], "active", SUBTOPOLOGIES * PARTITIONS)
        fill(both, "standby-in", lines[2 * THIRD :])
        wait_for(both, "standby-out", LINES * WORDS)
        second.stop()
    check(both, "standby-out", lines)


def test_each_instance_knows_where_the_partitions_are(both: str, java_tools: None, tmp_path: Path) -> None:
    create(both, "asked-in", "asked-out")
    replicate(both, "asked", 1)
    with instances(both, "asked", tmp_path) as start:
        first, second = start(1, "application.server=one:1"), start(2, "application.server=two:2")
        wait_for_tasks([first, second], "active", SUBTOPOLOGIES * PARTITIONS)
        wait_for_tasks([first, second], "standby", PARTITIONS)
        placed = {"one:1": where(first, "asked"), "two:2": where(second, "asked")}
        wait_for_endpoints([first, second], placed)
        first.kill()
        wait_for_tasks([second], "active", SUBTOPOLOGIES * PARTITIONS)
        wait_for_endpoints([second], {"two:2": where(second, "asked")})


def where(instance: Member, name: str) -> Mapping[str, Sequence[str]]:
    """Return the partitions of an instance's tasks, as endpoints are printed."""
    sources = {"0": f"{name}-in", "1": f"{name}-counts-repartition"}
    return {
        kind: sorted(f"{sources[task[0]]}-{task[2:]}" for task in tasks(instance, kind))
        for kind in ("active", "standby")
    }


def wait_for_endpoints(asked: Sequence[Member], endpoints: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Wait until each instance knows these endpoints."""

    def step() -> None:
        for instance in asked:
            instance.wait_for_output()

    until(
        lambda: all(printed(each, "endpoints")[-1:] == [endpoints] for each in asked),
        step,
        f"the endpoints {endpoints}",
        limit_s=LIMIT_S,
    )


def test_words_are_counted_exactly_once_while_broker_and_members_are_killed(java_tools: None, tmp_path: Path) -> None:
    node = WarmlogNode(1, tmp_path, SETTINGS)
    node.start()
    try:
        create(node.bootstrap, "killed-in", "killed-out")
        lines = [line(number) for number in range(LINES)]
        with instances(node.bootstrap, "killed", tmp_path / "states") as start:
            first, second = start(1), start(2)
            wait_for_tasks([first, second], "active", SUBTOPOLOGIES * PARTITIONS)
            fill(node.bootstrap, "killed-in", lines[:THIRD])
            wait_for(node.bootstrap, "killed-out", SEEN)
            node.kill()
            first.kill()
            node.start()
            third = start(3)
            fill(node.bootstrap, "killed-in", lines[THIRD : 2 * THIRD], idempotent=True)
            wait_for(node.bootstrap, "killed-out", 2 * THIRD * WORDS)
            node.kill()
            node.start()
            fill(node.bootstrap, "killed-in", lines[2 * THIRD :], idempotent=True)
            wait_for(node.bootstrap, "killed-out", LINES * WORDS)
            second.stop()
            third.stop()
        assert "ERROR" not in [state for each in (first, second, third) for state in printed(each, "state")]
        check(node.bootstrap, "killed-out", lines)
    finally:
        node.stop()
