"""Tables with one row for each key after maintenance, and after other programs have expired versions."""

from pathlib import Path

import pytest

from tests.pipeline.lakehouse.tables import Kind, copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit_expired import delete, expire_all
from tests.pipeline.lakehouse.test_maintenance import LATER, age, maintained, versions_of
from tests.pipeline.lakehouse.test_metrics import scraped
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.upserted import UPSERT, KeyedWriter, model_in, upserted
from warmlog.pipeline.copying.metrics import served
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.upserts.job import UpsertJob
from warmlog.pipeline.runner import LocalRunner


@pytest.fixture
def written(kind: Kind, tmp_path: Path) -> KeyedWriter:
    """Four commits; each updates half of the keys of the one before, and deletes one."""
    writer = KeyedWriter(tmp_path / "data")
    for number in range(4):
        writer.add(*((b"k%d" % (number * 5 + key), b"%d" % number) for key in range(10)), (b"k%d" % number, None))
        upserted(open_in(tmp_path, kind), writer)
    return writer


def continued(written: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    """Upsert further records, refuse to append, and audit."""
    written.add((b"k1", b"new"), (b"k12", None))
    with pytest.raises(PipelineError, match="copy to it with --upsert"):
        copied(open_in(tmp_path, kind), options_of(written))
    (receipt,) = upserted(open_in(tmp_path, kind), written)
    assert (receipt.upsert["inserted"], receipt.upsert["deleted"]) == (1, 1)
    assert model_in(tmp_path, kind) == written.model
    assert audit(tmp_path, kind, written).findings == []


def test_expired_versions_leave_rows_mode_and_audit(written: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    maintained(tmp_path, kind)
    age(tmp_path)
    assert maintained(tmp_path, kind, after=LATER).versions
    assert versions_of(tmp_path, kind) == 1
    assert model_in(tmp_path, kind) == written.model
    assert audit(tmp_path, kind, written).findings == []
    continued(written, kind, tmp_path)


def test_the_log_alone_proves_rows_whose_receipts_are_gone(written: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    expire_all(tmp_path, kind)
    result = audit(tmp_path, kind, written)
    assert (result.findings, result.partitions[0].proved.in_log) == ([], len(written.model))
    continued(written, kind, tmp_path)


def test_rows_that_another_program_has_deleted_are_missing(written: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    delete(tmp_path, kind)
    result = audit(tmp_path, kind, written)
    assert result.partitions[0].proved.missing == len(written.model)
    assert "key 'k4': the newest record is at offset 4, and the table has no row" in [
        finding.what for finding in result.findings
    ]


def test_metrics_count_records_and_commits(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"a", b"2"), (b"b", None))
    job = UpsertJob(options_of(writer), open_in(tmp_path, kind), UPSERT)
    with served(job.metrics, "127.0.0.1", 0) as port:
        assert job.step(LocalRunner()) is not None
        metrics = scraped(port)
    assert (metrics["rows_total"], metrics["commits_total"], metrics["files_total"]) == (3, 1, 1)
    assert (metrics["lag_offsets.orders.0"], metrics["position_offset.orders.0"]) == (0, 3)
