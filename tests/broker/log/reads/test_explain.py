"""The explanation of a fetch, compared with what fetches do, the contract of the warm section, and real eviction."""

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.broker.log.conftest import START_MS, Bench
from tests.broker.log.io.eviction import evict_files, needs_eviction
from warmlog.broker.log.errors import OffsetOutOfRangeError, TimeOutOfRangeError
from warmlog.broker.log.index.search import Section
from warmlog.broker.log.io.observed_disk import ObservedFile, UnknownResidencyError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.reads.explain import SEARCHES, LogSnapshot, explain_offset, explain_time
from warmlog.inspect.log_snapshot import read_log_snapshot
from warmlog.protocol.explanation import ExplainedLookup, Explanation
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

FULL_13_PAGES, FULL_14_PAGES = 13 * 512, 14 * 512
LARGE = {"index_interval_bytes": 0, "segment_index_bytes": 1 << 20}
Take = Callable[[Bench, PartitionLog], LogSnapshot]


def of_the_log(_: Bench, log: PartitionLog) -> LogSnapshot:
    return log.reads.snapshot()


def of_the_directory(bench: Bench, _: PartitionLog) -> LogSnapshot:
    return read_log_snapshot(bench.directory, index_interval_bytes=bench.config.index_interval_bytes)


both = pytest.mark.parametrize("take", [of_the_log, of_the_directory])


def filled(bench: Bench, entries: int) -> PartitionLog:
    """A log whose one index has so many entries."""
    log = bench.open(**LARGE)
    one = build_batch([(START_MS, None, b"", ())])
    log.appends.append(b"".join([one] * (entries + 1)))
    assert log.reads.describe().segments[0].offset_index_entries == entries
    return log


def varied(bench: Bench) -> PartitionLog:
    """A log of several segments, with batches of several sizes; a time is a second after that of the offset before."""
    log = bench.open(segment_bytes=6000)
    offset = 0
    for number in range(60):
        count = 1 + number % 3
        rows = [(START_MS + 1000 * (offset + i), None, b"v" * (37 * number % 400), ()) for i in range(count)]
        log.appends.append(build_batch(rows))
        offset += count
    assert log.segment_count > 3
    return log


def lookups(found: Explanation, search: str) -> list[ExplainedLookup]:
    return [lookup for lookup in found.lookups if lookup.search == search]


# -- the contract ------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("entries", "warm", "plain"),
    [
        (FULL_13_PAGES, (10, 11, 12), (0, 6, 9, 11, 12)),
        (FULL_13_PAGES + 1, (11, 12, 13), (0, 6, 9, 11, 12, 13)),
        (FULL_14_PAGES, (11, 12, 13), (0, 7, 10, 12, 13)),
    ],
)
def test_the_pages_of_a_lookup_of_the_last_entry(
    bench: Bench, take: Take, entries: int, warm: tuple[int, ...], plain: tuple[int, ...]
) -> None:
    log = filled(bench, entries)
    found = explain_offset(take(bench, log), entries, searches=SEARCHES)
    first, second = found.lookups
    assert (first.search, first.section, first.pages) == ("warm", Section.WARM, warm)
    assert (second.search, second.section, second.pages) == ("plain", None, plain)
    for lookup in found.lookups:
        assert (lookup.slot, lookup.offset, lookup.entries) == (entries - 1, entries, entries)
        assert (lookup.missing, lookup.faults_expected) == ((), 0)


def test_a_log_that_is_searched_plainly_is_explained_so(bench: Bench) -> None:
    log = filled(bench, FULL_14_PAGES)
    log.reconfigure(bench.config.__class__(**LARGE, index_search="plain"))
    (lookup,) = explain_offset(log.reads.snapshot(), FULL_14_PAGES).lookups
    assert (lookup.search, lookup.pages) == ("plain", (0, 7, 10, 12, 13))
    searches = [lookup.search for lookup in explain_offset(log.reads.snapshot(), 1, searches=SEARCHES).lookups]
    assert searches == ["plain", "warm"]


# -- compared with the log --------------------------------------------------------------------------------------------


