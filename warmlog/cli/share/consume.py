"""`warmlog share consume`: take jobs from a queue, print them or run a program for each."""

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from warmlog.cli.failure import Failure, OutputClosedError
from warmlog.cli.options import (
    complete_groups,
    json_option,
    native_option,
    topics_argument,
    zero_option,
)
from warmlog.cli.output import write_bytes
from warmlog.cli.records.record_json import ENCODER, record_fields
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from anyio import CancelScope

    from warmlog.client import AsyncClient, Job, ShareStart, ShareStream

REJECTED_STATUS = 65  # EX_DATAERR of sysexits.h: the input is invalid, so a retry would also fail
NOT_STARTED_STATUSES = (126, 127)  # exit statuses of a shell whose command cannot be executed or does not exist


@click.command(short_help="Take jobs from a queue: print them, or run a program for each.")
@topics_argument
@click.option("--group", metavar="GROUP", required=True, shell_complete=complete_groups, help="Join this share group.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "end"]),
    help="Start position in topics that are new to the group: sets its share.auto.offset.reset.",
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Stop after N jobs.")
@click.option(
    "--idle",
    "idle_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop when no job has arrived for this long.",
)
@click.option(
    "--exec",
    "program",
    metavar="COMMAND",
    help="Run this shell command for each job, with the value on standard input.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    help="With --exec: run N commands at a time (default 1).",
)
@zero_option
@native_option
@json_option("One JSON object per job, as `consume --json` prints records, with its deliveries.")
def consume(
    topics: tuple[str, ...],
    group: str,
    start: "ShareStart | None",
    count: int | None,
    idle_s: float | None,
    program: str | None,
    workers: int,
    zero_terminated: bool,
    native: str,
    as_json: bool,
) -> None:
    """Take jobs from a queue, print their values, one per line, and accept them.

    The members of a share group get the records of its topics one by one, even within a partition. A job that was not
    accepted, because the member stopped or its lock expired, is delivered again.

    With --exec a job is accepted if the command exits with status 0. Status 65 rejects it: it is not delivered again,
    or becomes a dead letter. After any other status it is released, and delivered again. After 126 or 127, by which
    the shell reports that it could not start the command, the member also stops. The environment of the command has
    the record's position in WARMLOG_TOPIC, WARMLOG_PARTITION and WARMLOG_OFFSET, its key in WARMLOG_KEY if it is
    text, and the number of deliveries in WARMLOG_DELIVERIES.
    """
    if program is not None and (as_json or zero_terminated):
        raise click.UsageError("--exec cannot be combined with --json or --zero-terminated.")
    end = b"\0" if zero_terminated else b"\n"

    async def process(job: "Job") -> None:
        if program is not None:
            await _execute(program, job)
            return
        write_bytes(_line(job) if as_json else (job.value or b"") + end)
        job.accept()

    async def run(client: "AsyncClient") -> None:
        async with client.share(topics, group=group, start=start, auto_create=False) as jobs:
            await _Workers(jobs, process, count, idle_s).run(1 if program is None else workers)

    run_with_client(native, run)


class _Workers:
    """Tasks that take jobs from one stream until there are no more."""

    def __init__(
        self, jobs: "ShareStream", process: "Callable[[Job], Awaitable[None]]", count: int | None, idle_s: float | None
    ) -> None:
        self._jobs = jobs
        self._process = process
        self._left = count
        self._idle_s = idle_s
        self._failures: list[Exception] = []

    async def run(self, workers: int) -> None:
        """Process jobs in `workers` tasks. Raises WarmlogError, Failure, OutputClosedError and OSError."""
        import anyio

        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(self._work, tasks.cancel_scope)
        if self._failures:  # the task group would wrap them
            raise self._failures[0]

    async def _work(self, tasks: "CancelScope") -> None:
        from warmlog.client import WarmlogError

        try:
            while (job := await self._next()) is not None:
                await self._process(job)
        except (WarmlogError, Failure, OutputClosedError, OSError) as error:
            self._failures.append(error)
            tasks.cancel()

    async def _next(self) -> "Job | None":
        """Return the next job, or None if there are no more."""
        import anyio

        if self._left == 0:
            return None
        self._left = None if self._left is None else self._left - 1
        with anyio.move_on_after(self._idle_s):
            return await anext(self._jobs, None)
        return None


def _line(job: "Job") -> bytes:
    fields = {"topic": job.topic, "partition": job.partition, **record_fields(job.record), "deliveries": job.deliveries}
    return ENCODER.encode(fields) + b"\n"


async def _execute(program: str, job: "Job") -> None:
    """Run a command for a job, and acknowledge the job according to its exit status."""
    environment = {
        **os.environ,
        "WARMLOG_TOPIC": job.topic,
        "WARMLOG_PARTITION": str(job.partition),
        "WARMLOG_OFFSET": str(job.offset),
        "WARMLOG_DELIVERIES": str(job.deliveries),
    }
    key = _text(job.key)
    if key is not None:
        environment["WARMLOG_KEY"] = key
    status = await _run_command(program, job.value or b"", environment)
    if status == 0:
        job.accept()
    elif status == REJECTED_STATUS:
        job.reject()
    elif status in NOT_STARTED_STATUSES:
        job.release()
        raise Failure(f"the command of --exec could not be started (exit status {status}); {job} was released.")
    else:
        click.echo(f"warmlog: {job}: exit status {status}, released", err=True)
        job.release()


async def _run_command(program: str, value: bytes, environment: dict[str, str]) -> int:
    """Run a shell command with a value on its standard input, which it need not read. Returns its exit status."""
    import anyio

    async with await anyio.open_process(program, stdout=None, stderr=None, env=environment) as process:
        assert process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError):
            await process.stdin.send(value)
        await process.stdin.aclose()
        return await process.wait()


def _text(key: bytes | None) -> str | None:
    """Return a key as the value of an environment variable, or None if that is impossible."""
    if key is None or b"\0" in key:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
