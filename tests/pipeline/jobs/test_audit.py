"""The audit finds each fault that is planted, and nothing where there is none."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.conftest import NOW_MS, DirectoryWriter, positions
from tests.pipeline.local import asked, damage
from warmlog.broker.log.directory.checkpoint import (
    CLEANER_POINTS,
    LOG_STARTS,
    RECOVERY_POINTS,
    write_offsets,
)
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.io.disk import Disk
from warmlog.cli.pipeline.audit import audit as command
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.audit import Audit, audit_topics
from warmlog.pipeline.jobs.audit_plot import bar_hours, check_plot, plot_audit
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import read_options
from warmlog.protocol.records.builder import build_batch
from warmlog.testing import Broker

HOUR_MS = 3_600_000
WritePartition = Callable[..., DirectoryWriter]


@pytest.fixture
def writer(write_partition: WritePartition) -> DirectoryWriter:
    """Three segments of 200 records; a wide index interval, as the default's."""
    made = write_partition()
    for _ in range(3):
        made.segment(*[[b"x" * 20] * 10 for _ in range(20)])
    return made


def audited(writer: DirectoryWriter) -> Audit:
    return audit_topics(LocalRunner(), asked(writer), Reporter("audit"))


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
    total = audit.partitions[0].total()
    assert (total.records, total.damaged, total.damaged_batches) == (590, 10, 1)


def test_a_file_that_makes_no_sense_any_more(writer: DirectoryWriter) -> None:
    log = log_of(writer, 0)
    damage(log, positions(log)[2] + 16)
    audit = audited(writer)
    assert "damage" in {finding.kind for finding in audit.findings}
    total = audit.partitions[0].total()
    assert (total.records + total.damaged, total.missing, audit.partitions[0].unaccounted) == (600, 0, 0)


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


def test_the_indexes_of_a_log_that_was_replaced_meanwhile_are_not_compared(write_partition: WritePartition) -> None:
    writer = write_partition()
    log = writer.segment([b"x"] * 10, [b"x"] * 10)
    times = log.with_suffix(".timeindex")
    times.write_bytes(TimeIndex.entry.pack(NOW_MS + 9, 9) + times.read_bytes())
    writer.segment([b"x"])

    class Replacing(LocalRunner):
        def __call__(self, *arguments: Any) -> Any:
            kept = log.read_bytes()[positions(log)[-1] :]
            log.with_suffix(".new").write_bytes(kept)
            log.with_suffix(".new").replace(log)
            return super().__call__(*arguments)

    write_offsets(Disk(), str(writer.directory.parent / CLEANER_POINTS), {("orders", 0): 20})
    audit = audit_topics(Replacing(), asked(writer), Reporter("audit"))
    assert told(audit) == []
    assert audit.partitions[0].changed == 1


def test_offsets_that_are_there_twice(writer: DirectoryWriter) -> None:
    rows = [(NOW_MS, b"k", b"again", ())] * 10
    with open(log_of(writer, 400), "ab") as log:
        log.write(build_batch(rows, base_offset=595))
    audit = audited(writer)
    assert told(audit) == ["duplicate: offsets 595 to 599 occurred before"]
    assert audit.partitions[0].total().duplicates == 5


def test_offsets_that_belong_into_the_next_segment(writer: DirectoryWriter) -> None:
    with open(log_of(writer, 0), "ab") as log:
        log.write(build_batch([(NOW_MS, None, b"again", ())] * 3, base_offset=200))
    found = told(audited(writer))
    assert "duplicate: offsets 200 to 202 belong to the next segment" in found


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
    assert told(audited(writer)) == ["missing: ends at offset 600, although everything below 700 was flushed"]


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
        for _ in range(15):
            for topic in ("orders", "short"):
                client.produce_many(topic, [(b"k%d" % (at % 7), bytes(200)) for at in range(100)])
            assert told(audit_topics(LocalRunner(), read_options(reads), Reporter("audit"))) == []
        while not any(client.offsets("short", "beginning").values()):
            pass
        is_compacted = False
        while not is_compacted:
            audit = audit_topics(LocalRunner(), read_options(reads), Reporter("audit"))
            assert told(audit) == []
            is_compacted = audit.partitions[0].total().compacted > 0


def test_the_records_of_a_damaged_batch_are_counted(write_partition: WritePartition) -> None:
    writer = write_partition()
    log = writer.segment([b"x"] * 1920, [b"y"] * 10)
    damage(log, 70)
    (partition,) = audited(writer).partitions
    total = partition.total()
    assert (total.records, total.damaged, total.damaged_batches, partition.unaccounted) == (10, 1920, 1, 0)


