"""Streams groups (KIP-1071): members, topologies and their topics, tasks, commits, administration."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from interop.compare.session import Session

# In the iteration order of Java's hash maps, by which Kafka's assignor breaks ties; small maps have processes in this
# order only if a member has one up to its own position.
MEMBERS = ("given-mb", "given-md", "given-mf")
PROCESSES = ("p0", "p1", "p3")
LEAVE, STATIC_LEAVE = -1, -2
PARTITIONS = 3
_TIMEOUT_S = 30
_AT_ONCE = {"assignment_interval_ms": "0", "initial_rebalance_delay_ms": "0"}
_WAITING, _QUIET_ROUNDS = ("Assigning", "Reconciling"), 8  # states that may last until a session ends
_GROUP_RESOURCE, _TOPIC_RESOURCE = 32, 2
_KINDS = ("active_tasks", "standby_tasks", "warmup_tasks")
_CLEANED = ("cleanup.policy", "retention.ms", "segment.bytes", "message.timestamp.type")


def topic_info(name: str, *, partitions: int = 0, replicas: int = 0, **configs: str) -> dict[str, Any]:
    """Return an internal topic; `a_b` means the setting `a.b`."""
    settings = [{"key": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "partitions": partitions, "replication_factor": replicas, "topic_configs": settings}


def subtopology(number: str, sources: Iterable[str] = (), **fields: Any) -> dict[str, Any]:
    """Return a subtopology; other fields have Kafka's names."""
    usual: dict[str, Any] = {
        "subtopology_id": number,
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return {**usual, **fields}


class StreamsMembers:
    """The members of one group: an application with a source, a repartition topic and a changelog.

    `partitions`: of the internal topics; if 0, the broker creates these.
    """

    def __init__(self, s: Session, name: str, source: str, partitions: int = 0) -> None:
        self.s = s
        self.name = s.group(name)
        self.source = source
        self.repartition, self.changelog = f"{self.name}-repartition", f"{self.name}-changelog"
        self.tasks: dict[str, dict[str, Any]] = {}  # tasks of each member, as owned by its client
        self.epochs: dict[str, int] = {}
        self.configure(**_AT_ONCE)
        if partitions:
            for whole in (self.repartition, self.changelog):
                s.topic(whole.removeprefix(s.name("")), partitions)
            self._until_known()

    def configure(self, name: str | None = None, **configs: str) -> None:
        """Change settings of this group, or of another one by its name; `a_b` means `streams.a.b`."""
        changes = [
            {"name": "streams." + key.replace("_", "."), "config_operation": 0, "value": value}
            for key, value in configs.items()
        ]
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": name or self.name, "configs": changes}
        answer = self.s.quietly("IncrementalAlterConfigs", resources=[resource])
        assert not answer["responses"][0]["error_code"], answer
        self.s.settle()

    def topology(self, epoch: int = 0, *subtopologies: Mapping[str, Any]) -> dict[str, Any]:
        """Return a topology; a word count unless subtopologies are given."""
        counting = (
            subtopology("0", [self.source], repartition_sink_topics=[self.repartition]),
            subtopology(
                "1",
                repartition_source_topics=[topic_info(self.repartition, cleanup_policy="delete")],
                state_changelog_topics=[topic_info(self.changelog, replicas=1, cleanup_policy="compact")],
            ),
        )
        return {"epoch": epoch, "subtopologies": list(subtopologies or counting)}

    def fields(self, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
        """Return the fields of a heartbeat without changes."""
        usual = {"endpoint_information_epoch": 0, "rebalance_timeout_ms": -1, "shutdown_application": False}
        unknown = dict.fromkeys((
            "instance_id", "rack_id", "topology", *_KINDS, "process_id", "user_endpoint", "client_tags",
            "task_offsets", "task_end_offsets",
        ))  # fmt: skip
        return {"group_id": self.name, "member_id": member, "member_epoch": epoch, **usual, **unknown, **fields}

    def join_fields(self, process: str, **fields: Any) -> dict[str, Any]:
        """Return the fields that a joining member sends about itself."""
        usual = {
            "rebalance_timeout_ms": 20_000,
            "topology": self.topology(),
            "process_id": process,
            "client_tags": [],
            **{kind: [] for kind in _KINDS},
        }
        return {**usual, **fields}

    def beat(self, label: str, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
        """Send a heartbeat, as a step."""
        return self.s.ask(f"beat {label}", "StreamsGroupHeartbeat", **self.fields(member, epoch, **fields))

    def join(self, label: str, member: str, process: str, **fields: Any) -> dict[str, Any]:
        """Send a joining member's heartbeat, as a step."""
        return self.beat(f"join {label}", member, 0, **self.join_fields(process, **fields))

    def describe(self, label: str) -> None:
        """Describe the group, as a step."""
        self.s.ask(f"describe {label}", "StreamsGroupDescribe", group_ids=[self.name])

    def enter(self, member: str, process: str, **fields: Any) -> int:
        """Let a member join, without comparing the response; return the error code."""
        self.tasks[member] = {kind: [] for kind in _KINDS}
        return self._take(member, self.fields(member, 0, **self.join_fields(process, **fields)))

    def _take(self, member: str, fields: Mapping[str, Any]) -> int:
        answer = self.s.quietly("StreamsGroupHeartbeat", **fields)
        if not answer["error_code"]:
            self.epochs[member] = answer["member_epoch"]
            self.tasks[member] |= {kind: answer[kind] for kind in _KINDS if answer[kind] is not None}
        return int(answer["error_code"])

    def leave(self, member: str, epoch: int = LEAVE) -> int:
        """Let a member leave, without comparing the response; return the error code."""
        self.tasks.pop(member, None)
        self.epochs.pop(member, None)
        return int(self.s.quietly("StreamsGroupHeartbeat", **self.fields(member, epoch))["error_code"])

    def settle(self) -> None:
        """Let all members send heartbeats, as clients do, until nothing changes."""
        deadline = time.monotonic() + _TIMEOUT_S
        before, unchanged = None, 0
        while time.monotonic() < deadline:
            for member, epoch in list(self.epochs.items()):
                if self._take(member, self.fields(member, epoch, **self.tasks[member])):
                    self.leave(member)
            group = self.s.quietly("StreamsGroupDescribe", group_ids=[self.name])["groups"][0]
            now = group["group_state"], group["group_epoch"], str(self.tasks), str(self.epochs)
            unchanged = unchanged + 1 if now == before else 0
            if unchanged == (_QUIET_ROUNDS if now[0] in _WAITING else 1):
                return
            before = now
            time.sleep(0.05)
        raise TimeoutError(f"group {self.name} does not settle: {before}")

    def _until_known(self) -> None:
        """Wait until the coordinator knows the topics; a group that joins earlier is one epoch ahead."""
        deadline = time.monotonic() + _TIMEOUT_S
        probe = {**self.fields(MEMBERS[0], 0, **self.join_fields(PROCESSES[0])), "group_id": f"{self.name}-probe"}
        self.configure(probe["group_id"], **_AT_ONCE)
        while self.s.quietly("StreamsGroupHeartbeat", **probe)["status"] and time.monotonic() < deadline:
            time.sleep(0.05)
        self.s.quietly("StreamsGroupHeartbeat", **{**self.fields(MEMBERS[0], LEAVE), "group_id": probe["group_id"]})
        self.s.quietly("DeleteGroups", groups_names=[probe["group_id"]])

    def compare(self, label: str) -> None:
        """Compare epochs and tasks of all members, and the description."""
        owned = {
            member: {
                kind: sorted((each["subtopology_id"], *sorted(each["partitions"])) for each in tasks[kind])
                for kind in _KINDS
            }
            for member, tasks in self.tasks.items()
        }
        self.s.note(f"members {label}", (dict(self.epochs), owned))
        self.describe(label)


def requests(s: Session) -> None:
    """Run the requests that both brokers support."""
    if not s.serves("StreamsGroupHeartbeat"):
        return
    topic = s.topic("t", PARTITIONS)
    _bad(s, StreamsMembers(s, "bad", topic, PARTITIONS))
    _topologies(s, topic)
    _topics(s, StreamsMembers(s, "topics", s.name("late")))
    _members(s, StreamsMembers(s, "g", topic, PARTITIONS))
    _standby(StreamsMembers(s, "standby", topic, PARTITIONS))
    _static(StreamsMembers(s, "static", topic, PARTITIONS))
    _endpoints(s, StreamsMembers(s, "endpoints", topic, PARTITIONS))
    _new_topology(StreamsMembers(s, "renewed", topic, PARTITIONS))
    _commits(s, StreamsMembers(s, "commits", topic, PARTITIONS))
    _kinds(s, StreamsMembers(s, "kinds", topic, PARTITIONS), topic)


def _bad(s: Session, group: StreamsMembers) -> None:
    first, process = MEMBERS[0], PROCESSES[0]
    task = [{"subtopology_id": "0", "partitions": [0]}]
    group.join("without an id", "", process)
    group.join("without a process", first, process, process_id=None)
    group.join("with an empty process", first, process, process_id="")
    group.join("without a topology", first, process, topology=None)
    group.join("without a timeout", first, process, rebalance_timeout_ms=-1)
    group.join("with a timeout of 0", first, process, rebalance_timeout_ms=0)
    for kind in _KINDS:
        group.join(f"with {kind}", first, process, **{kind: task})
        group.join(f"without {kind}", first, process, **{kind: None})
    group.join("with an empty instance", first, process, instance_id="")
    group.join("with an empty rack", first, process, rack_id="")
    group.join("without tags", first, process, client_tags=None)
    group.leave(first)
    group.beat("of a part of the tasks", first, 1, active_tasks=task)
    group.beat("of epoch -3", first, -3)
    group.beat("of a static leave without an instance", first, STATIC_LEAVE)
    group.beat("of a leave from no group", first, LEAVE)
    group.beat("of an unknown group", s.name("nobody"), 3)
    group.beat("without an id", "", 3)
    group.beat("with a topology that is no new member's", first, 3, topology=group.topology())
    s.ask("beat no group", "StreamsGroupHeartbeat", **{**group.fields(first, 0), "group_id": ""})
    group.describe("after bad joins")
    s.ask("describe no group", "StreamsGroupDescribe", group_ids=[""])
    s.ask("describe one twice", "StreamsGroupDescribe", group_ids=[group.name, group.name])


def _topologies(s: Session, topic: str) -> None:
    repartition = topic_info(s.name("r"))
    kinds: dict[str, list[dict[str, Any]]] = {
        "without subtopologies": [],
        "without sources": [subtopology("0")],
        "with a loop": [
            subtopology("0", repartition_source_topics=[repartition], repartition_sink_topics=[repartition["name"]])
        ],
        "without a sink": [subtopology("0", repartition_source_topics=[repartition])],
        "with a fixed changelog": [
            subtopology("0", [topic], state_changelog_topics=[topic_info(s.name("c"), partitions=3)])
        ],
        "with a bad source": [subtopology("0", ["no topic?"])],
        "with an internal source": [subtopology("0", ["__consumer_offsets"])],
        "with a bad changelog": [subtopology("0", [topic], state_changelog_topics=[topic_info("?")])],
        "with a bad repartition topic": [
            subtopology("0", [topic], repartition_sink_topics=["?"]),
            subtopology("1", repartition_source_topics=[topic_info("?")]),
        ],
        "with a regular expression": [subtopology("0", source_topic_regex=["t.*"])],
    }
    for number, (label, subtopologies) in enumerate(kinds.items()):
        group = StreamsMembers(s, f"odd{number}", topic)
        group.join(label, MEMBERS[0], PROCESSES[0], topology={"epoch": 0, "subtopologies": subtopologies})
        group.describe(label)
    group = StreamsMembers(s, "odd", topic)
    group.join("with epoch -1", MEMBERS[0], PROCESSES[0], topology=group.topology(-1))
    other = s.topic("other", 2)
    copartitioned = subtopology(
        "0", [topic, other],
        copartition_groups=[{"source_topics": [0, 1], "source_topic_regex": [], "repartition_source_topics": []}],
    )  # fmt: skip
    group = StreamsMembers(s, "copartitioned", topic)
    group.join("with unlike sources", MEMBERS[0], PROCESSES[0], topology=group.topology(0, copartitioned))
    group.describe("with unlike sources")


def _topics(s: Session, group: StreamsMembers) -> None:
    first, process = MEMBERS[0], PROCESSES[0]
    epoch = group.join("before its source", first, process)["member_epoch"]
    group.beat("before its source", first, epoch)
    group.describe("before its source")
    s.topic("late", 2)
    group.tasks[first], group.epochs[first] = {kind: [] for kind in _KINDS}, epoch
    deadline = time.monotonic() + _TIMEOUT_S
    while not group.tasks[first]["active_tasks"] and time.monotonic() < deadline:
        group.settle()
    group.compare("when all topics are there")
    for name in (group.repartition, group.changelog):
        resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": list(_CLEANED)}
        s.ask(f"settings of {name}", "DescribeConfigs", resources=[resource])
        topics = s.quietly("Metadata", topics=[{"name": name}])["topics"]
        s.note(f"partitions of {name}", len(topics[0]["partitions"]))
    s.ask("grow the source", "CreatePartitions", topics=[{"name": group.source, "count": 4, "assignments": None}],
          timeout_ms=5000)  # fmt: skip
    group.settle()
    group.compare("when the source has grown")


def _members(s: Session, group: StreamsMembers) -> None:
    first, second, third = MEMBERS
    group.enter(first, PROCESSES[0])
    group.settle()
    group.compare("with one")
    epoch = group.epochs[first]
    group.beat("that says nothing", first, epoch)
    group.beat("with all tasks", first, epoch, **group.tasks[first])
    group.beat("of the epoch before, with all tasks", first, epoch - 1, **group.tasks[first])
    group.beat("of the epoch before, with none", first, epoch - 1, **{kind: [] for kind in _KINDS})
    group.beat("of an early epoch", first, 1)
    group.beat("of an epoch to come", first, epoch + 9)
    group.beat("of an unknown member", "given-nobody", epoch)
    unknown = [{"subtopology_id": "9", "partitions": [0]}]
    group.beat("with a task of no subtopology", first, epoch, **{**group.tasks[first], "active_tasks": unknown})
    beyond = [{"subtopology_id": "0", "partitions": [99]}]
    group.beat("with a task that is not there", first, epoch, **{**group.tasks[first], "active_tasks": beyond})
    group.enter(second, PROCESSES[0])
    group.settle()
    group.compare("with two of one process")
    group.enter(third, PROCESSES[1])
    group.settle()
    group.compare("with two processes")
    s.ask("list by type", "ListGroups", states_filter=[], types_filter=["streams"])
    s.ask("list by state", "ListGroups", states_filter=["Stable"], types_filter=["streams"])
    s.ask("delete a group with members", "DeleteGroups", groups_names=[group.name])
    group.leave(second)
    group.settle()
    group.compare("when one has left")
    group.beat("after the leave", second, group.epochs[first])
    group.beat("of a leave again", second, LEAVE)
    group.beat("that shuts down", first, group.epochs[first], shutdown_application=True)
    group.beat("after the shutdown", third, group.epochs[third])
    group.leave(first)
    group.leave(third)
    group.describe("when it is empty")
    s.ask("delete the group", "DeleteGroups", groups_names=[group.name])
    group.describe("when it is deleted")


def _standby(group: StreamsMembers) -> None:
    group.configure(num_standby_replicas="1")
    for member, process in zip(MEMBERS[:2], PROCESSES, strict=False):
        group.enter(member, process)
    group.settle()
    group.compare("with standby tasks")
    group.configure(num_standby_replicas="0")
    group.settle()
    group.compare("without standby tasks")
    group.configure(num_standby_replicas="2")
    offsets = [{"subtopology_id": "1", "partition": 0, "offset": 7}]
    group.beat("with offsets", MEMBERS[0], group.epochs[MEMBERS[0]], task_offsets=offsets, task_end_offsets=offsets)
    group.settle()
    group.beat("with an offset twice", MEMBERS[0], group.epochs[MEMBERS[0]], task_offsets=offsets * 2)
    group.enter(MEMBERS[2], PROCESSES[2])
    group.settle()
    group.compare("with offsets and more standby tasks")


def _static(group: StreamsMembers) -> None:
    first, second, third = MEMBERS
    group.enter(first, PROCESSES[0], instance_id="one")
    group.settle()
    group.join("of an instance that is there", second, PROCESSES[1], instance_id="one")
    group.beat("of an unknown instance", first, group.epochs[first], instance_id="two")
    group.beat("of a static leave of an unknown instance", first, STATIC_LEAVE, instance_id="two")
    group.beat("of a static leave", first, STATIC_LEAVE, instance_id="one")
    group.describe("after a static leave")
    answer = group.join("after a static leave", third, PROCESSES[2], instance_id="one")
    group.tasks.pop(first, None)
    group.epochs.pop(first, None)
    group.epochs[third] = answer.get("member_epoch", 0)
    group.tasks[third] = {kind: answer.get(kind) or [] for kind in _KINDS}
    group.settle()
    group.compare("after a static restart")


def _endpoints(s: Session, group: StreamsMembers) -> None:
    first, second = MEMBERS[:2]
    group.enter(first, PROCESSES[0], user_endpoint={"host": "one", "port": 1})
    group.enter(second, PROCESSES[1])
    group.settle()
    for epoch in (-1, 0, 1, 2, 3, 4, 5):
        answer = s.quietly(
            "StreamsGroupHeartbeat",
            **group.fields(second, group.epochs[second], endpoint_information_epoch=epoch),
        )
        endpoints = answer["partitions_by_user_endpoint"]
        found = None if endpoints is None else sorted(_endpoint(each) for each in endpoints)
        s.note(f"endpoints of epoch {epoch}", found if epoch == -1 else found is None)
    group.beat("with another endpoint", first, group.epochs[first], user_endpoint={"host": "two", "port": 2})
    group.describe("with another endpoint")


def _endpoint(endpoint: Mapping[str, Any]) -> tuple[Any, ...]:
    lists = (endpoint["active_partitions"], endpoint["standby_partitions"])
    partitions = [sorted((each["topic"], *sorted(each["partitions"])) for each in one) for one in lists]
    return endpoint["user_endpoint"]["host"], endpoint["user_endpoint"]["port"], *partitions


def _new_topology(group: StreamsMembers) -> None:
    first, second = MEMBERS[:2]
    group.enter(first, PROCESSES[0])
    group.settle()
    changed = group.topology(0, subtopology("0", [group.source]))
    group.join("with another topology of the same epoch", second, PROCESSES[1], topology=changed)
    group.leave(second)
    newer = group.topology(1, subtopology("0", [group.source]))
    group.join("with a newer topology", second, PROCESSES[1], topology=newer)
    group.leave(second)
    group.settle()
    group.compare("while a member has a topology")
    group.leave(first)
    group.join("with a newer topology into an empty group", second, PROCESSES[1], topology=newer)
    group.leave(second)
    group.join("with an older topology", first, PROCESSES[0])
    group.describe("with an older topology")


def _commits(s: Session, group: StreamsMembers) -> None:
    first = MEMBERS[0]
    group.enter(first, PROCESSES[0])
    group.settle()
    epoch = group.epochs[first]
    for label, member, given in (
        ("by the member", first, epoch),
        ("in the epoch before", first, epoch - 1),
        ("in a later epoch", first, epoch + 1),
        ("in epoch 0", first, 0),
        ("in no epoch", first, -1),
        ("by an unknown member", "given-nobody", epoch),
        ("by an administrator", "", -1),
    ):
        partitions = [{"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1}]
        topics = [{**s.both(group.source), "partitions": partitions}]
        s.ask(
            f"commit {label}", "OffsetCommit", group_id=group.name, generation_id_or_member_epoch=given,
            member_id=member, topics=topics,
        )  # fmt: skip
        asked = {"group_id": group.name, "member_id": member, "member_epoch": given, "topics": None}
        named = [{"name": group.source, "partition_indexes": [0]}]
        s.ask(f"offsets {label}", "OffsetFetch", group_id=group.name, topics=named, groups=[asked])
    s.ask("delete offsets", "OffsetDelete", group_id=group.name,
          topics=[{"name": group.source, "partitions": [{"partition_index": 0}]}])  # fmt: skip
    group.leave(first)
    s.ask("delete offsets of an empty group", "OffsetDelete", group_id=group.name,
          topics=[{"name": group.source, "partitions": [{"partition_index": 0}]}])  # fmt: skip


def _kinds(s: Session, group: StreamsMembers, topic: str) -> None:
    first = MEMBERS[0]
    group.enter(first, PROCESSES[0])
    unset: dict[str, Any] = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "subscribed_topic_regex"))
    consumer: dict[str, Any] = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": [topic], "topic_partitions": []}
    s.ask(
        "join as a consumer", "ConsumerGroupHeartbeat", group_id=group.name, member_id="given-c", member_epoch=0,
        **unset, **consumer,
    )  # fmt: skip
    s.ask("join as a share consumer", "ShareGroupHeartbeat", group_id=group.name, member_id="given-c",
          member_epoch=0, rack_id=None, subscribed_topic_names=[topic])  # fmt: skip
    s.ask("describe as a consumer group", "ConsumerGroupDescribe", group_ids=[group.name])
    s.ask("describe as a classic group", "DescribeGroups", groups=[group.name])
    s.ask("heartbeat as a classic member", "Heartbeat", group_id=group.name, generation_id=1, member_id=first)
    group.leave(first)
    other = s.group("consumers")
    s.quietly("ConsumerGroupHeartbeat", group_id=other, member_id="given-c", member_epoch=0, **unset, **consumer)
    s.ask("join a consumer group", "StreamsGroupHeartbeat",
          **{**group.fields(first, 0, **group.join_fields(PROCESSES[0])), "group_id": other})  # fmt: skip
    s.ask("describe a consumer group", "StreamsGroupDescribe", group_ids=[other])
