"""Snapshot files, against those that Kafka wrote."""

from pathlib import Path

import pytest

from warmlog.broker.log.errors import CorruptSnapshotError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.producers.idle import CapturedProducers
from warmlog.broker.log.producers.replay import Bounds, replay
from warmlog.broker.log.producers.snapshot import ProducerSnapshots, decode_entries, decode_snapshot, encode_snapshot
from warmlog.broker.log.producers.state import ProducerBatch, ProducerState
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.segments.segment import Segment

WITH_PRODUCERS = ("idempotent-0", "transactional-0")

SOME = [
    ProducerState(3, 1, 4, 1_700_000_000_000, -1, (ProducerBatch(9, 41, 2, 1_700_000_000_000),)),
    ProducerState(1, 0, -1, 1_700_000_000_001, 17, ()),
]


def captured() -> CapturedProducers:
    producers = Producers()
    for state in SOME:
        producers[state.producer_id] = state
    return producers.capture()


def snapshots_of_kafka(root: Path) -> list[Path]:
    return sorted(root.glob("*/*/*.snapshot"))


def test_kafkas_snapshots_are_read_and_written_again_to_the_same_bytes(kafka_fixtures: Path) -> None:
    paths = snapshots_of_kafka(kafka_fixtures)
    assert len(paths) > 50
    states = {path: decode_snapshot(path.read_bytes()) for path in paths}
    for path, found in states.items():
        assert encode_snapshot(found) == path.read_bytes(), path
    assert {path.parent.name for path, found in states.items() if found} == set(WITH_PRODUCERS)


@pytest.mark.parametrize("name", WITH_PRODUCERS)
def test_the_batches_of_kafkas_log_lead_to_what_its_snapshots_say(kafka_fixtures: Path, name: str) -> None:
    directory = kafka_fixtures / "clean" / name
    files = OpenFiles()
    sizes = {int(path.stem): path.stat().st_size for path in sorted(directory.glob("*.log"))}
    bases = sorted(sizes)
    segments = [
        Segment(files, str(directory), base, size=sizes[base], next_base_offset=after, index_interval_bytes=512)
        for base, after in zip(bases, [*bases[1:], None], strict=True)
    ]
    for path in sorted(directory.glob("*.snapshot")):
        expected = {state.producer_id: state for state in decode_snapshot(path.read_bytes())}
        states: dict[int, ProducerState] = {}
        replay(states, segments, Bounds(bases[0], int(path.stem)))
        # a snapshot knows the last batch of each
        assert decode_snapshot(encode_snapshot(list(states.values()))) == [
            expected[state.producer_id] for state in states.values()
        ]
        assert len(states) == len(expected)


def test_states_survive_with_their_last_batch() -> None:
    assert decode_snapshot(encode_snapshot(SOME)) == SOME
    several = ProducerState(3, 1, 4, 5, -1, (ProducerBatch(1, 1, 1, 4), ProducerBatch(2, 2, 0, 5)))
    (found,) = decode_snapshot(encode_snapshot([several]))
    assert found.batches == several.batches[-1:]


def test_a_snapshot_with_any_byte_changed_is_not_believed() -> None:
    data = encode_snapshot(SOME)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(damaged))


def test_a_snapshot_that_is_cut_or_longer_is_not_believed() -> None:
    data = encode_snapshot(SOME)
    for size in range(len(data)):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(data[:size])
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data + b"\0")
    with pytest.raises(CorruptSnapshotError, match="bytes for"):  # a sound CRC over a wrong count
        decode_snapshot(encode_snapshot([])[:2] + bytes.fromhex("ba0cc8c4") + b"\0\0\0\1")


@pytest.mark.parametrize(
    ("there", "bases", "end", "kept"),
    [
        ([0, 5, 9, 12], [0, 5], 20, [0, 5, 12]),  # 9 is a stray; the newest is past the last segment
        ([5, 9], [0, 10], 20, []),
        ([5, 10, 20], [5, 10], 15, [5, 10]),  # past the end
        ([10, 14, 15], [10], 15, [10, 15]),
        ([3], [], 0, []),
    ],
)
def test_kept_are_those_of_segments_and_the_newest_past_the_last(
    tmp_path: Path, there: list[int], bases: list[int], end: int, kept: list[int]
) -> None:
    snapshots = ProducerSnapshots(Disk(), str(tmp_path))
    for offset in there:
        snapshots.write(offset, captured(), sync=False)
    (tmp_path / "notes.snapshot").write_bytes(b"")
    snapshots.find()
    assert snapshots.remove_strays(bases, end) == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"{offset:020d}.snapshot" for offset in kept),
        "notes.snapshot",
    ]


def test_a_damaged_file_is_removed_when_it_is_read(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(Disk(), str(tmp_path))
    snapshots.write(7, captured(), sync=True)
    entries = snapshots.read(7)
    assert entries is not None
    assert decode_entries(entries) == SOME
    assert Path(snapshots.path(7)).read_bytes() == encode_snapshot(SOME)
    path = Path(snapshots.path(7))
    path.write_bytes(path.read_bytes()[:-1])
    assert snapshots.read(7) is None
    assert not path.exists()
    assert not snapshots.has(7)
