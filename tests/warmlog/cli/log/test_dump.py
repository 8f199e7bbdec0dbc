import json
import re
import shutil
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from crc32c import crc32c

from warmlog.cli.root import root
from warmlog.protocol.groups import GroupProtocol
from warmlog.protocol.kafka.consumer_group_records import (
    ClassicMember,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    CurrentKey,
    HeldPartitions,
    MemberKey,
    MemberMetadata,
    RegexKey,
    ResolvedRegex,
    encode_key,
    encode_value,
)
from warmlog.protocol.kafka.group_records import StoredGroup, StoredMember, encode_group, encode_group_key
from warmlog.protocol.kafka.messages.share.state import StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey, ShareSnapshot, ShareUpdate, encode_record
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CRC_POSITION, CRC_START, RECORD_COUNT_POSITION


def dump(*arguments: Path | str) -> Result:
    return CliRunner().invoke(root, ["log", "dump", *map(str, arguments)])


def forms(*arguments: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(*arguments, "--json").stdout.splitlines()]


def in_base64(form: dict[str, Any], name: str) -> str | None:
    """Convert a printed key or value to the format of the golden files."""
    if f"{name}_base64" in form:
        return str(form[f"{name}_base64"])
    return None if form[name] is None else b64encode(form[name].encode()).decode()


TOPICS = [
    "plain",
    "gzip",
    "snappy",
    "lz4",
    "zstd",
    "append-time",
    "compacted",
    "transactional",
    "idempotent",
    "trimmed",
]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_records_are_those_that_kafkas_consumer_saw(kafka_fixtures: Path, topic: str) -> None:
    seen = json.loads((kafka_fixtures / "seen" / "clean" / f"{topic}-0.json").read_bytes())
    printed = forms(kafka_fixtures / "clean" / f"{topic}-0", "--records")
    control = {(form["file"], form["position"]) for form in printed if form.get("control")}
    records = [
        {
            "offset": form["offset"],
            "timestamp": form["timestamp"],
            "key": in_base64(form, "key"),
            "value": in_base64(form, "value"),
            "headers": [[header["key"], in_base64(header, "value")] for header in form["headers"]],
        }
        for form in printed
        if form["type"] == "record"
        and (form["file"], form["position"]) not in control
        and form["offset"] >= seen["log_start_offset"]
    ]
    for record in seen["records"]:
        record.pop("timestamp_type", None)
    assert records == seen["records"]


def test_a_batch_is_printed_with_its_whole_header(kafka_fixtures: Path) -> None:
    first = forms(kafka_fixtures / "clean" / "append-time-0" / f"{0:020}.log")[0]
    assert first["type"] == "batch"
    assert first["timestamp_type"] == "log_append_time"
    assert (first["position"], first["base_offset"], first["last_offset"], first["record_count"]) == (0, 0, 0, 1)
    assert first["producer_id"] is None
    assert first["crc_valid"] is True


def test_index_entries_are_printed_with_absolute_offsets(kafka_fixtures: Path) -> None:
    partition = kafka_fixtures / "clean" / "gzip-0"
    last_offsets = {form["last_offset"] for form in forms(partition) if form["type"] == "batch"}
    entries = [form for form in forms(partition) if form["type"].endswith("index_entry")]
    assert {entry["type"] for entry in entries} == {"offset_index_entry", "time_index_entry"}
    assert {entry["offset"] for entry in entries} <= last_offsets


def test_the_zeros_of_an_active_index_are_padding_not_damage(kafka_fixtures: Path) -> None:
    result = dump(kafka_fixtures / "killed" / "killed-0" / f"{120:020}.index")
    assert result.exit_code == 0
    assert "padding at slot 0: 256 zero entries to the end" in result.stdout


def test_a_damaged_log_is_printed_up_to_the_damage(kafka_fixtures: Path) -> None:
    log = kafka_fixtures / "killed" / "killed-lz4-0" / f"{105:020}.log"
    result = dump(log)
    assert result.exit_code == 1
    assert "DAMAGE at position 1432: a batch of 580 bytes is cut off after 75" in result.stdout
    printed = forms(log)
    assert [form["type"] for form in printed] == ["batch"] * (len(printed) - 1) + ["damage"]


