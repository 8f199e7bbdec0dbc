"""Operations of generated sequences, which are requests outside transactions, and the player that sends them."""

from typing import Any

from hypothesis import strategies as st

from interop.compare.session import Session

_NOBODY = "given-nobody"

TOPIC = st.sampled_from(("a", "b"))
PARTITION = st.sampled_from((0, 1, 2))
OFFSET = st.sampled_from((-1, 0, 1, 2, 3, 5, 9))
GROUP = st.sampled_from(("g", "h"))
MEMBER = st.sampled_from((0, 1))

OPERATIONS = st.one_of(
    st.tuples(st.just("create"), TOPIC, st.sampled_from((1, 2))),
    st.tuples(st.just("delete"), TOPIC),
    st.tuples(st.just("grow"), TOPIC, st.sampled_from((2, 3))),
    st.tuples(st.just("produce"), TOPIC, PARTITION, st.sampled_from((1, 3))),
    st.tuples(
        st.just("sequenced"),
        TOPIC,
        PARTITION,
        st.sampled_from((0, 1, 2, 3)),
        st.sampled_from((0, 1)),
        st.sampled_from((1, 2)),
    ),
    st.tuples(st.just("fetch"), TOPIC, PARTITION, OFFSET),
    st.tuples(st.just("in_session"), st.sampled_from(("full", "next", "skip", "close")), TOPIC, PARTITION, OFFSET),
    st.tuples(st.just("offsets"), TOPIC, PARTITION, st.sampled_from((-1, -2, -3, "time"))),
    st.tuples(st.just("records"), TOPIC, PARTITION, OFFSET),
    st.tuples(st.just("commit"), GROUP, TOPIC, PARTITION, OFFSET, st.sampled_from((None, 0, 1))),
    st.tuples(st.just("committed"), GROUP),
    st.tuples(st.just("forget"), GROUP, TOPIC, PARTITION),
    st.tuples(st.just("join"), GROUP, MEMBER),
    st.tuples(st.just("sync"), GROUP, MEMBER),
    st.tuples(st.just("beat"), GROUP, MEMBER),
    st.tuples(st.just("leave"), GROUP, MEMBER),
    st.tuples(st.just("describe"), GROUP),
    st.tuples(st.just("drop"), GROUP),
    st.tuples(st.just("config"), TOPIC, st.sampled_from(("compact", "delete", "bad"))),
    st.tuples(st.just("metadata"), TOPIC),
)


