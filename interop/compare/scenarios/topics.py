"""Creating, describing, extending and deleting topics, and deleting records."""

from typing import Any

from interop.compare.session import Session

_CONFIGS = (
    ("retention.ms", "1000"),
    ("retention.ms", "x"),
    ("retention.ms", "-2"),
    ("retention.ms", ""),
    ("retention.ms", None),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "never"),
    ("cleanup.policy", ""),
    ("compression.type", "zstd"),
    ("compression.type", "none"),
    ("compression.type", "uncompressed"),
    ("no.such", "1"),
    ("", "1"),
    ("min.insync.replicas", "2"),
    ("min.insync.replicas", "0"),
    ("max.message.bytes", "-1"),
    ("max.message.bytes", "99999999999"),
    ("segment.bytes", "1048576"),
    ("preallocate", "yes"),
    ("preallocate", "TRUE"),
    ("message.timestamp.type", "LogAppendTime"),
    ("message.timestamp.type", "logappendtime"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("min.cleanable.dirty.ratio", ".5"),
    ("retention.bytes", " 10 "),
    ("remote.storage.enable", "false"),
    ("unclean.leader.election.enable", "false"),
    ("flush.messages", "0"),
    ("delete.retention.ms", "-1"),
    ("segment.ms", "0"),
    ("file.delete.delay.ms", "-1"),
    ("compression.gzip.level", "10"),
    ("compression.zstd.level", "23"),
    ("compression.lz4.level", "0"),
)


def new(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> dict[str, Any]:
    """Return an entry of CreateTopics."""
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **fields}


def requests(s: Session) -> None:
    """Run all requests of this area."""
    _create(s)
    _metadata(s)
    _grow(s)
    _delete_records(s)
    _delete(s)


def _create(s: Session) -> None:
    def create(label: str, *topics: dict[str, Any], **fields: Any) -> None:
        s.ask(f"create {label}", "CreateTopics", **{"topics": topics, "timeout_ms": 10_000, **fields})

    name = s.name
    create("one", new(name("one")))
    create("it again", new(name("one")))
    create("it again, to validate", new(name("one")), validate_only=True)
    create("two", new(name("two"), 2), new(name("three"), 3))
    create("none")
    create("one twice", new(name("twice")), new(name("twice")))
    create("one twice, and another", new(name("twice")), new(name("twice"), 2), new(name("beside")))
    create("with defaults", new(name("defaults"), -1, -1))
    create("to validate", new(name("valid"), 2), validate_only=True)
    create("without partitions", new(name("zero"), 0))
    create("with -2 partitions", new(name("negative"), -2))
    create("of factor 0", new(name("factor0"), 1, 0))
    create("of factor 2", new(name("factor2"), 1, 2))
    create("of factor -2", new(name("factor-2"), 1, -2))
    for label, bad in (
        ("an empty name", ""),
        ("a dot", "."),
        ("two dots", ".."),
        ("a blank", "a b"),
        ("a slash", "a/b"),
        ("an umlaut", "ä"),
        ("250 characters", "a" * 250),
        ("a line end", "a\n"),
        ("an internal name", "__consumer_offsets"),
        ("a nul", "a\0b"),
    ):
        create(f"with {label}", new(bad), validate_only=True)
    create("with a dot and an underscore", new(name("col.lide")))
    create("with a collision", new(name("col_lide")))
    create("with an assignment", new(name("assigned"), -1, -1, assignments=[{"partition_index": 0, "broker_ids": [1]}]))
    for label, partitions, factor, assigned in (
        ("of an unknown broker", -1, -1, [(0, [9])]),
        ("and partitions", 1, -1, [(0, [1])]),
        ("with a gap", -1, -1, [(1, [1])]),
        ("of a broker twice", -1, -1, [(0, [1, 1])]),
        ("of none", -1, -1, [(0, [])]),
        ("twice", -1, -1, [(0, [1]), (0, [1])]),
        ("and a factor", -1, 1, [(0, [1])]),
    ):
        assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in assigned]
        create(f"with an assignment {label}", new(name("assigned-badly"), partitions, factor, assignments=assignments))
    for place, (config, value) in enumerate(_CONFIGS):
        create(
            f"with {config}={value!r}",
            new(name(f"config{place}"), configs=[{"name": config, "value": value}]),
            validate_only=True,
        )
    create(
        "with a config twice",
        new(
            name("config-twice"),
            configs=[{"name": "retention.ms", "value": "1000"}, {"name": "retention.ms", "value": "2000"}],
        ),
    )
    create("good and bad", new(name("good")), new("b a d"), new(name("good2"), 0))
    create("with no time", new(name("no-time")), timeout_ms=0, validate_only=True)


