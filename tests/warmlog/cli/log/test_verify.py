import json
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from crc32c import crc32c

from warmlog.cli.root import root
from warmlog.client import Client
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import (
    BASE_OFFSET_POSITION,
    CRC_POSITION,
    CRC_START,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    MAX_TIMESTAMP_POSITION,
    RECORD_COUNT_POSITION,
)
from warmlog.testing import Broker


def verify(*arguments: Path | str) -> Result:
    return CliRunner().invoke(root, ["log", "verify", *map(str, arguments)])


def findings(directory: Path) -> list[tuple[str, str]]:
    """(file name, finding) of each finding; the exit status agrees."""
    result = verify(directory, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == (1 if report["findings"] else 0)
    return [(Path(found["path"]).name, found["finding"]) for found in report["findings"]]


def tree(directory: Path) -> dict[Path, tuple[bytes, int]]:
    """Return content and modification time of every file."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def plain(kafka_fixtures: Path, tmp_path: Path) -> Path:
    """A partition that Kafka wrote, to be damaged."""
    return Path(shutil.copytree(kafka_fixtures / "clean" / "plain-0", tmp_path / "plain-0"))


@pytest.mark.parametrize("kept", ["clean", "recovered"])
def test_directories_of_kafka_have_no_findings(kafka_fixtures: Path, kept: str) -> None:
    before = tree(kafka_fixtures / kept)
    assert findings(kafka_fixtures / kept) == []
    assert tree(kafka_fixtures / kept) == before


def test_a_killed_broker_leaves_only_torn_batches(kafka_fixtures: Path) -> None:
    """The active segments' preallocated indexes and the empty checkpoints are as they should be."""
    assert findings(kafka_fixtures / "killed") == [
        ("00000000000000000120.log", "a batch of 1161 bytes is cut off after 75"),
        ("00000000000000000105.log", "a batch of 580 bytes is cut off after 75"),
    ]


def test_the_text_output_is_one_line_per_finding_and_a_summary(kafka_fixtures: Path) -> None:
    result = verify(kafka_fixtures / "killed" / "killed-0")
    finding, summary = result.stdout.splitlines()
    assert finding.endswith("00000000000000000120.log at position 0: a batch of 1161 bytes is cut off after 75")
    assert summary.startswith("1 partitions, 4 segments")
    assert summary.endswith("1 findings")


def test_the_report_has_totals(plain: Path) -> None:
    report = json.loads(verify(plain, "--json").stdout)
    logs = list(plain.glob("*.log"))
    assert report["partitions"] == 1
    assert report["segments"] == len(logs)
    assert report["records"] == 204
    assert report["size"] == sum(log.stat().st_size for log in logs)


def overwrite(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def log_of(partition: Path, slot: int) -> Path:
    return sorted(partition.glob("*.log"))[slot]


def flip_a_record_byte(partition: Path) -> str:
    overwrite(log_of(partition, 0), 100, bytes([log_of(partition, 0).read_bytes()[100] ^ 1]))
    return "the CRC of the batch"


def flip_the_magic(partition: Path) -> str:
    overwrite(log_of(partition, 0), 16, b"\x03")
    return "format version 3"


def cut_a_closed_segment(partition: Path) -> str:
    log = log_of(partition, 0)
    log.write_bytes(log.read_bytes()[:-1])
    return "cut off"


def put_zeros_behind_a_closed_segment(partition: Path) -> str:
    log = log_of(partition, 0)
    log.write_bytes(log.read_bytes() + bytes(4096))
    return "4096 zero bytes to the end"


def move_a_batch_back(partition: Path) -> str:
    """The CRC does not cover the base offset: only the order of offsets reveals it."""
    log = log_of(partition, 0)
    second = 133
    overwrite(log, second + BASE_OFFSET_POSITION, struct.pack(">q", 0))
    return "offsets 0 to 1 overlap the batches before"


def reach_into_the_next_segment(partition: Path) -> str:
    log = log_of(partition, 0)
    following = int(log_of(partition, 1).stem)
    log.write_bytes(log.read_bytes() + build_batch([(1, None, b"x", ())], base_offset=following))
    return "reach into the next segment"


def change_a_leader_epoch(partition: Path) -> str:
    overwrite(log_of(partition, 0), LEADER_EPOCH_POSITION, struct.pack(">i", 7))
    return "leader epoch 0 after 7"


def point_an_index_entry_elsewhere(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".index")
    relative, position = struct.unpack_from(">ii", index.read_bytes())
    overwrite(index, 0, struct.pack(">ii", relative, position + 1))
    return f"no batch begins at position {position + 1}"


def give_an_index_entry_another_offset(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".index")
    relative, position = struct.unpack_from(">ii", index.read_bytes())
    overwrite(index, 0, struct.pack(">ii", relative - 1, position))
    return f"but the batch at {position} ends with {relative}"


def repeat_an_index_entry(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".index")
    index.write_bytes(index.read_bytes() + index.read_bytes()[-8:])
    return "not greater than"


def index_past_the_end(partition: Path) -> str:
    index = log_of(partition, -1).with_suffix(".index")
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 1 << 20, 1 << 20))
    return "is past the end of the log"