@settings(max_examples=40)
@given(data=st.data())
def test_every_offset_is_accounted_for_whatever_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Batches are damaged in header or body, taken out, doubled; offsets are compacted, and the log starts later."""
    writer = DirectoryWriter(tmp_path_factory.mktemp("data"), interval=data.draw(st.sampled_from([1, 300])))
    logs = []
    for _ in range(3):
        sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
        logs.append(writer.segment(*[[b"x"] * size for size in sizes]))
    for log in logs:
        whole, begins = log.read_bytes(), positions(log)
        batches = [whole[begin:end] for begin, end in pairwise([*begins, len(whole)])]
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(batches) - 1))
            batch = bytearray(batches[at])
            harm = data.draw(st.sampled_from(["flip", "take", "double"]))
            if harm == "flip" and batch:
                batch[data.draw(st.integers(0, len(batch) - 1))] ^= 0x55
            batches[at] = bytes(batch) * {"flip": 1, "take": 0, "double": 2}[harm]
        log.write_bytes(b"".join(batches))
    checkpoint = {("orders", 0): data.draw(st.integers(0, writer.next_offset))}
    write_offsets(Disk(), str(writer.directory.parent / CLEANER_POINTS), checkpoint)
    if data.draw(st.booleans()):
        write_offsets(Disk(), str(writer.directory.parent / LOG_STARTS), checkpoint)
    (partition,) = audited(writer).partitions
    total = partition.total()
    counted = total.records + total.markers + total.compacted + total.missing + total.damaged - total.duplicates
    assert counted == max(partition.end_offset - partition.first_offset, 0)
    assert partition.unaccounted == 0


def test_a_directory_without_segments_does_not_end_the_audit(writer: DirectoryWriter) -> None:
    (writer.directory.parent / "orders-1").mkdir()
    audit = audited(writer)
    assert told(audit) == ["missing: no segments"]
    assert [(one.partition, one.segments, one.total().records) for one in audit.partitions] == [(0, 3, 600), (1, 0, 0)]


def test_what_lies_below_the_log_start_is_not_judged(writer: DirectoryWriter) -> None:
    damage(log_of(writer, 200), 70)
    write_offsets(Disk(), str(writer.directory.parent / LOG_STARTS), {("orders", 0): 395})
    audit = audited(writer)
    (partition,) = audit.partitions
    assert (partition.first_offset, partition.total().records, partition.unaccounted) == (395, 205, 0)


def test_leader_epochs_are_told_and_never_go_back(write_partition: WritePartition) -> None:
    writer = write_partition()
    rows = [(NOW_MS, None, b"x", ())] * 10
    for base, epochs in ((0, (1, 1)), (20, (4, 2)), (40, (3, 5))):
        data = b"".join(
            build_batch(rows, base_offset=base + 10 * at, leader_epoch=one) for at, one in enumerate(epochs)
        )
        (writer.directory / f"{base:020d}.log").write_bytes(data)
    audit = audited(writer)
    epochs = [finding.what for finding in audit.findings if finding.kind == "epoch"]
    assert sorted(epochs) == [
        "leader epoch 2 at offset 30, after 4",
        "leader epoch 3 from offset 40 on, after 4 in earlier segments",
    ]
    assert audit.partitions[0].epochs == [(1, 0), (4, 20), (5, 50)]


def drawn(audit: Audit, path: Path) -> str:
    plot_audit(audit, path)
    return path.read_text()


def test_it_is_drawn(writer: DirectoryWriter, tmp_path: Path) -> None:
    sound = drawn(audited(writer), tmp_path / "sound.svg")
    for text in (
        "Audit of orders",
        "Nothing wrong: 600 offsets accounted for",
        "offsets",
        "per hour",
        "records",
        "UTC",
    ):
        assert text in sound
    assert "damaged" not in sound
    damage(log_of(writer, 200), 70)
    os.unlink(log_of(writer, 400))
    writer.segment([b"late"], first_ms=NOW_MS + 40 * 24 * HOUR_MS)
    broken = drawn(audited(writer), tmp_path / "broken.svg")
    for text in (
        "of 601 offsets 200 missing, 10 damaged",
        "offsets with faults",
        "per day",
        "missing, duplicate or damaged",
    ):
        assert text in broken, text
    plot_audit(audited(writer), tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PipelineError, match=r"audit\.pdf: a plot is \.svg or \.png"):
        check_plot(tmp_path / "audit.pdf")


@pytest.mark.parametrize(("span", "width"), [(1, 1), (100, 1), (101, 6), (24 * 100, 24), (24 * 366, 24 * 7)])
def test_bars_stand_for_so_long_that_they_can_be_seen(span: int, width: int) -> None:
    assert bar_hours([1000, 1000 + span - 1]) == width


def test_the_command_says_what_is_wrong_and_ends_with_1(writer: DirectoryWriter, tmp_path: Path) -> None:
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
    moved = CliRunner().invoke(command, [*common, "--table", "lake"])
    assert (moved.exit_code, "was replaced by an argument: warmlog pipeline audit TOPIC TABLE" in moved.stderr) == (
        2,
        True,
    ), moved.output
