"""Where a job begins and ends: bounds of offsets, and records that arrive while it runs."""

from collections.abc import Callable
from pathlib import Path

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import copied, offsets_in, open_in, options_of
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.runner import LocalRunner

WritePartition = Callable[..., DirectoryWriter]


def test_an_end_before_what_is_copied_takes_nothing_back(write_partition: WritePartition, tmp_path: Path) -> None:
    first = write_partition()
    first.segment([b"a"] * 10)
    copied(open_in(tmp_path, "delta"), options_of(first))
    write_partition(partition=1).segment([b"b"] * 10)
    bounded = options_of(first, endingOffsets='{"orders":{"0":4,"1":6}}')
    (receipt,) = copied(open_in(tmp_path, "delta"), bounded)
    assert (receipt.rows, {key: at.offset for key, at in receipt.positions().items()}) == (6, {("orders", 1): 6})
    (rest,) = copied(open_in(tmp_path, "delta"), options_of(first))
    assert (rest.rows, {key: at.offset for key, at in rest.positions().items()}) == (4, {("orders", 1): 10})
    assert offsets_in(tmp_path, "delta") == [(partition, offset) for partition in range(2) for offset in range(10)]


def test_an_endless_job_that_begins_at_the_end_copies_what_comes(
    write_partition: WritePartition, tmp_path: Path
) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 3)
    job = TableJob(options_of(writer, startingOffsets="latest"), open_in(tmp_path, "delta"), TableSettings())
    receipts = job.run_every(LocalRunner(), lambda: writer.segment([b"b"] * 2))
    spans = [next(receipts).spans["orders", 0] for _ in range(2)]
    assert [(span.first, span.end.offset) for span in spans] == [(3, 5), (5, 7)]
    receipts.close()
    assert offsets_in(tmp_path, "delta") == [(0, offset) for offset in range(3, 7)]
