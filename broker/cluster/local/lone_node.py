"""A standalone broker: a cluster of one, the only writer of its store.

It is always registered, and the controller. There are no states of partitions in its store: it has the only replica
of each, and its logs know their leader epochs.
"""

from collections.abc import Awaitable, Callable
from random import Random

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local.local_store import LocalStore
from warmlog.broker.cluster.store import Range
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import Member

Spawn = Callable[[Callable[[], Awaitable[None]]], None]


class LoneNode(StoreNode):
    """A broker's view of a store of its own. Belongs to the event loop."""

    is_alone = True

    def __init__(self, store: LocalStore, node_id: int, contents: Range, random: Random) -> None:
        """Begin with `contents`, the current contents of the store."""
        super().__init__(store, node_id, ClusterImage.of_broker(contents, node_id), random)
        self.run_in: Spawn | None = None  # the writer's `spawn`, once tasks can run
        store.on_changes.append(lambda changes: self._take(self.image.apply(changes)))

    @property
    def me(self) -> Member:
        """Return this broker with its only epoch."""
        return Member(self.id, self.image.brokers[self.id].epoch)

    @property
    def is_fenced(self) -> bool:
        """Return False."""
        return False

    async def settled(self) -> None:
        """Return at once."""

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task in the background."""
        if self.run_in is not None:
            self.run_in(run)
