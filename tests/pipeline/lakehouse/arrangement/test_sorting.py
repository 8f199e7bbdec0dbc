"""Rows sorted by partition and order, with runs on disk."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.ordering import OrderKey, SortedRows, merged, sorted_by
from warmlog.pipeline.lakehouse.arrangement.sorting import RowSorter, SortLimits
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement, PartitionField, SortField, Term
from warmlog.pipeline.lakehouse.writing import FileSequence, LocalFiles, ParquetRules

SCHEMA = pa.schema([("key", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64())])
BY_KEY = Arrangement(sort=(SortField(term=Term("key")),))
BY_PARTITION = Arrangement(partition=(PartitionField(term=Term("partition"), name="partition"),))


def batch(rows: Sequence[tuple[bytes | None, int, int]]) -> Any:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def rows_of(sorter: RowSorter) -> list[tuple[Any, ...]]:
    """Each row, after the values of its partition."""
    return [(*values, *row.values()) for values, part in sorter.finish() for row in part.to_pylist()]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of temporary files."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def open_below(directory: Path) -> int:
    """Files of a directory that are open, those without a name included."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(link.startswith(str(directory)) for link in links)


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.interop), 500, 1 << 20])
def test_rows_are_in_order_whether_they_fit_into_memory(limit: int, temporary: Path) -> None:
    given = [(b"%d" % (at * 7919 % 100) if at % 9 else None, at % 3, at) for at in range(4000)]
    sorter = RowSorter(BY_KEY, SCHEMA, SortLimits(bytes=limit))
    for first in range(0, 4000, 40):  # 100 runs, on two levels
        sorter.add(batch(given[first : first + 40]))
    assert rows_of(sorter) == sorted(given, key=lambda row: (row[0] is not None, row[0] or b"", row[1], row[2]))
    assert open_below(temporary) == 0


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_rows_of_a_partition_follow_each_other(limit: int) -> None:
    given = [(b"k", at % 7, at) for at in range(70)]
    sorter = RowSorter(BY_PARTITION, SCHEMA, SortLimits(bytes=limit))
    for row in given:
        sorter.add(batch([row]))
    assert rows_of(sorter) == [(row[1], *row) for row in sorted(given, key=lambda row: (row[1], row[2]))]


def test_an_abandoned_sort_leaves_no_run(temporary: Path) -> None:
    sorter = RowSorter(BY_KEY, SCHEMA, SortLimits(bytes=1))
    sorter.add(batch([(b"a", 0, 0)]))
    sorter.add(batch([(b"a", 0, 1)]))
    assert open_below(temporary) == 2
    sorter.close()
    assert open_below(temporary) == 0
    assert list(temporary.iterdir()) == []


VALUES = {
    "float": (pa.float64(), [0.5, None, float("nan"), -1.0, None, 7.0]),
    "time": (pa.timestamp("us", "UTC"), [5, None, 1 << 60, -7, None, 5]),
    "text": (pa.string(), ["ä", None, "", "z", None, "aa"]),
    "bool": (pa.bool_(), [True, None, False, True, None, False]),
    "date": (pa.date32(), [5, None, 9_000_000, -7, None, 5]),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_last", [False, True])
def test_merged_tables_are_as_sorted_at_once(name: str, descending: bool, nulls_last: bool) -> None:
    kind, values = VALUES[name]
    array = pa.array(values, pa.int32()).cast(kind) if kind == pa.date32() else pa.array(values, kind)
    table = pa.table({"value": array, "offset": range(len(values))})
    keys = [OrderKey("value", descending=descending, nulls_last=nulls_last), OrderKey("offset")]
    parts = [iter([SortedRows(table.slice(at, 2), keys)]) for at in range(0, len(values), 2)]
    together = pa.concat_tables(merged(parts, keys))
    assert together["offset"].to_pylist() == sorted_by(table, keys)["offset"].to_pylist()
    nulls = together["value"].is_null().to_pylist()
    assert nulls == ([False] * 4 + [True] * 2 if nulls_last else [True] * 2 + [False] * 4)


@pytest.mark.interop  # takes many seconds
def test_a_thousand_partitions_need_no_more_open_files_than_ten(tmp_path: Path, temporary: Path) -> None:
    """Counted when each file is created: those of the table, and those of the sort."""

    class Counting(LocalFiles):
        most = 0

        def create(self, name: str) -> Any:
            stream = super().create(name)
            Counting.most = max(Counting.most, open_below(tmp_path))
            return stream

    most = {}
    for partitions in (10, 1000):
        Counting.most = 0
        store = Counting(str(tmp_path / str(partitions)))
        rules = ParquetRules(store=store, schema=SCHEMA, arrangement=BY_PARTITION, limits=SortLimits(bytes=20_000))
        with FileSequence(rules) as files:
            for first in range(0, 4000, 500):
                files.write(batch([(b"k" * 20, at % partitions, at) for at in range(first, first + 500)]))
            files.finish()
        assert sorted(file.partition[0] for file in files.complete) == list(range(partitions))
        most[partitions] = Counting.most
    assert most[10] == most[1000] > 2


@pytest.mark.interop  # takes many seconds
def test_memory_is_bounded_by_the_limit_whatever_the_partitions(tmp_path: Path) -> None:
    script = """
import resource, sys
import numpy as np, pyarrow as pa
from tests.pipeline.lakehouse.arrangement.test_sorting import BY_PARTITION, SCHEMA
from warmlog.pipeline.lakehouse.arrangement.sorting import SortLimits
from warmlog.pipeline.lakehouse.writing import FileSequence, LocalFiles, ParquetRules
rules = ParquetRules(store=LocalFiles(sys.argv[1]), schema=SCHEMA, arrangement=BY_PARTITION,
                     limits=SortLimits(bytes=4 << 20))
rows = 10_000
def write(files, count):
    for at in range(count):
        keys = pa.array([bytes(100)] * rows)
        partitions = pa.array(np.arange(rows, dtype=np.int32) % 1000)
        offsets = pa.array(np.arange(at * rows, (at + 1) * rows))
        files.write(pa.RecordBatch.from_arrays([keys, partitions, offsets], schema=SCHEMA))
    files.finish()
with FileSequence(rules) as files:
    write(files, 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with FileSequence(rules) as files:
    write(files, 100)
print(len(files.complete), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    files, more_mib = map(int, done.stdout.split())
    assert files == 1000
    assert more_mib < 40, "the rows are 112 MiB"


def test_too_many_partitions_are_an_error_that_leaves_no_file(tmp_path: Path) -> None:
    limits = SortLimits(partitions=3)
    rules = ParquetRules(
        store=LocalFiles(str(tmp_path)), schema=SCHEMA, arrangement=BY_PARTITION, limits=limits, file_bytes=1
    )
    message = r"rows of more than 3 partitions of partition: partition by fewer values, or commit fewer .*--commit-rows"
    with pytest.raises(PipelineError, match=message), FileSequence(rules) as files:
        files.write(batch([(b"k", at, at) for at in range(3)]))
        files.write(batch([(b"k", 3, 3)]))
    assert list(tmp_path.iterdir()) == []
