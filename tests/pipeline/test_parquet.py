"""Parquet files that are written in a thread: their row groups, errors of the sink, threads that end."""

import errno
import io
import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from pyarrow import parquet

from warmlog.pipeline.copying.parquet import ROW_GROUP_BYTES, ParquetFile

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
ROWS = 64
VALUE_BYTES = ROW_GROUP_BYTES // ROWS


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def batch_of(first: int, rows: int = ROWS) -> pa.RecordBatch:
    """Return rows of more than a row group's size, unless there are fewer."""
    offsets = range(first, first + rows)
    return pa.record_batch([pa.array(offsets), [b"%08d" % at * (VALUE_BYTES // 8) for at in offsets]], SCHEMA)


def test_each_full_row_group_is_written_and_the_rest_at_the_end() -> None:
    sink = io.BytesIO()
    file = ParquetFile(sink, SCHEMA, "zstd")
    for group in range(4):
        file.add(batch_of(group * ROWS))
    file.add(batch_of(4 * ROWS, 3))
    file.finish()
    with parquet.ParquetFile(io.BytesIO(sink.getvalue())) as opened:
        assert [opened.metadata.row_group(at).num_rows for at in range(5)] == [ROWS] * 4 + [3]
        assert opened.read(["offset"]).column("offset").to_pylist() == list(range(4 * ROWS + 3))


def test_a_file_has_reached_the_size_of_its_row_groups() -> None:
    file = ParquetFile(io.BytesIO(), SCHEMA, "none")
    assert not file.has_reached(1000)
    file.add(batch_of(0))
    assert file.has_reached(ROW_GROUP_BYTES)
    assert not file.has_reached(2 * ROW_GROUP_BYTES)
    file.add(batch_of(ROWS))
    assert file.has_reached(2 * ROW_GROUP_BYTES)
    file.finish()


class FullDisk(io.BytesIO):
    """A sink with space for some bytes."""

    def __init__(self, space: int) -> None:
        super().__init__()
        self._space = space

    def write(self, data: object) -> int:
        """Write data, or fail."""
        self._space -= len(memoryview(data))  # type: ignore[arg-type]
        if self._space < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [0.5, 1.5, 2.5])
def test_an_error_of_the_sink_is_raised_by_a_later_call(groups: float) -> None:
    file = ParquetFile(FullDisk(int(groups * ROW_GROUP_BYTES)), SCHEMA, "none")

    def write() -> None:
        for group in range(3):
            file.add(batch_of(group * ROWS))
        file.finish()

    with pytest.raises(OSError, match="No space left"):
        write()
    with suppress(OSError):  # the footer may be what there is no space for
        file.close()


def test_a_file_that_is_given_up_waits_for_its_thread() -> None:
    sink = io.BytesIO()
    file = ParquetFile(sink, SCHEMA, "zstd")
    file.add(batch_of(0))
    file.close()
    with parquet.ParquetFile(io.BytesIO(sink.getvalue())) as opened:
        assert opened.metadata.num_rows == ROWS
