"""The lookup of aborted transactions compared with a plain search of all entries."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.transaction import ENTRIES_PER_BLOCK, AbortedTransaction, TransactionIndex, encode_aborted
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.io.residency import Residency

Make = Callable[[list[AbortedTransaction]], TransactionIndex]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Make an index of entries; the file of the one before is closed."""
    directory = tmp_path_factory.mktemp("index")
    made: list[TransactionIndex] = []

    def make(entries: list[AbortedTransaction]) -> TransactionIndex:
        for index in made:
            index.forget()
        path = directory / "00.txnindex"
        path.write_bytes(encode_aborted(entries))
        made[:] = [TransactionIndex(OpenFiles(limit=10, residency=Residency(), disk=Disk()), str(path), 0)]
        return made[0]

    yield make
    for index in made:
        index.forget()


def entries_of(steps: list[tuple[int, int, int]]) -> list[AbortedTransaction]:
    """Return entries whose last offsets increase by the steps."""
    entries, last = [], 0
    for producer, (step, length, behind) in enumerate(steps):
        last += step
        entries.append(AbortedTransaction(producer, max(0, last - length), last, max(0, last - behind)))
    return entries


def expected(entries: list[AbortedTransaction], offset: int, bound: int) -> tuple[list[AbortedTransaction], bool]:
    found = []
    for entry in entries:
        if entry.last_offset < offset:
            continue
        if entry.first_offset < bound:
            found.append(entry)
        if entry.last_stable_offset >= bound:
            return found, True
    return found, False


steps = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30), st.integers(0, 30)), max_size=5 * ENTRIES_PER_BLOCK)
ranges = st.lists(st.tuples(st.integers(0, 1400), st.integers(0, 200)), min_size=1, max_size=12)


@given(steps=steps, ranges=ranges)
def test_every_lookup_finds_what_a_plain_search_finds(
    make: Make, steps: list[tuple[int, int, int]], ranges: list[tuple[int, int]]
) -> None:
    entries = entries_of(steps)
    index = make(entries)
    for offset, length in ranges:
        assert index.overlapping(offset, offset + length) == expected(entries, offset, offset + length)


@given(steps=steps, more=steps, ranges=ranges)
def test_entries_that_are_appended_are_found(
    make: Make, steps: list[tuple[int, int, int]], more: list[tuple[int, int, int]], ranges: list[tuple[int, int]]
) -> None:
    entries = entries_of(steps + more)
    index = make(entries[: len(steps)])
    for offset, length in ranges:
        index.overlapping(offset, offset + length)
    index.append(entries[len(steps) :], is_new=not steps)
    for offset, length in ranges:
        assert index.overlapping(offset, offset + length) == expected(entries, offset, offset + length)


def test_an_entry_of_another_version_is_refused(make: Make) -> None:
    index = make(entries_of([(1, 1, 0)]))
    path = Path(index._file.path)
    path.write_bytes(b"\0\1" + path.read_bytes()[2:])
    with pytest.raises(IndexCorruptError, match="its transaction index is of another version"):
        index.overlapping(0, 5)
