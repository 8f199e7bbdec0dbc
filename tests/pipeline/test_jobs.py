"""The jobs, without Spark but for one: counting by headers, archiving each record once."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from protocol.records.layout import Codec
from tests.pipeline.conftest import DirectoryWriter
from warmlog.cli import pipeline as commands
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.count import count_records
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.planning import Split

WritePartition = Callable[..., DirectoryWriter]


def asked(writer: DirectoryWriter, **options: Any) -> ReadOptions:
    given = {"path": str(writer.directory.parent), "topic": "orders", **options}
    return read_options({name: str(value) for name, value in given.items()})


def test_records_are_counted_by_headers_and_opened_at_the_edges(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"x"] * 10 for _ in range(10)], compression=Codec.LZ4)
    writer.segment(*[[b"x"] * 10 for _ in range(10)])
    options = asked(writer, startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":192}}', minPartitions=4)
    reporter = Reporter("count")
    (found,) = count_records(LocalRunner(), options, reporter)
    assert (found.records, found.batches, found.first_offset, found.end_offset) == (187, 20, 5, 192)
    assert (reporter.report().stats.rows, reporter.report().stats.batches) == (187, 20)
    (nothing,) = count_records(LocalRunner(), asked(writer, startingOffsets="latest"), reporter)
    assert (nothing.records, nothing.end_offset) == (0, None)


@pytest.fixture
def command(on_this_spark: None) -> Callable[..., Any]:
    """A command as typed, on the Spark that is there."""

    def run(name: str, *arguments: str) -> Any:
        return CliRunner().invoke(getattr(commands, name), arguments)

    return run


def test_the_commands_run_on_spark(
    spark: Any, command: Callable[..., Any], write_partition: WritePartition, tmp_path: Path
) -> None:
    writer = write_partition()
    log = writer.segment(*[[b"x" * 50] * 10 for _ in range(20)])
    common = ("--path", str(writer.directory.parent), "--topic", "orders", "-o", "minPartitions=3")
    counted = command("count", *common, "--json")
    assert json.loads(counted.stdout)["records"] == 200
    told = command("archive", *common, "--to", str(tmp_path / "lake"), "--partition-by", "day")
    assert told.stdout.startswith("batch 1: 200 records in 3 files"), told.output
    frame = spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(200))
    assert "nothing new" in command("archive", *common, "--to", str(tmp_path / "lake"), "--partition-by", "day").stdout
    damaged = bytearray(log.read_bytes())
    damaged[70] ^= 1
    log.write_bytes(damaged)
    failed = command("archive", *common, "--to", str(tmp_path / "other"))
    assert failed.exit_code == 1
    assert f"Error: {log}: damaged batch at position 0: the CRC" in failed.stderr
    assert "Error: option minPartitions" in command("count", *common, "-o", "minPartitions=none").stderr


def test_splits_are_run_in_this_process_in_order() -> None:
    splits: Sequence[Split] = [Split(topic="t", partition=at, directory="", pieces=()) for at in range(3)]
    assert LocalRunner()(splits, lambda split: split.partition) == [0, 1, 2]
