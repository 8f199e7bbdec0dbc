import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.warmlog.cli.log.made_directory import SQUEEZED_OFFSETS, START_MS, make_directory, opened, tree
from warmlog import Client
from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.overlay_disk import OverlayDisk
from warmlog.broker.settings.settings import Settings
from warmlog.cli.log.repair import known_topics
from warmlog.cli.root import root
from warmlog.inspect.checks.directories import CheckOptions, check_directories
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.repair import DirectoryRepair, RepairOptions, repair_directory
from warmlog.testing import Broker

NODE_ID = 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, kafka_fixtures: Path) -> Path:
    """A sound data directory. Copy before damaging it."""
    return make_directory(tmp_path_factory.mktemp("made") / "data", kafka_fixtures / "clean")


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def repair(*arguments: Path | str) -> Result:
    return CliRunner().invoke(root, ["log", "repair", *map(str, arguments)])


def report(*arguments: Path | str) -> dict[str, Any]:
    """Return the JSON report of a repair without its duration."""
    said: dict[str, Any] = json.loads(repair(*arguments, "--json").stdout)
    for directory in said["directories"]:
        for log in directory["logs"]:
            if log["recovery"]:
                log["recovery"].pop("seconds")
    return said


def found_in(directory: Path) -> list[Finding]:
    return list(check_directories([directory], CheckOptions(), Tally()))


def kill(data: Path) -> None:
    """As if the broker had been killed some time after its last checkpoint."""
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\nplain 0 8\n")


def test_a_log_start_past_the_end_deletes_nothing_after_a_clean_stop(data: Path) -> None:
    (data / "log-start-offset-checkpoint").write_text("0\n1\nplain 0 1000\n")
    with (data / "plain-0" / f"{8:020}.index").open("ab") as index:
        index.write(b"garbage")
    before = [path.read_bytes() for path in sorted((data / "plain-0").glob("*.log"))]
    assert repair(data).exit_code == 0
    assert [path.read_bytes() for path in sorted((data / "plain-0").glob("*.log"))] == before
    assert (data / "log-start-offset-checkpoint").read_text() == "0\n0\n"


def test_a_log_that_ends_before_its_start_after_a_crash_restarts_there(data: Path) -> None:
    kill(data)
    (data / "log-start-offset-checkpoint").write_text("0\n1\nplain 0 1000\n")
    assert repair(data).exit_code == 0
    assert [path.name for path in (data / "plain-0").glob("*.log")] == [f"{1000:020}.log"]
    assert opened(data, "plain", 0).offsets.log_end_offset == 1000


# -- any damage --------------------------------------------------------------------------------------------------------


def flipped(content: bytes) -> bytes:
    at = len(content) // 3
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :] if content else content


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda content: content[:-1],
    "halved": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "garbage": lambda content: content + b"\x93garbage" * 5,
    "zeros": lambda content: content + bytes(96),
    "flipped": flipped,
    "missing": lambda content: None,
}
FILES = [
    *(f"plain-0/{base:020}.{suffix}" for base in (0, 8, 16) for suffix in ("log", "index", "timeindex")),
    *(f"plain-0/{base:020}.snapshot" for base in (8, 24)),
    *("plain-0/leader-epoch-checkpoint", "plain-0/partition.metadata", f"squeezed-0/{0:020}.log"),
    *("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"),
    *(".kafka_cleanshutdown", f"transactional-0/{107:020}.txnindex"),
]


def damage(data: Path, file: str, kind: str) -> None:
    path = data / file
    if path.exists():
        content = DAMAGES[kind](path.read_bytes())
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


def mended(data: Path, disk: Disk, *, cut_damaged: bool) -> DirectoryRepair:
    """Repair with a fixed clock."""
    options = RepairOptions(settings=Settings(), checks=CheckOptions(), clock=lambda: START_MS, cut_damaged=cut_damaged)
    topics = known_topics((data,))
    with DataDirectory.open(data, node_id=NODE_ID, disk=disk) as directory:
        return repair_directory(directory, disk, options, topics)


def as_announced(disk: OverlayDisk, data: Path) -> bool:
    """Whether the directory equals the result of the dry run."""
    return all(
        content == (Path(path).read_bytes() if Path(path).exists() else None)
        for path, content in disk.contents()
        if Path(path).is_relative_to(data)
    )


