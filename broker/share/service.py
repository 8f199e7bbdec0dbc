"""Construct the delivery of records to share groups, run it, and export its metrics."""

from collections.abc import Callable
from typing import Final

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.share.dead_letters import DeadLetters
from warmlog.broker.share.deliveries import Deliveries
from warmlog.broker.share.persister import SharePersister
from warmlog.broker.share.sessions import STEP, Connection, ShareSession, ShareSessions
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

SHARE_FEATURE: Final = "share.version"
WITH_DEAD_LETTERS: Final = 2  # since this level of the feature


class ShareService:
    """The broker's services for members of share groups. Call all methods on the event loop; `run` is its task."""

    def __init__(
        self, partitions: Partitions, persister: SharePersister, write: Callable[[], None], peers: Peers | None = None
    ) -> None:
        """Deliver records of the partitions that this broker leads.

        `persister` stores the state of deliveries; `write` writes queued appends; `peers`: the other brokers of a
        cluster.
        """
        self.sessions = ShareSessions(partitions.settings.group_share_max_share_sessions, self._ended)
        self.dead_letters = DeadLetters(partitions, write, peers)
        self.deliveries = Deliveries(partitions, persister, self.dead_letters, self.sessions.has_members)

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of deliveries, sessions and dead letters."""
        self.deliveries.declare(metrics)
        self.sessions.declare(metrics)
        self.dead_letters.declare(metrics)

    async def run(self) -> None:
        """Load and store share-partitions, and release records whose locks expire, until cancelled."""
        await self.deliveries.run()

    def feature_changed(self, name: str, level: int) -> None:
        """Apply the finalized level of `share.version`; ignore other features."""
        if name == SHARE_FEATURE:
            self.deliveries.writes_dead_letters = level >= WITH_DEAD_LETTERS
            if level == 0:
                self.sessions.close_all()
                self.deliveries.close_all()

    def forget(self, connection: Connection) -> None:
        """End the sessions of a closed connection, and release the records of their members."""
        self.sessions.forget(connection)

    def _ended(self, session: ShareSession) -> None:
        async def release() -> None:
            for steps, (topic_id, partition) in enumerate((*session.partitions, *session.failing), 1):
                delivery = self.deliveries.find(SharePartitionKey(session.group, topic_id, partition))
                if delivery is not None:
                    delivery.release(session.member)
                if steps % STEP == 0:
                    await trio.lowlevel.checkpoint()
            if not self.sessions.has_members(session.group):
                self.deliveries.left(session.group)

        self.deliveries.spawn(release)
