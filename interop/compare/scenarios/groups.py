"""Committed offsets, and administration of groups."""

from typing import Any

from interop.compare.session import Session


def requests(s: Session) -> None:
    """Run all requests of this area."""
    topic, group = s.topic("t", 2), s.group("g")
    _commit(s, topic, group)
    _fetch(s, topic, group)
    _admin(s, topic, group)


def _commit(s: Session, topic: str, group: str) -> None:
    def commit(
        label: str,
        *offsets: tuple[int, int],
        name: str = topic,
        to: str = group,
        metadata: str | None = "",
        **fields: Any,
    ) -> None:
        partitions = [
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
            for index, offset in offsets
        ]
        asked = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1, **fields}
        s.ask(
            f"commit {label}", "OffsetCommit", group_id=to, topics=[{**s.both(name), "partitions": partitions}], **asked
        )

    commit("one", (0, 5))
    commit("with metadata", (1, 7), metadata="ä note")
    commit("null metadata", (1, 7), metadata=None)
    commit("long metadata", (0, 6), (1, 8), metadata="x" * 5000)
    commit("a negative offset", (0, -1))
    commit("a very negative offset", (0, -100))
    commit("an unknown partition", (9, 1), (0, 9))
    commit("a negative partition", (-1, 1))
    commit("an unknown topic", (0, 1), name=s.name("no"))
    if s.level != "highest":
        commit("a bad topic", (0, 1), name="a b")
        commit("an empty topic", (0, 1), name="")
    commit("no partitions")
    commit("one twice", (0, 10), (0, 11))
    commit("to no group", (0, 1), to="")
    commit("to a new group", (0, 1), to=s.group("g2"))
    commit("by a member that is none", (0, 1), member_id="given-nobody", generation_id_or_member_epoch=3)
    commit(
        "by a member to an unknown group",
        (0, 1),
        to=s.group("no"),
        member_id="given-nobody",
        generation_id_or_member_epoch=3,
    )
    commit("in generation 0", (0, 1), generation_id_or_member_epoch=0)
    commit("without a generation by a member", (0, 1), member_id="given-nobody")
    if s.level != "lowest":
        commit(
            "by a static member that is none",
            (0, 1),
            group_instance_id="given-i",
            member_id="given-m",
            generation_id_or_member_epoch=2,
        )
    s.ask("commit nothing", "OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, topics=[])


def _fetch(s: Session, topic: str, group: str) -> None:
    def fetch(label: str, partitions: list[int] | None, *, name: str = topic, of: str = group, **fields: Any) -> None:
        version = s.version("OffsetFetch")
        topics = None if partitions is None else [{**s.both(name), "partition_indexes": partitions}]
        if version >= 8:
            asked: dict[str, Any] = {
                "groups": [{"group_id": of, "member_id": None, "member_epoch": -1, "topics": topics}]
            }
        else:
            asked = {
                "group_id": of,
                "topics": None if topics is None else [{"name": name, "partition_indexes": partitions}],
            }
        s.ask(f"offsets {label}", "OffsetFetch", **asked, **fields)

    fetch("of two", [0, 1])
    if s.version("OffsetFetch") >= 2:
        fetch("of all", None)
        fetch("of all of an unknown group", None, of=s.group("no"))
    fetch("of an unknown partition", [0, 9])
    fetch("of an unknown topic", [0], name=s.name("no"))
    fetch("of none", [])
    fetch("of one twice", [0, 0])
    fetch("of an unknown group", [0], of=s.group("no"))
    fetch("of no group", [0], of="")
    fetch("that are stable", [0, 1], require_stable=True)
    if s.version("OffsetFetch") >= 8:
        both = [{"group_id": s.group(name), "topics": None, "member_epoch": -1} for name in ("g", "g2", "g")]
        s.ask("offsets of groups", "OffsetFetch", groups=both[:2])
        s.ask("offsets of a group twice", "OffsetFetch", groups=both)
        s.ask("offsets of no groups", "OffsetFetch", groups=[])


def _admin(s: Session, topic: str, group: str) -> None:
    s.ask("describe", "DescribeGroups", groups=[group])
    s.ask("describe with operations", "DescribeGroups", groups=[group], include_authorized_operations=True)
    s.ask("describe unknown", "DescribeGroups", groups=[s.group("no")])
    s.ask("describe an empty name", "DescribeGroups", groups=[""])
    s.ask("describe one twice", "DescribeGroups", groups=[group, group])
    s.ask("describe none", "DescribeGroups", groups=[])
    s.ask("list", "ListGroups")
    for label, states, types in (
        ("empty", ["Empty"], []),
        ("stable", ["Stable"], []),
        ("in lower case", ["empty"], []),
        ("in no state", ["Moon"], []),
        ("classic", [], ["classic"]),
        ("consumer", [], ["consumer"]),
        ("of no type", [], ["moon"]),
    ):
        s.ask(f"list {label}", "ListGroups", states_filter=states, types_filter=types)

    def forget(label: str, *partitions: int, name: str = topic, of: str = group) -> None:
        asked = [{"name": name, "partitions": [{"partition_index": index} for index in partitions]}]
        s.ask(f"forget {label}", "OffsetDelete", group_id=of, topics=asked)

    forget("one", 0)
    forget("it again", 0)
    forget("an unknown partition", 9, 1)
    forget("an unknown topic", 0, name=s.name("no"))
    forget("of an unknown group", 0, of=s.group("no"))
    forget("of no group", 0, of="")
    forget("nothing")
    s.ask("forget no topics", "OffsetDelete", group_id=group, topics=[])
    s.ask("delete", "DeleteGroups", groups_names=[group])
    s.ask("delete again", "DeleteGroups", groups_names=[group, s.group("no")])
    s.ask("delete an empty name", "DeleteGroups", groups_names=[""])
    s.ask("delete one twice", "DeleteGroups", groups_names=[s.group("g2"), s.group("g2")])
    s.ask("delete none", "DeleteGroups", groups_names=[])
    s.ask("describe the deleted", "DescribeGroups", groups=[group])
    s.ask("list after that", "ListGroups")