@settings(max_examples=15)
@example(  # cut at a batch boundary before an empty segment
    damages=[(f"plain-0/{0:020}.log", "halved"), (f"plain-0/{8:020}.log", "zeroed")], killed=False, cut_damaged=True
)
@example(damages=[(f"squeezed-0/{0:020}.log", "flipped")], killed=False, cut_damaged=False)  # is kept
@given(
    damages=st.lists(st.tuples(st.sampled_from(FILES), st.sampled_from(sorted(DAMAGES))), min_size=1, max_size=3),
    killed=st.booleans(),
    cut_damaged=st.booleans(),
)
def test_a_repair_does_what_the_dry_run_announced_and_leaves_nothing(
    made: Path,
    tmp_path_factory: pytest.TempPathFactory,
    damages: list[tuple[str, str]],
    killed: bool,
    cut_damaged: bool,
) -> None:
    data = Path(shutil.copytree(made, tmp_path_factory.mktemp("damaged") / "data"))
    if killed:
        kill(data)
    for file, kind in damages:
        damage(data, file, kind)
    for log in mended(data, OverlayDisk(), cut_damaged=cut_damaged).logs:
        if log.error is not None:  # a log file is missing
            assert f"{log.topic}-{log.partition}/{ACCEPT_LOSS}" in log.error
            (data / f"{log.topic}-{log.partition}" / ACCEPT_LOSS).touch()
    before = tree(data)
    rehearsal = OverlayDisk()
    announced = mended(data, rehearsal, cut_damaged=cut_damaged)
    assert tree(data) == before
    assert mended(data, Disk(), cut_damaged=cut_damaged) == announced
    assert as_announced(rehearsal, data)
    left = found_in(data)
    assert not announced.failed
    damaged = {finding.path.stem for finding in left if is_below_recovery_point(finding, cut_damaged=cut_damaged)}
    assert [finding for finding in left if finding.path.stem not in damaged] == []
    kept = {finding.path.parent.name.rpartition("-")[0] for finding in left}  # logs with damage that is not cut
    assert set(recovered_by_a_start(data)) <= kept
    again = tree(data)
    assert mended(data, OverlayDisk(), cut_damaged=False).checkpoints == () or left
    assert tree(data) == again
    shutil.rmtree(data.parent)


def is_below_recovery_point(finding: Finding, *, cut_damaged: bool) -> bool:
    """What repair leaves: batches that were flushed once, what is missing of them, and indexes up to where they end."""
    return finding.path.suffix == ".log" and (not cut_damaged or "are missing" in finding.what)


def recovered_by_a_start(data: Path) -> list[str]:
    """Return the logs that a broker repairs at startup."""
    names = [("plain", 0), ("plain", 1), ("squeezed", 0), ("transactional", 0)]
    copy = Path(shutil.copytree(data, data.with_name("started")))
    with DataDirectory.open(copy, node_id=NODE_ID) as directory:
        assert directory.was_clean
        logs = [opened(copy, topic, partition, clean=directory.was_clean) for topic, partition in names]
        recovered = [log.topic for log in logs if log.recovery is not None]
        for log in logs:
            log.close(clean=False)
    return recovered


def test_a_log_that_has_lost_a_file_is_left_alone_until_that_is_back(data: Path, tmp_path: Path) -> None:
    kill(data)
    lost = data / "plain-0" / f"{0:020}.log"
    lost.rename(tmp_path / "saved")
    before = tree(data / "plain-0"), (data / "recovery-point-offset-checkpoint").read_text()
    said = repair(data)
    assert said.exit_code == 1
    assert f"{lost} is missing, with the records from 0 to 7: put it back" in said.output
    assert (tree(data / "plain-0"), (data / "recovery-point-offset-checkpoint").read_text()) == before
    (tmp_path / "saved").rename(lost)
    assert repair(data).exit_code == 0
    assert opened(data, "plain", 0).offsets.log_start_offset == 0


def test_a_repair_does_not_hide_that_a_partition_has_lost_its_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=2)
    (data / ".kafka_cleanshutdown").unlink()
    shutil.rmtree(data / "orders-1")
    said = repair(data)
    assert said.exit_code == 1
    assert "metadata.sqlite: topic orders: partition 1 has no directory" in said.output
    with DataDirectories.open([data], node_id=NODE_ID) as directories:
        directories.join({}, [("orders", 0), ("orders", 1)])
        assert list(directories.lost) == [("orders", 1)]


