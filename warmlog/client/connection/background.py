"""Background tasks of a client that end before the caller's block is left."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

Arguments = TypeVarTuple("Arguments")


class BackgroundTasks:
    """Runs tasks in a task group, and cancels only them, not the task that entered the group.

    That task runs user code and must not see this cancellation: on Python 3.11 and 3.12 it may still count a
    cancellation by a failed `asyncio.TaskGroup`, and anyio would then mistake this one for an external one.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._scopes: set[anyio.CancelScope] = set()
        self._cancelled = False

    def start_soon(self, function: Callable[[*Arguments], Coroutine[Any, Any, object]], *args: *Arguments) -> None:
        """Run a coroutine function in a new task."""
        self._group.start_soon(self._run, function, args)

    def cancel(self) -> None:
        """Cancel all tasks, including those started later."""
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


TaskStarter: TypeAlias = TaskGroup | BackgroundTasks  # objects that can start tasks
