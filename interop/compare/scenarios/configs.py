"""Describing and altering configurations of every kind of resource."""

from typing import Any

from interop.compare.session import Session

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
_VALUES = (
    ("retention.ms", "1000000000"),
    ("retention.ms", "x"),
    ("retention.ms", "-2"),
    ("retention.ms", ""),
    ("retention.ms", None),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact, delete"),
    ("cleanup.policy", "x"),
    ("no.such", "1"),
    ("", "1"),
    ("compression.type", "zstd"),
    ("compression.type", "bad"),
    ("max.message.bytes", "100000000000"),
    ("preallocate", "maybe"),
    ("min.insync.replicas", "1"),
    ("min.insync.replicas", "0"),
    ("segment.bytes", "5"),
    ("index.interval.bytes", "-1"),
    ("message.timestamp.type", "x"),
    ("flush.ms", "99999999999999999999"),
    ("min.cleanable.dirty.ratio", "abc"),
)
_BROKER_VALUES = (
    ("log.retention.ms", "100000000000"),
    ("log.retention.ms", "x"),
    ("message.max.bytes", "-1"),
    ("log.cleaner.threads", "0"),
    ("node.id", "5"),
    ("no.such", "1"),
    ("log.dirs", "/x"),
    ("compression.type", "bad"),
    ("log.segment.bytes", "1048576"),
    ("max.connections", "5000"),
    ("log.message.timestamp.type", "LogAppendTime"),
    ("log.flush.interval.messages", "0"),
)


def requests(s: Session) -> None:
    """Run all requests of this area."""
    topic = s.topic("t", retention_ms="777000000")
    _describe(s, topic)
    _incremental(s, topic)
    _replace(s, topic)


def _describe(s: Session, topic: str) -> None:
    def describe(label: str, kind: int, name: str, keys: list[str] | None, **fields: Any) -> None:
        one = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        s.ask(f"describe {label}", "DescribeConfigs", resources=[one], **fields)

    describe("a topic", TOPIC, topic, None)
    describe("a topic with synonyms", TOPIC, topic, ["retention.ms", "cleanup.policy"], include_synonyms=True)
    describe("an unknown setting", TOPIC, topic, ["retention.ms", "no.such"])
    describe("no settings", TOPIC, topic, [])
    describe("a setting twice", TOPIC, topic, ["retention.ms", "retention.ms"])
    describe("an unknown topic", TOPIC, s.name("no"), None)
    describe("a bad topic", TOPIC, "a b", None)
    describe("an empty topic", TOPIC, "", None)
    for key in (
        "log.retention.ms",
        "node.id",
        "message.max.bytes",
        "log.cleaner.threads",
        "no.such",
        "compression.type",
    ):
        describe(f"the broker's {key}", BROKER, "1", [key], include_synonyms=True)
        describe(f"all brokers' {key}", BROKER, "", [key])
    describe("another broker", BROKER, "9", ["node.id"])
    describe("a broker that is none", BROKER, "x", ["node.id"])
    describe("a group", GROUP, s.name("g"), ["no.such"])
    describe("a group without a name", GROUP, "", ["no.such"])
    describe("metrics", METRICS, "m", ["no.such"])
    describe("a logger of another broker", LOGGER, "9", ["root"])
    describe("a logger without a broker", LOGGER, "", ["root"])
    describe("no type", 0, "x", None)
    describe("an unknown type", 77, "x", None)
    one = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    s.ask("describe one twice", "DescribeConfigs", resources=[one, one])
    s.ask("describe none", "DescribeConfigs", resources=[])


