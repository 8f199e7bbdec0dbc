"""The archive, without Spark: each record once, whatever happens, and a directory that always holds whole batches."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from warmlog.client.blocking import Client
from warmlog.pipeline.archive.files import EPOCH, _period
from warmlog.pipeline.archive.job import ArchiveJob, ArchiveSettings, run_every
from warmlog.pipeline.archive.store import COMMIT, ArchiveStore, Commit, StagedFile
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]
HOUR_MS = 3_600_000


def asked(writer: DirectoryWriter, **options: Any) -> ReadOptions:
    given = {"path": str(writer.directory.parent), "topic": "orders", **options}
    return read_options({name: str(value) for name, value in given.items()})


def archived(lake: ArchiveStore, options: ReadOptions, run: Any = None, **how: Any) -> list[Commit]:
    with lake.locked():
        return list(ArchiveJob(options, lake, ArchiveSettings(**how)).run_once(run or LocalRunner()))


def rows_in(directory: Path, column: str = "offset") -> list[Any]:
    """A column of the files that engines would read."""
    found: list[Any] = []
    for path in directory.rglob("*.parquet"):
        if not any(part.startswith((".", "_")) for part in path.relative_to(directory).parts):
            found += parquet.ParquetFile(path).read(columns=[column]).column(column).to_pylist()
    return sorted(found)


def ends(commit: Commit) -> dict[tuple[str, int], int]:
    return {key: at.offset for key, at in commit.positions().items()}


def test_each_run_archives_what_is_new(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10, [b"b"] * 10)
    lake = ArchiveStore(tmp_path / "lake")
    (first,) = archived(lake, asked(writer))
    assert (first.number, first.rows, first.spans, len(first.files)) == (1, 20, {"orders": {"0": (0, 20)}}, 1)
    assert archived(lake, asked(writer)) == []
    writer.segment([b"c"] * 5)
    write_partition(partition=1).segment([b"d"] * 3)
    (second,) = archived(lake, asked(writer))
    assert (second.number, second.rows, ends(second)) == (2, 8, {("orders", 0): 25, ("orders", 1): 3})
    assert rows_in(lake.directory) == sorted([*range(25), 0, 1, 2])
    assert list(lake.commits()) == [first, second]


def test_a_batch_takes_no_more_than_it_may(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment(*[[b"x"] * 10 for _ in range(10)])
    commits = archived(ArchiveStore(tmp_path / "lake"), asked(writer, maxOffsetsPerTrigger=35))
    assert [commit.rows for commit in commits] == [35, 35, 30]
    assert rows_in(tmp_path / "lake") == list(range(100))


def test_directories_by_hour(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    begin = NOW_MS // HOUR_MS * HOUR_MS
    writer.segment([b"a"] * 10, first_ms=begin + HOUR_MS - 5)
    writer.segment([b"b"] * 4, first_ms=-1)
    lake = ArchiveStore(tmp_path / "lake")
    (commit,) = archived(lake, asked(writer), partition_by="hour")
    place = lake.batch_directory(1)
    rows = {name.partition("/")[0]: parquet.ParquetFile(place / name).metadata.num_rows for name in commit.files}
    assert rows == {
        "hour=2023-11-14T22": 5,
        "hour=2023-11-14T23": 5,
        "hour=1969-12-31T23": 1,
        "hour=1970-01-01T00": 3,
    }
    assert _period(10**12, "day") == "unknown"
    assert EPOCH.year == 1970


class KilledError(BaseException):
    """Nothing after it is done, as after kill -9."""


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_killed_at_any_system_call_it_neither_loses_nor_doubles(
    tmp_path_factory: pytest.TempPathFactory, moments: Sequence[int]
) -> None:
    """Each run dies at its nth call of the file system; after each, whole batches are there and nothing else."""
    directory = tmp_path_factory.mktemp("killed")
    writer = DirectoryWriter(directory / "data")
    writer.segment(*[[b"x"] * 10 for _ in range(6)])
    options = asked(writer, maxOffsetsPerTrigger=25, maxSplitBytes=200)
    for moment in moments:
        with pytest.MonkeyPatch.context() as patch:
            calls = iter(range(moment))
            for name in ("rename", "fsync", "mkdir", "rmdir", "unlink"):
                patch.setattr(os, name, dying(getattr(os, name), calls))
            with suppress(KilledError):
                archived(ArchiveStore(directory / "lake"), options)
        offsets = rows_in(directory / "lake")
        assert offsets == list(range(len(offsets)))
        assert len(offsets) in {0, 25, 50, 60}
    archived(ArchiveStore(directory / "lake"), options)
    assert rows_in(directory / "lake") == list(range(60))


def dying(real: Callable[..., Any], calls: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **names: Any) -> Any:
        if next(calls, None) is None:
            raise KilledError
        return real(*arguments, **names)

    return call


def test_a_batch_has_a_number_of_its_own(tmp_path: Path) -> None:
    lake, other = ArchiveStore(tmp_path), ArchiveStore(tmp_path)
    commit = Commit(number=1, spans={}, partition_by="none", columns=())
    with lake.locked():
        with pytest.raises(PipelineError, match="another job is writing to it"), other.locked():
            pass
        lake.commit(commit, [])
        with pytest.raises(PipelineError, match="another job has written batch 1"):
            lake.commit(commit, [])


def test_what_a_task_leaves_behind_is_nobodys(tmp_path: Path) -> None:
    lake = ArchiveStore(tmp_path)
    with lake.locked():
        (lake.run_directory / "orphan.parquet").write_bytes(b"half a file")
        (lake.run_directory / "mine.parquet").write_bytes(b"")
        commit = Commit(number=1, spans={}, partition_by="none", columns=(), files=("hour=1/mine.parquet",))
        lake.commit(commit, [StagedFile(staged="mine.parquet", name="hour=1/mine.parquet")])
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == ["mine.parquet"]
    assert lake.last_commit() == commit


def test_records_that_went_between_two_runs(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10)
    lake = ArchiveStore(tmp_path / "lake")
    archived(lake, asked(writer))
    gone = writer.segment([b"b"] * 10)
    writer.segment([b"c"] * 10)
    for log in (gone, writer.directory / f"{0:020d}.log"):
        os.unlink(log)
    with pytest.raises(DataLossError, match="offsets 10 to 19 were deleted before they were read"):
        archived(lake, asked(writer))
    (commit,) = archived(lake, asked(writer, failOnDataLoss="false"))
    assert (commit.rows, commit.lost_offsets, commit.spans["orders"]["0"]) == (10, 10, (20, 30))


def damage(log: Path, position: int = 70) -> None:
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)


def test_damage_that_was_left_out_stands_in_the_commit(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    log = writer.segment([b"a"] * 10, [b"b"] * 10)
    damage(log)
    with pytest.raises(PipelineError, match=f"{log}: damaged batch at position 0"):
        archived(ArchiveStore(tmp_path / "lake"), asked(writer))
    assert rows_in(tmp_path / "lake") == []
    (commit,) = archived(ArchiveStore(tmp_path / "lake"), asked(writer, onCorrupt="skip"))
    assert commit.rows == 10
    assert [f"{log}: damaged batch at position 0" in one for one in commit.damaged] == [True]
    assert ArchiveStore(tmp_path / "lake").last_commit() == commit


def test_a_run_that_stopped_before_damage_goes_on_there(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    log = writer.segment([b"a"] * 10, [b"b"] * 10, [b"c"] * 10)
    write_partition(partition=1).segment([b"d"] * 5)
    sound = log.read_bytes()
    damage(log, len(sound) // 3 + 70)
    lake = ArchiveStore(tmp_path / "lake")
    with lake.locked():
        job = ArchiveJob(asked(writer, onCorrupt="stop"), lake, ArchiveSettings())
        (commit,) = job.run_once(LocalRunner())
    assert job.is_stopped
    assert ends(commit) == {("orders", 0): 10, ("orders", 1): 5}
    log.write_bytes(sound)
    (rest,) = archived(lake, asked(writer, onCorrupt="stop"))
    assert (rest.rows, ends(rest)) == (20, {("orders", 0): 30, ("orders", 1): 5})


def test_an_archive_goes_on_as_it_was_begun(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"])
    lake = ArchiveStore(tmp_path / "lake")
    archived(lake, asked(writer), partition_by="day")
    with pytest.raises(PipelineError, match="is partitioned by day, and cannot be continued with none"):
        archived(lake, asked(writer))
    with pytest.raises(PipelineError, match=r"is written with the columns key,.* and cannot be continued with offset"):
        archived(lake, asked(writer, columns="offset"), partition_by="day")


def test_an_end_before_what_is_archived_takes_nothing_back(write_partition: WritePartition, tmp_path: Path) -> None:
    first = write_partition()
    first.segment([b"a"] * 10)
    lake = ArchiveStore(tmp_path / "lake")
    archived(lake, asked(first))
    write_partition(partition=1).segment([b"b"] * 10)
    (commit,) = archived(lake, asked(first, endingOffsets='{"orders":{"0":4,"1":6}}'))
    assert (commit.rows, ends(commit)) == (6, {("orders", 0): 10, ("orders", 1): 6})
    (rest,) = archived(lake, asked(first))
    assert (rest.rows, ends(rest)) == (4, {("orders", 0): 10, ("orders", 1): 10})


@pytest.mark.parametrize("text", ["{}", "[", '{"spans": 7}'])
def test_a_file_that_is_no_commit_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "batch=00000001").mkdir()
    (tmp_path / "batch=00000001" / COMMIT).write_text(text)
    with pytest.raises(PipelineError, match="is not a commit of an archive"):
        ArchiveStore(tmp_path).last_commit()


def test_for_ever_it_takes_what_comes(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 3)
    lake = ArchiveStore(tmp_path / "lake")
    with lake.locked():
        job = ArchiveJob(asked(writer, startingOffsets="latest"), lake, ArchiveSettings())
        commits = run_every(job, LocalRunner(), lambda: writer.segment([b"b"] * 2))
        assert [next(commits).spans["orders"]["0"] for _ in range(2)] == [(3, 5), (5, 7)]
        commits.close()
    assert rows_in(lake.directory) == [3, 4, 5, 6]


def test_a_broker_that_is_away_is_waited_for_and_the_group_told_how_far_it_is(tmp_path: Path) -> None:
    lake = ArchiveStore(tmp_path / "lake")
    with Broker(data_dir=tmp_path / "data") as broker, lake.locked():

        def produce(count: int) -> None:
            with Client(broker.native) as client:
                client.produce_many("orders", [b"a"] * count, partition=0)

        with Client(broker.native) as client:
            client.create_topic("orders", partitions=2)
        produce(10)
        turns = iter([broker.restart, broker.stop, broker.start, lambda: produce(5)])

        def turn() -> None:
            next(turns)()

        given = {"bootstrap": broker.native, "topic": "orders", "group": "lake"}
        job = ArchiveJob(read_options(given), lake, ArchiveSettings())
        commits = run_every(job, LocalRunner(), turn)
        assert [next(commits).rows for _ in range(2)] == [10, 5]
        assert next(turns, None) is None
        while job._group.is_behind:  # the coordinator may still be loading
            assert job.step(LocalRunner()) is None
        with Client(broker.native) as client:
            (group,) = client.describe_groups("lake")
            assert {(one.partition, one.offset, one.lag) for one in group.positions} == {(0, 15, 0), (1, 0, 0)}
        commits.close()
    assert rows_in(lake.directory) == list(range(15))


def test_a_commit_is_json_that_people_can_read(write_partition: WritePartition, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 2)
    archived(ArchiveStore(tmp_path / "lake"), asked(writer))
    told = json.loads((tmp_path / "lake" / "batch=00000001" / COMMIT).read_text())
    assert (told["number"], told["rows"], told["spans"]) == (1, 2, {"orders": {"0": [0, 2]}})


class Cores(LocalRunner):
    """As if there were many."""

    parallelism = 16


def test_few_records_make_few_files(tmp_path: Path) -> None:
    with Broker() as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=3)
        for partition in range(3):
            client.produce_many("orders", [b"x"] * 40, partition=partition)
        options = read_options({"bootstrap": broker.native, "topic": "orders"})
        (commit,) = archived(ArchiveStore(tmp_path), options, Cores())
        assert (commit.rows, len(commit.files)) == (120, 3)
