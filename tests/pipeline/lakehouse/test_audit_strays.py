"""Rows of a topic that belong to none of its offsets."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, total
from tests.pipeline.lakehouse.test_exactly_once import iceberg_table
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, upserted
from warmlog.pipeline.jobs.table_audit import AuditState
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, wanted_of

STRAYS: dict[str, dict[str, Any]] = {
    "no offset": {"offset": None},
    "no partition": {"partition": None},
    "another partition": {"partition": 7},
    "negative partition": {"partition": -1},
    "negative offset": {"offset": -5},
}
OTHERS: dict[str, dict[str, Any]] = {
    "another topic": {"topic": "payments", "partition": 7},
    "no topic": {"topic": None},
}


def append(directory: Path, kind: Kind, *rows: dict[str, Any]) -> None:
    """Append rows as another program does."""
    if kind == "iceberg":
        table = iceberg_table(directory)
        table.append(pa.Table.from_pylist(list(rows), table.schema().as_arrow()))
        return
    import deltalake

    target = deltalake.DeltaTable(str(directory / "delta"))
    deltalake.write_deltalake(target, pa.Table.from_pylist(list(rows), target.to_pyarrow_table().schema), mode="append")


@pytest.mark.parametrize("partition_by", ["", "partition"])
@pytest.mark.parametrize("name", STRAYS)
def test_rows_at_no_offset_are_foreign(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, partition_by: str, name: str
) -> None:
    wanted = wanted_of([partition_by], []) if partition_by else NOTHING_WANTED
    copied(open_in(tmp_path, kind, wanted=wanted), options_of(writer))
    state = AuditState(table=open_in(tmp_path, kind).name)
    assert audited(tmp_path, kind, options_of(writer), state).findings == []
    append(tmp_path, kind, {"topic": "orders", "partition": 0, "offset": 7, "value": b"x"} | STRAYS[name])
    for each in (None, state, state):
        audit = audited(tmp_path, kind, options_of(writer), each)
        (finding,) = audit.findings
        assert finding.what == "rows without an offset, or in a partition that neither the log nor a receipt has (1)"
        assert total(audit).foreign == 1


@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_other_topics_are_not(writer: DirectoryWriter, kind: Kind, tmp_path: Path, name: str) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    append(tmp_path, kind, {"topic": "orders", "partition": None, "offset": None, "value": b"x"} | OTHERS[name])
    assert audited(tmp_path, kind, options_of(writer)).findings == []


def test_rows_of_upserts_in_no_partition_of_the_topic_are_foreign(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    upserted(open_in(tmp_path, kind), writer)
    append(tmp_path, kind, {"topic": "orders", "partition": 7, "offset": 0, "key": b"a", "value": b"1"})
    audit = audited(tmp_path, kind, options_of(writer))
    (finding,) = audit.findings
    assert finding.what == "rows without an offset, or in a partition that neither the log nor a receipt has (1)"
    assert total(audit).foreign == 1


def test_an_audit_of_one_partition_leaves_others_alone(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    options = options_of(writer, topic=None, assign='{"orders": [1]}')
    assert audited(tmp_path, kind, options).findings == []
