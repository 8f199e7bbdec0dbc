"""Share groups (KIP-932): members, their assignments, and administration of offsets and groups."""

import time
from typing import Any

from interop.compare.session import Session

_TIMEOUT_S = 30
_GROUP_RESOURCE = 32


class _Group:
    """The requests about one group."""

    def __init__(self, s: Session, name: str) -> None:
        self.s = s
        self.name = s.group(name)
        change = {"name": "share.assignment.interval.ms", "config_operation": 0, "value": "0"}
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": self.name, "configs": [change]}
        s.quietly("IncrementalAlterConfigs", resources=[resource])

    def fields(self, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
        usual = {"rack_id": None, "subscribed_topic_names": None}
        return {"group_id": self.name, "member_id": member, "member_epoch": epoch, **usual, **fields}

    def beat(self, label: str, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
        return self.s.ask(f"beat {label}", "ShareGroupHeartbeat", **self.fields(member, epoch, **fields))

    def join(self, label: str, member: str, *topics: str, **fields: Any) -> dict[str, Any]:
        return self.beat(f"join {label}", member, 0, subscribed_topic_names=list(topics), **fields)

    def settle(self, member: str, topics: list[str], wanted: int) -> dict[str, Any]:
        """Send full heartbeats until the member has this many partitions, and return the last response."""
        deadline = time.monotonic() + _TIMEOUT_S
        answer: dict[str, Any] = {}
        while time.monotonic() < deadline:
            answer = self.s.quietly("ShareGroupHeartbeat", **self.fields(member, 0, subscribed_topic_names=topics))
            assigned = (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]
            if answer["error_code"] or sum(len(topic["partitions"]) for topic in assigned) == wanted:
                break
            time.sleep(0.05)
        return answer

    def describe(self, label: str) -> None:
        self.s.ask(f"describe {label}", "ShareGroupDescribe", group_ids=[self.name])

    def offsets(self, label: str, topics: list[dict[str, Any]] | None) -> None:
        groups = [{"group_id": self.name, "topics": topics}]
        self.s.ask(f"offsets {label}", "DescribeShareGroupOffsets", groups=groups)

    def alter(self, label: str, topic: str, **starts: int) -> None:
        partitions = [{"partition_index": int(name[1:]), "start_offset": start} for name, start in starts.items()]
        topics = [{"topic_name": topic, "partitions": partitions}]
        self.s.ask(f"alter {label}", "AlterShareGroupOffsets", group_id=self.name, topics=topics)

    def delete(self, label: str, *topics: str) -> None:
        named = [{"topic_name": topic} for topic in topics]
        self.s.ask(f"delete offsets {label}", "DeleteShareGroupOffsets", group_id=self.name, topics=named)


def requests(s: Session) -> None:
    """Run the requests that both brokers support."""
    if not s.serves("ShareGroupHeartbeat"):
        return
    topic = s.topic("t", 4)
    _bad(s, _Group(s, "bad"), topic)
    _two_members(s, _Group(s, "g"), topic)
    _kinds(s, _Group(s, "kinds"), topic)
    _offsets(s, _Group(s, "offsets"), topic)


def _bad(s: Session, group: _Group, topic: str) -> None:
    group.join("without an id", "", topic)
    group.join("with a long id", "m" * 37, topic)
    group.join("with an empty rack", "given-a", topic, rack_id="")
    group.beat("join without a subscription", "given-a", 0)
    group.join("with an empty subscription", "given-a")
    group.beat("of epoch -2", "given-a", -2)
    group.beat("of a leave from no group", "given-a", -1)
    group.beat("of an unknown group", "given-a", 3)
    s.ask("beat no group", "ShareGroupHeartbeat", **{**group.fields("given-a", 0), "group_id": ""})
    group.describe("after bad joins")
    s.ask("describe no group", "ShareGroupDescribe", group_ids=[""])
    s.ask("describe one twice", "ShareGroupDescribe", group_ids=[group.name, group.name])


def _two_members(s: Session, group: _Group, topic: str) -> None:
    epoch = group.join("first", "given-a", topic)["member_epoch"]
    epoch = group.settle("given-a", [topic], 4)["member_epoch"]
    s.note("epoch with partitions", epoch)
    group.beat("of the first", "given-a", epoch)
    group.beat("of the first, whole", "given-a", epoch, subscribed_topic_names=[topic])
    group.beat("of the epoch before", "given-a", epoch - 1)
    group.beat("of an early epoch", "given-a", 1)
    group.beat("of an epoch to come", "given-a", epoch + 9)
    group.beat("of an unknown member", "given-nobody", epoch)
    group.describe("with one")
    group.offsets("of all", None)
    # Which partitions move to the second member depends on the order of a hash table in Kafka.
    second = s.quietly("ShareGroupHeartbeat", **group.fields("given-b", 0, subscribed_topic_names=[topic]))
    first = s.quietly("ShareGroupHeartbeat", **group.fields("given-a", epoch))
    for label, answer in (("second", second), ("first", first)):
        assigned = (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]
        counts = [len(each["partitions"]) for each in assigned]
        s.note(f"the {label} member", [answer["error_code"], answer["member_epoch"], counts])
    s.ask("list by type", "ListGroups", states_filter=[], types_filter=["share"])
    s.ask("list by state", "ListGroups", states_filter=["Stable"], types_filter=["share"])
    s.ask("delete a group with members", "DeleteGroups", groups_names=[group.name])
    group.alter("a group with members", topic, p0=0)
    group.delete("of a group with members", topic)
    group.beat("that subscribes to nothing", "given-b", epoch + 1, subscribed_topic_names=[])
    group.beat("of a leave", "given-b", -1)
    group.beat("of a leave again", "given-b", -1)
    group.beat("after the leave", "given-b", epoch + 2)
    group.beat("of the last leave", "given-a", -1)
    group.describe("when it is empty")
    s.ask("delete the group", "DeleteGroups", groups_names=[group.name])
    group.describe("when it is deleted")
    group.offsets("of a deleted group", None)


def _kinds(s: Session, group: _Group, topic: str) -> None:
    group.join("member", "given-a", topic)
    usual: dict[str, Any] = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "subscribed_topic_regex"))
    consumer: dict[str, Any] = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": [topic], "topic_partitions": []}
    s.ask(
        "join as a consumer", "ConsumerGroupHeartbeat", group_id=group.name, member_id="given-c", member_epoch=0,
        **usual, **consumer,
    )  # fmt: skip
    s.ask("describe as a consumer group", "ConsumerGroupDescribe", group_ids=[group.name])
    s.ask("describe as a classic group", "DescribeGroups", groups=[group.name])
    s.ask("delete offsets of a consumer", "OffsetDelete", group_id=group.name, topics=[])
    s.ask("heartbeat as a classic member", "Heartbeat", group_id=group.name, generation_id=1, member_id="given-a")
    group.beat("of the last leave", "given-a", -1)