def _incremental(s: Session, topic: str) -> None:
    def alter(label: str, kind: int, name: str, *changes: tuple[str, int, str | None], only: bool = False) -> None:
        configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        one = {"resource_type": kind, "resource_name": name, "configs": configs}
        s.ask(f"alter {label}", "IncrementalAlterConfigs", resources=[one], validate_only=only)

    for key, value in _VALUES:
        alter(f"{key}={value!r}", TOPIC, topic, (key, SET, value), only=True)
    alter("retention", TOPIC, topic, ("retention.ms", SET, "888000000"))
    alter("nothing", TOPIC, topic)
    alter("a setting twice", TOPIC, topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    alter("by deleting", TOPIC, topic, ("retention.ms", DELETE, None))
    alter("by deleting again", TOPIC, topic, ("retention.ms", DELETE, None))
    alter("by deleting an unknown", TOPIC, topic, ("no.such", DELETE, None))
    alter("by appending", TOPIC, topic, ("cleanup.policy", APPEND, "compact"))
    alter("by appending again", TOPIC, topic, ("cleanup.policy", APPEND, "compact"))
    alter("by subtracting", TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"))
    alter("by subtracting the last", TOPIC, topic, ("cleanup.policy", SUBTRACT, "compact"))
    alter("by appending to a number", TOPIC, topic, ("retention.ms", APPEND, "1"))
    alter("by appending null", TOPIC, topic, ("cleanup.policy", APPEND, None))
    alter("by no operation", TOPIC, topic, ("retention.ms", 9, "1"))
    alter("an unknown topic", TOPIC, s.name("no"), ("retention.ms", SET, "1000"))
    alter("a bad topic", TOPIC, "a b", ("retention.ms", SET, "1000"))
    alter("an empty topic", TOPIC, "", ("retention.ms", SET, "1000"))
    alter("a group", GROUP, s.name("g"), ("no.such", SET, "1"))
    alter("metrics", METRICS, s.name("m"), ("no.such", SET, "1"))
    alter("no type", 0, "x", ("a", SET, "1"))
    alter("an unknown type", 77, "x", ("a", SET, "1"))
    alter("a broker that is none", BROKER, "x", ("log.retention.ms", SET, "1000"))
    alter("another broker", BROKER, "9", ("log.retention.ms", SET, "1000"))
    for name in ("1", ""):
        for key, value in _BROKER_VALUES:
            alter(f"broker {name!r} {key}={value!r}", BROKER, name, (key, SET, value), only=True)
    one = {
        "resource_type": TOPIC,
        "resource_name": topic,
        "configs": [{"name": "flush.ms", "config_operation": SET, "value": "9000"}],
    }
    s.ask("alter one twice", "IncrementalAlterConfigs", resources=[one, one])
    asked = {
        "resource_type": TOPIC,
        "resource_name": topic,
        "configuration_keys": ["retention.ms", "cleanup.policy", "flush.ms"],
    }
    s.ask("describe the altered", "DescribeConfigs", resources=[asked], include_synonyms=False)


def _replace(s: Session, topic: str) -> None:
    def replace(label: str, kind: int, name: str, *values: tuple[str, str | None], only: bool = False) -> None:
        configs = [{"name": key, "value": value} for key, value in values]
        one = {"resource_type": kind, "resource_name": name, "configs": configs}
        s.ask(f"replace {label}", "AlterConfigs", resources=[one], validate_only=only)

    for key, value in _VALUES:
        replace(f"{key}={value!r}", TOPIC, topic, (key, value), only=True)
    replace("all", TOPIC, topic, ("retention.bytes", "99999"), ("flush.messages", "7"))
    replace("a setting twice", TOPIC, topic, ("flush.messages", "1"), ("flush.messages", "2"))
    replace("an unknown topic", TOPIC, s.name("no"), ("retention.ms", "1000"))
    replace("a bad topic", TOPIC, "a b", ("retention.ms", "1000"))
    replace("a broker's read-only", BROKER, "1", ("node.id", "5"), only=True)
    replace("no type", 0, "x", ("a", "1"))
    one = {"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "flush.messages", "value": "6"}]}
    s.ask("replace one twice", "AlterConfigs", resources=[one, one], validate_only=False)
    asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    s.ask("describe the replaced", "DescribeConfigs", resources=[asked], include_synonyms=False)
    replace("by nothing", TOPIC, topic)
    s.ask("describe what is left", "DescribeConfigs", resources=[asked], include_synonyms=False)
