"""A child process that compacts logs, as seen by the broker. The child's side is `broker.log.compaction.child_process`.

Invariants:
1. No process is left behind, however the dialogue with it ends.
2. A child that sends nothing for `SILENCE_LIMIT_S` is considered stuck, and killed.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import Self

import msgspec
import trio

from warmlog.broker.log.compaction.child_process import GO, Failure, Progress, Reply, decode_reply, encode_job
from warmlog.broker.log.compaction.run import CleanedGroup, CompactionJob, CompactionSummary

__all__ = ["ChildDiedError", "CleanedGroup", "CleanerChild", "CompactionSummary", "Failure", "Progress"]

SILENCE_LIMIT_S = 300.0  # a child reports progress every second, except during an fsync of a large file
END_LIMIT_S = 5.0  # time for an idle child to exit
RECEIVE_SIZE = 65536
ROOT = Path(__file__).parents[2]  # the directory that `broker` was imported from


class ChildDiedError(Exception):
    """The child exited during a job, or became silent (`is_stuck`)."""

    def __init__(self, message: str, *, is_stuck: bool = False) -> None:
        super().__init__(message)
        self.is_stuck = is_stuck


class CleanerChild:
    """A running child, as an async context manager: leaving the block ends it, by a signal if it has a job."""

    def __init__(self, process: trio.Process) -> None:
        """Wrap a process that was just started; use `start`."""
        self._process = process
        self._received = bytearray()
        self.is_idle = True  # has no job

    @classmethod
    async def start(cls) -> Self:
        """Start a process. Raises OSError."""
        command = [sys.executable, "-P", "-m", "warmlog.broker.log.compaction.child_process"]
        process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, env=_environment(os.environ))
        return cls(process)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self._end()

    async def begin(self, job: CompactionJob) -> None:
        """Send a job. Raises ChildDiedError."""
        self.is_idle = False
        await self._send(encode_job(job) + b"\n")

    async def go_on(self) -> None:
        """Inform the child that its group was swapped in. Raises ChildDiedError."""
        await self._send(GO)

    async def receive(self) -> Reply:
        """Return the child's next message; a summary or a failure ends the job. Raises ChildDiedError."""
        with trio.move_on_after(SILENCE_LIMIT_S):
            reply = await self._next()
            self.is_idle = isinstance(reply, CompactionSummary | Failure)
            return reply
        raise ChildDiedError(f"the cleaner process sent nothing for {SILENCE_LIMIT_S:g} s", is_stuck=True)

    async def _next(self) -> Reply:
        stdout = self._process.stdout
        assert stdout is not None, "started with pipes"
        while (end := self._received.find(b"\n")) < 0:
            data = await stdout.receive_some(RECEIVE_SIZE)
            if not data:
                status = await self._process.wait()
                raise ChildDiedError(f"the cleaner process exited with status {status}")
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            return decode_reply(line)
        except msgspec.DecodeError as error:
            raise ChildDiedError(f"the cleaner process sent {line[:80]!r}: {error}") from error

    async def _send(self, line: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "started with pipes"
        try:
            await stdin.send_all(line)
        except trio.BrokenResourceError:
            status = await self._process.wait()
            raise ChildDiedError(f"the cleaner process exited with status {status}") from None

    async def _end(self) -> None:
        """Close the child's pipes, which ends an idle child; kill it if it has a job or does not exit in time."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                await pipe.aclose()
        if self.is_idle:
            with trio.move_on_after(END_LIMIT_S):
                await self._process.wait()
        self._process.kill()
        await self._process.wait()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the child, in which this broker's code is found first."""
    paths = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}
