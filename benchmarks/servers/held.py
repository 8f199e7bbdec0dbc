"""A broker that reports how long a single step of a task held its event loop.

    python -m benchmarks.servers.held DIRECTORY

It prints `ready ... kafka=HOST:PORT ...`, then answers each line on standard input with the longest step since the
previous line: `CPU_MS WALL_MS TASK`.

The CPU time of a step does not depend on other load on the machine; its wall time is the wait of other clients.
"""

import sys
import threading
from pathlib import Path
from time import perf_counter, thread_time

import trio

from warmlog.broker.app import run
from warmlog.broker.settings.loading import load_settings

NONE = "none"


class Steps(trio.abc.Instrument):
    """The longest step of a task, by CPU time and by wall time."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0
        self.task = NONE
        self._began = (0.0, 0.0)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Record the start times of a step."""
        del task
        self._began = thread_time(), perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Keep the longest step."""
        cpu_s, wall_s = thread_time() - self._began[0], perf_counter() - self._began[1]
        self.wall_s = max(self.wall_s, wall_s)
        if cpu_s > self.cpu_s:
            self.cpu_s, self.task = cpu_s, task.name

    def report(self) -> str:
        """Return the longest step since the previous report."""
        line = f"{self.cpu_s * 1e3:.3f} {self.wall_s * 1e3:.3f} {self.task}"
        self.cpu_s = self.wall_s = 0.0
        self.task = NONE
        return line


def answer(steps: Steps) -> None:
    """Answer each line of standard input, until its end."""
    for _ in sys.stdin:
        print(steps.report(), flush=True)


def main() -> None:
    """Serve until the process is ended."""
    steps = Steps()
    settings = load_settings(data_dir=Path(sys.argv[1]), assignments=["warmlog.loop.stall.log.ms=0"])

    def serve_measured(*arguments: object, **options: object) -> object:
        return trio_run(*arguments, **options, instruments=[steps])  # type: ignore[arg-type]

    trio_run = trio.run
    trio.run = serve_measured  # type: ignore[assignment]  # the broker starts its own loop
    threading.Thread(target=answer, args=(steps,), daemon=True).start()
    run(
        settings,
        kafka="127.0.0.1:0",
        native="127.0.0.1:0",
        http="none",
        ready=lambda addresses: print(addresses.line(), flush=True),
    )


if __name__ == "__main__":
    main()
