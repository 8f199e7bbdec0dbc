"""The child process that compacts logs: `python -m warmlog.broker.log.compaction.child_process`, started by the broker.

Messages are lines of JSON:

    broker -> child     a CompactionJob                    one log; jobs run one after the other
    child  -> broker    Progress ...                       about every second, as a sign of life
                        CleanedGroup                       its files are complete
    broker -> child     GO                                 they have been swapped in
                        ...
                        CompactionSummary | Failure        the end of the job

The process lowers its own priority, and ends when the broker closes its end of a pipe, at the latest with its next
progress message. It ignores SIGINT, since Ctrl-C on a terminal is sent to both processes.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder, Encoder

from warmlog.broker.log.compaction.run import CleanedGroup, Compaction, CompactionJob, CompactionSummary
from warmlog.broker.log.errors import LogError
from warmlog.protocol.errors import ProtocolError

GO = b"go\n"
NICENESS = 10  # gets a quarter of a core beside a busy broker, all of it beside an idle one
PROGRESS_INTERVAL_S = 1.0


class Progress(Struct, frozen=True, kw_only=True, tag="progress"):
    """A sign of life, with the number of bytes read and written for this job."""

    moved_bytes: int


class Failure(Struct, frozen=True, kw_only=True, tag="failure"):
    """A failed job. `is_damage`: the log is damaged, so a retry would fail again."""

    message: str
    is_damage: bool


Reply: TypeAlias = Progress | CleanedGroup | CompactionSummary | Failure

encode_reply = Encoder().encode
decode_reply: Callable[[bytes], Reply] = Decoder(Reply).decode
encode_job = Encoder().encode
decode_job = Decoder(CompactionJob).decode


class Pace:
    """Limits input and output to a number of bytes per second, and reports progress.

    Called with the size of each step in bytes. `clock` and `sleep` are in seconds; `tell` is called with the total.
    """

    def __init__(
        self,
        max_bytes_per_second: float,
        tell: Callable[[int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = max_bytes_per_second
        self._tell, self._clock, self._sleep = tell, clock, sleep
        self._began = self._reported_at = clock()
        self._moved = 0

    def __call__(self, moved_bytes: int) -> None:
        """Add a step, report progress, and wait until the rate allows the next step."""
        self._moved += moved_bytes
        due = self._began + self._moved / self._rate
        while True:
            now = self._clock()
            if now >= self._reported_at + PROGRESS_INTERVAL_S:
                self._reported_at = now
                self._tell(self._moved)
            if due <= now:
                return
            self._sleep(min(due - now, PROGRESS_INTERVAL_S))


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Run jobs until the source ends. Raises OSError if the broker has closed the pipe."""

    def tell(reply: Reply) -> None:
        target.write(encode_reply(reply) + b"\n")
        target.flush()

    for line in source:
        tell(_do(decode_job(line), source, tell))


def _do(job: CompactionJob, source: BinaryIO, tell: Callable[[Reply], None]) -> CompactionSummary | Failure:
    pace = Pace(job.limits.max_bytes_per_second, lambda moved: tell(Progress(moved_bytes=moved)))
    try:
        compaction = Compaction(job, pace)
        for group in compaction.run():
            tell(group)
            _wait_for_go(source)
        return compaction.summary()
    except BrokenPipeError:
        raise
    except OSError as error:
        return Failure(message=str(error), is_damage=False)
    except (ProtocolError, LogError, ValueError, MemoryError) as error:
        return Failure(message=str(error), is_damage=not isinstance(error, MemoryError))


def _wait_for_go(source: BinaryIO) -> None:
    if source.readline() != GO:
        raise BrokenPipeError("the broker has gone")


def main() -> None:
    """Serve on the standard streams."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(1)  # skips a flush to the closed pipe


if __name__ == "__main__":
    main()
