"""A broker's view of its store: an image of the contents, and the commits that advance it.

`node.ClusterNode` is that of a broker in a cluster, `local.lone_node.LoneNode` that of a standalone broker.

**An attempt to commit takes effect at most once, and never after its successor.** An attempt without an answer may
still be in flight, for as long as an etcd process is frozen, and its comparisons could hold again: a topic that the
next attempt created, and that was then deleted, would come back. So a transaction whose comparisons do not exclude that
also compares the broker's attempts key, which is written before the next attempt. For the same reason a topic is not
created again if an earlier attempt created it and another client has deleted it since: an id means one topic.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias
from uuid import UUID

import trio

from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.keys import attempts_key
from warmlog.broker.cluster.store import ABSENT, Compare, Put, Store, StoreTransaction, StoreUnavailableError
from warmlog.broker.cluster.values import Member
from warmlog.broker.metadata.topic import RefusedError
from warmlog.protocol.backoff import delays_s

MAX_DELETED = 10_000  # deleted topics that a broker remembers, 2 MB

Watcher: TypeAlias = Callable[[ClusterImage, ImageDelta], None]
Make: TypeAlias = Callable[[ClusterImage], Decision | None]

logger = logging.getLogger(__name__)


class StoreNode(ABC):
    """A broker's image of its store, and its commits. Belongs to the event loop."""

    is_alone = False  # whether this broker is the only user of the store

    def __init__(self, store: Store, node_id: int, image: ClusterImage, random: Random) -> None:
        self.id = node_id
        self.image = image
        self.random = random
        self.on_change: list[Watcher] = []
        self._store = store
        self._advanced = trio.Event()
        self._ending = trio.Lock()  # held while earlier attempts are being ended
        self._deleted: set[UUID] = set()
        self.missed = 0  # number of times that deletions may have been missed or dropped

    @property
    @abstractmethod
    def me(self) -> Member:
        """Return this broker with its latest epoch."""

    @property
    @abstractmethod
    def is_fenced(self) -> bool:
        """Whether other brokers have shown that the registration ended, and the broker has not registered again."""

    @abstractmethod
    async def settled(self) -> None:
        """Return when no broker is suspected of having died, or when the checks take too long."""

    @abstractmethod
    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task in the node's nursery. Does nothing unless the node runs."""

    def _heard_of(self, revision: int) -> None:  # noqa: B027  # only a node of a cluster has to know
        """Record that the store has answered, and its revision."""

    def _take(self, delta: ImageDelta) -> None:
        """Notify listeners that the image has advanced."""
        self._deleted |= delta.deleted_topics
        if len(self._deleted) > MAX_DELETED or not delta.is_complete:
            self._deleted = set()
            self.missed += 1
        for watcher in self.on_change:
            watcher(self.image, delta)
        self._advanced.set()
        self._advanced = trio.Event()

    def may_be_deleted(self, topic: UUID, missed: int) -> bool:
        """Return whether a topic that is not in the image may have existed since `missed` had this value."""
        return topic in self._deleted or self.missed != missed

    async def advanced(self) -> None:
        """Return when the image has advanced."""
        await self._advanced.wait()

    async def reached(self, revision: int) -> None:
        """Return when the image has this revision, or a later one."""
        while self.image.revision < revision:
            await self._advanced.wait()

    async def commit(self, make: Make) -> ClusterImage:
        """Commit the transaction that `make` returns for the image, retrying on newer images; return the outcome.

        `make` returns None if nothing is left to do. Waits while the store is unavailable: set a deadline.
        Raises RefusedError, LeaseExpiredError.
        """
        delays = delays_s(self.random)
        while True:
            decision = make(self.image)
            if decision is None:
                return self.image
            if isinstance(decision, Refusal):
                raise RefusedError(decision.reason)
            attempt, known = self._ended_by_the_next(decision), self.image.revision_of(attempts_key(self.id))
            try:
                outcome = await self._store.commit(attempt)
            except StoreUnavailableError as error:
                logger.debug("cannot commit to the store, retrying: %s", error)
                await trio.sleep(next(delays))
                if attempt is not decision:
                    await self._end_attempts(known)
                continue
            self._heard_of(outcome.revision)
            await self.reached(outcome.revision)
            if outcome.succeeded:
                return self.image

    def _ended_by_the_next(self, decision: StoreTransaction) -> StoreTransaction:
        """Add a comparison to a transaction that could take effect twice; it then fails after `_end_attempts`."""
        written = {operation.key for operation in decision.operations}
        if any(each.key in written and each.mod_revision != ABSENT for each in decision.compares):
            return decision  # it changes this revision, so it cannot take effect twice
        key = attempts_key(self.id)
        return decision._replace(compares=(*decision.compares, Compare(key, self.image.revision_of(key))))

    async def _end_attempts(self, known: int) -> None:
        """Wait until all attempts that compare this revision of the attempts key are in the image or have failed."""
        key = attempts_key(self.id)
        delays = delays_s(self.random)
        async with self._ending:
            while self.image.revision_of(key) == known:
                try:
                    outcome = await self._store.commit(StoreTransaction((), (Put(key, b""),)))
                except StoreUnavailableError as error:
                    logger.debug("cannot end attempts to commit, retrying: %s", error)
                    await trio.sleep(next(delays))
                else:
                    self._heard_of(outcome.revision)
                    await self.reached(outcome.revision)

    async def propose(self, transaction: StoreTransaction) -> bool | None:
        """Try to commit before the node follows the store; return whether it was committed, None if unknown."""
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
