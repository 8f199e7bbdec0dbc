"""Send the proposals of this broker's leaders to the store; concurrent ones share transactions.

A proposal is sent once: if the state that it is based on has changed, its leader decides again. If the outcome is
unknown, the proposal stays pending with its leader (`Progress`), which proposes again later.
"""

import logging
from typing import TypeAlias

import trio

from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import Change, Refusal, batches, change_isr, is_current, transaction
from warmlog.broker.replication.leading.leader import PartitionLeader
from warmlog.broker.replication.leading.progress import Proposal
from warmlog.protocol.partitions import TopicIdPartition

DECISIONS_PER_STEP = 100  # proposals between two checkpoints: 3 ms

Queued: TypeAlias = dict[TopicIdPartition, tuple[PartitionLeader, Proposal]]

logger = logging.getLogger(__name__)


class IsrProposals:
    """Sends the proposals of one broker. Belongs to the event loop."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._queued: Queued = {}
        self._is_sending = False

    def send(self, key: TopicIdPartition, leader: PartitionLeader, proposal: Proposal) -> None:
        """Send a proposal in the background. With the key bound, it is the `propose` of a `PartitionLeader`."""
        self._queued[key] = leader, proposal
        if not self._is_sending:
            self._is_sending = True
            self._node.spawn(self._send_queued)

    async def _send_queued(self) -> None:
        try:
            while self._queued:
                queued, self._queued = self._queued, {}
                changes: list[Change] = []
                for number, (key, sent) in enumerate(queued.items(), 1):
                    if (change := self._decide(key, *sent)) is not None:
                        changes.append(change)
                    if number % DECISIONS_PER_STEP == 0:
                        await trio.lowlevel.checkpoint()
                for part in batches(changes):
                    await self._send(part, queued)
        finally:
            self._is_sending = False

    def _decide(self, key: TopicIdPartition, leader: PartitionLeader, proposal: Proposal) -> Change | None:
        """Return the change that a proposal makes, or withdraw it."""
        if leader.state.leader is None:
            return None
        change = change_isr(self._node.image, key, proposal.revision, leader.state.leader, proposal.isr)
        if isinstance(change, Refusal):
            logger.debug("%s-%d: no change of the ISR: %s", leader.partition.topic, key.partition, change.reason)
            leader.withdraw(proposal)
            return None
        return change

    async def _send(self, part: list[Change], queued: Queued) -> None:
        """Commit changes together; if that fails one by one, so that one change does not block the others."""
        is_committed = await self._node.attempt(transaction(part))
        if is_committed is not False:
            return
        if len(part) == 1:
            self._withdraw(part[0], queued)
            return
        for change in part:
            if is_current(self._node.image, change):
                await self._send([change], queued)
            else:
                self._withdraw(change, queued)

    def _withdraw(self, change: Change, queued: Queued) -> None:
        leader, proposal = queued[change.key]
        leader.withdraw(proposal)
