"""Members of groups: joining, rebalances, leaving and fencing."""

from typing import Any

from interop.compare.session import Session

_REQUIRES_ID = 4  # the first version of JoinGroup in which a new member gets an id and must rejoin with it


class _Group:
    """The requests of a group's members, by the number of their connection."""

    def __init__(self, s: Session, name: str) -> None:
        self.s = s
        self.name = s.group(name)

    def join_fields(self, member: str = "", **fields: Any) -> dict[str, Any]:
        protocols = [{"name": "range", "metadata": b"meta"}]
        usual = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 20_000, "protocol_type": "consumer"}
        return {"group_id": self.name, "member_id": member, "protocols": protocols, **usual, **fields}

    def join(self, label: str, member: str = "", *, on: int = 0, **fields: Any) -> dict[str, Any]:
        return self.s.ask(f"join {label}", "JoinGroup", on=on, **self.join_fields(member, **fields))

    def enter(self, label: str, *, on: int = 0, **fields: Any) -> dict[str, Any]:
        """Join as a new member, whether or not that takes two requests."""
        found = self.join(label, on=on, **fields)
        if found.get("error_code") == 79:
            found = self.join(f"{label} with the id", found["member_id"], on=on, **fields)
        return found

    def sync(
        self, label: str, generation: int, member: str, assigned: list[str] | None = None, *, on: int = 0, **fields: Any
    ) -> dict[str, Any]:
        assignments = [{"member_id": one, "assignment": b"mine"} for one in assigned or []]
        asked = {"group_id": self.name, "generation_id": generation, "member_id": member, "assignments": assignments}
        usual = {"protocol_type": "consumer", "protocol_name": "range"}
        return self.s.ask(f"sync {label}", "SyncGroup", on=on, **{**asked, **usual, **fields})

    def beat(self, label: str, generation: int, member: str, *, on: int = 0, **fields: Any) -> None:
        self.s.ask(
            f"beat {label}",
            "Heartbeat",
            on=on,
            group_id=self.name,
            generation_id=generation,
            member_id=member,
            **fields,
        )

    def leave(self, label: str, *members: tuple[str, str | None], on: int = 0) -> None:
        several = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
        self.s.ask(
            f"leave {label}",
            "LeaveGroup",
            on=on,
            group_id=self.name,
            member_id=members[0][0] if members else "",
            members=several,
        )

    def describe(self, label: str) -> None:
        self.s.ask(f"describe {label}", "DescribeGroups", groups=[self.name])


def requests(s: Session) -> None:
    """Members without an instance id."""
    group = _Group(s, "g")
    _bad_joins(s, _Group(s, "bad"))
    first = group.enter("first")
    one, generation = first["member_id"], first["generation_id"]
    group.describe("while it waits for the assignment")
    group.beat("before the sync", generation, one)
    group.sync("of an unknown member", generation, "given-nobody")
    group.sync("of another generation", generation + 5, one)
    if s.version("SyncGroup") >= 5:
        group.sync("of another type", generation, one, protocol_type="connect")
        group.sync("of another protocol", generation, one, protocol_name="roundrobin")
    group.sync("of the first", generation, one, [one])
    group.sync("of the first again", generation, one, [one])
    group.describe("when it is stable")
    group.beat("of the first", generation, one)
    group.beat("of another generation", generation + 1, one)
    group.beat("of an unknown member", generation, "given-nobody")
    group.beat("without an id", generation, "")
    group.beat("of generation -1", -1, one)
    _commits(s, group, generation, one)
    group.join("of the first again", one)
    group.join("of another protocol", protocols=[{"name": "other", "metadata": b""}], on=3)
    group.join("of another type", protocol_type="connect", on=3)
    _second(s, group, one)


def _second(s: Session, group: _Group, one: str) -> None:
    beats: dict[str, Any] = {"group_id": group.name, "member_id": one}
    described = s.quietly("DescribeGroups", groups=[group.name])["groups"][0]
    s.note("members before the second", len(described["members"]))
    rejoined = group.join("of the leader", one)
    group.sync("of the leader", rejoined["generation_id"], one, [one])
    second = group.s.quietly("JoinGroup", version=_REQUIRES_ID, **group.join_fields())["member_id"]
    s.send("join second", "JoinGroup", on=1, **group.join_fields(second))
    _await_state(s, group, "PreparingRebalance")
    s.ask("beat of the first in the rebalance", "Heartbeat", generation_id=rejoined["generation_id"], **beats)
    group.describe("in the rebalance")
    again = group.join("of the first in the rebalance", one)
    both = s.receive(on=1)
    s.note("one generation", again["generation_id"] == both["generation_id"])
    s.send("sync second", "SyncGroup", on=1, **_sync_fields(group, both["generation_id"], second))
    group.sync("first with both", again["generation_id"], one, [one, second])
    s.receive(on=1)
    group.beat("of the second", both["generation_id"], second, on=1)
    group.describe("with two")
    s.ask("delete a group with members", "DeleteGroups", groups_names=[group.name])
    s.ask("list stable groups", "ListGroups", states_filter=["Stable"])
    group.leave("an unknown", ("given-nobody", None))
    group.leave("the second", (second, None))
    group.beat("of the first after that", both["generation_id"], one)
    group.beat("of the second after that", both["generation_id"], second)
    last = group.join("of the first alone", one)
    group.sync("of the first alone", last["generation_id"], one, [one])
    group.leave("the first", (one, None))
    group.describe("when it is empty")
    group.beat("when it is empty", last["generation_id"], one)
    group.join("of the first when it is empty", one)
    group.leave("when it is empty", (one, None))
    if s.version("LeaveGroup") >= 3:
        group.leave("of nobody")
    s.ask("leave no group", "LeaveGroup", group_id="", member_id="given-m", members=[{"member_id": "given-m"}])
    s.ask(
        "leave an unknown group",
        "LeaveGroup",
        group_id=s.group("no"),
        member_id="given-m",
        members=[{"member_id": "given-m"}],
    )
    s.ask("delete the group", "DeleteGroups", groups_names=[group.name])


