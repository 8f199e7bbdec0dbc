"""Errors that name what is wrong with a command, before anything is written."""

import os
from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, catalog_of, copied, files_of, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, file_with
from tests.pipeline.lakehouse.test_maintenance import maintained
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.source.options import COLUMNS


def test_a_directory_that_deltalake_would_read_as_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"p%20q: deltalake cannot open directories with %"):
        open_table(str(tmp_path / "p%20q"), COLUMNS)
    assert not list(tmp_path.iterdir())
    open_table(str(tmp_path / "50%"), COLUMNS).create()


def test_a_new_iceberg_table_needs_a_warehouse(tmp_path: Path) -> None:
    table = open_table("db.orders", COLUMNS, catalog=catalog_of(tmp_path)["catalog"])
    with pytest.raises(PipelineError, match="give --warehouse URL"):
        table.create()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("s3.regon", r"did you mean s3\.region\?"),
        ("adls.acount-name", "did you mean adls.account-name"),
        ("gcs.x", "see "),
    ],
)
def test_a_property_that_pyiceberg_would_ignore_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(PipelineError, match=f"storage option {name}: pyiceberg has no such property; {hint}"):
        open_table("db.orders", COLUMNS, storage={name: "x"}, **catalog_of(tmp_path))
    open_table("db.orders", COLUMNS, storage={"s3.region": "x", "token": "y"}, **catalog_of(tmp_path))


def test_a_damaged_file_is_named_and_the_others_are_merged(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    before = offsets_in(tmp_path, kind)
    path = file_with(tmp_path, kind, 0, 25)
    file = Path(path.removeprefix("file://"))
    whole = file.read_bytes()
    data = bytearray(whole)
    data[4:200] = os.urandom(196)
    file.write_bytes(bytes(data))
    (left,) = maintained(tmp_path, kind).left_alone.items()
    assert left[0] == path
    assert left[1].endswith("; restore it from a copy; an audit says which rows are missing")
    assert len(files_of(tmp_path, kind)) == 2
    assert audited(tmp_path, kind, options_of(writer)).findings
    file.write_bytes(whole)
    assert offsets_in(tmp_path, kind) == before
    assert audited(tmp_path, kind, options_of(writer)).findings == []
