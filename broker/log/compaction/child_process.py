"""The child process that compacts logs: `python -m broker.log.compaction.child_process`, started and fed by the broker.

Owns: the conversation, a line of JSON at a time, the pace, and what an error means. Must not know which log's turn it
is; it needs nothing of the broker but the job.

    broker -> child     a CompactionJob                    one log; many, one after the other
    child  -> broker    Progress ...                       about every second: it is alive
                        CleanedGroup                       its files are made
    broker -> child     GO                                 they have taken their place
                        ...
                        CompactionSummary | Failure        the end of the job

The process lowers its own priority and ends when the broker's end of a pipe is closed: at the latest with its next
progress. SIGINT is the broker's: Ctrl-C on a terminal goes to both.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder, Encoder

from broker.log.compaction.run import CleanedGroup, Compaction, CompactionJob, CompactionSummary
from broker.log.errors import LogError
from protocol.errors import ProtocolError

GO = b"go\n"
NICENESS = 10  # a quarter of a core's time beside a busy broker, all of it beside an idle one
PROGRESS_INTERVAL_S = 1.0


class Progress(Struct, frozen=True, kw_only=True, tag="progress"):
    """It is alive, and has read and written so many bytes for this job."""

    moved_bytes: int


class Failure(Struct, frozen=True, kw_only=True, tag="failure"):
    """A job that came to nothing. `is_damage`: the log is at fault, and another try will end the same."""

    message: str
    is_damage: bool


Reply: TypeAlias = Progress | CleanedGroup | CompactionSummary | Failure

encode_reply = Encoder().encode
decode_reply: Callable[[bytes], Reply] = Decoder(Reply).decode
encode_job = Encoder().encode
decode_job = Decoder(CompactionJob).decode


class Pace:
    """Input and output at no more than so many bytes a second, and a word about it now and then.

    Called with the bytes of each step. `clock` and `sleep` in seconds; `tell` takes the sum so far.
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
        self._began = self._told = clock()
        self._moved = 0

    def __call__(self, moved_bytes: int) -> None:
        """So many more bytes were moved: tell of it, and wait until the rate allows it."""
        self._moved += moved_bytes
        due = self._began + self._moved / self._rate
        while True:
            now = self._clock()
            if now >= self._told + PROGRESS_INTERVAL_S:
                self._told = now
                self._tell(self._moved)
            if due <= now:
                return
            self._sleep(min(due - now, PROGRESS_INTERVAL_S))


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Do jobs until the source ends. Raises OSError where nobody listens any more."""

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
        os._exit(1)  # nothing to flush, and nobody to tell


if __name__ == "__main__":
    main()
