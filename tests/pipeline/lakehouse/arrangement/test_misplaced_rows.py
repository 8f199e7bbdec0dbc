"""Rows that another program has moved to the partition of another time: queries that name the partition miss them."""

from pathlib import Path

import deltalake
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.arrangement.arranged import arranged_in
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, upserted
from warmlog.pipeline.jobs.table_audit import AuditState
from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of

OTHERS = {
    "year": "1999",
    "month": "'1999-12'",
    "day": "cast('1999-12-31' as date)",
    "hour": "'1999-12-31-23'",
}


@pytest.mark.parametrize("transform", OTHERS)
@pytest.mark.parametrize("value", ["other", "null"])
def test_an_audit_finds_rows_in_another_partition(
    writer: DirectoryWriter, tmp_path: Path, transform: str, value: str
) -> None:
    copied(arranged_in(tmp_path, "delta", f"{transform}(timestamp)"), options_of(writer))
    state = AuditState(table=open_in(tmp_path, "delta").name)
    assert audited(tmp_path, "delta", options_of(writer), state).findings == []
    deltalake.DeltaTable(str(tmp_path / "delta")).update(
        predicate="partition = 0 and offset between 7 and 9",
        updates={f"timestamp_{transform}": OTHERS[transform] if value == "other" else "null"},
    )
    for each in (None, state, state):
        (finding,) = audited(tmp_path, "delta", options_of(writer), each).findings
        assert finding.what == f"offsets 7 to 9 are in the partition of another value of {transform}(timestamp)"
        assert finding.partition == 0


def test_an_audit_of_upserts_finds_rows_in_another_partition(tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"b", b"2"))
    upserted(open_in(tmp_path, "delta", wanted=wanted_of(["day(timestamp)"], [])), writer)
    assert audit(tmp_path, "delta", writer).findings == []
    deltalake.DeltaTable(str(tmp_path / "delta")).update(
        predicate="offset = 1", updates={"timestamp_day": OTHERS["day"]}
    )
    (finding,) = audit(tmp_path, "delta", writer).findings
    assert "not as in the log" in finding.what
