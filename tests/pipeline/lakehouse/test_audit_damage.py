"""Batches that were skipped as damaged have a column of their own in audits."""

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, arguments_of, copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, faults
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, upserted
from tests.pipeline.local import damage
from warmlog.cli.pipeline.audit import audit as audit_command
from warmlog.pipeline.jobs.table_audit import TableAudit

WritePartition = Callable[..., DirectoryWriter]


def counts(audit: TableAudit) -> list[tuple[int, int, int]]:
    """Rows, damaged and empty offsets of each partition."""
    return [(each.proved.rows, each.damaged, each.empty) for each in audit.partitions]


def test_skipped_batches_are_damaged_and_not_empty(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    log = writer.segment([b"a"] * 10, [b"b"] * 7, [b"c"] * 10)
    damage(log, log.stat().st_size // 2)
    options = options_of(writer, onCorrupt="skip")
    receipts = copied(open_in(tmp_path, kind), options)
    assert [dict(receipt.damaged_offsets) for receipt in receipts] == [{("orders", 0): ((70, 77),)}]
    audit = audited(tmp_path, kind, options)
    assert (counts(audit), audit.findings) == ([(80, 7, 0), (30, 0, 0)], [])
    maintained(tmp_path, kind, after=LATER)
    assert counts(audited(tmp_path, kind, options)) == [(80, 7, 0), (30, 0, 0)]


def test_a_batch_split_over_commits_is_counted_once(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    log = writer.segment([b"a"] * 10, [b"b"] * 10, [b"c"] * 10)
    damage(log, log.stat().st_size // 2)
    options = options_of(writer, onCorrupt="skip", maxOffsetsPerTrigger=7)
    receipts = copied(open_in(tmp_path, kind), options)
    runs = [run for receipt in receipts for run in receipt.damaged_offsets.get(("orders", 0), ())]
    assert (len(runs) > 1, runs[0][0], runs[-1][1]) == (True, 70, 80)
    audit = audited(tmp_path, kind, options)
    assert (counts(audit), audit.findings) == ([(80, 10, 0), (30, 0, 0)], [])


def test_damage_at_the_end_of_the_log_is_counted_with_what_follows(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    """Until then it may be a batch that is being written."""
    log = writer.segment([b"a"] * 10, [b"b"] * 10)
    damage(log, log.stat().st_size - 5)
    options = options_of(writer, onCorrupt="skip")
    copied(open_in(tmp_path, kind), options)
    assert counts(audited(tmp_path, kind, options)) == [(70, 0, 0), (30, 0, 0)]
    writer.segment([b"c"] * 10)
    copied(open_in(tmp_path, kind), options)
    assert counts(audited(tmp_path, kind, options)) == [(80, 10, 0), (30, 0, 0)]


def test_records_that_are_readable_again_are_missing(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    log = writer.segment([b"a"] * 10, [b"b"] * 10)
    damage(log)
    options = options_of(writer, onCorrupt="skip")
    copied(open_in(tmp_path, kind), options)
    damage(log)
    audit = audited(tmp_path, kind, options)
    assert (counts(audit)[0], faults(audit)) == ((70, 0, 0), {"missing": 10})


def test_a_table_by_key_counts_them_too(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    for number in range(3):
        writer.add(*((b"k%d" % key, b"%d" % number) for key in range(10)))
    damage(writer.directory / f"{10:020d}.log")
    options = {"onCorrupt": "skip"}
    upserted(open_in(tmp_path, kind), writer, **options)
    (partition,) = audited(tmp_path, kind, options_of(writer, **options)).partitions
    assert (partition.damaged, partition.empty, partition.superseded, partition.proved.in_log) == (10, 0, 10, 10)


def test_the_command_shows_them(writer: DirectoryWriter, tmp_path: Path) -> None:
    damage(writer.segment([b"a"] * 10, [b"b"] * 10))
    options = options_of(writer, onCorrupt="skip")
    copied(open_in(tmp_path, "delta"), options)
    arguments = ["orders", *arguments_of(tmp_path, "delta"), "--path", str(writer.directory.parent)]
    result = CliRunner().invoke(audit_command, arguments)
    assert result.output.splitlines()[0].split()[-1] == "damaged"
    form = json.loads(CliRunner().invoke(audit_command, [*arguments, "--json"]).output)
    assert [each["damaged"] for each in form["partitions"]] == [10, 0]
