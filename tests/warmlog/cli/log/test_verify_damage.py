"""Every kind of damage to every kind of file is found, or listed with the reason why it is not."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warmlog.cli.log.made_directory import long_segment, make_directory
from warmlog.inspect.checks.directories import CheckOptions, check_directories
from warmlog.inspect.checks.history import History
from warmlog.inspect.checks.partition import PartitionCheck
from warmlog.inspect.checks.segment import CheckContext
from warmlog.inspect.findings import Finding, Tally

INDEX_INTERVAL_BYTES = 512  # the largest of those with which the directories were made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, kafka_fixtures: Path) -> Path:
    """A sound data directory. Tests restore the files they damage."""
    return make_directory(tmp_path_factory.mktemp("made") / "data", kafka_fixtures / "clean")


def found_in(directory: Path) -> list[Finding]:
    options = CheckOptions(index_interval_bytes=INDEX_INTERVAL_BYTES)
    return list(check_directories([directory], options, Tally()))


def found_in_partition(directory: Path) -> list[Finding]:
    context = CheckContext(
        running=False, clean=True, index_interval_bytes=INDEX_INTERVAL_BYTES, progress=lambda _records, _size: None
    )
    return list(PartitionCheck(directory, context, Tally(), gapless=directory.name == "plain-0").findings())


def test_the_made_directory_is_sound(made: Path) -> None:
    assert found_in(made) == []


# -- whole files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Return why a kind of damage to a file is not a finding."""

    files: str
    damages: str
    why: str


NO_FINDING = [
    Reason(files=r"\.kafka_cleanshutdown|\.lock", damages=".*", why="that it is there is all it says"),
    Reason(files=r".*-checkpoint|meta\.properties", damages="cut", why="only the last line's end is missing"),
    Reason(files=r"metadata\.sqlite", damages="missing", why="a directory that Kafka wrote has none"),
    Reason(files=r".*\.snapshot", damages="missing", why="a start reads more of the log instead"),
    Reason(files=r".*\.snapshot", damages="swapped", why="plain-1 has other producers: not here, see below"),
    Reason(files=r"leader-epoch-checkpoint", damages="missing|emptied", why="it is made from the batches; Kafka's is"),
    Reason(files=r"contiguous-offset-checkpoint", damages="missing|emptied", why="without it nothing is known of gaps"),
    Reason(files=r"partition\.metadata", damages="missing", why="a start writes it, from the metadata"),
    Reason(files=r"squeezed-0/.*\.index", damages="halved", why="a sparse index may be sparser"),
    Reason(files=r".*\.index", damages="emptied", why="less than two intervals of log need no entry"),
    Reason(files=r"leader-epoch-checkpoint", damages="swapped", why="both say the same"),
]

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "halved": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "zeroed": lambda content: bytes(len(content)),
    "garbage appended": lambda content: content + b"\x93garbage" * 5,
    "zeros appended": lambda content: content + bytes(96),
    "noise": lambda content: bytes((byte * 7 + at * 13 + 5) % 256 for at, byte in enumerate(content)),
}


def is_excused(path: str, damage: str) -> bool:
    return any(re.search(f"({each.files})$", path) and re.fullmatch(each.damages, damage) for each in NO_FINDING)


def files_of(made: Path) -> list[Path]:
    """One of each kind, and of each state: sealed, active, snapshot at a segment and at the end."""
    kept = [*made.glob("*"), *made.glob("plain-0/*"), *made.glob("squeezed-0/*")]
    kept += [*made.glob("transactional-0/*.txnindex"), *made.glob("transactional-0/*152.snapshot")]
    return sorted(path for path in kept if path.is_file())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_found(made: Path, damage: str) -> None:
    missed, wrongly_excused = [], []
    for path in files_of(made):
        content = path.read_bytes()
        damaged = DAMAGES[damage](content)
        if damaged == content:
            continue
        path.write_bytes(damaged)
        findings = found_in(made)
        path.write_bytes(content)
        name = str(path.relative_to(made))
        if not findings and not is_excused(name, damage):
            missed.append(name)
        if findings and not any(finding.path.parent in {path.parent, made} for finding in findings):
            wrongly_excused.append(name)
    assert (missed, wrongly_excused) == ([], [])


def test_a_missing_file_is_found(made: Path) -> None:
    missed = []
    for path in files_of(made):
        aside = path.with_name("aside")
        path.rename(aside)
        findings = [finding for finding in found_in(made) if finding.path != aside]
        aside.rename(path)
        name = str(path.relative_to(made))
        if not findings and not is_excused(name, "missing"):
            missed.append(name)
    assert missed == []


def test_files_swapped_between_partitions_are_found(made: Path) -> None:
    """Two completely swapped logs cannot be detected: batches do not name their partition."""
    missed = []
    for path in sorted((made / "plain-0").iterdir()):
        content, other = path.read_bytes(), (made / "transactional-0" / path.name)
        is_usable = other.exists() and other.stat().st_size
        strange = other if is_usable else made / "transactional-0" / f"{152:020}{path.suffix}"
        if not strange.exists():
            continue
        path.write_bytes(strange.read_bytes())
        findings = found_in(made)
        path.write_bytes(content)
        if not findings and not is_excused(path.name, "swapped"):
            missed.append(path.name)
    assert missed == []


def test_files_swapped_between_segments_are_found(made: Path) -> None:
    missed = []
    for path in sorted((made / "plain-0").glob(f"{16:020}.*")):
        content = path.read_bytes()
        path.write_bytes(path.with_name(f"{8:020}{path.suffix}").read_bytes())
        findings = found_in(made) if path.read_bytes() != content else [None]
        path.write_bytes(content)
        if not findings:
            missed.append(path.name)
    assert missed == []


