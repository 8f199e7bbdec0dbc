"""The jobs, without Spark but for one: counting by headers, archiving each record once."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyarrow import parquet

from protocol.records.layout import Codec
from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from warmlog.cli import pipeline as commands
from warmlog.pipeline.archive import Archive, ArchiveRules, Commit, hidden
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.jobs import archive_new, count_records, in_this_process
from warmlog.pipeline.options import ReadOptions, read_options
from warmlog.pipeline.planning import Split

WritePartition = Callable[..., DirectoryWriter]
HOUR_MS = 3_600_000


def asked(writer: DirectoryWriter, **options: Any) -> ReadOptions:
    given = {"path": str(writer.directory.parent), "topic": "orders", **options}
    return read_options({name: str(value) for name, value in given.items()})


def archived(archive: Archive, options: ReadOptions, run: Any = in_this_process, **rules: Any) -> Commit | None:
    made = ArchiveRules(directory=str(archive.directory), columns=options.columns, **rules)
    with archive.locked():
        return archive_new(run, options, archive, made)


def offsets_in(directory: Path) -> list[int]:
    """The offsets in the files that engines would read."""
    found: list[int] = []
    for path in directory.rglob("[!.]*.parquet"):
        found += parquet.ParquetFile(path).read(columns=["offset"]).column("offset").to_pylist()
    return sorted(found)


def test_records_are_counted_by_headers_and_opened_at_the_edges(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"x"] * 10 for _ in range(10)], compression=Codec.LZ4)
    writer.segment(*[[b"x"] * 10 for _ in range(10)])
    options = asked(writer, startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":192}}', minPartitions=4)
    (found,) = count_records(in_this_process, options)
    assert (found.records, found.batches, found.first_offset, found.end_offset) == (187, 20, 5, 192)
    (nothing,) = count_records(in_this_process, asked(writer, startingOffsets="latest"))
    assert (nothing.records, nothing.end_offset) == (0, None)


def test_each_run_archives_what_is_new(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10, [b"b"] * 10)
    archive = Archive(tmp_path / "lake")
    first = archived(archive, asked(writer))
    assert first is not None
    assert (first.rows, first.offsets, len(first.files)) == (20, {"orders": {"0": 20}}, 1)
    assert archived(archive, asked(writer)) is None
    writer.segment([b"c"] * 5)
    write_partition(partition=1).segment([b"d"] * 3)
    second = archived(archive, asked(writer))
    assert second is not None
    assert (second.number, second.rows, second.offsets) == (2, 8, {"orders": {"0": 25, "1": 3}})
    assert offsets_in(archive.directory) == sorted([*range(25), 0, 1, 2])


def test_directories_by_hour(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    begin = NOW_MS // HOUR_MS * HOUR_MS
    writer.segment([b"a"] * 10, first_ms=begin + HOUR_MS - 5)
    writer.segment([b"b"] * 4, first_ms=-1)
    commit = archived(Archive(tmp_path / "lake"), asked(writer), partition_by="hour")
    assert commit is not None
    rows = {
        name.partition("/")[0]: parquet.ParquetFile(tmp_path / "lake" / name).metadata.num_rows for name in commit.files
    }
    assert rows == {
        "hour=2023-11-14T22": 5,
        "hour=2023-11-14T23": 5,
        "hour=1969-12-31T23": 1,
        "hour=1970-01-01T00": 3,
    }


@pytest.mark.parametrize("moment", ["before the commit", "after it", "half shown"])
def test_a_run_that_is_killed_neither_loses_nor_doubles(
    write_partition: WritePartition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10, [b"b"] * 10, [b"c"] * 10)
    archive = Archive(tmp_path / "lake")
    killed = ArchiveRules(directory=str(archive.directory), columns=asked(writer).columns)

    class KilledError(Exception):
        pass

    class KilledArchive(Archive):
        def commit(self, commit: Commit) -> None:
            if moment == "before the commit":
                raise KilledError
            super().commit(commit)

        def _show(self, files: Any) -> None:
            if self is dying:
                super()._show(list(files)[: 1 if moment == "half shown" else 0])
                raise KilledError
            super()._show(files)

    dying = KilledArchive(archive.directory)
    with pytest.raises(KilledError), dying.locked():
        archive_new(in_this_process, asked(writer, maxSplitBytes=100), dying, killed)
    assert bool(offsets_in(archive.directory)) == (moment == "half shown")
    assert len(offsets_in(archive.directory)) < 30
    again = archived(archive, asked(writer))
    assert (again is None) == (moment != "before the commit")
    assert offsets_in(archive.directory) == list(range(30))
    assert not list(archive.directory.rglob(".*.parquet"))


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    with Archive(tmp_path).locked(), pytest.raises(PipelineError, match="another job"), Archive(tmp_path).locked():
        pass


def test_records_that_went_between_two_runs(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10)
    archive = Archive(tmp_path / "lake")
    archived(archive, asked(writer))
    gone = writer.segment([b"b"] * 10)
    writer.segment([b"c"] * 10)
    for log in (gone, writer.directory / f"{0:020d}.log"):
        os.unlink(log)
    with pytest.raises(DataLossError, match="offset 10 is gone: it begins at 20"):
        archived(archive, asked(writer))
    commit = archived(archive, asked(writer, failOnDataLoss="false"))
    assert commit is not None
    assert (commit.rows, commit.lost_offsets) == (10, 10)


def test_damage_that_was_left_out_stands_in_the_commit(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    log = writer.segment([b"a"] * 10, [b"b"] * 10)
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    commit = archived(Archive(tmp_path / "lake"), asked(writer, onCorrupt="skip"))
    assert commit is not None
    assert commit.rows == 10
    assert [f"{log}: damaged batch at position 0" in one for one in commit.damaged] == [True]
    stored = Archive(tmp_path / "lake").last_commit()
    assert stored == commit


def test_a_file_that_is_no_commit_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "_warmlog").mkdir()
    (tmp_path / "_warmlog" / f"{1:020d}.json").write_text("{}")
    with pytest.raises(PipelineError, match="is no commit of an archive"):
        Archive(tmp_path).last_commit()


def test_hidden_names_are_hidden() -> None:
    assert hidden("hour=1/a.parquet") == "hour=1/.a.parquet"
    assert hidden("a.parquet") == ".a.parquet"


@pytest.fixture
def command(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A command as typed, on the Spark that is there."""
    from contextlib import contextmanager

    from warmlog.pipeline import session

    @contextmanager
    def the_one(job: str, master: str | None = None) -> Any:
        yield spark

    monkeypatch.setattr(session, "spark_session", the_one)

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
    assert told.stdout.startswith("200 records in 3 files"), told.output
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
    assert in_this_process(splits, lambda split: split.partition) == [0, 1, 2]
