"""A log that moves to another data directory, on a disk that loses its power at every single step of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.broker.log.io.crashing_disk import CrashingDisk, Fault, MachineGone
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.arrival import ANYWHERE, ARRIVAL, REPLACES_ALL, Arrival, read_arrival, write_arrival
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.moving import LogMove
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.builder import build_batch

KEY = ("words", 0)
NAME = "words-0"
START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, segment_index_bytes=240)
RECORDS = 30
MOVED = 12  # records appended after the move


class World:
    """A broker's two data directories, and the log of `words-0` in one of them."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        for name in "ab":
            (root / name).mkdir(exist_ok=True, parents=True)
        self.root = root
        self.disk = disk or CrashingDisk(root)
        paths = [root / name for name in "ab"]
        self.directories = DataDirectories.open(paths, node_id=1, disk=self.disk)
        try:
            self.directories.join({}, {KEY})
            self.log = self._open()
        except BaseException:
            self.directories.close()
            raise

    def _open(self) -> PartitionLog:
        holder = self.directories.place(*KEY)
        self.directories.settle_arrival(*KEY, holder)
        log = PartitionLog.open(
            Path(holder.partition_path(NAME)),
            topic=KEY[0],
            partition=KEY[1],
            config=CONFIG,
            files=OpenFiles(disk=self.disk),
            clock=lambda: START_MS,
            random=Random(1),
            recovery_point=holder.recovery_points.get(KEY, 0),
            log_start_offset=holder.log_starts.get(KEY, 0),
            clean=holder.was_clean,
        )
        holder.sync_names()
        return log

    @property
    def holder(self) -> DataDirectory:
        found = self.directories.holder(*KEY)
        assert found is not None
        return found

    def named(self, name: str) -> DataDirectory:
        found = self.directories.find(str(self.root / name))
        assert found is not None
        return found

    def append(self, count: int) -> None:
        for _ in range(count):
            offset = self.log.offsets.log_end_offset
            rows = [(START_MS + offset, b"k%d" % offset, b"%d" % offset * 20, ())]
            self.log.appends.append(build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=offset))

    def begin_move(self, name: str) -> LogMove:
        move = self.log.begin_move(self.named(name).path)
        move.prepare(self.holder.directory_id)
        return move

    def finish_move(self, move: LogMove, name: str) -> None:
        """What the broker does while writes are paused, and after it."""
        target = self.named(name)
        moved = move.complete(self.log.end_of_move(), partial(target.add_to_checkpoints, self.log, None))
        for segment in self.log.finish_move(moved, target.space_status):
            segment.close()
        self.directories.relocate(*KEY, target)
        self.directories.settle_arrival(*KEY, target)
        self.write_checkpoints()

    def write_checkpoints(self) -> None:
        for directory, held in self.directories.by_directory([self.log]).items():
            directory.write_checkpoints(held)

    def move(self, name: str) -> None:
        move = self.begin_move(name)
        while move.remaining_bytes or not move.has_sealed:
            move.copy()
        move.sync_active()
        self.finish_move(move, name)

    def offsets(self) -> list[int]:
        """Offsets of all records, whose values must be those of their offsets."""
        found, offset = [], self.log.offsets.log_start_offset
        while offset < self.log.offsets.log_end_offset:
            piece = self.log.reads.read(offset, 1, min_one_batch=True).slice
            assert piece is not None
            data = piece.read_all()
            offset = int.from_bytes(data[:8])
            assert b"%d" % offset * 20 in data
            found.append(offset)
            offset += 1
        return found

    def places(self) -> set[str]:
        """Where directories of the partition's name lie."""
        return {name for name in "ab" if (self.root / name / NAME).exists()}

    def close(self, *, clean: bool = False) -> None:
        with suppress(OSError):
            self.log.close(clean=clean)
        self.directories.close()


@contextmanager
def world(root: Path, disk: Disk | None = None) -> Iterator[World]:
    made = World(root, disk)
    try:
        yield made
    finally:
        made.close()


