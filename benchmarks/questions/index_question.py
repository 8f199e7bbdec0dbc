"""Compare a log's sparse index with a B+tree: maintenance, space, lookups.

    python -m benchmarks.questions.index_question [FILE.json] [--records N] [--directory D]

The same records, one of 100 bytes per batch, are stored in several arrangements:

| arrangement    | index                                                                    | records are in |
|----------------|--------------------------------------------------------------------------|----------------|
| sparse, N KB   | an entry of 8 bytes for every N KB of log, mapped, searched as in Kafka  | the log        |
| B+tree         | SQLite, a row (offset, position) for each record                         | the log        |
| B+tree, rows   | SQLite, a row (offset, record) for each record                           | the tree       |

SQLite writes without fsync (synchronous=OFF), with a write-ahead log and a transaction per 1,000 records: the best
case. Maintenance is the CPU time of the index only; it includes writing the records only if they are in the tree. In a
cold lookup, no page of the files is resident, but the files are open and the tree's schema has been read.
"""

import argparse
import json
import os
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from mmap import MADV_RANDOM, PROT_READ, mmap
from pathlib import Path
from statistics import median
from struct import Struct
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple, TypeAlias

from benchmarks.questions.index_search import ENTRY
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.search import PAGE_SIZE, floor_slot
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.io.page_cache import Cachestat
from warmlog.broker.log.segments.log_scan import BatchEnd, find_batch
from warmlog.protocol.records.builder import build_batch

RECORDS = 1_000_000
GROUP = 1_000  # records written together, in one transaction of the tree
INTERVALS_KB = (1, 2, 4, 8, 16, 32, 64)
HOT_LOOKUPS, COLD_LOOKUPS = 2_000, 60
BATCH = build_batch([(1_700_000_000_000, None, b"v" * 100, ())])
_OFFSET = Struct(">q")


class Asked(NamedTuple):
    """A way to find a record by its offset, and the files it reads."""

    look_up: Callable[[int], bytes]
    scanned: list[int]  # for each lookup, bytes of log from the index entry's position to the end of the record
    files: tuple[Path, ...]


