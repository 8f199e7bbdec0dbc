"""What a user asks the data source for: the options, their names, defaults and meanings.

Owns: the table of options and how their texts are read; names and JSON are those of Spark's Kafka connector where it
has the option. Must not know: where records lie, or how they are read.

Every option is checked when the source is made: an unknown name or a bad value is an error that names it.

Source: org.apache.spark.sql.kafka010.KafkaSourceProvider.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from warmlog.pipeline.errors import PipelineError

EARLIEST = -2  # as offsets in JSON
LATEST = -1
# What Kafka and we keep for ourselves; a pattern does not find them, as a consumer's does not.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
# Large enough that a split's start (a Python worker, its imports) is lost in it, small enough for many of them.
DEFAULT_SPLIT_BYTES = 128 << 20  # as Spark cuts files (spark.sql.files.maxPartitionBytes)

PartitionNumbers: TypeAlias = Mapping[str, Mapping[int, int]]
OnCorrupt: TypeAlias = Literal["fail", "skip", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Which partitions to read: of named topics, of those that match, or these and no others."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Whether this partition is asked for."""
        if self.assigned is not None:
            return partition in self.assigned.get(topic, ())
        if self.pattern is not None:  # a broker's own topics must be named
            return topic not in INTERNAL_TOPICS and self.pattern.fullmatch(topic) is not None
        return topic in self.names

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that must be there."""
        return tuple(self.assigned) if self.assigned is not None else self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to begin or end: the same word (EARLIEST, LATEST) or time (ms) for all, or a number for each partition.

    `by_time`: the numbers are times.
    """

    number: int | None = None
    each: PartitionNumbers | None = None
    by_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a read. See `TABLE` for each."""

    topics: Topics
    path: str | None = None
    bootstrap: str | None = None
    group: str | None = None
    max_offsets_per_trigger: int | None = None
    starts_by_default: bool = False
    start: Place = field(default_factory=lambda: Place(number=EARLIEST))
    end: Place = field(default_factory=lambda: Place(number=LATEST))
    starts_at_end_without_later: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    columns: tuple[str, ...] = COLUMNS[:-1]
    on_corrupt: OnCorrupt = "fail"
    flushed_only: bool = False
    committed_only: bool = False
    filter_pushdown: bool = False


# Every option: its name as documented, and what its value must look like, for errors.
TABLE = {
    "path": "a data directory, or the directory of a partition",
    "bootstrap": "a broker's native address, host:port",
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
    "maxOffsetsPerTrigger": "a number from 1 on",
    "minPartitions": "a number from 1 on",
    "maxSplitBytes": "a number of bytes from 1 on",
    "includeHeaders": '"true" or "false"',
    "columns": f"names separated by commas, of {', '.join(COLUMNS)}",
    "onCorrupt": '"fail", "skip" or "stop"',
    "readUpTo": '"end" or "flushed"',
    "isolationLevel": '"read_uncommitted" or "read_committed"',
    "filterPushdown": '"true" or "false"',
}
_NAMES = {name.lower(): name for name in TABLE}


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check all options. Raises PipelineError."""
    return _Reader(given).options()


