"""Opening logs at the start: several at a time where they must be recovered, and how far that has come.

Owns: the threads, the counts, the line in the log every few seconds, and what a receipt says of all that. Must not
know: how a log is opened, topics' settings, the loop.

After a clean stop logs are opened one after the other: that is system calls and Python between them, and a second
thread only gets in the way (1,000 logs: 0.29 s by one, 0.76 s by two). After an unclean one several threads recover
logs ahead of their topics' turn: reads wait for the disk, and the scan gives up the GIL.

Invariants:
1. A log that cannot be opened ahead is not: its topic's turn opens it again and says what is wrong.
2. What was opened ahead and not taken is closed.

Source: kafka.log.LogManager.loadLogs (`num.recovery.threads.per.data.dir`).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple, TypeAlias

from broker.log.descriptions import RecoveryReport
from broker.log.directory.data_directory import DataDirectory
from broker.log.directory.receipt import Receipt, log_receipt, time_of
from broker.log.errors import LogError
from broker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

TELL_INTERVAL_S = 5.0  # a line that comes oftener tells nothing new
Key: TypeAlias = tuple[str, int]  # topic, partition


class StartProgress:
    """How far a start has come. From any thread. `clock` in seconds, and only its differences count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._begun = self._told = clock()
        self._ended: float | None = None
        self.logs = 0
        self.opened_logs = 0
        self.recovered_logs = 0
        self.scanned_bytes = 0
        self.is_given_up = False

    def begin(self, logs: int) -> None:
        """So many logs are to be opened."""
        with self._lock:
            self.logs = logs
            self._begun = self._told = self._clock()

    def end(self) -> None:
        """All is open, or as much as will be."""
        self._ended = self._clock()

    def give_up(self) -> None:
        """Let no further log be opened: the broker is to stop."""
        self.is_given_up = True

    @property
    def seconds(self) -> float:
        """How long the start took, or has taken so far."""
        return (self._clock() if self._ended is None else self._ended) - self._begun

    def scanned(self, size: int) -> None:
        """So many more bytes were checked."""
        with self._lock:
            self.scanned_bytes += size
        self._tell()

    def opened(self, report: RecoveryReport | None) -> None:
        """One more log is open; `report` says what recovery did to it."""
        with self._lock:
            self.opened_logs += 1
            self.recovered_logs += report is not None
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            now = self._clock()
            if self._ended is not None or now - self._told < TELL_INTERVAL_S:
                return
            self._told = now
        logger.info("opening: %s", str(self))  # as it is now, whenever that is written

    def __str__(self) -> str:
        return (
            f"{self.opened_logs:,} of {self.logs:,} logs open, {self.recovered_logs:,} of them recovered,"
            f" {self.scanned_bytes:,} bytes checked in {self.seconds:.1f} s"
        )

    def form(self) -> dict[str, object]:
        """The same for scripts; times in seconds, sizes in bytes."""
        return {
            "logs": self.logs,
            "opened_logs": self.opened_logs,
            "recovered_logs": self.recovered_logs,
            "scanned_bytes": self.scanned_bytes,
            "seconds": round(self.seconds, 3),
        }


class OpenedAhead:
    """Logs that were opened before their topics' turn."""

    def __init__(self) -> None:
        self._logs: dict[Key, PartitionLog] = {}

    def run(
        self,
        queues: Sequence[Sequence[Key]],
        open_log: Callable[[Key], PartitionLog],
        *,
        threads_each: int,
        progress: StartProgress,
    ) -> None:
        """Open the logs of each queue (a disk's, by Kafka's rule) by its own threads. Blocking."""
        waiting = [iter(queue) for queue in queues if queue]
        if not waiting:
            return
        with ThreadPoolExecutor(threads_each * len(waiting), thread_name_prefix="recovery") as pool:
            lock = Lock()
            work = [
                pool.submit(self._work_off, _locked(queue, lock), open_log, progress)
                for queue in waiting
                for _ in range(threads_each)
            ]
        for done in work:
            done.result()

    def _work_off(self, queue: Iterator[Key], open_log: Callable[[Key], PartitionLog], progress: StartProgress) -> None:
        for key in queue:
            if progress.is_given_up:
                return
            try:
                self._logs[key] = open_log(key)
            except (OSError, LogError) as error:
                logger.debug("%s-%d: not opened ahead: %s", *key, error)

    def take(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, if it was opened ahead: now the caller's."""
        return self._logs.pop((topic, partition), None)

    def close_rest(self) -> None:
        """Close what nobody took."""
        while self._logs:
            _, log = self._logs.popitem()
            log.close(clean=False)


def _locked(queue: Iterator[Key], lock: Lock) -> Iterator[Key]:
    """The same, for several threads that take from it."""
    while True:
        with lock:
            try:
                key = next(queue)
            except StopIteration:
                return
        yield key


class Start(NamedTuple):
    """A start that is over: when it began (ms), how many threads each directory had, whether every log was opened."""

    started_ms: int
    threads_each: int
    complete: bool


def receipt_of(directory: DataDirectory, logs: Sequence[PartitionLog], start: Start, seconds: float) -> Receipt | None:
    """The receipt of a start for one data directory, of whose logs these are open; None if none was recovered."""
    if all(log.recovery is None for log in logs):
        return None
    done = tuple(
        log_receipt(log.topic, log.partition, log.log_end_offset, log.recovery)
        for log in logs
        if log.recovery is not None and log.recovery.did_something
    )
    return Receipt(
        started_at=time_of(start.started_ms),
        reason="a clean stop's marker, but logs that do not fit it" if directory.was_clean else "no clean stop",
        complete=start.complete,
        seconds=seconds,
        threads=start.threads_each,
        log_count=len(logs),
        scanned_bytes=sum(each.scanned_bytes for each in done),
        truncated_bytes=sum(each.truncated_bytes for each in done),
        findings=tuple(directory.findings),
        logs=done,
    )
