"""Tasks of a client that end before the block of its caller is left."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

Arguments = TypeVarTuple("Arguments")


class BackgroundTasks:
    """Runs tasks in a task group, and cancels them alone, not the task that has entered the group.

    That one runs code of the user, and must not see a cancellation of ours: on Python 3.11 and 3.12 it may still count
    one of an `asyncio.TaskGroup` that has failed, and anyio would then take ours for one from outside.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._scopes: set[anyio.CancelScope] = set()
        self._cancelled = False

    def start_soon(self, function: Callable[[*Arguments], Coroutine[Any, Any, object]], *args: *Arguments) -> None:
        """Call a coroutine function in a new task."""
        self._group.start_soon(self._run, function, args)

    def cancel(self) -> None:
        """Cancel all tasks, and those that are started from now on."""
        self._cancelled = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(
        self, function: Callable[[*Arguments], Coroutine[Any, Any, object]], args: tuple[*Arguments]
    ) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._cancelled:
                scope.cancel()
            try:
                await function(*args)
            finally:
                self._scopes.discard(scope)


TaskStarter: TypeAlias = TaskGroup | BackgroundTasks  # where a task can be started
