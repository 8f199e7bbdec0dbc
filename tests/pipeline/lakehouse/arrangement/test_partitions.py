"""Partitioned tables: each file has the rows of one partition, and the table says which."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.arrangement.arranged import arranged_in, listed, read
from tests.pipeline.lakehouse.tables import Kind, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, total

DAY_MS = 86_400_000
BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]


@pytest.fixture
def days(writer: DirectoryWriter) -> DirectoryWriter:
    """Rows of three more times, the last of them around midnight."""
    writer.segment([b"z"] * 5, first_ms=NOW_MS + DAY_MS)
    writer.segment([b"z"] * 5, first_ms=NOW_MS + 40 * DAY_MS)
    writer.segment([b"z"] * 5, first_ms=DAY_MS - 2)
    return writer


def moment(number: int, unit: str) -> Any:
    import numpy as np

    return np.datetime64(number, "ms").astype(f"datetime64[{unit}]")


DELTA = {
    "year": lambda ms: datetime.fromtimestamp(ms / 1000, UTC).year,
    "month": lambda ms: f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m}",
    "day": lambda ms: datetime.fromtimestamp(ms / 1000, UTC).date(),
    "hour": lambda ms: f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d-%H}",
}


@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
def test_files_have_rows_of_one_time(days: DirectoryWriter, kind: Kind, tmp_path: Path, transform: str) -> None:
    table = arranged_in(tmp_path, kind, f"{transform}(timestamp)")
    copied(table, options_of(days))
    units = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
    for file in listed(tmp_path, kind):
        for time in file.values("timestamp"):
            ms = round(time.timestamp() * 1000)
            value: Any = DELTA[transform](ms) if kind == "delta" else int(moment(ms, units[transform]).astype(int))
            assert file.partition == {f"timestamp_{transform}": value}
    times = {"year": 2, "month": 3, "day": 5, "hour": 5}
    assert len({str(file.partition) for file in listed(tmp_path, kind)}) == times[transform]
    assert read(tmp_path, kind).num_rows == 105
    audit = audited(tmp_path, kind, options_of(days))
    assert (total(audit).in_log, audit.findings) == (105, [])


@pytest.mark.parametrize("terms", ["partition", "topic,partition", "partition, day(timestamp)"])
def test_columns_are_partitions(days: DirectoryWriter, kind: Kind, tmp_path: Path, terms: str) -> None:
    copied(arranged_in(tmp_path, kind, terms), options_of(days, maxOffsetsPerTrigger=20))
    copied(open_in(tmp_path, kind), options_of(days))
    for file in listed(tmp_path, kind):
        assert set(file.values("partition")) == {file.partition["partition"]}
    expected = [*((0, offset) for offset in range(75)), *((1, offset) for offset in range(30))]
    assert offsets_in(tmp_path, kind) == expected
    rows = read(tmp_path, kind)
    assert sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == expected
    audit = audited(tmp_path, kind, options_of(days))
    assert (total(audit).in_log, audit.findings) == (105, [])


@pytest.mark.parametrize("term", ["bucket(4, key)", "truncate(1, key)", "bucket(3, offset)", "truncate(25, offset)"])
def test_iceberg_has_hashes_and_prefixes(writer: DirectoryWriter, tmp_path: Path, term: str) -> None:
    copied(arranged_in(tmp_path, "iceberg", term), options_of(writer, maxOffsetsPerTrigger=40))
    files = listed(tmp_path, "iceberg")
    (name,) = files[0].partition
    of_value: dict[Any, set[Any]] = {}
    column = "key" if "key" in term else "offset"
    for file in files:
        for value in file.values(column):
            of_value.setdefault(value, set()).add(file.partition[name])
    assert all(len(partitions) == 1 for partitions in of_value.values())
    assert {len(file.partition) for file in files} == {1}
    assert offsets_in(tmp_path, "iceberg") == BOTH
    wanted = b"k3" if column == "key" else 30
    rows = read(tmp_path, "iceberg", f"{column} = '{'k3' if column == 'key' else 30}'" if column == "offset" else None)
    assert wanted in rows[column].to_pylist()
    audit = audited(tmp_path, "iceberg", options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])


def test_queries_read_only_the_files_of_their_partition(days: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(arranged_in(tmp_path, kind, "day(timestamp)"), options_of(days))
    day = datetime.fromtimestamp((NOW_MS + DAY_MS) / 1000, UTC).date()
    if kind == "delta":
        rows = read(tmp_path, kind, [("timestamp_day", "=", day)])
    else:
        table = open_in(tmp_path, "iceberg", ()).handle
        scan = table.scan(row_filter=f"timestamp >= '{day}T00:00:00+00:00' and timestamp < '{day}T23:59:59+00:00'")
        assert len(list(scan.plan_files())) == 1
        rows = scan.to_arrow()
    assert rows["offset"].to_pylist() == list(range(60, 65))


def test_a_row_without_a_value_is_in_the_partition_of_nulls(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    """A column of another program, of which the topic has nothing."""
    import pyarrow as pa

    from tests.pipeline.lakehouse.arrangement.arranged import create
    from warmlog.pipeline.source.arrow import arrow_schema

    schema = arrow_schema(tuple(open_in(tmp_path / "other", kind).schema().names)).append(
        pa.field("region", pa.string())
    )
    create(tmp_path, kind, schema, ["region"])
    copied(open_in(tmp_path, kind), options_of(writer))
    assert [file.partition for file in listed(tmp_path, kind)] == [{"region": None}]
    assert read(tmp_path, kind)["region"].null_count == 90
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])