# -- single bits -------------------------------------------------------------------------------------------------------

# What a flipped bit may change in text without anybody noticing: an id, or a number that is as good as the other.
SILENT_TEXT = {
    "meta.properties": "ids carry no checksum",
    "log-start-offset-checkpoint": "a number for another that the log has, too",
    "recovery-point-offset-checkpoint": "a number for another that the log has, too",
    "replication-offset-checkpoint": "a number for another that the log has, too",
    "leader-epoch-checkpoint": "a number for another, or a line's end for another",
    "partition.metadata": "a line's end for another",
}


@pytest.mark.parametrize(
    "pattern",
    [
        "plain-0/*000.log",
        "plain-0/*016.log",
        "plain-0/*index",
        "plain-0/*.snapshot",
        "transactional-0/*107.txnindex",
        "transactional-0/*152.snapshot",
    ],
)
def test_every_flipped_bit_in_a_binary_file_is_found(made: Path, pattern: str) -> None:
    missed = []
    for path in sorted(made.glob(pattern)):
        content = path.read_bytes()
        for at in range(len(content)):
            flipped = bytearray(content)
            flipped[at] ^= 1 << (at * 5 + 3) % 8
            path.write_bytes(flipped)
            if not found_in_partition(path.parent):
                missed.append((path.name, at))
        path.write_bytes(content)
    assert missed == []


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "plain-0/partition.metadata", "meta.properties"])
def test_most_flipped_bits_in_a_text_are_found(made: Path, name: str) -> None:
    path = made / name
    content = path.read_bytes()
    missed = 0
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at * 5 + 3) % 8
        path.write_bytes(flipped)
        missed += not found_in(made)
    path.write_bytes(content)
    assert path.name in SILENT_TEXT
    assert missed < len(content) * (0.8 if name == "meta.properties" else 0.1)


# -- what is missing as a whole, or too much ---------------------------------------------------------------------------


def whats(findings: list[Finding]) -> str:
    return "\n".join(finding.line() for finding in findings)


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def test_a_missing_partition_is_found(copy: Path) -> None:
    shutil.rmtree(copy / "plain-1")
    assert "topic plain: partition 1 has no directory" in whats(found_in(copy))


def test_a_missing_segment_is_reported_as_missing_offsets_without_compaction(copy: Path) -> None:
    for path in (copy / "plain-0").glob(f"{8:020}.*"):
        path.unlink()
    assert "offsets 8 to 15 are missing" in whats(found_in(copy))


def test_truncated_batches_at_the_end_contradict_the_checkpoints(copy: Path) -> None:
    log = copy / "plain-0" / f"{16:020}.log"
    log.write_bytes(log.read_bytes()[: len(log.read_bytes()) * 3 // 4])
    findings = whats(found_in(copy))
    assert "plain 0 at offset 24, but its log ends at 22" in findings
    assert "is past the end of the log" in findings


def test_a_lost_end_of_a_segment_is_found_in_a_compacted_log(copy: Path) -> None:
    (copy / "cleaner-offset-checkpoint").write_text("0\n1\nplain 0 8\n")
    for path in (copy / "plain-0").glob(f"{8:020}.*"):
        path.unlink()
    assert "offsets 8 to 15 are missing; they existed when the next segment was created" in whats(found_in(copy))


def test_gaps_of_compaction_are_not_findings(copy: Path) -> None:
    """The policy says so, or the cleaner's checkpoint, or the batches themselves."""
    (copy / "cleaner-offset-checkpoint").write_text("0\n1\nplain 0 16\n")
    (copy / "plain-0" / "contiguous-offset-checkpoint").write_text("0\n1\n16\n")
    for path in (copy / "plain-0").glob(f"{8:020}.*"):
        path.unlink()
    assert found_in(copy) == []
    history = History()
    history.was_compacted = True
    assert history.gaps() == []


def test_another_topics_id_is_found(copy: Path) -> None:
    shutil.copy(copy / "squeezed-0" / "partition.metadata", copy / "plain-0")
    (finding,) = found_in(copy)
    assert finding.path == copy / "plain-0" / "partition.metadata"
    assert finding.what.startswith("topic id ")


def test_partitions_in_several_directories_are_looked_for_in_all_of_them(copy: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (copy / "plain-1").rename(second / "plain-1")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        lines = (copy / name).read_text().splitlines()
        rest = [line for line in lines[2:] if line != "plain 1 24"]
        (copy / name).write_text("\n".join(["0", str(len(rest)), *rest, ""]))
        (second / name).write_text("0\n1\nplain 1 24\n")
    (second / "log-start-offset-checkpoint").write_text("0\n0\n")
    shutil.copy(copy / "meta.properties", second)
    (second / ".kafka_cleanshutdown").touch()
    assert list(check_directories([copy, second], CheckOptions(), Tally())) == []
    assert list(check_directories([copy], CheckOptions(), Tally())) != []


def test_a_leader_epoch_past_the_end_is_found(copy: Path) -> None:
    (copy / "plain-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 25\n")
    assert "leader epoch 1 begins at offset 25, but the log ends at 24" in whats(found_in(copy))


def test_an_index_with_missing_entries_is_found(copy: Path) -> None:
    index = long_segment(copy)
    content = index.read_bytes()
    assert found_in_partition(index.parent) == []
    index.write_bytes(content[: len(content) // 16 * 8])
    (finding,) = found_in_partition(index.parent)
    assert "no entry between positions" in finding.what
