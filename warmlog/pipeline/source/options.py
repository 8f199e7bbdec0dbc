"""The options of a read: their meaning, their defaults, and the table of their values.

Names and JSON are those of Spark's Kafka connector, if it has the option.
Source: org.apache.spark.sql.kafka010.KafkaSourceProvider.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from warmlog.pipeline.brokers import BROKERS_TABLE, Brokers, parse_brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.options import (
    CONNECTOR_NAMES,
    OptionTexts,
    assignment,
    count,
    duration_ms,
    flag,
    numbers,
    time_ms,
    word,
)

EARLIEST = -2  # numbers that stand for these words in JSON offsets
LATEST = -1
# Internal topics, which patterns do not match, as in Kafka's consumers.
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "__warmlog_audit"}
)
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
# The default of spark.sql.files.maxPartitionBytes: large compared with the cost of starting a task.
DEFAULT_SPLIT_BYTES = 128 << 20

DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000  # the connector's value

PartitionNumbers: TypeAlias = Mapping[str, Mapping[int, int]]
OnCorrupt: TypeAlias = Literal["fail", "skip", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The partitions to read: all of named topics, all of topics that match a pattern, or an assignment."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Whether to read this partition."""
        if self.assigned is not None:
            return partition in self.assigned.get(topic, ())
        if self.pattern is not None:
            return topic not in INTERNAL_TOPICS and self.pattern.fullmatch(topic) is not None
        return topic in self.names

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that must exist."""
        return tuple(self.assigned) if self.assigned is not None else self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or end of a read: one number for all partitions (EARLIEST, LATEST or a time in ms), or one for each.

    `by_time`: the numbers are times.
    """

    number: int | None = None
    each: PartitionNumbers | None = None
    by_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read; `docs/pipeline/source.md` describes each.

    `min_split_offsets` is set by jobs: minimum size of a split read from a broker.
    """

    topics: Topics
    path: str | None = None
    brokers: Brokers | None = None
    group: str | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    starts_by_default: bool = False
    start: Bound = field(default_factory=lambda: Bound(number=EARLIEST))
    end: Bound = field(default_factory=lambda: Bound(number=LATEST))
    starts_at_end_without_later: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    min_split_offsets: int = 1
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    max_records_per_partition: int | None = None
    columns: tuple[str, ...] = COLUMNS[:-1]
    on_corrupt: OnCorrupt = "fail"
    flushed_only: bool = False
    committed_only: bool = False
    filter_pushdown: bool = False


# Maps an option's name to the form of its value, for error messages.
READ_TABLE = {
    "path": "a data directory, or several separated by commas, or the directory of a partition",
    **BROKERS_TABLE,
    "group": "the name of a consumer group",
    "topic": "a topic, or several separated by commas",
    "subscribe": "as topic",
    "subscribePattern": "a regular expression",
    "assign": 'JSON: {"topic": [0, 1]}',
    "startingOffsets": '"earliest", "latest" or JSON: {"topic": {"0": 23, "1": -2}}',
    "endingOffsets": '"latest" or JSON: {"topic": {"0": 50, "1": -1}}',
    "startingTimestamp": "milliseconds since the epoch, or ISO 8601",
    "endingTimestamp": "milliseconds since the epoch, or ISO 8601",
    "startingOffsetsByTimestamp": 'JSON: {"topic": {"0": 1700000000000}}',
    "endingOffsetsByTimestamp": 'JSON: {"topic": {"0": 1700000000000}}',
    "startingOffsetsByTimestampStrategy": '"error" or "latest"',
    "failOnDataLoss": '"true" or "false"',
    "maxOffsetsPerTrigger": "a number from 1",
    "minOffsetsPerTrigger": "a number from 1",
    "maxTriggerDelay": "a time such as 15m, 30s or 500ms",
    "minPartitions": "a number from 1",
    "maxSplitBytes": "a number of bytes from 1",
    "maxRecordsPerPartition": "a number from 1",
    "includeHeaders": '"true" or "false"',
    "columns": f"names separated by commas, of {', '.join(COLUMNS)}",
    "onCorrupt": '"fail", "skip" or "stop"',
    "readUpTo": '"end" or "flushed"',
    "isolationLevel": '"read_uncommitted" or "read_committed"',
    "filterPushdown": '"true" or "false"',
}
_TOPIC_OPTIONS = ("topic", "subscribe", "subscribePattern", "assign")


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options of a read. Raises PipelineError."""
    texts = OptionTexts(given, READ_TABLE, "of a read", aliases=CONNECTOR_NAMES)
    path, brokers = texts.text("path"), parse_brokers(texts)
    if path is None and brokers is None:
        raise PipelineError(
            'no source: give option("path", ...) for a directory, or option("bootstrap", ...) for a broker'
        )
    if brokers is None and "group" in texts:
        raise PipelineError("option group needs bootstrap: the broker keeps the group's offsets")
    flushed_only = texts.parsed("readUpTo", word("end", "flushed"), "end") == "flushed"
    if flushed_only and path is None:
        raise PipelineError("option readUpTo needs path: recovery points are stored in data directories")
    isolation = texts.parsed("isolationLevel", word("read_uncommitted", "read_committed"), "read_uncommitted")
    strategy = texts.parsed("startingOffsetsByTimestampStrategy", word("error", "latest"), "error")
    options = ReadOptions(
        topics=_topics(texts),
        path=path,
        brokers=brokers,
        group=texts.text("group"),
        max_offsets_per_trigger=texts.parsed("maxOffsetsPerTrigger", count, None),
        min_offsets_per_trigger=texts.parsed("minOffsetsPerTrigger", count, None),
        max_trigger_delay_ms=texts.parsed("maxTriggerDelay", duration_ms, DEFAULT_TRIGGER_DELAY_MS),
        starts_by_default=not any(name.startswith("starting") and "Strategy" not in name for name in texts),
        start=_bound(texts, "starting", default=EARLIEST, words={"earliest": EARLIEST, "latest": LATEST}),
        end=_bound(texts, "ending", default=LATEST, words={"latest": LATEST}),
        starts_at_end_without_later=strategy == "latest",
        fail_on_data_loss=texts.parsed("failOnDataLoss", flag, default=True),
        min_partitions=texts.parsed("minPartitions", count, None),
        max_split_bytes=texts.parsed("maxSplitBytes", count, DEFAULT_SPLIT_BYTES),
        max_records_per_partition=texts.parsed("maxRecordsPerPartition", count, None),
        columns=_columns(texts),
        on_corrupt=cast("OnCorrupt", texts.parsed("onCorrupt", word("fail", "skip", "stop"), "fail")),
        flushed_only=flushed_only,
        committed_only=isolation == "read_committed",
        filter_pushdown=texts.parsed("filterPushdown", flag, default=False),
    )
    _check_together(options, texts)
    return options