def leave_an_index_padded(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(80))
    return "10 zero entries at the end"


def pad_a_time_index(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".timeindex")
    index.write_bytes(index.read_bytes() + bytes(12))
    return "1 zero entries at the end"


def cut_an_index_inside_an_entry(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".index")
    index.write_bytes(index.read_bytes()[:-3])
    return "5 bytes at the end are not a whole entry"


def date_a_time_index_entry_later(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".timeindex")
    timestamp, relative = struct.unpack_from(">qi", index.read_bytes())
    overwrite(index, 0, struct.pack(">qi", timestamp + 1, relative))
    return f"the largest up to offset {relative} is {timestamp}"


def move_a_time_index_entry(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".timeindex")
    timestamp, relative = struct.unpack_from(">qi", index.read_bytes())
    overwrite(index, 0, struct.pack(">qi", timestamp, relative - 1))
    return "an entry with a record's offset, as Kafka up to 3.7 wrote them"


def repeat_a_time_index_entry(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".timeindex")
    index.write_bytes(index.read_bytes() + index.read_bytes()[-12:])
    return "not greater than"


def time_index_past_the_end(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".timeindex")
    index.write_bytes(index.read_bytes() + struct.pack(">qi", 1 << 42, 1 << 20))
    return "is past the end of the segment"


def number_records_beyond_their_batch(partition: Path) -> str:
    """As a faulty filter of batches might write: the CRC is right, the header is wrong."""
    rewrite_first_batch(partition, LAST_OFFSET_DELTA_POSITION, struct.pack(">i", 1))
    return "a record has an offset outside 0 to 1"


def end_before_the_beginning(partition: Path) -> str:
    rewrite_first_batch(partition, LAST_OFFSET_DELTA_POSITION, struct.pack(">i", -5))
    return "last offset -5 is before the first, 0"


def count_records_that_are_not_there(partition: Path) -> str:
    rewrite_first_batch(partition, RECORD_COUNT_POSITION, struct.pack(">i", 2))
    return "are left over after 2 records"


def rewrite_first_batch(partition: Path, position: int, data: bytes) -> None:
    """Replace the first segment by a batch of three records, changed at a position; with the right CRC again."""
    batch = bytearray(build_batch([(1000 + number, None, b"x", ()) for number in range(3)], leader_epoch=0))
    batch[position : position + len(data)] = data
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    log_of(partition, 0).write_bytes(batch)


def drop_the_last_time_index_entry(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".timeindex")
    index.write_bytes(index.read_bytes()[:-12])
    return "but the segment's largest is"


def remove_an_index(partition: Path) -> str:
    log_of(partition, 0).with_suffix(".index").unlink()
    return "missing"