@both
def test_every_offset_is_found_where_a_fetch_begins(bench: Bench, take: Take) -> None:
    log = varied(bench)
    for offset in range(0, log.offsets.log_end_offset, 2):
        read, found = log.reads.read(offset, 1), explain_offset(take(bench, log), offset)
        assert found.batch is not None
        assert found.scan is not None
        assert (found.segment.base_offset, found.batch.place.position) == (read.segment_base_offset, read.position)
        assert found.batch.base_offset <= offset <= found.batch.last_offset
        assert found.index_fault is None
        entry = found.lookups[0]
        assert entry.offset <= offset
        assert found.scan.size == (0 if found.known_by_heart else read.position - entry.position)
        assert sum(run.count for run in found.batch.place.pages) >= 1


@both
def test_every_time_is_found_as_list_offsets_finds_it(bench: Bench, take: Take) -> None:
    log = varied(bench)
    for second in range(0, log.offsets.log_end_offset, 5):
        for timestamp in (START_MS + 1000 * second - 1, START_MS + 1000 * second):
            expected, found = log.reads.offset_for_time(timestamp), explain_time(take(bench, log), timestamp)
            assert expected is not None
            assert (found.offset, found.timestamp) == (expected.offset, expected.timestamp)
            assert found.batch is not None
            assert found.batch.base_offset <= found.offset <= found.batch.last_offset
            assert [lookup.index for lookup in found.lookups] == ["time", "offset"]
            assert found.segment.base_offset == log.reads.read(found.offset, 1).segment_base_offset


def test_the_batches_behind_the_last_entry_are_known_by_heart_to_the_log_alone(bench: Bench) -> None:
    log = bench.open(index_interval_bytes=300)
    for number in range(12):
        log.appends.append(build_batch([(START_MS + number, None, b"v" * 50, ())]))
    found, offline = (explain_offset(take(bench, log), 11) for take in (of_the_log, of_the_directory))
    assert found.known_by_heart
    assert found.scan is not None
    assert (found.scan.size, found.scan.pages) == (0, ())
    assert not offline.known_by_heart
    assert offline.scan is not None
    assert offline.scan.size > 0
    assert offline.batch == found.batch


@both
def test_a_gap_is_passed_as_a_fetch_passes_it(bench: Bench, take: Take) -> None:
    """Segments that compaction emptied, and offsets that it took away."""
    bench.directory.mkdir()
    for base, offsets in ((0, [0, 3]), (10, []), (20, [25, 28])):
        batches = [build_batch([(START_MS, None, b"v", ())], base_offset=offset, leader_epoch=0) for offset in offsets]
        bench.path(base, ".log").write_bytes(b"".join(batches))
        bench.path(base, ".index").write_bytes(b"")
        bench.path(base, ".timeindex").write_bytes(b"")
    log = bench.open(clean=False)
    for offset, first, segment, passed in ((1, 3, 0, 0), (4, 25, 20, 2), (12, 25, 20, 1), (26, 28, 20, 0)):
        found = explain_offset(take(bench, log), offset)
        assert (found.offset, found.segment.base_offset, found.passed) == (first, segment, passed)


@both
def test_the_end_of_the_log_has_no_way_yet(bench: Bench, take: Take) -> None:
    log = varied(bench)
    found = explain_offset(take(bench, log), log.offsets.log_end_offset)
    assert (found.batch, found.scan, found.lookups) == (None, None, ())
    assert found.segment.active
    assert found.segment.next_offset == log.offsets.log_end_offset


@both
@pytest.mark.parametrize("outside", [-1, 3, 121])
def test_an_offset_outside_the_log_names_the_range(bench: Bench, take: Take, outside: int) -> None:
    log = varied(bench)
    log.truncation.advance_start(7)
    if take is of_the_directory:
        (bench.directory.parent / "log-start-offset-checkpoint").write_text("0\n1\nwords 0 7\n")
    with pytest.raises(OffsetOutOfRangeError, match=r"which holds 7 to 120$"):
        explain_offset(take(bench, log), outside)
    assert explain_offset(take(bench, log), 7).log_start_offset == 7


@both
def test_a_time_past_all_records_names_the_range(bench: Bench, take: Take) -> None:
    log = varied(bench)
    with pytest.raises(TimeOutOfRangeError, match=r"2023-11-14T22:13:20.000Z, its first one's, to 2023-11-14T22:15:19"):
        explain_time(take(bench, log), START_MS + 120_000)
    with pytest.raises(TimeOutOfRangeError, match="time 99999999999999999 ms is outside"):
        explain_time(take(bench, log), 99999999999999999)