def _check_together(options: ReadOptions, texts: OptionTexts) -> None:
    """Raise PipelineError for options that contradict each other."""
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise PipelineError(f"minOffsetsPerTrigger {least} is greater than maxOffsetsPerTrigger {most}")
    if least is None and "maxTriggerDelay" in texts:
        raise PipelineError(
            "option maxTriggerDelay needs minOffsetsPerTrigger: it limits how long a micro-batch waits for them"
        )
    if options.max_records_per_partition is not None and options.on_corrupt == "stop":
        raise PipelineError("onCorrupt=stop reads a partition in one split: maxRecordsPerPartition contradicts it")
    start, end = options.start, options.end
    if start.by_time != end.by_time:
        return  # compared when both are offsets
    name = "Timestamp" if start.number is not None else "OffsetsByTimestamp" if start.by_time else "Offsets"
    if start.by_time and None not in {start.number, end.number}:
        if cast("int", start.number) > cast("int", end.number):
            raise PipelineError(f"starting{name} {start.number} is after ending{name} {end.number}")
        return
    for topic, listed in (start.each or {}).items():
        for partition, first in listed.items():
            last = (end.each or {}).get(topic, {}).get(partition, LATEST)
            if last != LATEST and first > last:
                raise PipelineError(f"starting{name} {first} of {topic}-{partition} is after ending{name} {last}")


def _topics(texts: OptionTexts) -> Topics:
    given = [name for name in _TOPIC_OPTIONS if name in texts]
    if not given:
        raise PipelineError('no topic: give option("topic", ...), "subscribe", "subscribePattern" or "assign"')
    if len(given) > 1:
        raise PipelineError(f"{' and '.join(given)} exclude each other")
    if given == ["assign"]:
        return Topics(assigned=texts.parsed("assign", assignment, None))
    if given == ["subscribePattern"]:
        return Topics(pattern=texts.parsed("subscribePattern", re.compile, None))
    names = tuple(name.strip() for name in (texts.text(given[0]) or "").split(","))
    if not all(names):
        raise texts.bad(given[0])
    return Topics(names=names)


def _bound(texts: OptionTexts, which: str, *, default: int, words: Mapping[str, int]) -> Bound:
    """Parse a bound with the precedence of the connector: one timestamp, timestamps, offsets."""
    if f"{which}Timestamp" in texts:
        return Bound(number=texts.parsed(f"{which}Timestamp", time_ms, None), by_time=True)
    if f"{which}OffsetsByTimestamp" in texts:
        return Bound(each=texts.parsed(f"{which}OffsetsByTimestamp", numbers, None), by_time=True)
    name = f"{which}Offsets"
    text = (texts.text(name) or "").strip()
    if not text.startswith("{"):
        number = words.get(text.lower()) if text else default
        if number is None:
            raise texts.bad(name)
        return Bound(number=number)
    each: PartitionNumbers = texts.parsed(name, numbers, {})
    lowest = LATEST if which == "ending" else EARLIEST
    if any(number < lowest for listed in each.values() for number in listed.values()):
        raise texts.bad(name)
    return Bound(each=each)


def _columns(texts: OptionTexts) -> tuple[str, ...]:
    with_headers = texts.parsed("includeHeaders", flag, default=False)
    text = texts.text("columns")
    if text is None:
        return COLUMNS if with_headers else COLUMNS[:-1]
    known = {name.lower(): name for name in COLUMNS}
    wanted = {known.get(name.strip().lower()) for name in text.split(",")}
    if None in wanted:
        raise texts.bad("columns")
    if with_headers:
        wanted.add("headers")
    return tuple(name for name in COLUMNS if name in wanted)