# -- particular ones ---------------------------------------------------------------------------------------------------


def test_a_torn_end_is_truncated_and_a_dry_run_reports_it(data: Path) -> None:
    kill(data)
    log = data / "plain-0" / f"{16:020}.log"
    log.write_bytes(log.read_bytes()[:-5])
    before = tree(data)
    dry = repair(data, "--dry-run")
    assert (dry.exit_code, tree(data)) == (0, before)
    assert "would-be-done" in dry.stdout
    assert "bytes truncated at offset 22: " in dry.stdout
    done = repair(data)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == dry.stdout.splitlines()[1:]
    assert found_in(data) == []


def test_a_sound_directory_is_not_changed(data: Path) -> None:
    before = {name: content for name, (content, _) in tree(data).items()}
    said = report(data)
    assert said["directories"][0]["untouched"] == 4
    assert said["directories"][0]["logs"] == []
    assert {name: content for name, (content, _) in tree(data).items()} == before


def test_damage_below_the_recovery_point_is_reported_and_left(data: Path) -> None:
    damage(data, f"plain-0/{8:020}.log", "flipped")
    done = repair(data)
    assert done.exit_code == 1
    assert "left: " in done.stdout
    assert "the CRC of the batch" in done.stdout
    assert (data / "plain-0" / f"{16:020}.log").exists()


def test_damage_below_the_recovery_point_is_truncated_with_cut_damaged(data: Path) -> None:
    damage(data, f"plain-0/{8:020}.log", "flipped")
    done = repair(data, "--cut-damaged")
    assert done.exit_code == 0
    assert "removed: segment 16" in done.stdout
    assert not (data / "plain-0" / f"{16:020}.log").exists()
    assert found_in(data) == []


def test_the_index_of_a_sealed_segment_is_rebuilt_without_writing_to_the_log(data: Path) -> None:
    logs = {path: path.read_bytes() for path in data.rglob("*.log")}
    for suffix in ("index", "timeindex"):
        damage(data, f"plain-0/{0:020}.{suffix}", "garbage")
    assert report(data)["directories"][0]["logs"][0]["indexes"] == [0]
    assert {path: path.read_bytes() for path in data.rglob("*.log")} == logs
    assert found_in(data) == []


def test_the_indexes_of_the_active_segment_are_rebuilt_below_the_recovery_point(data: Path) -> None:
    path = data / "plain-0" / f"{16:020}.index"
    sound = path.read_bytes()
    path.write_bytes(sound[:7] + bytes([sound[7] ^ 1]) + sound[8:])
    assert [finding.path.name for finding in found_in(data)] == [path.name]
    assert report(data)["directories"][0]["logs"][0]["indexes"] == [16]
    assert path.read_bytes() == sound
    assert found_in(data) == []


def test_transaction_indexes_are_rebuilt_as_kafka_wrote_them(data: Path) -> None:
    """All are removed first; the log has everything to rebuild them."""
    indexes = {path: path.read_bytes() for path in (data / "transactional-0").glob("*.txnindex")}
    assert len(indexes) == 5
    for path in indexes:
        path.unlink()
    rebuilt = report(data)["directories"][0]["logs"][0]["transaction_indexes"]
    assert rebuilt == sorted(int(path.stem) for path in indexes)
    assert {path: path.read_bytes() for path in (data / "transactional-0").glob("*.txnindex")} == indexes


def test_a_snapshot_of_another_log_is_removed(data: Path) -> None:
    name = f"{8:020}.snapshot"
    shutil.copy(data / "plain-1" / name, data / "plain-0" / name)
    assert [finding.path.name for finding in found_in(data)] == [name, name]
    assert report(data)["directories"][0]["logs"][0]["removed"] == [name]
    assert found_in(data) == []


