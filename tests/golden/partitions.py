"""What Kafka says of what it wrote, as values. See tests/fixtures/kafka/4.3.1/README.md."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmlog.protocol.records.batch import BatchHeader, headers

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kafka" / "4.3.1"
DIRECTORIES = ("clean", "recovered")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRecord:
    """A record as Kafka's Java consumer saw it."""

    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenPartition:
    """A partition's directory, and Kafka's word about it."""

    name: str
    directory: Path
    dump: str

    @classmethod
    def named(cls, name: str) -> "GoldenPartition":
        """By data directory and partition, such as clean/plain-0."""
        dump = (FIXTURES / "dumps" / f"{name}.txt").read_text()
        return cls(name=name, directory=FIXTURES / name, dump=dump)

    def files(self, suffix: str) -> list[Path]:
        """Its files of a kind that are not empty, oldest first."""
        return [path for path in sorted(self.directory.glob(f"*{suffix}")) if path.stat().st_size]

    def batches(self) -> Iterator[tuple[bytes, int, BatchHeader]]:
        """(content of a log file, position in it, header) of every batch of all its segments."""
        for log in self.files(".log"):
            content = log.read_bytes()
            for position, header in headers(content):
                yield content, position, header

    def dumped(self, file: Path, pattern: str) -> list[dict[str, str]]:
        """The lines of Kafka's dump of a file that match, by the names of the pattern's groups."""
        section = self.dump.split(f"== {file.name}\n")[1].split("\n== ")[0]
        return [found.groupdict() for found in re.finditer(pattern, section, re.MULTILINE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A partition as the Java consumer saw it, from its start to its end."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    records: list[SeenRecord]


def partitions() -> list[str]:
    """Every partition of the directories that Kafka left in order."""
    return [f"{name}/{path.stem}" for name in DIRECTORIES for path in sorted((FIXTURES / "dumps" / name).iterdir())]


def consumed_partitions() -> list[str]:
    """Those that the consumer read: all but Kafka's own."""
    return [name for name in partitions() if "/__" not in name]


def read_seen(name: str) -> Seen:
    """What the consumer saw of a partition, by its name in seen/."""
    told = json.loads((FIXTURES / "seen" / f"{name}.json").read_text())
    records = [
        SeenRecord(
            offset=record["offset"],
            timestamp=record["timestamp"],
            timestamp_type=record.get("timestamp_type", "CreateTime"),
            key=unpacked(record["key"]),
            value=unpacked(record["value"]),
            headers=tuple((name, unpacked(value)) for name, value in record["headers"]),
        )
        for record in told["records"]
    ]
    return Seen(
        topic=told["topic"],
        partition=told["partition"],
        log_start_offset=told["log_start_offset"],
        end_offset=told["end_offset"],
        records=records,
    )


def unpacked(text: str | None) -> bytes | None:
    """Base64 to bytes; null stays null."""
    return None if text is None else base64.b64decode(text)
