"""Report to a program the partitions that its group stream gets and gives up."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import TypeAlias

from anyio.to_thread import run_sync

from warmlog.protocol.partitions import TopicPartition

#: Called with partitions; it may be an async function.
RebalanceCallback: TypeAlias = Callable[[Sequence[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceCallbacks:
    """The callbacks of a program. Each is called by the reader's task, between two steps of the stream."""

    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Report the partitions of a new generation."""
        await _call(self.on_assigned, partitions)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Report that partitions are about to be given up, and that their offsets can still be committed."""
        await _call(self.on_revoked, partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Report that other members may already read the partitions. Without `on_lost`, `on_revoked` is called."""
        await _call(self.on_lost or self.on_revoked, partitions)


async def _call(callback: RebalanceCallback | None, partitions: Sequence[TopicPartition]) -> None:
    if callback is not None:
        result = callback(partitions)
        if isawaitable(result):
            await result


def in_thread(callback: RebalanceCallback) -> RebalanceCallback:
    """Return an async function that calls a blocking one in another thread. Raises TypeError for an async function."""
    if iscoroutinefunction(callback):
        raise TypeError("callbacks of a blocking stream must not be async functions")

    def call(partitions: Sequence[TopicPartition]) -> Awaitable[object]:
        return run_sync(callback, partitions)

    return call