class Player:
    """Plays a sequence to one broker. A group has one member at a time, so no response waits for another request."""

    def __init__(self, s: Session) -> None:
        self.s = s
        self._session_id, self._epoch = 0, 1
        self._members: dict[tuple[str, int], tuple[str, int]] = {}
        self._joined: dict[str, int] = {}

    def play(self, place: int, name: str, *arguments: Any) -> None:
        """Carry out one operation, labelled by its position in the sequence."""
        getattr(self, f"_{name}")(f"{place}: {' '.join(map(str, (name, *arguments)))}", *arguments)

    def _create(self, label: str, topic: str, partitions: int) -> None:
        made = {"name": self.s.name(topic), "num_partitions": partitions, "replication_factor": 1}
        answer = self.s.ask(label, "CreateTopics", topics=[made], timeout_ms=10_000)
        if answer and not answer["topics"][0]["error_code"]:
            self.s.load(self.s.name(topic))

    def _delete(self, label: str, topic: str) -> None:
        name = self.s.name(topic)
        self.s.ask(label, "DeleteTopics", topics=[{"name": name, "topic_id": bytes(16)}], timeout_ms=10_000)

    def _grow(self, label: str, topic: str, count: int) -> None:
        name = self.s.name(topic)
        answer = self.s.ask(
            label, "CreatePartitions", topics=[{"name": name, "count": count, "assignments": None}], timeout_ms=10_000
        )
        if not answer["results"][0]["error_code"]:
            self.s.load(name)

    def _produce(self, label: str, topic: str, partition: int, count: int) -> None:
        self.s.produce(label, self.s.name(topic), self.s.batch(count), partition=partition)

    def _sequenced(self, label: str, topic: str, partition: int, *numbers: int) -> None:
        sequence, epoch, count = numbers
        records = self.s.batch(count, producer_id=5000, producer_epoch=epoch, base_sequence=sequence)
        self.s.produce(label, self.s.name(topic), records, partition=partition)

    def _fetch(self, label: str, topic: str, partition: int, offset: int) -> None:
        self.s.fetch(label, [(self.s.name(topic), partition, offset)])

    def _in_session(self, label: str, kind: str, topic: str, partition: int, offset: int) -> None:
        epoch = {"full": 0, "next": self._epoch, "skip": self._epoch + 5, "close": -1}[kind]
        asked = [] if kind == "close" else [(self.s.name(topic), partition, offset)]
        answer = self.s.fetch(label, asked, session_id=self._session_id, session_epoch=epoch)
        if kind == "full":
            self._session_id, self._epoch = answer["session_id"], 1
        elif kind == "next" and not answer["error_code"]:
            self._epoch += 1

    def _offsets(self, label: str, topic: str, partition: int, time: Any) -> None:
        asked = {
            "partition_index": partition,
            "timestamp": self.s.base_time + 1 if time == "time" else time,
            "current_leader_epoch": -1,
        }
        topics = [{"name": self.s.name(topic), "partitions": [asked]}]
        self.s.ask(label, "ListOffsets", replica_id=-1, topics=topics, timeout_ms=5000)

    def _records(self, label: str, topic: str, partition: int, offset: int) -> None:
        topics = [{"name": self.s.name(topic), "partitions": [{"partition_index": partition, "offset": offset}]}]
        self.s.ask(label, "DeleteRecords", topics=topics, timeout_ms=5000)

    def _commit(self, label: str, group: str, topic: str, partition: int, *by: Any) -> None:
        offset, member = by
        name, generation = ("", -1) if member is None else self._member(group, member)
        one = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        topics = [{**self.s.both(self.s.name(topic)), "partitions": [one]}]
        fields: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": name}
        self.s.ask(label, "OffsetCommit", group_id=self.s.group(group), topics=topics, **fields)

    def _committed(self, label: str, group: str) -> None:
        self.s.ask(
            label,
            "OffsetFetch",
            version=9,
            groups=[{"group_id": self.s.group(group), "topics": None, "member_epoch": -1}],
        )

    def _forget(self, label: str, group: str, topic: str, partition: int) -> None:
        topics = [{"name": self.s.name(topic), "partitions": [{"partition_index": partition}]}]
        self.s.ask(label, "OffsetDelete", group_id=self.s.group(group), topics=topics)

    def _join(self, label: str, group: str, member: int) -> None:
        if self._joined.get(group, member) != member:
            return
        protocols = [{"name": "range", "metadata": b"m"}]
        asked: dict[str, Any] = {
            "group_id": self.s.group(group),
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 20_000,
        }
        asked |= {"protocol_type": "consumer", "protocols": protocols}
        name = self._member(group, member)[0] if group in self._joined else ""
        answer = self.s.ask(label, "JoinGroup", version=3, member_id=name, **asked)
        if not answer["error_code"]:
            self._joined[group] = member
            self._members[group, member] = answer["member_id"], answer["generation_id"]

    def _sync(self, label: str, group: str, member: int) -> None:
        name, generation = self._member(group, member)
        assignments = [{"member_id": name, "assignment": b"mine"}]
        asked: dict[str, Any] = {"group_id": self.s.group(group), "protocol_type": "consumer", "protocol_name": "range"}
        self.s.ask(label, "SyncGroup", generation_id=generation, member_id=name, assignments=assignments, **asked)

    def _beat(self, label: str, group: str, member: int) -> None:
        name, generation = self._member(group, member)
        self.s.ask(label, "Heartbeat", group_id=self.s.group(group), generation_id=generation, member_id=name)

    def _leave(self, label: str, group: str, member: int) -> None:
        name, _ = self._member(group, member)
        answer = self.s.ask(
            label, "LeaveGroup", group_id=self.s.group(group), members=[{"member_id": name, "group_instance_id": None}]
        )
        if self._joined.get(group) == member and not answer["members"][0]["error_code"]:
            del self._joined[group]

    def _describe(self, label: str, group: str) -> None:
        self.s.ask(label, "DescribeGroups", groups=[self.s.group(group)])

    def _drop(self, label: str, group: str) -> None:
        self.s.ask(label, "DeleteGroups", groups_names=[self.s.group(group)])

    def _config(self, label: str, topic: str, value: str) -> None:
        config = {"name": "cleanup.policy", "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": self.s.name(topic), "configs": [config]}
        self.s.ask(label, "IncrementalAlterConfigs", resources=[resource])

    def _metadata(self, label: str, topic: str) -> None:
        self.s.ask(label, "Metadata", topics=[{"name": self.s.name(topic)}], allow_auto_topic_creation=False)

    def _member(self, group: str, member: int) -> tuple[str, int]:
        return self._members.get((group, member), (_NOBODY, 1))