Opened: TypeAlias = Callable[[], AbstractContextManager[Asked]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The costs of an arrangement. Sizes and maintenance times are for a million records."""

    name: str
    maintain_s: float
    size_mb: float
    hot_us: float
    cold_us: float
    cold_pages: float
    scanned_bytes: float


def record(offset: int) -> bytes:
    """Return the batch with the single record of an offset."""
    return _OFFSET.pack(offset) + BATCH[_OFFSET.size :]


def write_log(path: Path, records: int) -> None:
    """Write all records one after the other."""
    with path.open("wb") as file:
        file.writelines(map(record, range(records)))
        file.flush()
        os.fsync(file.fileno())


def write_sparse(path: Path, records: int, interval: int) -> float:
    """Write the index of such a log as appends do, through a mapping; return the processor time.

    An entry is written for the first batch after `interval` bytes without an entry.
    """
    size = (records * len(BATCH) // interval + 1) * ENTRY.size
    with path.open("w+b") as file:
        file.truncate(size)
        with mmap(file.fileno(), size) as view:
            began_at, end, since = process_time(), 0, 0
            for offset in range(records):
                if since > interval:
                    ENTRY.pack_into(view, end, offset, offset * len(BATCH))
                    end, since = end + ENTRY.size, 0
                since += len(BATCH)
            used_s = process_time() - began_at
        file.truncate(end)
        os.fsync(file.fileno())
    return used_s


def write_tree(path: Path, rows: Iterator[tuple[int, int | bytes]]) -> float:
    """Write a row for each record, in one transaction per group; return the processor time."""
    began_at = process_time()
    with closing(sqlite3.connect(path, isolation_level=None)) as tree:
        tree.execute("PRAGMA journal_mode=WAL")
        tree.execute("PRAGMA synchronous=OFF")
        tree.execute("CREATE TABLE records (offset INTEGER PRIMARY KEY, value)")
        while group := list(islice(rows, GROUP)):
            tree.execute("BEGIN")
            tree.executemany("INSERT INTO records VALUES (?, ?)", group)
            tree.execute("COMMIT")
        tree.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    used_s = process_time() - began_at
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return used_s


@contextmanager
def asked_sparse(log: Path, index: Path) -> Iterator[Asked]:
    """Search the index and scan the log from there."""
    file = Descriptor(Disk(), os.open(log, os.O_RDONLY))
    end = file.size()
    with index.open("rb") as entries, mmap(entries.fileno(), 0, prot=PROT_READ) as view:
        view.madvise(MADV_RANDOM)
        count, scanned = len(view) // ENTRY.size, list[int]()

        def look_up(offset: int) -> bytes:
            slot, _ = floor_slot(OffsetIndex.key_column, view, count, offset, "warm")
            position = ENTRY.unpack_from(view, slot * ENTRY.size)[1] if slot >= 0 else 0
            found = find_batch(file, offset, BatchEnd(position, None), end)
            assert found is not None
            scanned.append(found.position + found.size - position)
            return file.pread(found.size, found.position)

        yield Asked(look_up, scanned, (log, index))


@contextmanager
def asked_tree(tree_path: Path, log: Path | None) -> Iterator[Asked]:
    """Look up the record in the tree, or its position in the log."""
    with closing(sqlite3.connect(tree_path)) as tree, (log or tree_path).open("rb") as file:

        def look_up(offset: int) -> bytes:
            (value,) = tree.execute("SELECT value FROM records WHERE offset = ?", (offset,)).fetchone()
            if log is None:
                return bytes(value)
            return os.pread(file.fileno(), len(BATCH), value)

        tree.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the schema is read at the first statement
        yield Asked(look_up, [], (tree_path,) if log is None else (log, tree_path))


def hot_us(asked: Asked, offsets: Sequence[int]) -> float:
    """Return the median time of a lookup with all pages resident."""
    times = []
    for offset in (*offsets, *offsets):
        began_at = perf_counter()
        found = asked.look_up(offset)
        times.append(perf_counter() - began_at)
        assert found == record(offset), f"offset {offset}"
    return median(times[len(offsets) :]) * 1e6


def cold(opened: Opened, offsets: Sequence[int]) -> tuple[float, float]:
    """Return the median time of a lookup with no page resident, and the mean number of pages read."""
    times, pages = [], 0
    for offset in offsets:
        with opened() as asked:
            for path in asked.files:
                evict(path)
            before = sum(map(missing_pages, asked.files))
            began_at = perf_counter()
            asked.look_up(offset)
            times.append(perf_counter() - began_at)
            pages += before - sum(map(missing_pages, asked.files))
    return median(times) * 1e6, pages / len(offsets)


def evict(path: Path) -> None:
    """Evict a file from the page cache; mapped pages may stay."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def missing_pages(path: Path) -> int:
    """Return the number of non-resident pages of a file. Raises OSError if the kernel cannot count them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return Cachestat().without_nowait().missing_pages(fd, 0, -(-size // PAGE_SIZE) * PAGE_SIZE)
    finally:
        os.close(fd)


def measure(directory: Path, records: int) -> Iterator[Arrangement]:
    """Measure all arrangements with this many records."""
    per_million = 1e6 / records
    chosen = random.Random(1)
    hot = [chosen.randrange(records) for _ in range(min(records, HOT_LOOKUPS))]
    log = directory / "log"
    write_log(log, records)
    for interval in INTERVALS_KB:
        index = directory / f"sparse-{interval}"
        used_s = write_sparse(index, records, interval << 10)
        size_mb = index.stat().st_size * per_million / 1e6
        opened: Opened = partial(asked_sparse, log, index)
        yield arranged(f"sparse, {interval} KB", used_s * per_million, size_mb, opened, hot)
    contents: dict[str, Callable[[int], int | bytes]] = {
        "B+tree": lambda offset: offset * len(BATCH),
        "B+tree, rows": record,
    }
    for name, value in contents.items():
        tree = directory / name
        used_s = write_tree(tree, ((offset, value(offset)) for offset in range(records)))
        log_mb = 0 if name == "B+tree" else log.stat().st_size
        size_mb = (tree.stat().st_size - log_mb) * per_million / 1e6
        source = log if name == "B+tree" else None
        yield arranged(name, used_s * per_million, size_mb, partial(asked_tree, tree, source), hot)


def arranged(name: str, maintain_s: float, size_mb: float, opened: Opened, hot: Sequence[int]) -> Arrangement:
    """Measure the lookups of a written arrangement."""
    with opened() as asked:
        warm_us = hot_us(asked, hot)
        scanned_bytes = sum(asked.scanned) / max(1, len(asked.scanned))
    cold_us, cold_pages = cold(opened, hot[:COLD_LOOKUPS])
    return Arrangement(
        name=name,
        maintain_s=maintain_s,
        size_mb=size_mb,
        hot_us=warm_us,
        cold_us=cold_us,
        cold_pages=cold_pages,
        scanned_bytes=scanned_bytes,
    )


def table(found: Sequence[Arrangement]) -> str:
    """Return a Markdown table with a row per arrangement."""
    lines = [
        "| index | maintenance, CPU s | space, MB | scan, bytes | hot, µs | cold, µs | pages read, cold |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        cells = (
            each.name,
            f"{each.maintain_s:.2f}",
            f"{each.size_mb:.2f}",
            f"{each.scanned_bytes:,.0f}" if each.scanned_bytes else "",
            f"{each.hot_us:.1f}",
            f"{each.cold_us:,.0f}",
            f"{each.cold_pages:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.index_question", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.json", help="output file for the figures")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--directory", type=Path, default="/var/tmp", help="where to measure the disk (/var/tmp)")
    chosen = parser.parse_args()
    with TemporaryDirectory(dir=chosen.directory) as directory:
        found = list(measure(Path(directory), chosen.records))
    if chosen.file:
        chosen.file.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    sys.exit(main())
