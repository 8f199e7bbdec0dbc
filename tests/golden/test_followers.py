"""Directories of leaders and followers of older Kafka versions: every offset and time is found in them once opened."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.followers import (
    BATCHES,
    DIRECTORIES,
    FIRST_MS,
    FIXTURES,
    INDEXES,
    NODES,
    OLD_RULE,
    RECORDS,
    SEGMENT,
    TOPIC,
)
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.settings.settings import Settings
from warmlog.inspect.checks.directories import CheckOptions, check_directories
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.repair import RepairOptions, repair_directory
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.reader import records_in

#: What `verify` says of an index that another rule wrote.
OF_FOLLOWERS = "of several batches each, as older Kafka followers wrote"


@pytest.fixture(params=DIRECTORIES)
def name(request: pytest.FixtureRequest) -> str:
    """Each data directory, such as 3.9.1/follower."""
    return str(request.param)


@pytest.fixture
def directory(name: str, tmp_path: Path) -> Iterator[DataDirectory]:
    """A copy of a data directory, locked."""
    copied = shutil.copytree(FIXTURES / name, tmp_path / "data")
    with DataDirectory.open(copied, node_id=NODES[Path(name).name]) as opened:
        yield opened


def indexes(data: Path) -> dict[str, bytes]:
    return {suffix: (data / f"{TOPIC}-0" / f"{SEGMENT}{suffix}").read_bytes() for suffix in INDEXES}


def log_file(data: Path) -> bytes:
    return (data / f"{TOPIC}-0" / f"{SEGMENT}.log").read_bytes()


def open_log(directory: Path, *, clean: bool = True) -> PartitionLog:
    return PartitionLog.open(
        directory / f"{TOPIC}-0",
        topic=TOPIC,
        partition=0,
        config=LogConfig(),
        files=OpenFiles(),
        clock=lambda: FIRST_MS,
        random=random.Random(1),
        recovery_point=0,
        clean=clean,
    )


@pytest.fixture
def ours(name: str, tmp_path: Path) -> dict[str, bytes]:
    """The indexes that this broker writes when the same batches are appended one by one."""
    data = tmp_path / "ours"
    (data / f"{TOPIC}-0").mkdir(parents=True)
    log = open_log(data)
    content = log_file(FIXTURES / name)
    for position, header in headers(content):
        log.appends.append(
            bytes(8) + content[position + 8 : position + header.size]
        )  # as a producer sends it, from offset 0
    log.close()
    assert len(log_file(data)) == len(content)
    return indexes(data)


def findings(directory: DataDirectory) -> list[Finding]:
    return list(check_directories([Path(directory.path)], CheckOptions(), Tally(), locked=True))


def test_followers_by_the_old_rule_wrote_other_indexes_for_the_same_log(name: str) -> None:
    """Otherwise nothing below shows anything."""
    leader = FIXTURES / Path(name).parent / "leader"
    assert log_file(FIXTURES / name) == log_file(leader)
    for suffix in INDEXES:
        assert (indexes(FIXTURES / name)[suffix] != indexes(leader)[suffix]) == (name in OLD_RULE)


def test_every_offset_and_time_is_found(directory: DataDirectory) -> None:
    assert directory.is_foreign
    log = open_log(Path(directory.path), clean=directory.was_clean)
    assert log.offsets.log_end_offset == BATCHES * RECORDS
    for offset in range(BATCHES * RECORDS):
        piece = log.reads.read(offset, 1, min_one_batch=True).slice
        assert piece is not None
        assert next(records_in(piece.read_all(), from_offset=offset)).offset == offset
    for batch in range(BATCHES):
        for later, expected in ((1, RECORDS * batch), (RECORDS, RECORDS * batch), (RECORDS + 1, RECORDS * (batch + 1))):
            found = log.reads.offset_for_time(FIRST_MS + 1000 * batch + later)
            assert (found and found.offset) == (expected if expected < BATCHES * RECORDS else None)
    log.close(clean=False)


def test_opening_rebuilds_the_indexes_by_our_rule(directory: DataDirectory, name: str, ours: dict[str, bytes]) -> None:
    open_log(Path(directory.path), clean=directory.was_clean).close()
    assert indexes(Path(directory.path)) == ours
    assert log_file(Path(directory.path)) == log_file(FIXTURES / name)


def test_verify_says_whose_rule_it_is(directory: DataDirectory, name: str) -> None:
    found = {finding.path.suffix: finding.what for finding in findings(directory)}
    assert len(found) == len(findings(directory))
    assert sorted(found) == ([".index"] if name in OLD_RULE else [])
    assert all(OF_FOLLOWERS in what for what in found.values())


def test_repair_rebuilds_the_indexes_by_our_rule(directory: DataDirectory, name: str, ours: dict[str, bytes]) -> None:
    options = RepairOptions(settings=Settings(), checks=CheckOptions(), clock=lambda: FIRST_MS)
    repair_directory(directory, Disk(), options, {})
    assert indexes(Path(directory.path)) == ours
    assert log_file(Path(directory.path)) == log_file(FIXTURES / name)
    assert findings(directory) == []
