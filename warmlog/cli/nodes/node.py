"""One node: its process, which is restarted when it ends, and the lines that it writes.

Lines on standard error are passed on with the node's name.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from signal import Signals

import trio

from warmlog.cli.nodes.plan import LISTENERS, Addresses, Plan
from warmlog.cli.nodes.shared_listeners import SharedListeners
from warmlog.protocol.backoff import delays_s

FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0  # delay before a node is restarted
STEADY_S = 60.0  # a node that has run this long is restarted immediately

_READY = re.compile(r"ready kafka=(\S+) native=(\S+) http=(\S+)( .*)?\n?")


@dataclass(slots=True)
class Node:
    """One broker: runs its process, and restarts it when it ends.

    Once it has been ready it keeps its addresses, including ports that the system chose.
    """

    plan: Plan
    number: int
    store: str
    shared: SharedListeners
    addresses: Addresses
    ready: trio.Event = field(default_factory=trio.Event)
    named: str = ""  # addresses of `listeners`, as printed on that line
    failure: str = ""  # reason why the first start failed
    _process: trio.Process | None = None
    _creating: trio.Lock = field(default_factory=trio.Lock)
    _stopping: trio.Event = field(default_factory=trio.Event)

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"node {self.plan.ids[self.number]}"

    @property
    def line(self) -> str:
        """The addresses, as printed on the line that reports readiness."""
        return " ".join(f"{listener}={self.addresses[listener]}" for listener in LISTENERS) + self.named

    async def run(self, failed: Callable[[], None]) -> None:
        """Run until stopped. Calls `failed` if the first start fails; `failure` is then the reason."""
        random = Random()  # noqa: S311  # jitter
        pauses_s = delays_s(random, FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            began_s = trio.current_time()
            outcome = await self._run_once()
            if self._stopping.is_set():
                return
            if not self.ready.is_set():
                self.failure = f"{self.name} did not start: it {outcome}"
                failed()
                return
            if trio.current_time() - began_s >= STEADY_S:
                pauses_s = delays_s(random, FIRST_PAUSE_S, MAX_PAUSE_S)
            pause_s = next(pauses_s)
            self._report(f"{outcome}; restarting it in {pause_s:.1f} s")
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
                return

    def end_restarts(self) -> None:
        """Do not restart the process when it ends; `stop` follows."""
        self._stopping.set()

    async def stop(self, limit_s: float) -> None:
        """Let the broker hand over its partitions and stop; kill it after the limit."""
        self.end_restarts()
        async with self._creating:
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with trio.move_on_after(limit_s):
            await process.wait()
        if process.poll() is None:
            self._report(f"did not stop within {limit_s:.0f} s and is killed")
            process.kill()
            await process.wait()

    async def _run_once(self) -> str:
        """Run the process until it ends, and return how it ended."""
        command = self.plan.command(self.number, self.store, self.addresses, self.shared.options)
        environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        pipe = subprocess.PIPE
        async with self._creating:
            if self._stopping.is_set():
                return "was not started"
            # The process has its own session, so that Ctrl-C does not reach it before its turn to stop.
            self._process = process = await trio.lowlevel.open_process(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
                env=environ,
                pass_fds=self.shared.descriptors,
            )
        assert process.stdout is not None
        assert process.stderr is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_each_line, process.stderr, self._pass_on)
            nursery.start_soon(_each_line, process.stdout, self._note)
            status = await process.wait()
        return f"was ended by {Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def _note(self, line: str) -> None:
        match = _READY.fullmatch(line)
        if match is not None:
            *addresses, self.named = match.groups(default="")
            self.addresses = dict(zip(LISTENERS, addresses, strict=True))
            self.ready.set()

    def _pass_on(self, line: str) -> None:
        if self.plan.logs_json and line.startswith("{"):
            sys.stderr.write(f'{{"node": {self.plan.ids[self.number]}, {line[1:]}')
        else:
            sys.stderr.write(f"{self.name}: {line}")
        sys.stderr.flush()

    def _report(self, text: str) -> None:
        self._pass_on(f"{text}\n")


async def _each_line(stream: trio.abc.ReceiveStream, take: Callable[[str], None]) -> None:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            take(line.decode(errors="replace") + "\n")
    if rest:
        take(rest.decode(errors="replace") + "\n")
