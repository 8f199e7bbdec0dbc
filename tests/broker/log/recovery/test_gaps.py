"""Opening a log with missing offsets: which gaps are damage, and which are kept."""

import os

import pytest

from tests.broker.log.recovery.logs import START_MS, Batch, Bench, OffsetsIn, fill, report_of
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.builder import build_batch


def with_gaps(bench: Bench, *, segments: int = 5, last_offsets: tuple[int, ...] = (7, 9)) -> list[int]:
    """Write a directory as compaction leaves it: two batches in each segment. Return their offsets."""
    one = build_batch([(START_MS, b"key", b"v" * 100, ())])
    bench.kill(bench.open())
    offsets = []
    for path in bench.directory.iterdir():
        path.unlink()
    for number in range(segments):
        base = 20 * number
        kept = [base + offset for offset in last_offsets]
        bench.path(base, ".log").write_bytes(b"".join(offset.to_bytes(8) + one[8:] for offset in kept))
        offsets += kept
    return offsets


def make_indexes(log: PartitionLog) -> None:
    """Rebuild the indexes of all sealed segments, as their first use does."""
    for segment in log._state.segments.snapshot[:-1]:
        log.reads.rebuild_indexes(segment.base_offset)


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
@pytest.mark.parametrize("recovery_point", [0, 5, 8, 10, 25, 90])
def test_nothing_is_cut_from_a_copied_log_because_offsets_are_missing(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, policy: str, recovery_point: int
) -> None:
    offsets = with_gaps(bench)
    log = bench.open(clean=False, recovery_point=recovery_point, cleanup_policy=policy)
    assert (report_of(log).truncated_bytes, report_of(log).removed_segments) == (0, ())
    make_indexes(log)
    assert offsets_in(log) == offsets
    log.appends.append(build_batch([(START_MS, b"key", b"value", ())]))
    assert offsets_in(bench.reopen(log)) == [*offsets, offsets[-1] + 1]


@pytest.mark.parametrize("recovery_point", [0, 10, 90])
def test_gaps_of_a_copied_log_stay_after_it_has_been_appended_to_and_rolled(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, recovery_point: int
) -> None:
    offsets = with_gaps(bench)
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=recovery_point)
    assert report_of(log).truncated_bytes == 0
    make_indexes(log)
    assert offsets_in(log) == [*offsets, *range(90, 110)]


@pytest.mark.parametrize("recovery_point", [0, 6, 11, 12])
def test_a_segment_that_has_lost_its_end_ends_the_log(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, recovery_point: int
) -> None:
    """A power cut: the next segment's bytes were on the disk already, and this one's last ones were not."""
    log = bench.open(segment_bytes=4 * len(batch()))
    fill(log, batch, 25)
    bench.kill(log)
    os.truncate(bench.path(12, ".log"), 2 * len(batch()))
    log = bench.open(clean=False, recovery_point=recovery_point)
    report = report_of(log)
    assert report.truncation_reason == "it ends at offset 14, but ended at 16 when the next segment began"
    assert (report.truncated_at, report.removed_segments) == (14, (16, 20, 24))
    assert offsets_in(log) == list(range(14))


def test_a_lost_end_in_a_log_that_was_copied_with_gaps_ends_it_there_and_not_at_the_gaps(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    offsets = with_gaps(bench)
    log = bench.open(segment_bytes=4 * len(batch()))
    fill(log, batch, 25)
    bench.kill(log)
    base = next(base for base in range(90, 100) if bench.path(base, ".log").exists())
    os.truncate(bench.path(base, ".log"), 2 * len(batch()))
    log = bench.open(clean=False)
    assert report_of(log).truncated_at == base + 2
    assert offsets_in(log) == [*offsets, *range(90, base + 2)]


def test_files_that_were_copied_over_those_of_a_clean_stop_are_kept_whole(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    log.close()
    known = (bench.directory / "contiguous-offset-checkpoint").read_bytes()
    offsets = with_gaps(bench)
    (bench.directory / "contiguous-offset-checkpoint").write_bytes(known)
    bench.kill(bench.open(recovery_point=20))
    assert not (bench.directory / "contiguous-offset-checkpoint").exists()
    log = bench.open(clean=False, recovery_point=20)
    make_indexes(log)
    assert offsets_in(log) == offsets