def _offsets(s: Session, group: _Group, topic: str) -> None:
    s.fill(topic, s.batch(3))
    group.offsets("of an unknown group", None)
    group.offsets("of a partition of an unknown group", [{"topic_name": topic, "partitions": [0]}])
    group.offsets("of no topics", [])
    group.delete("of an unknown group", topic)
    group.alter("a partition that does not exist", topic, p9=0)
    group.alter("two partitions, one of which does not exist", topic, p0=1, p9=0)
    group.offsets("after that", None)
    group.offsets("of a few", [{"topic_name": topic, "partitions": [0, 1]}])
    group.offsets("of an unknown topic", [{"topic_name": s.name("missing"), "partitions": [0]}])
    group.alter("an unknown topic", s.name("missing"), p0=1)
    group.alter("the same partition", topic, p0=2)
    group.offsets("after that again", None)
    s.ask("alter no group", "AlterShareGroupOffsets", group_id="", topics=[])
    s.ask("delete offsets of no group", "DeleteShareGroupOffsets", group_id="", topics=[])
    group.delete("of topics, one of which is unknown", topic, s.name("missing"))
    group.delete("of a topic without any", topic)
    group.offsets("after the deletion", None)
    s.ask("delete the group", "DeleteGroups", groups_names=[group.name])
    s.ask("delete the group again", "DeleteGroups", groups_names=[group.name])