def test_a_batch_with_a_wrong_crc_is_marked_and_skipped(kafka_fixtures: Path, tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    shutil.copy(kafka_fixtures / "clean" / "plain-0" / log.name, log)
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    result = dump(log, "--records")
    assert result.exit_code == 1
    assert result.stdout.count("CRC DOES NOT MATCH") == 1
    assert [form["crc_valid"] for form in forms(log)][:3] == [False, True, True]


def test_records_that_contradict_the_header_are_damage(tmp_path: Path) -> None:
    batch = bytearray(build_batch([(1000, None, b"x", ())] * 3))
    struct.pack_into(">i", batch, RECORD_COUNT_POSITION, 2)
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(batch)
    assert dump(log).exit_code == 0
    result = dump(log, "--records")
    assert result.exit_code == 1
    assert "DAMAGE at position 0: " in result.stdout


def test_an_index_that_ends_inside_an_entry_is_damaged(tmp_path: Path) -> None:
    index = tmp_path / f"{100:020}.index"
    index.write_bytes(struct.pack(">ii", 7, 4096) + b"\1\2\3")
    assert dump(index).exit_code == 1
    assert forms(index) == [
        {"type": "offset_index_entry", "file": str(index), "slot": 0, "offset": 107, "position": 4096},
        {"type": "damage", "file": str(index), "slot": 1, "reason": "3 bytes at the end are not a whole entry"},
    ]


def test_tables_have_titles_and_records_below_their_batch(kafka_fixtures: Path) -> None:
    log = kafka_fixtures / "clean" / "plain-0" / f"{0:020}.log"
    file, titles, batch, record, *_ = dump(log, "--records").stdout.splitlines()
    assert file.startswith(str(log))
    assert titles.split() == ["position", "size", "offsets", "records", "codec", "time", "epoch", "producer"]
    assert batch.split()[:4] == ["0", "133", "0..0", "1"]
    assert record.startswith('    0  2023-11-14T22:13:20.000Z  key="key-7"  value="word-24')


def test_a_whole_data_directory_is_dumped_in_order(kafka_fixtures: Path) -> None:
    files = [form["file"] for form in forms(kafka_fixtures / "clean")]
    partitions = list(dict.fromkeys(Path(file).parent.name for file in files))
    assert partitions.index("keyed-0") < partitions.index("keyed-3") < partitions.index("plain-0")


@pytest.mark.parametrize("name", ["missing", "notes.txt", "00000000000000000000.txt"])
def test_a_file_of_another_kind_is_rejected(tmp_path: Path, name: str) -> None:
    if name != "missing":
        (tmp_path / name).touch()
    result = dump(tmp_path / name)
    assert result.exit_code == 2
    assert name in result.stderr
    assert result.stderr.count("\n") == 1


def kafkas_dump(kafka_fixtures: Path, partition: str, suffix: str, line: re.Pattern[str]) -> list[tuple[str, ...]]:
    """What Kafka's tool said of the files of a kind: the pattern's groups, with the file's name before them."""
    text = (kafka_fixtures / "dumps" / "clean" / f"{partition}.txt").read_text()
    sections = re.split(r"^== (.*)$", text, flags=re.MULTILINE)
    named = zip(sections[1::2], sections[2::2], strict=True)
    return [(name, *found) for name, said in named if name.endswith(suffix) for found in line.findall(said)]


def as_java(number: int | None) -> str:
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
    r"lastTimestamp: (\d+)(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (-?\d+) offsetDelta: (-?\d+))?"
)
ABORTED = re.compile(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")
LAST_BATCH = ("first_sequence", "last_sequence", "last_offset", "offset_delta")


@pytest.mark.parametrize("partition", ["transactional-0", "idempotent-0"])
def test_producers_of_a_snapshot_equal_those_of_kafkas_tool(kafka_fixtures: Path, partition: str) -> None:
    printed = [form for form in forms(kafka_fixtures / "clean" / partition) if form["type"] == "producer"]
    seen = [
        (
            Path(form["file"]).name,
            str(form["producer_id"]),
            str(form["producer_epoch"]),
            str(-1 if form["coordinator_epoch"] is None else form["coordinator_epoch"]),
            as_java(form["transaction_first_offset"]),
            str(form["last_timestamp"]),
            *("" if form[name] is None else str(form[name]) for name in LAST_BATCH),
        )
        for form in printed
    ]
    assert seen
    assert seen == kafkas_dump(kafka_fixtures, partition, ".snapshot", PRODUCER)


def test_aborted_transactions_equal_those_of_kafkas_tool(kafka_fixtures: Path) -> None:
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    printed = [form for form in forms(kafka_fixtures / "clean" / "transactional-0") if "last_stable_offset" in form]
    seen = [(Path(form["file"]).name, *(str(form[name]) for name in names)) for form in printed]
    assert len(seen) == 7
    assert seen == kafkas_dump(kafka_fixtures, "transactional-0", ".txnindex", ABORTED)


def test_markers_equal_those_of_kafkas_tool(kafka_fixtures: Path) -> None:
    printed = forms(kafka_fixtures / "clean" / "transactional-0", "--records")
    seen = [
        (Path(form["file"]).name, str(form["offset"]), form["marker"].upper(), str(form["coordinator_epoch"]))
        for form in printed
        if "marker" in form
    ]
    line = re.compile(r"\| offset: (\d+) .* endTxnMarker: (\w+) coordinatorEpoch: (\d+)")
    assert seen
    assert seen == kafkas_dump(kafka_fixtures, "transactional-0", ".log", line)


def test_committed_offsets_are_decoded(kafka_fixtures: Path) -> None:
    partition = kafka_fixtures / "clean" / "__consumer_offsets-0"
    (record,) = [form for form in forms(partition, "--offsets-decoder") if form["type"] == "record"]
    assert record["decoded_key"] == {
        "type": "offset_commit",
        "group": "golden-group",
        "topic": "plain",
        "partition": 0,
    }
    assert record["decoded_value"]["offset"] == 42
    assert record["decoded_value"]["metadata"] == "a note"
    assert '{"type":"offset_commit","group":"golden-group"' in dump(partition, "--offsets-decoder").stdout


def test_generations_and_tombstones_are_decoded_and_other_records_reported(tmp_path: Path) -> None:
    member = StoredMember(
        member_id="m",
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=1,
        session_timeout_ms=2,
        subscription=b"s",
        assignment=b"a",
    )
    group = StoredGroup(protocol_type="consumer", generation=7, protocol="range", leader="m", members=(member,))
    rows = [(encode_group_key("g"), encode_group(group)), (encode_group_key("g"), None), (b"\0\x09", b""), (b"", b"x")]
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(build_batch([(1000, key, value, ()) for key, value in rows]))
    _, generation, tombstone, foreign, broken = forms(log, "--offsets-decoder")
    assert generation["decoded_key"] == {"type": "group_metadata", "group": "g"}
    assert generation["decoded_value"]["generation"] == 7
    assert generation["decoded_value"]["members"][0]["assignment_base64"] == "YQ=="
    assert tombstone["decoded_value"] is None
    assert foreign["decoded_key"] == {"type": 9}
    assert "invalid key of a group record" in broken["reason"]
    assert 'value="x"' in dump(log, "--offsets-decoder").stdout


def test_records_of_consumer_groups_are_decoded_with_kafkas_names(tmp_path: Path) -> None:
    held = HeldPartitions(topic_id=b"\1" * 16, partitions=(4, 5), epochs=(2, 3))
    classic = ClassicMember(session_timeout_ms=9, protocols=(GroupProtocol(name="range", metadata=b"s"),))
    rows: list[tuple[ConsumerGroupKey, ConsumerGroupValue]] = [
        (CurrentKey("g", "m"), CurrentAssignment(epoch=3, previous_epoch=2, state=1, assigned=(held,))),
        (MemberKey("g", "m"), MemberMetadata(client_id="c", client_host="h", classic=classic)),
        (RegexKey("g", "a.*"), ResolvedRegex(topics=("ab",), version=1, timestamp_ms=2)),
    ]
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(build_batch([(1000, encode_key(key), encode_value(value), ()) for key, value in rows]))
    _, current, member, regex = forms(log, "--offsets-decoder")
    assert current["decoded_key"] == {
        "type": "consumer_group_current_member_assignment",
        "group": "g",
        "member_id": "m",
    }
    assert current["decoded_value"] == {
        "version": 0,
        "member_epoch": 3,
        "previous_member_epoch": 2,
        "state": 1,
        "assigned_partitions": [
            {"topic_id": "AQEBAQEBAQEBAQEBAQEBAQ", "partitions": [4, 5], "assignment_epochs": [2, 3]}
        ],
        "partitions_pending_revocation": [],
    }
    assert member["decoded_value"]["classic_member_metadata"] == {
        "session_timeout_ms": 9,
        "supported_protocols": [{"name": "range", "metadata_base64": "cw=="}],
    }
    assert regex["decoded_value"] == {"version": 0, "topics": ["ab"], "timestamp": 2, "metadata_version": 1}


def test_damaged_snapshots_and_transaction_indexes_are_reported(kafka_fixtures: Path, tmp_path: Path) -> None:
    for name, reason in ((f"{152:020}.snapshot", "CRC"), (f"{152:020}.txnindex", "not a whole entry")):
        content = (kafka_fixtures / "clean" / "transactional-0" / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1])
        assert dump(tmp_path / name).exit_code == 1
        assert reason in forms(tmp_path / name)[-1]["reason"]


