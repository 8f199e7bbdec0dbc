"""Groups of member.py's processes: starts, follows, kills them, and knows what each has told of itself."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.clients.waiting import LIMIT_S

PROGRAM = Path(__file__).with_name("member.py")


class Member:
    """One process. `assigned` is None until it has told."""

    def __init__(self, process: subprocess.Popen[str], changed: threading.Condition) -> None:
        self.assigned: list[int] | None = None
        self.assignments: list[list[int]] = []
        self.read: list[tuple[int, int]] = []
        self._process = process
        self._changed = changed
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def leave(self) -> None:
        """Ask it to leave its group, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(LIMIT_S) == 0
        self._gone()

    def kill(self) -> None:
        """End the process as it is: its group is not told. Nothing, if it has ended."""
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._gone()

    def _gone(self) -> None:
        self._follower.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self.assigned = None

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                if "assigned" in told:
                    self.assigned = told["assigned"]
                    self.assignments.append(told["assigned"])
                else:
                    self.read.extend((partition, offset) for partition, offset in told["read"])
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


class Members:
    """The members of one group over one topic. A context manager that leaves no process behind."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._arguments = (bootstrap, group, topic)
        self._changed = threading.Condition()
        self._members = ExitStack()
        self.all: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._members.close()

    def join(self, library: str, instance: str | None = None) -> Member:
        """Start a member; it joins in its own time."""
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), library, *self._arguments, *([instance] if instance else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        member = Member(process, self._changed)
        self._members.callback(member.kill)
        self.all.append(member)
        return member

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until what the members have told makes it so."""
        with self._changed:
            assert self._changed.wait_for(lambda: done() or self._died(), LIMIT_S), f"waited in vain for {what}: {self}"
            assert done(), f"a member died before {what}: {self}"

    def until_shared(self, partitions: Collection[int], members: Collection[Member]) -> None:
        """Wait until these members have all partitions, each one of them some, and none is had twice."""

        def shared() -> bool:
            had = [each.assigned or [] for each in members]
            return all(had) and sorted(chain.from_iterable(had)) == sorted(partitions)

        self.until(shared, f"{len(members)} members to share {len(partitions)} partitions")

    def read(self) -> set[tuple[int, int]]:
        """What all members together have read."""
        return {each for member in self.all for each in member.read}

    def __repr__(self) -> str:
        return repr([(each.is_running, each.assignments, len(each.read)) for each in self.all])

    def _died(self) -> bool:
        return any(each._process.poll() not in {None, 0, -9} for each in self.all)