def empty_an_index(partition: Path) -> str:
    index = log_of(partition, 0).with_suffix(".index")
    log = index.with_suffix(".log")
    index.write_bytes(b"")
    end = int(log_of(partition, 1).stem)
    batches = [build_batch([(1 << 40, None, bytes(20_000), ())], base_offset=end - before) for before in (2, 1)]
    log.write_bytes(log.read_bytes() + b"".join(batches))
    return "no entries"


def lose_a_log(partition: Path) -> str:
    log_of(partition, 0).unlink()
    return "belongs to no segment"


def leave_a_file_half_cleaned(partition: Path) -> str:
    log = log_of(partition, 0)
    (partition / f"{log.name}.cleaned").write_bytes(b"")
    return "left over"


def add_a_foreign_file(partition: Path) -> str:
    (partition / "notes.txt").write_text("mine")
    return "does not belong here"


def break_the_epochs(partition: Path) -> str:
    (partition / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n1 5\n")
    return "must both increase"


def break_the_epochs_text(partition: Path) -> str:
    (partition / "leader-epoch-checkpoint").write_text("0\n1\nnonsense\n")
    return "malformed line"


def let_the_epochs_disagree(partition: Path) -> str:
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n5 0\n")
    return "leader epoch 0, but the checkpoint says 5"


def break_the_topic_id(partition: Path) -> str:
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: ?")
    return "no topic id"


DAMAGES: list[Callable[[Path], str]] = [
    flip_a_record_byte,
    flip_the_magic,
    cut_a_closed_segment,
    put_zeros_behind_a_closed_segment,
    move_a_batch_back,
    reach_into_the_next_segment,
    change_a_leader_epoch,
    point_an_index_entry_elsewhere,
    give_an_index_entry_another_offset,
    repeat_an_index_entry,
    index_past_the_end,
    leave_an_index_padded,
    pad_a_time_index,
    cut_an_index_inside_an_entry,
    date_a_time_index_entry_later,
    move_a_time_index_entry,
    repeat_a_time_index_entry,
    time_index_past_the_end,
    number_records_beyond_their_batch,
    end_before_the_beginning,
    count_records_that_are_not_there,
    drop_the_last_time_index_entry,
    remove_an_index,
    empty_an_index,
    lose_a_log,
    leave_a_file_half_cleaned,
    add_a_foreign_file,
    break_the_epochs,
    break_the_epochs_text,
    let_the_epochs_disagree,
    break_the_topic_id,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(plain: Path, damage: Callable[[Path], str]) -> None:
    expected = damage(plain)
    before = tree(plain)
    assert any(expected in what for _, what in findings(plain)), findings(plain)
    assert tree(plain) == before


def test_a_wrong_largest_timestamp_in_a_header_is_found(tmp_path: Path) -> None:
    """A broker does not decompress batches, so that this can be stored."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    batch = bytearray(build_batch([(1000, None, b"x", ())]))
    struct.pack_into(">q", batch, MAX_TIMESTAMP_POSITION, 2000)
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    log = partition / f"{0:020}.log"
    log.write_bytes(batch)
    log.with_suffix(".index").write_bytes(b"")
    log.with_suffix(".timeindex").write_bytes(b"")
    assert findings(partition) == [(log.name, "largest timestamp is 1000, but the header says 2000")]


def test_a_preallocated_active_log_is_followed_by_zeros(plain: Path) -> None:
    active = log_of(plain, -1)
    active.write_bytes(active.read_bytes() + bytes(100_000))
    assert findings(plain) == []


def test_other_paths_are_rejected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        result = verify(path)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


@pytest.fixture
def clean(kafka_fixtures: Path, tmp_path: Path) -> Path:
    """A data directory that Kafka left, to be damaged."""
    return Path(shutil.copytree(kafka_fixtures / "clean", tmp_path / "clean"))


@pytest.mark.parametrize(
    ("name", "content", "finding"),
    [
        ("meta.properties", None, "missing"),
        ("meta.properties", "version=0\nnode.id=1\ncluster.id=x", "version is 0, expected 1"),
        ("meta.properties", "version=1\nnode.id=1", "cluster.id is missing"),
        ("recovery-point-offset-checkpoint", "0\n1\nplain 0 205\n", "plain 0 at offset 205, but its log ends at 204"),
        ("replication-offset-checkpoint", "0\n1\nplain 1 0\n", "plain 1 has no directory here"),
        ("log-start-offset-checkpoint", "1\n0\n", "version 1, expected 0"),
        ("holiday.jpg", "", "does not belong here"),
        ("meta.properties.tmp", "", "left over from an interrupted change"),
    ],
)
def test_files_of_a_data_directory_are_checked_against_its_partitions(
    clean: Path, name: str, content: str | None, finding: str
) -> None:
    if content is None:
        (clean / name).unlink()
    else:
        (clean / name).write_text(content)
    assert findings(clean) == [(name, finding)]


def test_the_directory_of_a_deleted_topic_is_not_a_finding(clean: Path) -> None:
    shutil.copytree(clean / "empty-0", clean / f"gone-0.{'0' * 32}-delete")
    assert findings(clean) == []


def test_a_removed_segment_is_not_a_finding(plain: Path) -> None:
    for path in list(plain.glob("*0.log")):
        shutil.copy(path, plain / f"{path.name}.deleted")
    assert findings(plain) == []


def test_a_stray_partition_is_found_and_one_that_is_moved_or_deleted_is_not(clean: Path) -> None:
    for kind in ("future", "delete", "stray"):
        shutil.copytree(clean / "empty-0", clean / f"plain-0.{'0' * 32}-{kind}")
    stray = "data of another topic of this name, which is not served"
    assert findings(clean) == [(f"plain-0.{'0' * 32}-stray", stray)]


def test_the_metadata_log_of_kraft_is_ignored(clean: Path) -> None:
    (clean / "__cluster_metadata-0").mkdir()
    (clean / "__cluster_metadata-0" / "quorum-state").touch()
    (clean / "bootstrap.checkpoint").touch()
    assert findings(clean) == []


def test_a_running_broker_causes_no_findings(tmp_path: Path) -> None:
    """Rolls, preallocated indexes, incomplete batches and old checkpoints are normal while it runs."""
    with Broker(data_dir=tmp_path, settings={"log.segment.bytes": 20_000, "log.index.interval.bytes": 100}) as broker:

        def write() -> None:
            with Client(broker.native, batch_bytes=4000) as client:
                for _ in range(20):
                    client.produce_many("busy", [b"x" * 100] * 1000)

        reports = []
        with ThreadPoolExecutor() as pool:
            writing = pool.submit(write)
            while not writing.done():
                reports.append(findings(tmp_path))
            writing.result()
            said = verify(tmp_path)
        served = json.loads(verify(tmp_path, "--json").stdout)["served"]
    assert reports == [[]] * len(reports)
    assert "a broker is running; not checked: checkpoints" in said.stdout
    assert served == [str(tmp_path)]
    assert findings(tmp_path) == []


def test_a_large_batch_after_small_ones_needs_no_entry(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        for size in (10, 100, 200_000):
            client.produce("large", value=bytes(size))
    assert findings(tmp_path) == []


def test_a_directory_of_this_broker_has_no_findings(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path, settings={"log.segment.bytes": 5_000})
    with broker, Client(broker.native, batch_bytes=1000) as client:
        client.create_topic("kept", partitions=3)
        client.produce_many("kept", [(b"%d" % number, b"v" * 50) for number in range(1000)])
        broker.restart()
        client.produce_many("kept", [(b"%d" % number, b"v" * 50) for number in range(1000)])
    report = json.loads(verify(tmp_path, "--json").stdout)
    assert (report["findings"], report["partitions"], report["records"]) == ([], 3, 2000)