def test_leader_epochs_that_contradict_the_batches_are_rebuilt(data: Path) -> None:
    (data / "plain-0" / "leader-epoch-checkpoint").write_text("0\n1\n5 0\n")
    assert report(data)["directories"][0]["logs"][0]["epochs_rewritten"]
    assert (data / "plain-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n1 24\n"
    assert found_in(data) == []


def test_a_foreign_topic_id_is_replaced_without_opening_the_log(data: Path) -> None:
    right = (data / "plain-0" / "partition.metadata").read_bytes()
    shutil.copy(data / "squeezed-0" / "partition.metadata", data / "plain-0")
    (log,) = report(data)["directories"][0]["logs"]
    assert (log["topic_id_rewritten"], log["recovery"]) == (True, None)
    assert (data / "plain-0" / "partition.metadata").read_bytes() == right


def test_leftovers_are_removed_as_at_startup(data: Path) -> None:
    shutil.copytree(data / "plain-1", data / f"gone-0.{'0' * 32}-delete")
    shutil.copy(data / "plain-1" / f"{0:020}.log", data / "plain-1" / f"{0:020}.log.cleaned")
    (data / "replication-offset-checkpoint.tmp").touch()
    said = report(data)["directories"][0]
    assert said["removed"] == [f"gone-0.{'0' * 32}-delete", "replication-offset-checkpoint.tmp"]
    assert said["logs"][0]["recovery"]["leftovers"] == [f"{0:020}.log.cleaned"]
    assert found_in(data) == []


def test_unknown_files_are_not_changed(data: Path) -> None:
    (data / "notes.txt").write_text("mine")
    (data / "plain-0" / "notes.txt").write_text("mine")
    assert sorted(each["finding"] for each in report(data)["left"]) == ["does not belong here"] * 2
    assert (data / "plain-0" / "notes.txt").read_text() == "mine"


def test_gaps_are_kept_in_a_log_of_an_unknown_topic(data: Path) -> None:
    """As in a directory of Kafka: without metadata no log is truncated at a gap."""
    (data / "metadata.sqlite").unlink()
    (data / "plain-0" / "contiguous-offset-checkpoint").unlink()
    kill(data)
    for path in (data / "plain-0").glob(f"{8:020}.*"):
        path.unlink()
    recovery = report(data)["directories"][0]["logs"][0]["recovery"]
    assert (recovery["truncated_bytes"], recovery["removed_segments"]) == (0, [])


def test_a_torn_end_of_a_log_with_gaps_is_truncated_and_the_gaps_are_kept(data: Path) -> None:
    (data / "metadata.sqlite").unlink()
    kill(data)
    damage(data, f"squeezed-0/{0:020}.log", "cut")
    recovery = next(log for log in report(data)["directories"][0]["logs"] if log["topic"] == "squeezed")["recovery"]
    assert recovery["truncated_at"] == SQUEEZED_OFFSETS[-2] + 1
    assert recovery["removed_segments"] == []


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_directory_served_by_a_broker_is_rejected(tmp_path: Path, options: tuple[str, ...]) -> None:
    with Broker(data_dir=tmp_path):
        refused = repair(tmp_path, *options)
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "in use" in refused.stderr


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_locked_directory_is_rejected(data: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is not in the kernel's list, as if held in another container."""
    monkeypatch.setattr("warmlog.cli.log.repair.broker_is_running", lambda _: False)
    with DataDirectory.open(data, node_id=NODE_ID):
        refused = repair(data, *options)
    assert refused.exit_code == 2
    assert "in use" in refused.stderr


def test_the_directory_of_a_partition_and_other_paths_are_rejected(data: Path, tmp_path: Path) -> None:
    for path in (data / "plain-0", tmp_path / "missing", tmp_path):
        assert repair(path).exit_code == 2


def test_a_log_that_cannot_be_opened_is_reported_and_the_next_start_is_not_clean(
    data: Path,
) -> None:
    kill(data)
    disk = FailingDisk("plain-1")
    options = RepairOptions(settings=Settings(), checks=CheckOptions(), clock=lambda: START_MS)
    with DataDirectory.open(data, node_id=NODE_ID, disk=disk) as directory:
        done = repair_directory(directory, disk, options, {})
    assert done.failed
    assert [log.error is not None for log in done.logs] == [False, True, False, False]
    assert not (data / ".kafka_cleanshutdown").exists()


class FailingDisk(Disk):
    """Cannot open files for writing in a directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, path: str, flags: int) -> int:
        if self.name in path and flags & 3:
            raise OSError(5, "Input/output error", path)
        return super().open(path, flags)


def test_a_broker_continues_after_a_repair(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native, batch_bytes=1000) as client:
        client.produce_many("kept", [(b"%d" % number, b"v" * 50) for number in range(300)])
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    active = max(tmp_path.glob("kept-0/*.log"))
    active.write_bytes(active.read_bytes() + b"torn")
    assert report(tmp_path)["left"] == []
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        assert len(list(client.consume("kept", start="beginning", until_end=True))) == 300