@both
def test_an_empty_log_has_its_end_and_no_time(bench: Bench, take: Take) -> None:
    log = bench.open()
    assert explain_offset(take(bench, log), 0).batch is None
    with pytest.raises(TimeOutOfRangeError, match="no record with a time"):
        explain_time(take(bench, log), START_MS)


# -- memory ------------------------------------------------------------------------------------------------------------


@both
def test_what_is_not_in_memory_is_told_and_stays_so(bench: Bench, take: Take) -> None:
    needs_eviction(bench.directory.parent)
    log = filled(bench, FULL_14_PAGES)
    if take is of_the_log:
        log.close()  # what a broker has mapped stays in memory
        log = bench.open(recovery_point=log.offsets.log_end_offset)
    evict_files(bench.directory)
    with bench.path(0, ".index").open("rb", buffering=0) as index:
        os.posix_fadvise(index.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(index.fileno(), 1, 12 * 4096)
    for _ in range(2):
        found = explain_offset(take(bench, log), FULL_14_PAGES - 1, searches=SEARCHES)
        (warm,), (plain,) = lookups(found, "warm"), lookups(found, "plain")
        assert (warm.missing, warm.faults_expected) == ((11, 13), 2)
        assert (plain.missing, plain.faults_expected) == ((0, 7, 10, 13), 4)
        assert found.scan is not None
        assert found.scan.missing_pages == sum(run.count for run in found.scan.pages) > 0
        assert found.scan.missing == found.scan.pages
        assert found.batch is not None
        assert found.batch.place.missing_pages == 1
        assert found.asked in {"cachestat", "mincore"}


@both
def test_a_time_lookup_out_of_memory_is_told_page_by_page(bench: Bench, take: Take) -> None:
    needs_eviction(bench.directory.parent)
    log = varied(bench)
    if take is of_the_log:
        log.close()
        log = bench.open(recovery_point=log.offsets.log_end_offset, segment_bytes=6000)
    evict_files(bench.directory)
    for _ in range(2):
        found = explain_time(take(bench, log), START_MS + 20_500)
        assert found.offset == 21
        assert [lookup.faults_expected for lookup in found.lookups] == [1, 1]


def test_where_nobody_tells_what_is_in_memory_the_way_is_told_and_that_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = varied(bench)

    def refuse(_: int, __: int) -> None:
        raise UnknownResidencyError("cachestat: no; mincore: neither")

    monkeypatch.setattr("warmlog.broker.log.io.observed_disk.choose_query", refuse)
    found = explain_offset(log.reads.snapshot(), 100)
    assert (found.asked, found.not_asked) == (None, "cachestat: no; mincore: neither")
    assert found.lookups[0].pages
    assert (found.lookups[0].missing, found.lookups[0].faults_expected) == (None, None)
    assert found.batch is not None
    assert (found.batch.place.missing, found.batch.place.missing_pages) == (None, None)
    assert found.offset == 100


def open_files(bench: Bench) -> int:
    """Count descriptors of the bench's files, in a process in which other threads may open some."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(str(bench.directory) in link for link in links)


def test_no_file_stays_open(bench: Bench) -> None:
    log = varied(bench)
    before = open_files(bench)
    explain_time(log.reads.snapshot(), START_MS + 100_000, searches=SEARCHES)
    explain_offset(log.reads.snapshot(), 50)
    with pytest.raises(TimeOutOfRangeError):
        explain_time(log.reads.snapshot(), START_MS + 500_000)
    assert open_files(bench) <= before


def test_the_log_goes_on_unseen(bench: Bench, offsets_in: Callable[[PartitionLog], list[int]]) -> None:
    """A twin shares nothing that changes: appends and rolls between a snapshot and a look are not in it."""
    log = varied(bench)
    snapshot, end = log.reads.snapshot(), log.offsets.log_end_offset
    for number in range(40):
        log.appends.append(build_batch([(START_MS + 10**6 + number, None, b"v" * 300, ())]))
    assert log.reads.has_changed(snapshot)
    assert explain_offset(snapshot, end - 1).log_end_offset == end
    with pytest.raises(TimeOutOfRangeError):
        explain_time(snapshot, START_MS + 10**6)
    assert not log.reads.has_changed(log.reads.snapshot())
    assert offsets_in(log) == list(range(log.offsets.log_end_offset))


# -- indexes that cannot be believed -----------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 3),
    "padded": lambda path: os.truncate(path, 4096),
    "rubbish": lambda path: path.write_bytes(b"\x7f" * path.stat().st_size),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("slot", [0, -1])
def test_the_way_without_an_index_is_told_with_the_reason(bench: Bench, damage: str, suffix: str, slot: int) -> None:
    log = varied(bench)
    log.close()
    bases = sorted(int(path.stem) for path in bench.directory.glob("*.log"))
    base = bases[slot]
    DAMAGE[damage](bench.path(base, suffix))
    before = {path.name: path.read_bytes() for path in bench.directory.iterdir()}
    snapshot = of_the_directory(bench, log)
    offset, is_fault = base + 5, not (damage == "padded" and slot == -1)
    found = explain_offset(snapshot, offset)
    assert found.batch is not None
    assert found.batch.base_offset <= offset <= found.batch.last_offset
    by_time = explain_time(snapshot, START_MS + 1000 * offset)
    assert by_time.offset == offset
    if is_fault:
        assert by_time.index_fault
        assert by_time.lookups == ()
        assert by_time.scan is not None
        assert by_time.scan.position == 0
    if is_fault and suffix == ".index":
        assert found.index_fault
        assert found.lookups == ()
        assert found.scan is not None
        assert found.scan.size == found.batch.place.position
    assert {path.name: path.read_bytes() for path in bench.directory.iterdir()} == before


def test_an_entry_that_leads_astray_is_no_answer(bench: Bench) -> None:
    """As a fetch: the batch at its position must end where the entry says."""
    log = filled(bench, 100)
    log.close()
    index = bench.path(0, ".index")
    data = bytearray(index.read_bytes())
    data[50 * 8 : 51 * 8] = data[50 * 8 : 50 * 8 + 4] + (int.from_bytes(data[50 * 8 + 4 : 51 * 8], "big") + 1).to_bytes(
        4, "big"
    )
    index.write_bytes(data)
    found = explain_offset(of_the_directory(bench, log), 51)
    assert "no batch at" in str(found.index_fault)
    assert found.offset == 51
    assert explain_offset(of_the_directory(bench, log), 90).index_fault is None


def test_a_directory_beside_a_running_log_is_understood(bench: Bench) -> None:
    """Its index files end in a hole, and its last batch may be half written."""
    log = varied(bench)
    assert bench.path(log.active_base_offset, ".index").stat().st_size == 4096
    with bench.path(log.active_base_offset, ".log").open("ab") as file:
        file.write(build_batch([(START_MS, None, b"half", ())])[:40])
    snapshot = of_the_directory(bench, log)
    assert snapshot.end_fault is None
    assert snapshot.log_end_offset == log.offsets.log_end_offset
    found = explain_offset(snapshot, log.offsets.log_end_offset - 1)
    assert found.segment.size == log.reads.describe().segments[-1].size


def test_a_directory_of_a_clean_stop_and_of_a_running_log_say_the_same(bench: Bench) -> None:
    log = varied(bench)
    running = [explain_offset(of_the_directory(bench, log), offset) for offset in range(0, 120, 7)]
    log.close()
    assert [explain_offset(of_the_directory(bench, log), offset) for offset in range(0, 120, 7)] == running


def test_notes_of_a_file_are_one_however_it_is_opened(bench: Bench) -> None:
    log = varied(bench)
    disk = log.reads.snapshot().disk
    first, again = (disk.file(str(bench.path(0, ".log"))) for _ in range(2))
    assert isinstance(first, ObservedFile)
    assert first is again
    disk.restore()


def test_passages_read_by_a_consumer_are_in_the_batch_that_is_told(bench: Bench) -> None:
    log = varied(bench)
    starts = sorted({explain_offset(log.reads.snapshot(), offset).offset for offset in range(0, 120, 7)})
    for offset, after in pairwise(starts):
        piece = log.reads.read(offset, 1 << 16).slice
        assert piece is not None
        assert next(records_in(piece.read_all(), from_offset=offset)).offset == offset < after
