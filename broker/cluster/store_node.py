"""A broker's view of its store: an image of the contents, and the commits that advance it.

`node.ClusterNode` is that of a broker in a cluster, `local.lone_node.LoneNode` that of a broker by itself.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

import trio

from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.store import Store, StoreTransaction, StoreUnavailableError
from warmlog.broker.cluster.values import Member
from warmlog.broker.metadata.topic import RefusedError
from warmlog.protocol.backoff import delays_s

Watcher: TypeAlias = Callable[[ClusterImage, ImageDelta], None]
Make: TypeAlias = Callable[[ClusterImage], Decision | None]

logger = logging.getLogger(__name__)


class StoreNode(ABC):
    """What a broker knows of its store, and commits to it. Belongs to the event loop."""

    is_alone = False  # whether no other broker uses the store

    def __init__(self, store: Store, node_id: int, image: ClusterImage, random: Random) -> None:
        self.id = node_id
        self.image = image
        self.random = random
        self.on_change: list[Watcher] = []
        self._store = store
        self._advanced = trio.Event()

    @property
    @abstractmethod
    def me(self) -> Member:
        """Return this broker with its latest epoch."""

    @property
    @abstractmethod
    def is_fenced(self) -> bool:
        """Whether it has learned from others that it is not registered any more, and has not registered again."""

    @abstractmethod
    async def settled(self) -> None:
        """Return when no broker is suspected of having died, or when finding out takes too long."""

    @abstractmethod
    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside those of the node. Does nothing unless the node runs."""

    def _heard_of(self, revision: int) -> None:  # noqa: B027  # only a node of a cluster has to know
        """Note that the store has answered, and its revision."""

    def _take(self, delta: ImageDelta) -> None:
        """Report that the image has advanced."""
        for watcher in self.on_change:
            watcher(self.image, delta)
        self._advanced.set()
        self._advanced = trio.Event()

    async def advanced(self) -> None:
        """Return when the image has advanced."""
        await self._advanced.wait()

    async def reached(self, revision: int) -> None:
        """Return when the image has this revision, or a later one."""
        while self.image.revision < revision:
            await self._advanced.wait()

    async def commit(self, make: Make) -> ClusterImage:
        """Commit what `make` decides on the image, again on each newer image until it succeeds; return the outcome.

        `make` returns None if nothing is left to do. While the store is away, this waits: give it a deadline. Raises
        RefusedError, LeaseExpiredError.
        """
        delays = delays_s(self.random)
        while True:
            decision = make(self.image)
            if decision is None:
                return self.image
            if isinstance(decision, Refusal):
                raise RefusedError(decision.reason)
            try:
                outcome = await self._store.commit(decision)
            except StoreUnavailableError as error:
                logger.debug("cannot commit to the store, retrying: %s", error)
                await trio.sleep(next(delays))
                continue
            self._heard_of(outcome.revision)
            await self.reached(outcome.revision)
            if outcome.succeeded:
                return self.image

    async def propose(self, transaction: StoreTransaction) -> bool | None:
        """Try to commit a transaction before the node follows the store; return whether it was, None if unknown."""
        try:
            return (await self._store.commit(transaction)).succeeded
        except StoreUnavailableError as error:
            logger.warning("waiting for the cluster's store: %s", error)
            return None

    async def attempt(self, decision: Decision) -> bool | None:
        """Try to commit a decision once; return whether it was committed, None if that is unknown.

        On True, the local image includes the change.
        """
        if isinstance(decision, Refusal):
            return False
        try:
            outcome = await self._store.commit(decision)
        except StoreUnavailableError:
            return None
        self._heard_of(outcome.revision)
        await self.reached(outcome.revision)
        return outcome.succeeded