def life(machine: World, name: str) -> None:
    """A move while records come, and records after it."""
    move = machine.begin_move(name)
    for _ in range(4):
        move.copy()
    machine.append(3)
    while move.remaining_bytes or not move.has_sealed:
        move.copy()
    machine.append(1)
    move.sync_active()
    machine.finish_move(move, name)
    machine.append(MOVED)
    machine.log.durability.flush()


def prepared(root: Path) -> World:
    """A log in `a`, all of it synced, that begins at offset 4."""
    machine = World(root)
    assert machine.holder is machine.named("a")
    machine.append(RECORDS)
    machine.log.durability.flush()
    machine.log.truncation.advance_start(4)
    machine.write_checkpoints()
    machine.named("a").sync_names()
    return machine


def steps_of(tmp_path: Path, live: Callable[[World, str], None]) -> int:
    machine = prepared(tmp_path / "counted")
    assert isinstance(machine.disk, CrashingDisk)
    before = len(machine.disk.steps)
    live(machine, "b")
    machine.close()
    return len(machine.disk.steps) - before


def test_a_moved_log_has_the_same_records_at_the_same_places(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(RECORDS)
        before = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "a" / NAME).glob("*.log"))]
        machine.move("b")
        after = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "b" / NAME).glob("*.log"))]
        assert after == before
        assert machine.places() == {"b"}
        machine.append(MOVED)
        assert machine.offsets() == list(range(RECORDS + MOVED))
        assert machine.log.durability.recovery_point >= RECORDS
        assert not (tmp_path / "b" / NAME / ARRIVAL).exists()


def test_plans_made_while_a_log_changes_places_are_written_to_the_new_one(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(5)
        move = machine.begin_move("b")
        rows = [(START_MS + 5, b"k5", b"5" * 20, ())]
        planned = machine.log.appends.plan(build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=5))
        machine.finish_move(move, "b")
        machine.log.appends.write([planned])
        machine.log.appends.commit([planned])
        assert machine.offsets() == list(range(6))
        assert machine.log.directory == tmp_path / "b" / NAME