class _Reader:
    """The options as texts, by their documented names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._texts: dict[str, str] = {}
        for name, text in given.items():
            known = _NAMES.get(name.lower())
            if known is None:
                raise PipelineError(f"there is no option {name!r}{_nearest(name)}")
            self._texts[known] = text

    def options(self) -> ReadOptions:
        path, bootstrap = self._texts.get("path"), self._texts.get("bootstrap")
        if path is None and bootstrap is None:
            raise PipelineError('where are the records? option("path", ...) names a directory, "bootstrap" a broker')
        if bootstrap is not None:
            from warmlog.client.settings import parse_bootstrap  # a quarter of a second that directories do not need

            self._parsed("bootstrap", parse_bootstrap)
        elif "group" in self._texts:
            raise PipelineError("option group needs bootstrap: the broker that keeps the group's offsets")
        flushed_only = self._word("readUpTo", "end", "flushed") == "flushed"
        if flushed_only and path is None:
            raise PipelineError("option readUpTo needs path: a broker gives all that its readers may see")
        return ReadOptions(
            topics=self._topics(),
            path=path,
            bootstrap=bootstrap,
            group=self._texts.get("group"),
            max_offsets_per_trigger=self._count("maxOffsetsPerTrigger"),
            starts_by_default=not any(name.startswith("starting") and "Strategy" not in name for name in self._texts),
            start=self._place("starting", default=EARLIEST, words={"earliest": EARLIEST, "latest": LATEST}),
            end=self._place("ending", default=LATEST, words={"latest": LATEST}),
            starts_at_end_without_later=self._word("startingOffsetsByTimestampStrategy", "error", "latest") == "latest",
            fail_on_data_loss=self._flag("failOnDataLoss", default=True),
            min_partitions=self._count("minPartitions"),
            max_split_bytes=self._count("maxSplitBytes") or DEFAULT_SPLIT_BYTES,
            columns=self._columns(),
            on_corrupt=self._word("onCorrupt", "fail", "skip", "stop"),  # type: ignore[arg-type] # these three it is
            flushed_only=flushed_only,
            committed_only=self._word("isolationLevel", "read_uncommitted", "read_committed") == "read_committed",
            filter_pushdown=self._flag("filterPushdown", default=False),
        )

    def _topics(self) -> Topics:
        given = [name for name in ("topic", "subscribe", "subscribePattern", "assign") if name in self._texts]
        if len(given) != 1:
            raise PipelineError(
                f"{' and '.join(given)} exclude each other"
                if given
                else 'which topic? option("topic", ...), "subscribe", "subscribePattern" or "assign"'
            )
        if given == ["assign"]:
            return Topics(assigned=self._parsed("assign", _assigned))
        if given == ["subscribePattern"]:
            return Topics(pattern=self._parsed("subscribePattern", re.compile))
        names = tuple(name.strip() for name in self._texts[given[0]].split(","))
        if not all(names):
            raise self._bad(given[0])
        return Topics(names=names)

    def _place(self, which: str, *, default: int, words: Mapping[str, int]) -> Place:
        """By what wins, as in the connector: one time, times, offsets."""
        if f"{which}Timestamp" in self._texts:
            return Place(number=self._parsed(f"{which}Timestamp", _time_ms), by_time=True)
        if f"{which}OffsetsByTimestamp" in self._texts:
            return Place(each=self._parsed(f"{which}OffsetsByTimestamp", _numbers), by_time=True)
        name = f"{which}Offsets"
        text = self._texts.get(name, "").strip()
        if not text.startswith("{"):
            number = words.get(text.lower()) if text else default
            if number is None:
                raise self._bad(name)
            return Place(number=number)
        each = self._parsed(name, _numbers)
        lowest = LATEST if which == "ending" else EARLIEST
        if any(number < lowest for numbers in each.values() for number in numbers.values()):
            raise self._bad(name)
        return Place(each=each)

    def _columns(self) -> tuple[str, ...]:
        with_headers = self._flag("includeHeaders", default=False)
        text = self._texts.get("columns")
        if text is None:
            return COLUMNS if with_headers else COLUMNS[:-1]
        known = {name.lower(): name for name in COLUMNS}
        wanted = {known.get(name.strip().lower()) for name in text.split(",")}
        if None in wanted:
            raise self._bad("columns")
        if with_headers:
            wanted.add("headers")
        return tuple(name for name in COLUMNS if name in wanted)

    def _word(self, name: str, *words: str) -> str:
        text = self._texts.get(name, words[0]).strip().lower()
        if text not in words:
            raise self._bad(name)
        return text

    def _flag(self, name: str, *, default: bool) -> bool:
        return self._word(name, *(("true", "false") if default else ("false", "true"))) == "true"

    def _count(self, name: str) -> int | None:
        if name not in self._texts:
            return None
        count: int = self._parsed(name, int)
        if count < 1:
            raise self._bad(name)
        return count

    def _parsed(self, name: str, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(self._texts[name])
        except (ValueError, TypeError, AttributeError, re.error):
            raise self._bad(name) from None

    def _bad(self, name: str) -> PipelineError:
        return PipelineError(f"option {name}: {self._texts[name]!r} is not {TABLE[name]}")


def _nearest(name: str) -> str:
    if name.lower().startswith("kafka."):
        return "; what a Kafka client is told has no place here: bootstrap, group and isolationLevel do"
    close = get_close_matches(name.lower(), _NAMES, n=1)
    return f"; did you mean {_NAMES[close[0]]}?" if close else f"; there are {', '.join(TABLE)}"


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    found = {topic: tuple(_number(partition) for partition in listed) for topic, listed in json.loads(text).items()}
    if not found or not all(found.values()):
        raise ValueError("nothing is assigned")
    return found


def _numbers(text: str) -> dict[str, dict[int, int]]:
    return {
        topic: {int(partition): _number(number) for partition, number in listed.items()}
        for topic, listed in json.loads(text).items()
    }


def _number(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError("not a whole number")
    return number


def _time_ms(text: str) -> int:
    """Milliseconds, or ISO 8601; without a zone it is local time, as on the command line."""
    if re.fullmatch(r"-?\d+", text.strip()):
        return int(text)
    return round(datetime.fromisoformat(text.strip()).timestamp() * 1000)