def _sync_fields(group: _Group, generation: int, member: str) -> dict[str, Any]:
    asked = {"group_id": group.name, "generation_id": generation, "member_id": member, "assignments": []}
    return {**asked, "protocol_type": "consumer", "protocol_name": "range"}


def _await_state(s: Session, group: _Group, state: str) -> None:
    for _ in range(1000):
        if s.quietly("DescribeGroups", groups=[group.name])["groups"][0]["group_state"] == state:
            return
    s.note("state", f"{group.name} did not become {state}")


def _bad_joins(s: Session, group: _Group) -> None:
    s.ask("join no group", "JoinGroup", **{**group.join_fields(), "group_id": ""})
    group.join("an unknown member", "given-nobody")
    group.join("a short session", session_timeout_ms=10)
    group.join("a long session", session_timeout_ms=10_000_000)
    group.join("a negative session", session_timeout_ms=-1)
    group.join("without protocols", protocols=[])
    group.join("without a type", protocol_type="")
    group.beat("an unknown group", 1, "given-nobody")
    group.sync("an unknown group", 1, "given-nobody")
    s.ask("beat no group", "Heartbeat", group_id="", generation_id=1, member_id="given-m")
    s.ask("sync no group", "SyncGroup", **{**_sync_fields(group, 1, "given-m"), "group_id": ""})
    group.describe("after bad joins")


def _commits(s: Session, group: _Group, generation: int, member: str) -> None:
    topic = s.topic("t")
    for label, asked_generation, asked_member in (
        ("by the member", generation, member),
        ("in another generation", generation + 1, member),
        ("without a member", -1, ""),
        ("by an unknown member", generation, "given-nobody"),
        ("in generation -1", -1, member),
        ("without an id", generation, ""),
    ):
        partitions = [
            {"partition_index": 0, "committed_offset": 4, "committed_leader_epoch": -1, "committed_metadata": ""}
        ]
        topics = [{**s.both(topic), "partitions": partitions}]
        fields: dict[str, Any] = {"generation_id_or_member_epoch": asked_generation, "member_id": asked_member}
        fields["retention_time_ms"] = -1
        s.ask(f"commit {label}", "OffsetCommit", group_id=group.name, topics=topics, **fields)
    if s.version("OffsetFetch") >= 9:
        for label, epoch, who in (
            ("by the member", generation, member),
            ("by an unknown", 1, "given-nobody"),
            ("in another", 9, member),
        ):
            one = {"group_id": group.name, "member_id": who, "member_epoch": epoch, "topics": None}
            s.ask(f"offsets {label}", "OffsetFetch", groups=[one])
    asked = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    s.ask("forget in a stable group", "OffsetDelete", group_id=group.name, topics=asked)


def static(s: Session) -> None:
    """Join with static members, in versions that have them."""
    if s.version("JoinGroup") < 5 or s.version("LeaveGroup") < 3:
        return
    group = _Group(s, "g")
    first = group.join("static", group_instance_id="instance-i")
    one, generation = first["member_id"], first["generation_id"]
    group.sync("static", generation, one, [one], group_instance_id="instance-i")
    group.beat("static", generation, one, group_instance_id="instance-i")
    group.beat("of another instance", generation, one, group_instance_id="instance-j")
    group.beat("of a member that is none", generation, "given-nobody", group_instance_id="instance-i")
    group.describe("static")
    again = group.join("the instance again", group_instance_id="instance-i")
    two = again["member_id"]
    s.note("another id", one != two)
    group.describe("after it came back")
    group.beat("fenced", again["generation_id"], one, group_instance_id="instance-i")
    group.sync("fenced", again["generation_id"], one, group_instance_id="instance-i")
    group.join("fenced", one, group_instance_id="instance-i")
    group.beat("of the new one", again["generation_id"], two, group_instance_id="instance-i")
    rejoined = group.join("with its id", two, group_instance_id="instance-i")
    group.sync("with its id", rejoined["generation_id"], two, [two], group_instance_id="instance-i")
    changed = group.join(
        "with other metadata", group_instance_id="instance-i", protocols=[{"name": "range", "metadata": b"new"}]
    )
    group.sync(
        "with other metadata",
        changed["generation_id"],
        changed["member_id"],
        [changed["member_id"]],
        group_instance_id="instance-i",
    )
    group.join("an unknown instance with an id", "given-nobody", group_instance_id="instance-x")
    group.leave("an unknown instance", ("", "instance-x"))
    group.leave("fenced", (one, "instance-i"))
    group.leave("by the instance and an unknown", ("", "instance-i"), ("given-nobody", None))
    group.describe("after it left")
    _Group(s, "empty").join("an empty instance", group_instance_id="")
    _Group(s, "odd").join("a bad instance", group_instance_id="a b")
