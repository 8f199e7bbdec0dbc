"""Run the commands of the pages for operators as they are written; tests/interop has those that need Kafka."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, command_directory, run_block, shell_blocks
from warmlog import BrokerError, Client
from warmlog.broker.settings.documentation import durability_sentence
from warmlog.broker.settings.loading import load_settings
from warmlog.testing import Broker

PAGES = ("operations", "capacity", "moving", "monitoring", "alerts")
BLOCKS = {name: block for page in PAGES for name, block in shell_blocks(f"docs/{page}.md").items()}
TEXT = (ROOT / "docs" / "operations.md").read_text()
RECORDS = 500


@pytest.fixture
def bin_directory(tmp_path: Path) -> Path:
    return command_directory(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped broker's data directory with `orders` in it."""
    with Broker(data_dir=tmp_path / "data") as broker:
        fill(broker)
    return tmp_path / "data"


def fill(broker: Broker) -> None:
    with Client(broker.native, batch_bytes=1000) as client:
        client.create_topic("orders", partitions=2)
        client.produce_many("orders", [(b"%d" % number, b"v" * 20) for number in range(RECORDS)])


def count(broker: Broker) -> int:
    with Client(broker.native) as client:
        return len(list(client.consume("orders", start="beginning", until_end=True)))


def test_every_block_is_run_by_a_test() -> None:
    """Here or beside Kafka, by their names."""
    tests = [Path(__file__), ROOT / "tests" / "interop" / "storage" / "test_moving.py"]
    sources = "".join(path.read_text() for path in tests)
    assert [name for name in BLOCKS if f'"{name}"' not in sources] == []


def sentences() -> Iterator[tuple[str, str]]:
    """(settings, the sentence that is said to be printed) of the table."""
    yield from re.findall(r"^\| (.*) \| `(power cut: .*)` \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("named", "sentence"), list(sentences()))
def test_the_first_lines_of_serve_are_as_told(named: str, sentence: str) -> None:
    assignments = re.findall(r"`(log\.[\w.]+=\d+)`", named)
    assert durability_sentence(load_settings(None, {}, assignments)) == sentence


def test_a_topic_of_its_own_durability_is_made(warmlog_broker: Broker, bin_directory: Path) -> None:
    run_block(BLOCKS["flush"], bin_directory, bin_directory, {"WARMLOG_NATIVE": warmlog_broker.native})
    with Client(warmlog_broker.native) as client:
        configs = {config.name: config.value for config in client.describe_topics("payments")[0].configs}
    assert configs["flush.messages"] == "1"


def test_what_is_in_memory_is_shown(data: Path, bin_directory: Path) -> None:
    with Broker(data_dir=data) as broker:
        shown = run_block(BLOCKS["memory"], bin_directory, data, {"WARMLOG": data, "WARMLOG_NATIVE": broker.native})
    assert "orders-0: " in shown
    assert "% resident" in shown
    assert shown.count("major faults expected: ") == 2
    assert "plain search: " in shown
    assert "time index" in shown


def test_receipts_and_verify_and_repair(data: Path, bin_directory: Path) -> None:
    """After a kill that tore a log."""
    (data / ".kafka_cleanshutdown").unlink()
    log = max(data.glob("orders-0/*.log"))
    log.write_bytes(log.read_bytes() + b"torn")
    variables = {"WARMLOG": data}
    dry, done = run_block(BLOCKS["repair"], bin_directory, data, variables).split("done\n")[0:2]
    assert "4 bytes truncated" in dry + done
    assert "nothing wrong" in run_block(BLOCKS["verify"], bin_directory, data, variables)
    (data / ".kafka_cleanshutdown").unlink()
    with Broker(data_dir=data) as broker:
        assert count(broker) == RECORDS
    assert run_block(BLOCKS["receipts"], bin_directory, data, variables).count("\n") == 2


def test_a_backup_is_restored(data: Path, bin_directory: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    said = run_block(BLOCKS["backup"], bin_directory, tmp_path, {"WARMLOG": data, "BACKUP": backup})
    assert "nothing wrong" in said
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    with Broker(data_dir=data) as broker:
        assert count(broker) == RECORDS


def test_the_loss_of_a_partition_is_accepted(data: Path, bin_directory: Path, tmp_path: Path) -> None:
    shutil.rmtree(data / "orders-1")
    with (
        Broker(data_dir=data) as broker,
        Client(broker.native, request_timeout_s=1) as client,
        pytest.raises(BrokerError, match="without a leader"),
    ):
        list(client.consume("orders", start="beginning", until_end=True))
    run_block(BLOCKS["accept-loss"], bin_directory, tmp_path, {"WARMLOG": data})
    with Broker(data_dir=data):
        assert [path.suffix for path in (data / "orders-1").glob("*.log")] == [".log"]
        assert not (data / "orders-1" / ".accept-loss").exists()


def test_an_upgrade_begins_with_a_verified_backup(data: Path, bin_directory: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    variables = {"WARMLOG": data, "BACKUP": backup}
    assert "nothing wrong" in run_block(BLOCKS["upgrade-stopped"], bin_directory, tmp_path, variables)
    with Broker(data_dir=backup) as broker:
        assert count(broker) == RECORDS
    shutil.rmtree(backup)
    (data / ".kafka_cleanshutdown").unlink()
    with pytest.raises(AssertionError):
        run_block(BLOCKS["upgrade-stopped"], bin_directory, tmp_path, variables)
    assert not backup.exists()


def test_a_partition_is_moved_to_another_disk(tmp_path: Path, bin_directory: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with Broker(data_dir=first) as broker:
        fill(broker)
    second.mkdir()
    run_block(BLOCKS["move-disk"], bin_directory, tmp_path, {"WARMLOG": first, "WARMLOG2": second})
    assert not (first / "orders-1").exists()
    with Broker(data_dir=f"{first},{second}") as broker:  # that is what becomes of log.dirs
        assert count(broker) == RECORDS
    assert (second / "orders-1").exists()