def _metadata(s: Session) -> None:
    first, second = s.topic("m1", 2), s.topic("m2")
    for version in range(14):
        one, two = {"name": first}, {"name": second}
        fields: dict[str, Any] = {"version": version, "allow_auto_topic_creation": False}
        s.ask(f"metadata {version}", "Metadata", topics=[one, two], **fields)
        s.ask(f"metadata {version} of unknown", "Metadata", topics=[{"name": s.name("no")}], **fields)
        if version:
            s.ask(f"metadata {version} of none", "Metadata", topics=[], **fields)
        s.ask(f"metadata {version} of a bad name", "Metadata", topics=[{"name": "a b"}, {"name": ""}], **fields)
        s.ask(f"metadata {version} of one twice", "Metadata", topics=[one, one], **fields)
        s.ask(f"metadata {version} of all", "Metadata", topics=None if version else [], **fields)
        if version >= 8:
            s.ask(
                f"metadata {version} with operations",
                "Metadata",
                topics=[one],
                include_topic_authorized_operations=True,
                **fields,
            )
        if 8 <= version <= 10:
            s.ask(
                f"metadata {version} with cluster operations",
                "Metadata",
                topics=[one],
                include_cluster_authorized_operations=True,
                **fields,
            )
        if version >= 10:
            known, unknown = s.topic_ids[first], b"\7" * 16
            s.ask(f"metadata {version} by id", "Metadata", topics=[{"name": None, "topic_id": known}], **fields)
            s.ask(
                f"metadata {version} by an unknown id",
                "Metadata",
                topics=[{"name": None, "topic_id": unknown}],
                **fields,
            )
            s.ask(
                f"metadata {version} by name and id", "Metadata", topics=[{"name": first, "topic_id": known}], **fields
            )


def _grow(s: Session) -> None:
    topic = s.topic("grow", 2)

    def grow(
        label: str, count: int, *, name: str = topic, assigned: list[list[int]] | None = None, **fields: Any
    ) -> None:
        assignments = None if assigned is None else [{"broker_ids": ids} for ids in assigned]
        one = {"name": name, "count": count, "assignments": assignments}
        s.ask(f"grow {label}", "CreatePartitions", **{"topics": [one], "timeout_ms": 10_000, **fields})

    grow("to 3", 3)
    grow("to 3 again", 3)
    grow("to fewer", 1)
    grow("to 0", 0)
    grow("to -1", -1)
    grow("unknown", 3, name=s.name("no"))
    grow("a bad name", 3, name="a b")
    grow("no name", 3, name="")
    grow("to validate", 5, validate_only=True)
    grow("with an assignment", 4, assigned=[[1]])
    grow("with too many assignments", 5, assigned=[[1], [1]])
    grow("with too few assignments", 7, assigned=[[1]])
    grow("with an unknown broker", 6, assigned=[[9]])
    grow("with a broker twice", 6, assigned=[[1, 1]])
    grow("with no broker", 6, assigned=[[]])
    grow("with no assignments", 6, assigned=[])
    twice = {"name": topic, "count": 9, "assignments": None}
    s.ask("grow one twice", "CreatePartitions", topics=[twice, twice], timeout_ms=10_000)
    s.ask("grow none", "CreatePartitions", topics=[], timeout_ms=10_000)
    s.ask("metadata of the grown", "Metadata", topics=[{"name": topic}])


def _delete_records(s: Session) -> None:
    topic = s.topic("records", 2)
    s.fill(topic, s.batch(5), s.batch(5))

    def delete(label: str, *pairs: tuple[int, int], name: str = topic) -> None:
        partitions = [{"partition_index": partition, "offset": offset} for partition, offset in pairs]
        s.ask(
            f"delete records {label}",
            "DeleteRecords",
            topics=[{"name": name, "partitions": partitions}],
            timeout_ms=5000,
        )

    delete("before 3", (0, 3))
    delete("before 3 again", (0, 3))
    delete("before 2", (0, 2))
    delete("beyond the end", (0, 11))
    delete("before -2", (0, -2))
    delete("of an empty partition", (1, 0))
    delete("all of an empty partition", (1, -1))
    delete("of an unknown partition", (5, 0), (0, 4))
    delete("of an unknown topic", (0, 0), name=s.name("no"))
    delete("of a bad name", (0, 0), name="a b")
    delete("of one twice", (0, 5), (0, 6))
    delete("of none")
    delete("all", (0, -1))
    s.fetch("fetch what was deleted", [(topic, 0, 0)])
    s.fetch("fetch at the end", [(topic, 0, 10)])
    compacted = s.topic("compacted", cleanup_policy="compact")
    s.fill(compacted, s.batch(3))
    delete("of a compacted topic", (0, 2), name=compacted)


def _delete(s: Session) -> None:
    names = [s.topic(f"delete{place}") for place in range(5)]
    version = s.version("DeleteTopics")
    by_entry = version >= 6

    def delete(label: str, *topics: tuple[str | None, bytes]) -> None:
        if by_entry:
            fields: dict[str, Any] = {"topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics]}
        else:
            fields = {"topic_names": [name for name, _ in topics if name is not None]}
        s.ask(f"delete {label}", "DeleteTopics", timeout_ms=10_000, **fields)

    nothing = bytes(16)
    delete("one", (names[0], nothing))
    delete("it again", (names[0], nothing))
    delete("two", (names[1], nothing), (s.name("no"), nothing))
    delete("one twice", (names[2], nothing), (names[2], nothing))
    delete("a bad name", ("a b", nothing))
    delete("no name", ("", nothing))
    delete("none")
    if by_entry:
        delete("by id", (None, s.topic_ids[names[3]]))
        delete("by an unknown id", (None, b"\5" * 16))
        delete("by an id twice", (None, s.topic_ids[names[4]]), (None, s.topic_ids[names[4]]))
        delete("by a name and by its id", (names[4], nothing), (None, s.topic_ids[names[4]]))
    s.ask(
        "metadata of the deleted",
        "Metadata",
        topics=[{"name": name} for name in names],
        allow_auto_topic_creation=False,
    )
    s.ask("create a deleted one", "CreateTopics", topics=[new(names[0])], timeout_ms=10_000)
    s.load(names[0])
    s.produce("produce to it", names[0], s.batch(1))
