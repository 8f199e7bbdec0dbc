"""Hold elections while this broker is the controller of the cluster.

Any broker may become the controller: the first broker to write the key `controller` is the controller until its
registration ends. Two controllers do no harm: each decides on its image, and a decision is committed only if the image
is still current.

    a broker appears, ends or drains    elect leaders of its partitions, and remove it from their ISRs
    a partition changes                 the same for that partition
    periodically                        let preferred replicas lead again; finish interrupted changes of topics

Source: org.apache.kafka.controller.ReplicationControlManager.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import trio

from warmlog.broker.cluster.admin import finish_topic
from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import (
    Change,
    LogEnd,
    Refusal,
    batches,
    elect,
    elect_preferred,
    fence,
    is_current,
    log_end_holders,
    needs_election,
    transaction,
)
from warmlog.broker.cluster.store import LeaseExpiredError, StoreError
from warmlog.broker.cluster.topics import is_abandoned, resign_control, take_control
from warmlog.broker.cluster.values import Member, TopicStatus
from warmlog.broker.metadata.topic import RefusedError
from warmlog.protocol.partitions import TopicIdPartition

PARTITIONS_PER_PIECE = 200  # partitions examined in one step: less than a millisecond
RETRY_S = 0.5  # after the store, or a replica asked for its log end offset, did not answer
COMMITS = 4  # concurrent ones
QUESTIONS = 32  # concurrent ones

# Asks brokers for the log end offsets of a partition; brokers that do not answer are missing from the result.
AskLogEnds = Callable[[TopicIdPartition, Sequence[Member]], Awaitable[Mapping[Member, LogEnd]]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalancing:
    """How often leadership returns to preferred replicas (auto.leader.rebalance.enable and its settings).

    `max_imbalance`: the share of a broker's preferred partitions that others may lead.
    """

    interval_s: float | None = 300.0
    max_imbalance: float = 0.1


class Controller:
    """Elects leaders while this broker is the controller; `run` keeps trying to become it."""

    def __init__(
        self,
        node: ClusterNode,
        ask_log_ends: AskLogEnds,
        rebalancing: Rebalancing,
        *,
        elected: Callable[[float], None] | None = None,
    ) -> None:
        """`elected` is called for each lost leader that was replaced, with the seconds since its loss was detected."""
        self.elections = self.unclean_elections = 0  # committed since startup
        self._node = node
        self._ask_log_ends = ask_log_ends
        self._rebalancing = rebalancing
        self._elected = elected
        self._due: dict[TopicIdPartition, None] = {}
        self._due_topics: dict[str, None] = {}  # topics all of whose partitions are due
        self._leaderless_since: dict[TopicIdPartition, float] = {}  # on trio's clock
        self._wanted = trio.Event()
        self._slots = trio.CapacityLimiter(COMMITS)
        self._questions = trio.CapacityLimiter(QUESTIONS)
        self._asking: set[TopicIdPartition] = set()  # log ends of their replicas
        self._finishing: set[str] = set()  # topics
        node.on_change.append(self._note)

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, according to its image."""
        controller = self._node.image.controller
        return controller is not None and Member(controller.broker, controller.epoch) == self._node.me

    def _note(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Queue partitions for a decision."""
        if self.is_active:
            due = self._due
            for broker in delta.brokers:
                due.update(dict.fromkeys(image.held.get(broker, ())))
            due.update(dict.fromkeys(delta.partitions))
            if delta.configs:  # unclean elections may be allowed now, as by settings of topics
                due.update(
                    dict.fromkeys([key for key, each in image.partitions.items() if needs_election(image, each)])
                )
            self._due_topics.update(dict.fromkeys(delta.topics))
        self._wanted.set()

    async def run(self) -> None:
        """Act as the controller whenever there is no other, until cancelled."""
        was_active = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._rebalance)
            while True:
                self._wanted = trio.Event()
                if not self.is_active:
                    self._due.clear()
                    self._due_topics.clear()
                    self._leaderless_since.clear()
                    was_active = False
                    await self._take_over()
                if self.is_active and not was_active:
                    logger.info("broker %d is the controller", self._node.id)
                    self._due.update(dict.fromkeys(self._node.image.partitions))
                    was_active = True
                if was_active:
                    await self._decide(nursery)
                with trio.move_on_after(math.inf if self._is_anybody_active() else RETRY_S):
                    await self._wanted.wait()

    def _is_anybody_active(self) -> bool:
        controller = self._node.image.controller
        return controller is not None and self._node.image.current(controller.broker) == Member(
            controller.broker, controller.epoch
        )

    async def _take_over(self) -> None:
        node = self._node
        if not node.image.may_join(node.me):
            return
        try:
            await node.attempt(take_control(node.image, node.me, node.lease))
        except LeaseExpiredError:
            return

    async def resign(self) -> None:
        """Hand control to another broker. This one does not become the controller again while it drains."""
        await self._node.attempt(resign_control(self._node.image, self._node.me))

    # -- elections -----------------------------------------------------------------------------------------------------

    async def _decide(self, nursery: trio.Nursery) -> None:
        """Decide on all partitions that are due, and commit the changes."""
        while (self._due or self._due_topics) and self.is_active:
            due = self._due_keys()
            self._due, self._due_topics = {}, {}
            changes: list[Change] = []
            while piece := list(islice(due, PARTITIONS_PER_PIECE)):
                changes += self._changes(piece, nursery)
                await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as commits:
                for batch in batches(changes):
                    commits.start_soon(self._commit, batch)
        for name, topic in self._node.image.topics.items():
            if is_abandoned(self._node.image, topic) and name not in self._finishing:
                self._finishing.add(name)
                nursery.start_soon(self._finish, name)

    def _due_keys(self) -> Iterator[TopicIdPartition]:
        """Iterate over the partitions that are due now; the image may advance meanwhile."""
        due, topics = self._due, [self._node.image.topics.get(name) for name in self._due_topics]
        live = [topic for topic in topics if topic is not None and topic.status is TopicStatus.LIVE]
        others = (TopicIdPartition(topic.id, index) for topic in live for index in range(topic.partitions))
        return chain(due, (key for key in others if key not in due))

    def _changes(self, keys: Iterable[TopicIdPartition], nursery: trio.Nursery) -> list[Change]:
        image = self._node.image
        changes = []
        for key in keys:
            state = image.partitions.get(key)
            if state is None:
                self._leaderless_since.pop(key, None)
                continue
            is_leaderless = needs_election(image, state)
            if is_leaderless:
                self._leaderless_since.setdefault(key, trio.current_time())
            else:
                self._leaderless_since.pop(key, None)
            if log_end_holders(image, state):
                if key not in self._asking:
                    self._asking.add(key)
                    nursery.start_soon(self._elect_longest, key)
                continue
            change = elect(image, key) if is_leaderless else fence(image, key)
            if isinstance(change, Refusal) and is_leaderless:
                change = fence(image, key)  # a draining leader without a possible successor keeps its followers
            if isinstance(change, Change):
                changes.append(change)
        return changes

    async def _commit(self, batch: Sequence[Change]) -> None:
        """Commit changes together. If that fails, queue outdated changes again and retry the others in halves."""
        async with self._slots:
            current = [change for change in batch if is_current(self._node.image, change)]
            if len(current) < len(batch):
                self._retry(change for change in batch if change not in current)
            if not current:
                return
            is_done = await self._attempt(current)
        if is_done is None or (not is_done and len(current) == 1):
            self._retry(current)
        elif not is_done:
            middle = len(current) // 2
            await self._commit(current[:middle])
            await self._commit(current[middle:])

    def _retry(self, changes: Iterable[Change]) -> None:
        self._due.update(dict.fromkeys([change.key for change in changes]))
        self._wanted.set()

    async def _attempt(self, batch: Sequence[Change]) -> bool | None:
        """Commit changes; pause if the outcome is unknown or the store is unavailable."""
        image = self._node.image
        before = [(image.partitions[change.key].leader_epoch, _is_clean(image, change)) for change in batch]
        outcome = None
        try:
            outcome = await self._node.attempt(transaction(batch))
        except StoreError as error:
            logger.debug("cannot commit elections, retrying: %s", error)
        if outcome is None:
            await trio.sleep(RETRY_S)
        elif outcome:
            for change, (epoch, is_clean) in zip(batch, before, strict=True):
                if change.state.leader is not None and change.state.leader_epoch != epoch:
                    self._count(change, is_clean=is_clean)
        return outcome

    def _count(self, change: Change, *, is_clean: bool) -> None:
        state, key = change.state, change.key
        name = f"{self._node.image.names.get(key.topic_id, key.topic_id.hex)}-{key.partition}"
        self.elections += 1
        lost_at = self._leaderless_since.pop(key, None)
        if lost_at is not None and self._elected is not None:
            self._elected(trio.current_time() - lost_at)
        if is_clean:
            logger.info("%s: broker %d leads in epoch %d", name, state.leader_id, state.leader_epoch)
        else:
            self.unclean_elections += 1
            logger.warning(
                "%s: unclean election: broker %d leads in epoch %d; it may lack acknowledged records",
                name,
                state.leader_id,
                state.leader_epoch,
            )

    async def _elect_longest(self, key: TopicIdPartition) -> None:
        """Elect the replica with the longest log, once all members of ISR and ELR are back."""
        while self.is_active:
            image = self._node.image
            state = image.partitions.get(key)
            holders = () if state is None else log_end_holders(image, state)
            if not holders:
                break
            async with self._questions:
                ends = await self._ask_log_ends(key, holders)
            image = self._node.image
            if image.partitions.get(key) == state:
                change = elect(image, key, ends)
                if isinstance(change, Change) and await self._attempt([change]):
                    break
            await trio.sleep(RETRY_S)
        self._asking.discard(key)
        self._due[key] = None
        self._wanted.set()

    # -- periodically --------------------------------------------------------------------------------------------------

    async def _rebalance(self) -> None:
        interval_s = self._rebalancing.interval_s
        while interval_s is not None:
            await trio.sleep(interval_s)
            if self.is_active:
                await self.rebalance()

    async def rebalance(self) -> None:
        """Return leadership to brokers when others lead too many of their preferred partitions."""
        image = self._node.image
        for broker in list(image.brokers):
            preferred = [key for key in image.held.get(broker, ()) if image.partitions[key].replicas[0] == broker]
            misled = [key for key in preferred if image.partitions[key].leader_id != broker]
            if len(misled) > len(preferred) * self._rebalancing.max_imbalance:
                for start in range(0, len(misled), PARTITIONS_PER_PIECE):
                    piece = misled[start : start + PARTITIONS_PER_PIECE]
                    changes = [elect_preferred(image, key) for key in piece if key in image.partitions]
                    for batch in batches([change for change in changes if isinstance(change, Change)]):
                        await self._commit(batch)
                    await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    async def _finish(self, name: str) -> None:
        """Complete a creation or deletion of a topic that a failed broker left unfinished."""
        try:
            await finish_topic(self._node, name)
        except (RefusedError, StoreError) as error:
            logger.info(
                "topic %s: cannot complete its interrupted creation or deletion, retrying after the next change: %s",
                name,
                error,
            )
        self._finishing.discard(name)


def _is_clean(image: ClusterImage, change: Change) -> bool:
    """Return whether the leader of a change is known to have all acknowledged records."""
    before = image.partitions[change.key]
    return any(
        member.broker == change.state.leader_id and image.is_good(member) for member in (*before.isr, *before.elr)
    )
