"""The audit finds each fault that is planted, and nothing where there is none."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.log.checkpoint import CLEANER_POINTS, RECOVERY_POINTS, write_offsets
from broker.log.disk import Disk
from protocol.records.builder import build_batch
from tests.pipeline.conftest import NOW_MS, DirectoryWriter, positions
from tests.pipeline.test_archive import archived, asked, damage, rows_in
from warmlog.cli.pipeline_audit import audit as command
from warmlog.client.blocking import Client
from warmlog.pipeline.archive.store import ArchiveStore
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.audit import Audit, audit_topics
from warmlog.pipeline.jobs.audit_plot import check_plot, plot_audit
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import read_options
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]


@pytest.fixture
def writer(write_partition: WritePartition) -> DirectoryWriter:
    """Three segments of 200 records; a wide index interval, as the default's."""
    made = write_partition()
    for _ in range(3):
        made.segment(*[[b"x" * 20] * 10 for _ in range(20)])
    return made


def audited(writer: DirectoryWriter, table: Path | None = None) -> Audit:
    return audit_topics(LocalRunner(), asked(writer), Reporter("audit"), table)


def told(audit: Audit) -> list[str]:
    assert len(audit.findings) == audit.finding_count
    return [f"{finding.kind}: {finding.what}" for finding in audit.findings]


def log_of(writer: DirectoryWriter, base: int) -> Path:
    return writer.directory / f"{base:020d}.log"


def test_nothing_is_wrong_where_nothing_is(writer: DirectoryWriter) -> None:
    audit = audited(writer)
    assert told(audit) == []
    (partition,) = audit.partitions
    total = partition.total()
    assert (total.records, total.first_offset, total.last_offset, total.faults) == (600, 0, 599, 0)
    assert {hour.hour for hour in partition.hours} == {NOW_MS // 3_600_000}


def test_a_damaged_batch_is_told_with_file_and_position(writer: DirectoryWriter) -> None:
    log = log_of(writer, 200)
    position = positions(log)[3]
    damage(log, position + 70)
    audit = audited(writer)
    (finding,) = audit.findings
    assert (finding.kind, finding.path, finding.position) == ("damage", str(log), position)
    assert "offsets 230 to 239: the CRC" in finding.what
    assert (audit.partitions[0].total().records, audit.partitions[0].total().damaged) == (590, 1)


def test_a_file_that_makes_no_sense_any_more(writer: DirectoryWriter) -> None:
    log = log_of(writer, 0)
    damage(log, positions(log)[2] + 16)
    kinds = {finding.kind for finding in audited(writer).findings}
    assert "damage" in kinds


def test_batches_that_are_missing(writer: DirectoryWriter) -> None:
    log, data = log_of(writer, 400), log_of(writer, 400).read_bytes()
    first, second = positions(log)[-3:-1]
    log.write_bytes(data[:first] + data[second:])
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).write_bytes(b"")
    assert "missing: offsets 570 to 579 are missing" in told(audited(writer))
    assert audited(writer).partitions[0].total().missing == 10


def test_a_segment_that_is_missing(writer: DirectoryWriter) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        os.unlink(log_of(writer, 200).with_suffix(suffix))
    assert told(audited(writer)) == ["missing: offsets 200 to 399 are missing"]


def test_what_compaction_took_is_not_missing(writer: DirectoryWriter) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        os.unlink(log_of(writer, 200).with_suffix(suffix))
    write_offsets(Disk(), str(writer.directory.parent / CLEANER_POINTS), {("orders", 0): 400})
    audit = audited(writer)
    assert told(audit) == []
    assert audit.partitions[0].total().compacted == 200
    write_offsets(Disk(), str(writer.directory.parent / CLEANER_POINTS), {("orders", 0): 300})
    assert told(audited(writer)) == ["missing: offsets 300 to 399 are missing"]


def test_offsets_that_are_there_twice(writer: DirectoryWriter) -> None:
    rows = [(NOW_MS, b"k", b"again", ())] * 10
    with open(log_of(writer, 400), "ab") as log:
        log.write(build_batch(rows, base_offset=595))
    audit = audited(writer)
    assert told(audit) == ["duplicate: offsets 595 to 599 are there before as well"]
    assert audit.partitions[0].total().duplicates == 5


def test_offsets_that_belong_into_the_next_segment(writer: DirectoryWriter) -> None:
    with open(log_of(writer, 0), "ab") as log:
        log.write(build_batch([(NOW_MS, None, b"again", ())] * 3, base_offset=200))
    found = told(audited(writer))
    assert "duplicate: offsets 200 to 202 belong into the next segment" in found


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_does_not_agree_with_the_log(writer: DirectoryWriter, suffix: str) -> None:
    index = log_of(writer, 200).with_suffix(suffix)
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    found = audited(writer).findings
    assert {(finding.kind, finding.path) for finding in found} == {("index", str(index))}
    index.unlink()
    assert [finding.what for finding in audited(writer).findings] == ["missing"]


