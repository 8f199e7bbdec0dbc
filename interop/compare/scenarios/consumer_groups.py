"""Consumer groups (KIP-848): members, static members, commits of members, administration of groups."""

import struct
import time
from typing import Any

from interop.compare.session import Session

_TIMEOUT_S = 30
_GROUP_RESOURCE = 32
_GIVES_IDS = 0  # the version of ConsumerGroupHeartbeat in which the broker assigns member ids


class _Group:
    """The requests of a group's members."""

    def __init__(self, s: Session, name: str) -> None:
        self.s = s
        self.name = s.group(name)
        change = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "0"}
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": self.name, "configs": [change]}
        s.quietly("IncrementalAlterConfigs", resources=[resource])

    def fields(self, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
        usual = {
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }
        return {"group_id": self.name, "member_id": member, "member_epoch": epoch, **usual, **fields}

    def beat(self, label: str, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
        return self.s.ask(f"beat {label}", "ConsumerGroupHeartbeat", **self.fields(member, epoch, **fields))

    def join_fields(self, *topics: str, **fields: Any) -> dict[str, Any]:
        usual = {"rebalance_timeout_ms": 20_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
        return {**usual, **fields}

    def join(self, label: str, member: str, *topics: str, **fields: Any) -> dict[str, Any]:
        return self.beat(f"join {label}", member, 0, **self.join_fields(*topics, **fields))

    def settle(self, member: str, epoch: int, wanted: int, **fields: Any) -> dict[str, Any]:
        """Send heartbeats until the member has an epoch, and return its last answer."""
        deadline = time.monotonic() + _TIMEOUT_S
        answer: dict[str, Any] = {}
        while time.monotonic() < deadline:
            answer = self.s.quietly("ConsumerGroupHeartbeat", **self.fields(member, epoch, **fields))
            if answer["error_code"] or answer["member_epoch"] >= wanted:
                break
            epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                fields = {**fields, "topic_partitions": answer["assignment"]["topic_partitions"]}
            time.sleep(0.02)
        return answer

    def describe(self, label: str) -> None:
        self.s.ask(f"describe {label}", "ConsumerGroupDescribe", group_ids=[self.name])


def requests(s: Session) -> None:
    """Run the requests that both brokers support."""
    if not s.serves("ConsumerGroupHeartbeat"):
        return
    topic = s.topic("t", 4)
    _bad(s, _Group(s, "bad"), topic)
    _two_members(s, _Group(s, "g"), topic)
    _commits(s, _Group(s, "commits"), topic)
    _static(_Group(s, "static"), topic)
    _kinds(s, _Group(s, "kinds"), topic)
    _migration(s, _Group(s, "migration"), topic)
    _expressions(s, _Group(s, "regex"), topic)
    if s.version("ConsumerGroupHeartbeat") == _GIVES_IDS:
        given = _Group(s, "ids").join("without an id", "", topic)
        s.note("an id was given", bool(given["member_id"]))


def _bad(s: Session, group: _Group, topic: str) -> None:
    group.join("without an id", "", topic) if s.version("ConsumerGroupHeartbeat") > _GIVES_IDS else None
    group.join("without a timeout", "given-a", topic, rebalance_timeout_ms=-1)
    group.join("that owns partitions", "given-a", topic, topic_partitions=[_owned(s, topic, 0)])
    group.join("without owned partitions", "given-a", topic, topic_partitions=None)
    group.join("without a subscription", "given-a", subscribed_topic_names=None)
    group.join("with an empty instance", "given-a", topic, instance_id="")
    group.join("with an empty rack", "given-a", topic, rack_id="")
    group.join("with an unknown assignor", "given-a", topic, server_assignor="best")
    group.beat("of epoch -3", "given-a", -3)
    group.beat("of a static leave without an instance", "given-a", -2)
    group.beat("of a leave from no group", "given-a", -1)
    group.beat("of an unknown group", "given-a", 3)
    group.beat("without an id", "", 3)
    s.ask("beat no group", "ConsumerGroupHeartbeat", **{**group.fields("given-a", 0), "group_id": ""})
    group.describe("after bad joins")
    s.ask("describe no group", "ConsumerGroupDescribe", group_ids=[""])
    s.ask("describe one twice", "ConsumerGroupDescribe", group_ids=[group.name, group.name])


def _two_members(s: Session, group: _Group, topic: str) -> None:
    short = {"rebalance_timeout_ms": 1_000}  # it is fenced then, as it keeps what it has to revoke
    epoch = group.join("first", "given-a", topic, **short)["member_epoch"]
    first = group.beat("of the first, whole", "given-a", epoch, **group.join_fields(topic, **short))
    owned = first["assignment"]["topic_partitions"] if first.get("assignment") else []
    group.beat("of the first", "given-a", epoch, topic_partitions=owned)
    group.beat("of the first, without anything", "given-a", epoch)
    group.beat("of an epoch to come", "given-a", epoch + 9)
    group.beat("of an unknown member", "given-nobody", epoch)
    group.describe("with one")
    s.ask("classic description", "DescribeGroups", groups=[group.name])
    group.join("second", "given-b", topic)
    revoking = group.settle("given-a", epoch, epoch, topic_partitions=owned)
    s.note("epoch while it has to revoke", revoking["member_epoch"])
    kept = group.settle("given-a", epoch, epoch + 1, topic_partitions=owned)["assignment"]
    got = group.settle("given-b", epoch + 1, epoch + 1, **group.join_fields(topic))
    s.note("epoch of the second", got["member_epoch"])
    group.beat("of the epoch before, with more than it has", "given-a", epoch, topic_partitions=owned)
    mine = kept["topic_partitions"] if kept else []
    group.beat("of the epoch before, with what it has", "given-a", epoch, topic_partitions=mine)
    group.describe("with two")
    s.ask("list by type", "ListGroups", states_filter=[], types_filter=["consumer"])
    s.ask("list by state", "ListGroups", states_filter=["Stable"], types_filter=[])
    s.ask("delete a group with members", "DeleteGroups", groups_names=[group.name])
    group.beat("that subscribes to nothing", "given-b", epoch + 1, subscribed_topic_names=[], topic_partitions=[])
    group.settle("given-b", epoch + 1, epoch + 2, topic_partitions=[])
    group.beat("of a leave", "given-b", -1)
    group.beat("of a leave again", "given-b", -1)
    group.beat("after the leave", "given-b", epoch + 2)
    group.beat("of the last leave", "given-a", -1)
    group.describe("when it is empty")
    s.ask("delete the group", "DeleteGroups", groups_names=[group.name])
    group.describe("when it is deleted")


def _commits(s: Session, group: _Group, topic: str) -> None:
    now = group.join("committer", "given-a", topic)["member_epoch"]
    for label, epoch, member in (
        ("by the member", now, "given-a"),
        ("in a later epoch", now + 1, "given-a"),
        ("in an earlier epoch", now - 1, "given-a"),
        ("in epoch 0", 0, "given-a"),
        ("by an unknown member", now, "given-nobody"),
        ("without a member", -1, ""),
        ("in epoch -1", -1, "given-a"),
    ):
        partitions = [
            {"partition_index": 0, "committed_offset": 4, "committed_leader_epoch": -1, "committed_metadata": ""}
        ]
        topics = [{**s.both(topic), "partitions": partitions}]
        fields: dict[str, Any] = {
            "generation_id_or_member_epoch": epoch,
            "member_id": member,
            "retention_time_ms": -1,
        }
        s.ask(f"commit {label}", "OffsetCommit", group_id=group.name, topics=topics, **fields)
    if s.version("OffsetFetch") >= 9:
        for label, epoch, who in (
            ("by the member", now, "given-a"),
            ("in another epoch", now + 8, "given-a"),
            ("by an unknown member", now, "given-nobody"),
            ("by an administrator", -1, None),
        ):
            asked = {"group_id": group.name, "member_id": who, "member_epoch": epoch, "topics": None}
            s.ask(f"offsets {label}", "OffsetFetch", groups=[asked])
    forgotten = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    s.ask("forget a subscribed topic", "OffsetDelete", group_id=group.name, topics=forgotten)
    group.beat("of the committer's leave", "given-a", -1)
    s.ask("forget in an empty group", "OffsetDelete", group_id=group.name, topics=forgotten)


def _static(group: _Group, topic: str) -> None:
    epoch = group.join("static", "given-a", topic, instance_id="instance-i")["member_epoch"]
    group.join("with an instance in use", "given-b", topic, instance_id="instance-i")
    group.beat("of another instance", "given-a", epoch, instance_id="instance-j")
    group.beat("of another member of the instance", "given-b", epoch, instance_id="instance-i")
    group.beat("of a static leave of another", "given-b", -2, instance_id="instance-i")
    group.beat("of a static leave", "given-a", -2, instance_id="instance-i")
    group.describe("while it is away")
    group.join("when it comes back", "given-c", topic, instance_id="instance-i")
    group.beat("of the member before", "given-a", epoch, instance_id="instance-i")
    group.describe("after it came back")
    group.beat("of its last leave", "given-c", -1, instance_id="instance-i")
    group.describe("without it")


def _kinds(s: Session, group: _Group, topic: str) -> None:
    """Use a name first for one type of group, then for the other."""
    joining: dict[str, Any] = {
        "group_id": group.name,
        "member_id": "",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 20_000,
        "protocol_type": "connect",
        "protocols": [{"name": "default", "metadata": b""}],
    }
    known = s.quietly("JoinGroup", **joining)["member_id"]
    s.quietly("JoinGroup", **{**joining, "member_id": known})
    group.join("a group of another kind", "given-a", topic)
    group.describe("of another kind")
    s.quietly("LeaveGroup", group_id=group.name, members=[{"member_id": known}])
    group.join("when it is empty", "given-a", topic)
    group.describe("of this kind")
    s.ask("beat of the other kind", "Heartbeat", group_id=group.name, generation_id=1, member_id="given-a")
    s.ask("join of the other kind", "JoinGroup", **{**joining, "member_id": "given-x"})
    sync: dict[str, Any] = {"group_id": group.name, "generation_id": 1, "member_id": "given-a", "assignments": []}
    s.ask("sync of the other kind", "SyncGroup", protocol_type="connect", protocol_name="default", **sync)
    s.ask("leave of the other kind", "LeaveGroup", group_id=group.name, member_id="x", members=[{"member_id": "x"}])
    group.beat("of the leave", "given-a", -1)
    s.ask("list the empty group", "ListGroups", states_filter=["Empty"], types_filter=[])


def _migration(s: Session, group: _Group, topic: str) -> None:
    """Convert a group with a member of the classic protocol, and convert it back."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    metadata = struct.pack(">hi", 0, 1) + name + struct.pack(">i", -1)
    assignment = struct.pack(">hi", 0, 1) + name + struct.pack(">5ii", 4, 0, 1, 2, 3, -1)
    joining: dict[str, Any] = {
        "group_id": group.name,
        "member_id": "",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 20_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    known = s.quietly("JoinGroup", **joining)["member_id"]
    joining["member_id"] = known
    generation = s.quietly("JoinGroup", **joining)["generation_id"]
    member: dict[str, Any] = {"group_id": group.name, "generation_id": generation, "member_id": known}
    given = [{"member_id": known, "assignment": assignment}]
    sync: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
    s.quietly("SyncGroup", **member, **sync, assignments=given)
    epoch = group.join("a classic group", "given-b", topic)["member_epoch"]
    group.describe("of both protocols")
    s.ask("beat of the classic member", "Heartbeat", **member)
    s.ask("sync before it joins", "SyncGroup", **member, **sync, assignments=[])
    s.ask("join of another protocol", "JoinGroup", **{**joining, "protocols": [{"name": "x", "metadata": metadata}]})
    member["generation_id"] = s.ask("join of the classic member", "JoinGroup", **joining)["generation_id"]
    s.ask("sync of another protocol", "SyncGroup", **member, **{**sync, "protocol_name": "x"}, assignments=[])
    kept = s.ask("sync of the classic member", "SyncGroup", **member, **sync, assignments=[])
    s.note("partitions of the classic member", len(kept["assignment"]))
    s.ask("beat of the classic member in its epoch", "Heartbeat", **member)
    s.ask("beat of the epoch before", "Heartbeat", **{**member, "generation_id": generation})
    s.note("partitions of the other", _count(group.settle("given-b", 0, epoch, **group.join_fields(topic))))
    s.ask("list the group", "ListGroups", states_filter=[], types_filter=["consumer"])
    group.beat("of the last member of the protocol", "given-b", -1)
    s.ask("describe the classic group", "DescribeGroups", groups=[group.name])
    s.ask("beat of the classic group", "Heartbeat", **member)
    group.beat("of the member that left", "given-b", epoch)
    s.quietly("LeaveGroup", group_id=group.name, members=[{"member_id": known}])


def _expressions(s: Session, group: _Group, topic: str) -> None:
    if s.version("ConsumerGroupHeartbeat") < 1:
        return
    fields: dict[str, Any] = {"subscribed_topic_names": None}
    group.join("by a bad expression", "given-a", subscribed_topic_regex="a(", **fields)
    epoch = group.join("by an expression", "given-a", subscribed_topic_regex=f"{topic[:-1]}.", **fields)["member_epoch"]
    answer = group.settle("given-a", epoch, epoch + 1)
    s.note("partitions by expression", _count(answer))
    group.describe("by expression")
    group.beat("of the leave", "given-a", -1)


def _owned(s: Session, topic: str, *partitions: int) -> dict[str, Any]:
    return {"topic_id": s.both(topic)["topic_id"], "partitions": list(partitions)}


def _count(answer: dict[str, Any]) -> int:
    assignment = answer.get("assignment") or {"topic_partitions": []}
    return sum(len(each["partitions"]) for each in assignment["topic_partitions"])
