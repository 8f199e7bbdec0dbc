"""Tables in directories that contain one another: new ones are refused, and maintenance leaves what is not its own."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import (
    KINDS,
    Kind,
    arguments_of,
    catalog_of,
    copied,
    offsets_in,
    open_in,
    options_of,
)
from tests.pipeline.lakehouse.test_exactly_once import BOTH, iceberg_table
from tests.pipeline.lakehouse.test_maintenance import age, maintained
from warmlog.cli.root import root
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.source.options import COLUMNS


def location_of(directory: Path, kind: Kind) -> Path:
    """The directory of a table that `open_in` opens."""
    if kind == "delta":
        return directory / "delta"
    return Path(iceberg_table(directory).location().removeprefix("file://"))


@pytest.mark.parametrize("below", ["sub", "hour=3/deep", "_delta_log", "data", "metadata"])
def test_a_new_table_inside_a_table_is_refused(writer: DirectoryWriter, kind: Kind, tmp_path: Path, below: str) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    inside = location_of(tmp_path, kind) / below
    is_made = inside.exists()
    with pytest.raises(PipelineError, match="would be inside the table in"):
        open_table(str(inside), COLUMNS).create()
    assert (inside.exists(), (inside / "_delta_log").exists()) == (is_made, False)
    where = {"catalog": f"sqlite:///{tmp_path}/other.db", "warehouse": f"file://{inside}"}
    with pytest.raises(PipelineError, match=r"db.inner in file://\S* would be inside the table in"):
        open_table("db.inner", COLUMNS, **where).create()
    assert not open_table("db.inner", COLUMNS, **where).exists()
    assert not list(inside.rglob("*inner*"))


def test_a_new_table_around_a_table_is_refused(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    with pytest.raises(PipelineError, match=f"would contain the table in {location_of(tmp_path, kind)}"):
        open_table(str(tmp_path), COLUMNS).create()
    assert not (tmp_path / "_delta_log").exists()


def test_a_table_of_the_other_format_in_the_same_directory_is_refused(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    own = location_of(tmp_path, kind)
    if kind == "iceberg":
        with pytest.raises(PipelineError, match="there is an Iceberg table"):
            open_table(str(own), COLUMNS).create()
        return
    where = catalog_of(tmp_path)
    (tmp_path / "warehouse" / "db").mkdir(parents=True)
    own.rename(tmp_path / "warehouse" / "db" / "orders")
    with pytest.raises(PipelineError, match="there is a Delta table"):
        open_table("db.orders", COLUMNS, **where).create()


def test_a_link_into_a_table_is_no_way_around(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path, "delta"), options_of(writer))
    (tmp_path / "link").symlink_to(tmp_path / "delta")
    with pytest.raises(PipelineError, match="would be inside the table in"):
        open_table(str(tmp_path / "link" / "sub"), COLUMNS).create()


def test_a_table_is_made_anew_where_an_iceberg_table_was_dropped(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    open_in(tmp_path, "iceberg")._catalog.drop_table("db.orders")  # type: ignore[union-attr]
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    assert offsets_in(tmp_path, "iceberg") == BOTH


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("below", ["sub/deep", "hour=3"])
def test_maintenance_leaves_the_files_of_a_table_inside(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, inner: Kind, below: str
) -> None:
    """Tables that were made so by earlier versions, or moved there."""
    copied(open_in(tmp_path / "outer", kind), options_of(writer))
    copied(open_in(tmp_path / "inner", inner), options_of(writer))
    inside = location_of(tmp_path / "outer", kind) / ("data" if kind == "iceberg" else "") / below
    inside.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(location_of(tmp_path / "inner", inner), inside)
    stray = inside.parent / "warmlog-0.parquet"
    stray.write_bytes(b"of a job that was killed")
    notes = [inside.parent / "notes.txt", inside.parent / "notes.json"]
    for path in notes:
        path.write_text("not of a table")
    age(tmp_path / "outer")
    before = {path: path.read_bytes() for path in inside.rglob("*") if path.is_file()}
    done = maintained(tmp_path / "outer", kind)
    assert (done.deleted_files, stray.exists(), [path.exists() for path in notes]) == (1, False, [True, True])
    assert {path: path.read_bytes() for path in inside.rglob("*") if path.is_file()} == before
    assert offsets_in(tmp_path / "outer", kind) == BOTH


def test_maintenance_leaves_an_iceberg_table_in_the_same_directory(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path / "outer", "delta"), options_of(writer))
    copied(open_in(tmp_path / "inner", "iceberg"), options_of(writer))
    own = tmp_path / "outer" / "delta"
    shutil.copytree(location_of(tmp_path / "inner", "iceberg"), own, dirs_exist_ok=True)
    before = {path for name in ("data", "metadata") for path in (own / name).rglob("*") if path.is_file()}
    age(tmp_path / "outer")
    assert maintained(tmp_path / "outer", "delta").deleted_files == 0
    assert len(before) > 2
    assert all(path.exists() for path in before)


def test_a_dry_run_names_what_would_be_deleted(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    folder = location_of(tmp_path, kind) / ("data" if kind == "iceberg" else "")
    (folder / "warmlog-0.parquet").write_bytes(b"of a job that was killed")
    age(tmp_path)
    command = ["pipeline", "table", "maintain", *arguments_of(tmp_path, kind), "--dry-run"]
    said = CliRunner().invoke(root, command)
    assert said.exit_code == 0, said.output
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("would delete ")]
    assert line.endswith("warmlog-0.parquet")
    form = json.loads(CliRunner().invoke(root, [*command, "--json"]).stdout)
    assert [f"would delete {path}" for path in form["unneeded"]] == [line]
    assert (folder / "warmlog-0.parquet").exists()


def test_files_of_other_writers_are_deleted(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    folder = location_of(tmp_path, kind) / ("data" if kind == "iceberg" else "")
    names = {
        "delta": ["part-00000-8d1c-c000.zstd.parquet", "hour=3/part-0.snappy.parquet", "deletion_vector_8d1c.bin"],
        "iceberg": ["00000-0-8d1c.parquet", "hour=3/00000-0-8d1c.orc", "00000-0-8d1c.avro", "8d1c-deletes.puffin"],
    }
    strays = [folder / name for name in names[kind]]
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"of another program that was killed")
    age(tmp_path)
    assert maintained(tmp_path, kind).deleted_files == len(strays)
    assert not any(path.exists() for path in strays)
    assert offsets_in(tmp_path, kind) == BOTH
