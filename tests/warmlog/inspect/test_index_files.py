"""`warmlog.inspect.index_files`: the entries of index files, and their padding."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.inspect.index_files import ZEROS, OffsetEntries, index_entries

KINDS = (OffsetIndex, TimeIndex)
HUGE = 1 << 42  # more than any memory


def test_the_padding_of_a_sparse_index_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / f"{7:020d}.index"
    entry = OffsetIndex.entry.pack(3, 400)
    path.write_bytes(entry)
    os.truncate(path, HUGE)
    found = OffsetEntries(str(path.with_suffix(".log")), 7)
    assert [found[slot] for slot in range(len(found))] == [(10, 400)]
    assert (found.padding, found.rest) == (HUGE // len(entry) - 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_holes_is_empty(tmp_path: Path, kind: type[OffsetIndex | TimeIndex]) -> None:
    path = tmp_path / "index"
    path.touch()
    assert len(index_entries(path, kind)) == 0
    os.truncate(path, HUGE)
    assert len(index_entries(path, kind)) == 0
    assert index_entries(path, kind).whole_size == HUGE - HUGE % kind.entry.size


@given(
    kind=st.sampled_from(KINDS),
    content=st.binary(max_size=200),
    hole=st.sampled_from([0, 1, 4095, 4096, 5000, len(ZEROS), 3 * len(ZEROS)]),
    after=st.binary(max_size=50),
    zeros=st.sampled_from([0, 1, 11, 12, len(ZEROS) - 1, len(ZEROS), 2 * len(ZEROS) + 5]),
    sparse=st.booleans(),
)
def test_entries_end_with_the_last_nonzero_one(
    tmp_path_factory: pytest.TempPathFactory,
    kind: type[OffsetIndex | TimeIndex],
    content: bytes,
    hole: int,
    after: bytes,
    zeros: int,
    sparse: bool,
) -> None:
    whole = content + bytes(hole) + after + bytes(zeros)
    path = tmp_path_factory.mktemp("index") / "index"
    if sparse:
        with path.open("wb") as file:
            file.write(content)
            file.seek(hole, os.SEEK_CUR)
            file.write(after)
            file.truncate(len(whole))
    else:
        path.write_bytes(whole)
    found, stride = index_entries(path, kind), kind.entry.size
    slots = len(whole) // stride
    wanted = [kind.entry.unpack_from(whole, slot * stride) for slot in range(slots)]
    while wanted and not any(wanted[-1]) and not (kind is TimeIndex and slots == 1):
        wanted.pop()
    assert found.entries == wanted
    assert (found.padding, found.rest) == (slots - len(wanted), len(whole) % stride)
