"""What tests of the log may ask for: batches, logs in a directory, a clock that stands still, a disk that can fail."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

START_MS = 1_700_000_000_000


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class FaultyDisk(Disk):
    """The real disk, until a verb is told to fail."""

    def __init__(self) -> None:
        self._faults: dict[str, list[tuple[int, OSError | int]]] = {}
        self.calls: list[tuple[str, object]] = []

    def fail(self, verb: str, *, nth: int = 1, code: int = errno.EIO) -> None:
        """Let the nth call of a verb from now on raise."""
        self._faults.setdefault(verb, []).append((nth, OSError(code, os.strerror(code))))

    def forget_faults(self) -> None:
        """Fail no more."""
        self._faults.clear()

    def write_short(self, size: int, *, nth: int = 1) -> None:
        """Let the nth write from now on take only so many bytes; the one after it fails with ENOSPC."""
        self._faults.setdefault("pwritev", []).extend([(nth, size), (nth + 1, OSError(errno.ENOSPC, "no space"))])

    def _due(self, verb: str, what: object) -> int | None:
        self.calls.append((verb, what))
        pending = [(nth - 1, fault) for nth, fault in self._faults.get(verb, [])]
        self._faults[verb] = [(nth, fault) for nth, fault in pending if nth > 0]
        for nth, fault in pending:
            if nth == 0 and isinstance(fault, OSError):
                raise fault
            if nth == 0:
                return fault
        return None

    def open(self, path: str, flags: int) -> int:
        self._due("open", path)
        return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        size = self._due("pwritev", fd)
        if size is None:
            return super().pwritev(fd, buffers, position)
        return super().pwritev(fd, [b"".join(bytes(buffer) for buffer in buffers)[:size]], position)

    def truncate(self, fd: int, size: int) -> None:
        self._due("truncate", size)
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._due("sync", fd)
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self._due("sync_directory", path)
        super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._due("rename", source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._due("unlink", path)
        super().unlink(path)


class Bench:
    """One partition's directory and the logs opened over it."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "words-0"
        self.clock = Clock()
        self.disk = FaultyDisk()
        self.files = OpenFiles(disk=self.disk)
        self.config = LogConfig(index_interval_bytes=512, segment_index_bytes=4096)
        self._logs: list[PartitionLog] = []

    def open(
        self,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        budget: ProducerBudget | None = None,
        known_end: int | None = None,
        **changes: object,
    ) -> PartitionLog:
        """Open the log with the bench's settings, changed as asked for, as its leader does."""
        self.config = replace(self.config, **changes)
        log = PartitionLog.open(
            self.directory,
            topic="words",
            partition=0,
            config=self.config,
            files=self.files,
            clock=self.clock,
            random=random.Random(7),
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            budget=budget,
            known_end=known_end,
        )
        self._logs.append(log)
        assign_epoch(log, records_lost=not clean and log.recovery is not None)
        if log.recovery is not None:
            log.durability.checkpoint_epochs()
        return log

    def reopen(self, log: PartitionLog, **changes: object) -> PartitionLog:
        """Stop cleanly and start again."""
        log.close()
        return self.open(
            recovery_point=log.durability.recovery_point, log_start_offset=log.offsets.log_start_offset, **changes
        )

    def kill(self, log: PartitionLog) -> None:
        """Leave the directory as a killed process would."""
        log.close(clean=False)

    def close(self) -> None:
        """Let go of all files."""
        for log in self._logs:
            log.close(clean=False)

    def path(self, base_offset: int, suffix: str) -> Path:
        """A segment's file."""
        return self.directory / f"{base_offset:020d}{suffix}"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A directory for one log. Removed at once: index files look large to whoever archives test directories."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def batch() -> Callable[..., bytes]:
    """A function that builds a batch of `count` records with values of `size` bytes, 1 ms apart from `timestamp` on."""

    def build(count: int = 1, *, timestamp: int = START_MS, size: int = 100, **header: object) -> bytes:
        value = b"v" * size
        return build_batch([(timestamp + i, None, value, ()) for i in range(count)], **header)

    return build


@pytest.fixture
def offsets_in() -> Callable[[PartitionLog], list[int]]:
    """A function that gives the offsets of every record of a log, read as a consumer reads it."""

    def read_all(log: PartitionLog, max_bytes: int = 700) -> list[int]:
        found: list[int] = []
        offset = log.offsets.log_start_offset
        while offset < log.offsets.log_end_offset:
            piece = log.reads.read(offset, max_bytes, min_one_batch=True).slice
            if piece is None:
                break
            found += [record.offset for record in records_in(piece.read_all(), from_offset=offset)]
            offset = found[-1] + 1
        return found

    return read_all