def test_share_group_state_is_decoded_with_kafkas_names(tmp_path: Path) -> None:
    key = SharePartitionKey("g", b"\1" * 16, 3)
    batch = StateBatch(5, 9, 2, 1)
    snapshot = ShareSnapshot(
        snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=4, created_ms=5, written_ms=6, batches=(batch,)
    )
    update = ShareUpdate(snapshot_epoch=1, leader_epoch=3, start_offset=-1, delivery_complete_count=7)
    rows = [encode_record(key, record) for record in (snapshot, update, None)]
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(build_batch([(1000, *row, ()) for row in [*rows, (b"\0\x09", b""), (b"", b"x")]]))
    _, first, second, tombstone, foreign, broken = forms(log, "--share-group-state-decoder")
    named = {"group_id": "g", "topic_id": "AQEBAQEBAQEBAQEBAQEBAQ", "partition": 3}
    assert first["decoded_key"] == tombstone["decoded_key"] == {"type": "share_snapshot", **named}
    assert second["decoded_key"] == {"type": "share_update", **named}
    assert first["decoded_value"] == {
        "version": 0,
        "snapshot_epoch": 1,
        "state_epoch": 2,
        "leader_epoch": 3,
        "start_offset": 4,
        "delivery_complete_count": -1,
        "create_timestamp": 5,
        "write_timestamp": 6,
        "state_batches": [{"first_offset": 5, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}],
    }
    assert second["decoded_value"]["delivery_complete_count"] == 7
    assert tombstone["decoded_value"] is None
    assert foreign["decoded_key"] == {"type": 9}
    assert "invalid record of share group state" in broken["reason"]
