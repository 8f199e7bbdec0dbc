"""Whatever happens to a file before a start: nothing is lost without a word, and one bad file costs one partition.

For every kind of file, each kind of damage, after a clean stop and after a kill: what was acknowledged is read; or it
is missing, and a warning or an error names the partition or the file. The broker starts, unless the file is one of the
whole data directory; then the error names it.
"""

import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.clients import RawClient, batch, running
from warmlog.broker.start_errors import StartError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.reader import records_in

RECORDS = 12  # in each partition
SETTINGS = {"log.segment.bytes": 2048, "log.index.interval.bytes": 200}
PARTITIONS = 2
MAX_TRIES = 100  # of reads without an error or a record: an index is being rebuilt

OF_PARTITION = (
    "first.log",
    "last.log",
    "first.index",
    "last.index",
    "first.timeindex",
    "last.timeindex",
    "last.txnindex",
    "last.snapshot",
    "leader-epoch-checkpoint",
    "contiguous-offset-checkpoint",
    "partition.metadata",
)
OF_DIRECTORY = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
    "metadata.sqlite",
    "warmlog-runs.json",
    ".kafka_cleanshutdown",
    ".lock",
)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _garbage(path: Path) -> None:
    path.write_bytes(random.Random(5).randbytes(max(64, path.stat().st_size)))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/file")


DAMAGES = [_empty, _cut, _garbage, _directory, _fifo, _device, _dangling]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data directory after a clean stop, one after a kill, and one that was killed with everything flushed before."""
    root = tmp_path_factory.mktemp("bases")
    return {name: root / name for name in ("clean", "killed", "flushed")}


async def base(bases: dict[str, Path], name: str) -> Path:
    """Make the directories at their first use."""
    if not bases["clean"].exists():
        data = bases["clean"].with_name("data")
        async with running(data, SETTINGS) as broker:
            client = await broker.connect()
            await client.create("orders", partitions=PARTITIONS)
            for index in range(PARTITIONS):
                for number in range(RECORDS):
                    value = b"%03d" % number * 100
                    assert (await client.produce("orders", batch(value), partition=index)).error is ErrorCode.NONE
            _copy(data, bases["killed"])
        _copy(data, bases["clean"])
        async with running(data, SETTINGS):
            _copy(data, bases["flushed"])
    return bases[name]


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    (target / ".reserve").unlink(missing_ok=True)


def _find(data: Path, kind: str) -> Path:
    directory = data / "orders-1"
    if kind.startswith(("first.", "last.")):
        which, suffix = kind.split(".")
        logs = sorted(directory.glob("*.log"))
        log = logs[0] if which == "first" else logs[-1]
        found = log.with_suffix(f".{suffix}")
        found.touch()
        return found
    path = (directory if kind in OF_PARTITION else data) / kind
    path.touch()
    return path


async def _offsets(client: RawClient, index: int) -> set[int]:
    """The offsets of all records that can be read from the beginning on; a read that makes no progress fails."""
    found: set[int] = set()
    offset = tries = 0
    while True:
        fetched = await client.fetch("orders", offset, index, max_wait_ms=100)
        if fetched.error is not ErrorCode.NONE or offset >= fetched.high_watermark:
            return found
        records = [record.offset for record in records_in(bytes(fetched.records), from_offset=offset)]
        tries = 0 if records else tries + 1
        assert tries < MAX_TRIES, f"stuck at {offset}, below the high watermark {fetched.high_watermark}"
        if not records:
            continue
        found.update(records)
        offset = records[-1] + 1


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[1:])
@pytest.mark.parametrize("kind", [*OF_PARTITION, *OF_DIRECTORY])
@pytest.mark.parametrize("stop", ["clean", "killed", "flushed"])
async def test_nothing_is_lost_without_a_word(
    bases: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    stop: str,
    kind: str,
    damage: Callable[[Path], None],
) -> None:
    data = tmp_path / "data"
    shutil.copytree(await base(bases, stop), data)
    path = _find(data, kind)
    damage(path)
    caplog.clear()
    refused: list[Exception] = []
    try:
        async with running(data, SETTINGS) as broker:
            client = await broker.connect()
            kept = [await _offsets(client, index) for index in range(PARTITIONS)]
            produced = await client.produce("orders", batch(b"new"), partition=1)
    except* StartError as errors:
        refused += errors.exceptions
    if refused:
        assert kind in OF_DIRECTORY
        assert path.name in str(refused)
        return
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    whole = set(range(RECORDS))
    assert kept[0] == whole, "another partition"
    if kept[1] != whole:
        assert any("orders-1" in line for line in said), said
    if stop != "killed" and produced.error is ErrorCode.NONE:
        assert produced.base_offset >= RECORDS, "an offset was assigned again"
