"""Counting by headers says what reading would, whatever lies at the edges and in between."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.local import asked, damage, plan
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.count import Counted, count_records
from warmlog.pipeline.runner import LocalRunner
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT

WritePartition = Callable[..., DirectoryWriter]


def counted(writer: DirectoryWriter, **options: object) -> Counted:
    (found,) = count_records(LocalRunner(), asked(writer, **options), Reporter("count"))
    return found


@pytest.mark.parametrize("first", [0, 7, 10, 95])
@pytest.mark.parametrize("end", [100, 99, 60, 41])
@pytest.mark.parametrize("splits", [1, 4])
def test_as_many_as_are_read(write_partition: WritePartition, first: int, end: int, splits: int) -> None:
    writer = write_partition()
    for _ in range(2):
        writer.segment(*[[b"x"] * 10 for _ in range(5)])
    bounds = {
        "startingOffsets": f'{{"orders":{{"0":{first}}}}}',
        "endingOffsets": f'{{"orders":{{"0":{max(end, first)}}}}}',
        "minPartitions": splits,
    }
    read = plan(writer.directory.parent, **bounds).offsets()
    found = counted(writer, **bounds)
    assert found.records == len(read)
    assert (found.first_offset, found.end_offset) == ((read[0], read[-1] + 1) if read else (None, None))


def with_marker(writer: DirectoryWriter) -> Path:
    log = writer.segment([b"a"] * 5)
    marker = bytearray(build_batch([(NOW_MS, b"\0\0\0\1", b"\0" * 6, ())], base_offset=5))
    marker[22] |= CONTROL_BIT  # its CRC, which nobody looks at, is wrong now
    rest = build_batch([(NOW_MS, None, b"b", ())] * 4, base_offset=6)
    log.write_bytes(log.read_bytes() + marker + rest)
    return log


def test_markers_are_no_records(write_partition: WritePartition) -> None:
    writer = write_partition()
    with_marker(writer)
    found = counted(writer)
    assert (found.records, found.batches, found.end_offset) == (9, 2, 10)


def test_a_header_that_makes_no_sense_is_told_of(write_partition: WritePartition) -> None:
    writer = write_partition()
    log = writer.segment(*[[b"x"] * 10 for _ in range(5)])
    writer.segment([b"y"])
    third = len(log.read_bytes()) // 5 * 2
    damage(log, third + 16)  # its magic
    with pytest.raises(PipelineError, match=rf"damaged batch at position {third}"):
        counted(writer)
    assert counted(writer, onCorrupt="stop").records == 20
