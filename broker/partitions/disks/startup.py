"""Open or recover logs at startup; track the progress, and make the receipt of recovery.

After a clean shutdown logs are opened in one thread: opening is system calls with Python between them, and a second
thread only competes for the GIL (1,000 logs: 0.29 s in one, 0.76 s in two). After an unclean shutdown several threads
recover logs before their topics are opened: they wait for the disk, and scans release the GIL.

Invariants:
1. A log whose recovery fails here is opened again with its topic, which reports the error.
2. Recovered logs that belong to no topic are closed.

Source: kafka.log.LogManager.loadLogs (`num.recovery.threads.per.data.dir`).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.receipt import Receipt, log_receipt, time_of
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0


class StartProgress:
    """The progress of startup, for any thread. `clock` returns seconds from any origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._begun = self._logged = clock()
        self._ended: float | None = None
        self.logs = 0
        self.opened_logs = 0
        self.recovered_logs = 0
        self.scanned_bytes = 0
        self.is_cancelled = False

    def begin(self, logs: int) -> None:
        """Begin to open this many logs."""
        with self._lock:
            self.logs = logs
            self._begun = self._logged = self._clock()

    def end(self) -> None:
        """Record the end of startup."""
        self._ended = self._clock()

    def cancel(self) -> None:
        """Open no further logs: the broker is being stopped."""
        self.is_cancelled = True

    @property
    def seconds(self) -> float:
        """Return the duration of startup, or the time so far."""
        return (self._clock() if self._ended is None else self._ended) - self._begun

    def scanned(self, size: int) -> None:
        """Count bytes checked by recovery."""
        with self._lock:
            self.scanned_bytes += size
        self._log()

    def opened(self, report: RecoveryReport | None) -> None:
        """Count an open log, and the report of its recovery, if any."""
        with self._lock:
            self.opened_logs += 1
            self.recovered_logs += report is not None
        self._log()

    def _log(self) -> None:
        with self._lock:
            now = self._clock()
            if self._ended is not None or now - self._logged < LOG_INTERVAL_S:
                return
            self._logged = now
        logger.info("opening logs: %s", str(self))  # formatted now, even if it is written later

    def __str__(self) -> str:
        return (
            f"{self.opened_logs:,} of {self.logs:,} logs open, {self.recovered_logs:,} of them recovered,"
            f" {self.scanned_bytes:,} bytes checked in {self.seconds:.1f} s"
        )

    def form(self) -> dict[str, object]:
        """Return the progress for scripts: times in seconds, sizes in bytes."""
        return {
            "logs": self.logs,
            "opened_logs": self.opened_logs,
            "recovered_logs": self.recovered_logs,
            "scanned_bytes": self.scanned_bytes,
            "seconds": round(self.seconds, 3),
        }


class RecoveredLogs:
    """Logs that were recovered before their topics are opened."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, PartitionLog] = {}

    def run(
        self,
        queues: Sequence[Sequence[TopicPartition]],
        open_log: Callable[[TopicPartition], PartitionLog],
        *,
        threads_each: int,
        progress: StartProgress,
    ) -> None:
        """Open the logs of each queue (one per disk, as in Kafka) in separate threads. Blocking."""
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

    def _work_off(
        self,
        queue: Iterator[TopicPartition],
        open_log: Callable[[TopicPartition], PartitionLog],
        progress: StartProgress,
    ) -> None:
        for key in queue:
            if progress.is_cancelled:
                return
            try:
                self._logs[key] = open_log(key)
            except (OSError, LogError) as error:
                logger.debug("%s-%d: recovery failed, to be retried with its topic: %s", *key, error)

    def take(self, topic: str, partition: int) -> PartitionLog | None:
        """Return a recovered log, or None. The caller owns it."""
        return self._logs.pop((topic, partition), None)

    def close_rest(self) -> None:
        """Close the logs that were not taken."""
        while self._logs:
            _, log = self._logs.popitem()
            log.close(clean=False)


def _locked(queue: Iterator[TopicPartition], lock: Lock) -> Iterator[TopicPartition]:
    """Make an iterator safe for several threads."""
    while True:
        with lock:
            try:
                key = next(queue)
            except StopIteration:
                return
        yield key


class Start(NamedTuple):
    """A finished startup: its beginning (ms since the epoch), threads per directory, whether all logs are open."""

    started_ms: int
    threads_each: int
    complete: bool


def receipt_of(directory: DataDirectory, logs: Sequence[PartitionLog], start: Start, seconds: float) -> Receipt | None:
    """Return the receipt of a startup for one data directory with these open logs; None if none was recovered."""
    if all(log.recovery is None for log in logs):
        return None
    done = tuple(
        log_receipt(log.topic, log.partition, log.offsets.log_end_offset, log.recovery)
        for log in logs
        if log.recovery is not None and log.recovery.did_something
    )
    return Receipt(
        started_at=time_of(start.started_ms),
        reason="clean shutdown marker, but logs that contradict it" if directory.was_clean else "unclean shutdown",
        complete=start.complete,
        seconds=seconds,
        threads=start.threads_each,
        log_count=len(logs),
        scanned_bytes=sum(each.scanned_bytes for each in done),
        truncated_bytes=sum(each.truncated_bytes for each in done),
        findings=tuple(directory.findings),
        logs=done,
    )