def test_a_log_that_ends_before_what_was_flushed(writer: DirectoryWriter) -> None:
    write_offsets(Disk(), str(writer.directory.parent / RECOVERY_POINTS), {("orders", 0): 700})
    assert told(audited(writer)) == ["missing: ends at offset 600, but up to 700 was flushed"]


def test_an_archive_is_held_against_the_log(writer: DirectoryWriter, tmp_path: Path) -> None:
    lake = ArchiveStore(tmp_path / "lake")
    archived(lake, asked(writer), partition_by="hour")
    writer.segment([b"new"] * 5)  # not archived yet, which is no fault
    audit = audited(writer, lake.directory)
    assert told(audit) == []
    assert audit.partitions[0].table is not None
    assert audit.partitions[0].table.both == 600
    archived(lake, asked(writer), partition_by="hour")
    (file,) = lake.batch_directory(2).rglob("*.parquet")
    other = next(lake.batch_directory(1).rglob("*.parquet"))
    wrong = other.read_bytes()
    file.write_bytes(wrong)  # 600 rows where offsets 600 to 604 should be
    assert told(audited(writer, lake.directory)) == [
        "table: offsets 600 to 604 are in the log, and not in the archive",
        "table: offsets 0 to 599 are in the archive more than once",
    ]
    for suffix in (".log", ".index", ".timeindex"):
        os.unlink(log_of(writer, 200).with_suffix(suffix))
    found = told(audited(writer, lake.directory))
    assert "table: offsets 200 to 399 are in the archive, and not in the log" in found
    with pytest.raises(PipelineError, match="is not an archive"):
        audited(writer, tmp_path)


def test_a_broker_that_compacts_and_deletes_beneath(tmp_path: Path) -> None:
    settings = {
        "log.retention.check.interval.ms": 50,
        "log.initial.task.delay.ms": 0,
        "log.segment.delete.delay.ms": 0,
        "log.cleaner.backoff.ms": 50,
    }
    both = {"cleanup.policy": "compact", "segment.bytes": "32768", "min.cleanable.dirty.ratio": "0.01"}
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=1, configs=both)
        client.create_topic("short", partitions=1, configs={"segment.bytes": "32768", "retention.bytes": "70000"})
        reads = {"path": str(broker.data_dir), "topic": "orders,short", "failOnDataLoss": "false"}
        lake = ArchiveStore(tmp_path / "lake")
        for _ in range(15):
            for topic in ("orders", "short"):
                client.produce_many(topic, [(b"k%d" % (at % 7), bytes(200)) for at in range(100)])
            assert told(audit_topics(LocalRunner(), read_options(reads), Reporter("audit"))) == []
            archived(lake, read_options(reads))
        while not any(client.offsets("short", "beginning").values()):
            pass
        audit = audit_topics(LocalRunner(), read_options(reads), Reporter("audit"), lake.directory)
        assert told(audit) == []
        assert audit.partitions[0].total().compacted > 0
        offsets = rows_in(lake.directory)
        assert len([offset for offset in offsets if offset == 1499]) == 2  # the last of both topics
        assert max(offsets.count(offset) for offset in set(offsets)) <= 2


def test_it_is_drawn(writer: DirectoryWriter, tmp_path: Path) -> None:
    damage(log_of(writer, 200), 70)
    for name in ("audit.svg", "audit.png"):
        plot_audit(audited(writer).partitions, tmp_path / name)
    assert b"<svg" in (tmp_path / "audit.svg").read_bytes()
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PipelineError, match=r"audit\.pdf: a plot is \.svg or \.png"):
        check_plot(tmp_path / "audit.pdf")


def test_the_command_says_what_is_wrong_and_ends_with_1(
    on_this_spark: None, writer: DirectoryWriter, tmp_path: Path
) -> None:
    common = ["--path", str(writer.directory.parent), "--topic", "orders"]
    sound = CliRunner().invoke(command, [*common, "--plot", str(tmp_path / "a.svg")])
    assert (sound.exit_code, "1 partition, 600 records: nothing wrong" in sound.stdout) == (0, True), sound.output
    assert (tmp_path / "a.svg").exists()
    damage(log_of(writer, 200), 70)
    report = tmp_path / "report.json"
    broken = CliRunner().invoke(command, [*common, "--json", "--report", str(report)])
    assert broken.exit_code == 1
    (finding,) = json.loads(broken.stdout)["findings"]
    assert (finding["kind"], finding["position"]) == ("damage", 0)
    assert json.loads(report.read_text())["findings"] == 1
    text = CliRunner().invoke(command, [*common, "--by", "partition"]).stdout
    assert f"{log_of(writer, 200)} at position 0: offsets 200 to 209: the CRC" in text
    assert "1 partition, 590 records: 1 finding" in text
    assert asdict(audited(writer))["finding_count"] == 1
