"""Reading without Spark: the same plan, readers and decoder, in this process. Spark's own part is tested with Spark."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.pipeline.conftest import DirectoryWriter
from warmlog.pipeline.source.arrow import ArrowDecoder, arrow_schema, record_batches
from warmlog.pipeline.source.input import plan_batch
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.reading import ReadRules, SplitReader, checked


class Plan(NamedTuple):
    """Splits, and how they are to be read."""

    options: ReadOptions
    splits: list[Split]

    def read(self) -> list[dict[str, Any]]:
        """The rows of all splits, in order."""
        return [row for split in self.splits for row in read_split(split, self.options)]

    def offsets(self) -> list[int]:
        return [row["offset"] for row in self.read()]

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.read()]


def plan(path: Path, bounds: Bounds | None = None, **given: Any) -> Plan:
    asked = {"topic": "orders", **given, "path": str(path)}
    options = read_options({name: str(value) for name, value in asked.items() if value is not None})
    return Plan(options, plan_batch(options, bounds or Bounds()).splits)


def read_split(split: Split, options: ReadOptions) -> list[dict[str, Any]]:
    decoder = ArrowDecoder(split.topic, split.partition, options.columns)
    rules = ReadRules(on_corrupt=options.on_corrupt, fail_on_data_loss=options.fail_on_data_loss)
    batches = list(record_batches(decoder, SplitReader(split, rules, checked(decoder.add)).run()))
    for batch in batches:
        batch.validate(full=True)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, arrow_schema(options.columns)).to_pylist()
    return rows


def asked(writer: DirectoryWriter, **options: Any) -> ReadOptions:
    given = {"path": str(writer.directory.parent), "topic": "orders", **options}
    return read_options({name: str(value) for name, value in given.items()})


def damage(log: Path, position: int = 70) -> None:
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)