def test_a_clean_start_after_a_move_finds_everything_in_the_new_place(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(RECORDS)
        machine.move("b")
        machine.append(1)
        machine.log.close()
        machine.write_checkpoints()
        for name in "ab":
            machine.named(name).mark_clean()
    with world(tmp_path, Disk()) as machine:
        assert machine.holder is machine.named("b")
        assert machine.log.recovery is None
        assert machine.offsets() == list(range(RECORDS + 1))
        again = build_batch([(START_MS, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=RECORDS)
        assert machine.log.appends.plan(again).is_duplicate


@pytest.mark.parametrize(
    ("journal", "fault"),
    [
        (True, "crash after"),
        *(
            pytest.param(journal, fault, marks=pytest.mark.interop)
            for journal, fault in ((True, "crash before"), (False, "crash before"), (False, "crash after"))
        ),
    ],
)
def test_a_power_cut_at_any_step_of_a_move_loses_nothing(tmp_path: Path, fault: Fault, journal: bool) -> None:
    places: set[str] = set()
    count = steps_of(tmp_path, life)
    assert count > 60
    for step in range(count):
        root = tmp_path / f"{step}"
        machine = prepared(root)
        assert isinstance(machine.disk, CrashingDisk)
        machine.disk.fail_at(step, fault)
        with suppress(MachineGone):
            life(machine, "b")
        acknowledged = machine.log.durability.recovery_point
        end = machine.log.offsets.log_end_offset
        machine.close()
        for seed in range(3):
            left = tmp_path / f"{step}-{seed}"
            machine.disk.crash(left, Random(f"{step} {seed}"), journal=journal)
            with world(left) as started:
                offsets = started.offsets()
                assert offsets == list(range(4, started.log.offsets.log_end_offset)), step
                assert max(acknowledged, RECORDS) <= started.log.offsets.log_end_offset <= end + 1, (
                    "one was being written"
                )
                (place,) = started.places()
                places.add(place)
                assert started.log.offsets.log_start_offset == 4
                started.append(2)
                started.move("b" if place == "a" else "a")
                assert len(started.places()) == 1
    assert places == {"a", "b"}


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_a_disk_that_fails_at_any_step_leaves_the_log_in_one_place(tmp_path: Path, fault: Fault) -> None:
    for step in range(0, steps_of(tmp_path, World.move), 2):
        machine = prepared(tmp_path / f"{step}")
        assert isinstance(machine.disk, CrashingDisk)
        machine.disk.fail_at(step, fault)
        with suppress(OSError):
            machine.move("b")
        if not machine.log.failed:
            machine.append(1)
            assert machine.offsets() == list(range(4, RECORDS + 1))
        machine.disk.forget_lost_syncs()
        machine.close()
        with world(tmp_path / f"{step}") as started:
            assert started.offsets()[: RECORDS - 4] == list(range(4, RECORDS))
            assert len(started.places()) == 1


# -- the note ----------------------------------------------------------------------------------------------------------


def two_places(root: Path) -> tuple[str, str]:
    """The partition in both directories with the same records; the directories' ids."""
    with world(root, Disk()) as machine:
        machine.append(RECORDS)
        machine.log.durability.flush()
        machine.begin_move("b")
        ids = machine.named("a").directory_id, machine.named("b").directory_id
        machine.log.close()
    for path in (root / "b").glob("*-future"):
        for file in (root / "a" / NAME).iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        path.rename(root / "b" / NAME)
    return ids


def test_a_copy_whose_source_is_still_there_is_taken_back(tmp_path: Path) -> None:
    two_places(tmp_path)
    with world(tmp_path, Disk()) as machine:
        assert machine.holder is machine.named("a")
        assert machine.places() == {"a"}
        assert [name for name, _ in machine.named("b").future_directories()] != []


def test_a_copy_that_was_served_is_kept_and_its_source_put_aside(tmp_path: Path) -> None:
    source, _ = two_places(tmp_path)
    write_arrival(Disk(), str(tmp_path / "b" / NAME), Arrival(source, is_confirmed=True))
    with world(tmp_path, Disk()) as machine:
        assert machine.holder is machine.named("b")
        assert machine.places() == {"b"}
        assert not (tmp_path / "b" / NAME / ARRIVAL).exists(), "nothing is left that it would speak of"


def test_a_copy_whose_source_cannot_be_seen_is_confirmed_before_it_is_served(tmp_path: Path) -> None:
    source, _ = two_places(tmp_path)
    (tmp_path / "a" / NAME).rename(tmp_path / "kept")
    directories = DataDirectories.open([tmp_path / "b"], node_id=1)
    try:
        directories.settle_arrival(*KEY, directories.first)
    finally:
        directories.close()
    assert read_arrival(Disk(), str(tmp_path / "b" / NAME)) == Arrival(source, is_confirmed=True)
    (tmp_path / "kept").rename(tmp_path / "a" / NAME)
    with world(tmp_path, Disk()) as machine:
        assert machine.holder is machine.named("b")


def test_a_move_keeps_the_note_that_copies_on_offline_disks_are_out_of_date(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(RECORDS)
        write_arrival(Disk(), machine.holder.partition_path(NAME), REPLACES_ALL)
        machine.directories.offline["elsewhere"] = "a test"
        machine.move("b")
        assert read_arrival(Disk(), str(tmp_path / "b" / NAME)) == REPLACES_ALL
        del machine.directories.offline["elsewhere"]
        machine.directories.settle_arrival(*KEY, machine.holder)
        assert read_arrival(Disk(), str(tmp_path / "b" / NAME)) is None


@pytest.mark.parametrize("source", ["elsewhere", ANYWHERE])
def test_a_copy_that_replaces_all_others_is_kept(tmp_path: Path, source: str) -> None:
    two_places(tmp_path)
    write_arrival(Disk(), str(tmp_path / "b" / NAME), Arrival(source, replaces_all=True))
    with world(tmp_path, Disk()) as machine:
        assert machine.holder is machine.named("b")
        assert machine.places() == {"b"}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_copy_that_was_moved_wins_over_its_source_that_once_replaced_others(
    tmp_path: Path, *, is_first: bool
) -> None:
    first, second = two_places(tmp_path)
    source, paths = (first, ("a", "b")) if is_first else (second, ("b", "a"))
    write_arrival(Disk(), str(tmp_path / paths[0] / NAME), REPLACES_ALL)
    write_arrival(Disk(), str(tmp_path / paths[1] / NAME), Arrival(source, is_confirmed=True, replaces_all=True))
    with world(tmp_path, Disk()) as machine:
        assert machine.places() == {paths[1]}


def test_two_directories_of_a_partition_without_a_note_are_refused(tmp_path: Path) -> None:
    two_places(tmp_path)
    (tmp_path / "b" / NAME / ARRIVAL).unlink()
    with pytest.raises(DataDirectoryError, match="lies in two data directories"):
        World(tmp_path, Disk())


@pytest.mark.parametrize("text", ["", "{}", '{"from": 1}', "\xff", "[]", '{"from": "another", "confirmed": false}'])
def test_a_note_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    two_places(tmp_path)
    (tmp_path / "b" / NAME / ARRIVAL).write_text(text, encoding="latin-1")
    with pytest.raises(DataDirectoryError, match="lies in two data directories"):
        World(tmp_path, Disk())


# -- what changes meanwhile --------------------------------------------------------------------------------------------


def test_copies_of_segments_that_went_are_dropped(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(RECORDS)
        move = machine.begin_move("b")
        while move.remaining_bytes or not move.has_sealed:
            move.copy()
        machine.log.truncation.advance_start(20)
        removed = machine.log.old_segments.take_out()
        machine.log.old_segments.unlink(machine.log.old_segments.rename(removed))
        assert removed
        machine.finish_move(move, "b")
        found = machine.offsets()
        assert found == list(range(20, RECORDS))
        copied = sorted(path.name for path in (tmp_path / "b" / NAME).glob("*.log"))
        assert copied[0] > f"{0:020d}.log"


@pytest.mark.parametrize("regrown", [2, 8])
def test_what_a_truncation_has_replaced_is_copied_again(tmp_path: Path, regrown: int) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(8)
        move = machine.begin_move("b")
        while move.remaining_bytes:
            move.copy()
        machine.log.durability.lower_recovery_point(5)
        machine.log.truncation.truncate_to(5)
        for number in range(regrown):
            machine.log.appends.append(build_batch([(START_MS, b"k", b"another history %d" % number, ())]))
        assert move.remaining_bytes > 0
        machine.finish_move(move, "b")
        content = b"".join(path.read_bytes() for path in (tmp_path / "b" / NAME).glob("*.log"))
        assert content.count(b"another history") == regrown
        assert machine.log.reads.read(5 + regrown - 1, 1, min_one_batch=True).slice.read_all() in content


def test_an_epoch_that_begins_while_a_log_changes_places_is_kept(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.log.epochs.assign(1, machine.log.offsets.log_end_offset)
        machine.append(3)
        move = machine.begin_move("b")
        end = machine.log.end_of_move()
        machine.log.epochs.assign(2, machine.log.offsets.log_end_offset)
        moved = move.complete(end, lambda: None)
        for segment in machine.log.finish_move(moved, machine.named("b").space_status):
            segment.close()
        machine.log.durability.checkpoint_epochs()
        assert "2 3" in (tmp_path / "b" / NAME / "leader-epoch-checkpoint").read_text()


def test_a_copy_that_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    with world(tmp_path, Disk()) as machine:
        machine.append(RECORDS)
        move = machine.begin_move("b")
        for _ in range(5):
            move.copy()
        assert move.copied_bytes
        assert 0 < move.end_offset < RECORDS
        move.discard()
        move.discard()
        assert not list((tmp_path / "b").glob("words*"))
        assert machine.offsets() == list(range(RECORDS))
