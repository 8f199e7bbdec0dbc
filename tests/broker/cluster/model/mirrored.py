"""A mirrored partition: its leaders copy from a source, which may lose records, until one of them promotes it."""

from random import Random

from tests.broker.cluster.model.claims import Bad
from tests.broker.cluster.model.parts import KEY, Broker
from tests.broker.cluster.model.walk import STEPS, Step, any_broker, any_leader
from tests.broker.cluster.model.world import MAX_RECORDS, World
from warmlog.broker.cluster import rules, topics
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.store import StoreTransaction
from warmlog.broker.cluster.values import PartitionState
from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs
from warmlog.broker.metadata.topic import Mirror
from warmlog.broker.replication.following.truncation import EpochEnd, Truncation, after_divergence, after_out_of_range

# Rules of leaders, without which the claims do not hold.
CUTS_AT_ONCE = "leaders cut the log within an epoch"
PROMOTES_EARLY = "leaders promote what is not replicated"
KNOWS_CURRENT = "leaders know their epoch without records"
COPIES_LATER_EPOCHS = "leaders copy epochs above their own"


class Source:
    """What consumers of another cluster can read: (leader epoch, value) by offset."""

    def __init__(self) -> None:
        self.epoch = 0
        self.log: list[tuple[int, int]] = []

    def epochs(self) -> LeaderEpochs:
        entries = LeaderEpochs()
        for offset, (epoch, _) in enumerate(self.log):
            entries.assign(epoch, offset)
        entries.assign(self.epoch, len(self.log))
        return entries


class MirroredWorld(World):
    """A world whose partition follows a source."""

    mirror = Mirror(cluster_id="source")

    def __init__(
        self,
        random: Random,
        *,
        min_isr: int = 2,
        flushes: bool = False,
        faults: frozenset[str] = frozenset(),
        fenced: int = 0,
    ) -> None:
        self.source = Source()
        self.cuts: dict[int, int] = {}  # where brokers have to cut their logs before they lead again
        super().__init__(random, min_isr=min_isr, flushes=flushes, faults=faults, fenced=fenced)

    def is_followed(self, broker: Broker, state: PartitionState) -> bool:
        return rules.source_of(broker.image.topics.get("t"), state) is not None

    def follow_image(self, broker: Broker) -> None:
        super().follow_image(broker)
        if broker.progress is None:
            self.cuts.pop(broker.id, None)

    def lead(self, broker: Broker, state: PartitionState, minimum: int) -> None:
        cut = self.cuts.pop(broker.id, None)
        if cut is not None:
            broker.truncate(min(cut, len(broker.log)))
        super().lead(broker, state, minimum)

    def begin_epoch(self, broker: Broker, state: PartitionState, epoch: int) -> None:
        if self.is_followed(broker, state):
            broker.epochs.lead_without_entry(epoch)
        else:
            super().begin_epoch(broker, state, epoch)

    def end_offset(self, leader: Broker, epoch: int) -> tuple[int, int]:
        assert leader.progress is not None
        if not self.is_followed(leader, leader.progress.state):
            return super().end_offset(leader, epoch)
        found = leader.epochs.end_offset(epoch, len(leader.log))
        if KNOWS_CURRENT in self.faults and found[0] == UNDEFINED and epoch == leader.epochs.current:
            return epoch, len(leader.log)
        return leader.epochs.end_offset_of_copy(epoch, len(leader.log))

    def write(self, broker: Broker) -> str | None:
        if broker.progress is None or self.is_followed(broker, broker.progress.state):
            return None
        return super().write(broker)

    # -- the source ----------------------------------------------------------------------------------------------------

    def produce(self) -> str | None:
        if len(self.source.log) >= MAX_RECORDS - 1:
            return None
        self.values += 1
        self.source.log.append((self.source.epoch, self.values))
        return f"the source has {self.source.log}"

    def elect_at_source(self, epochs: int) -> str:
        self.source.epoch += epochs
        return f"the source begins epoch {self.source.epoch}"

    def lose_at_source(self, keep: int) -> str | None:
        """Let the source elect a leader that lacks records which consumers have read."""
        lost = self.source.log[keep:]
        if not lost:
            return None
        del self.source.log[keep:]
        self.source.epoch += 1
        self.claims.dead.update(value for _, value in lost)
        for offset, value in list(self.claims.committed.items()):
            if value in self.claims.dead:
                del self.claims.committed[offset]
        return f"the source loses {lost} and begins epoch {self.source.epoch}"

    # -- leaders -------------------------------------------------------------------------------------------------------

    def copy_source(self, broker: Broker, *, count: int = 1, is_late: bool = False) -> str | None:
        """Let a leader fetch from the source."""
        progress, topic = broker.progress, broker.image.topics["t"]
        if progress is None or not self.is_followed(broker, progress.state) or broker.id in self.cuts:
            return None
        if topic.mirror is None or topic.mirror.is_promoting:
            return None
        if self.source.epoch > broker.epochs.current and COPIES_LATER_EPOCHS not in self.faults:
            return self.renew(broker, is_late=is_late)
        at, last = len(broker.log), broker.epochs.latest if broker.log else UNDEFINED
        cut = self._divergence(broker, at, last)
        if cut is not None:
            return self._cut(broker, cut, is_late=is_late)
        found = self.source.log[at : at + count]
        if not found:
            return None
        broker.append(found)
        self.claims.copied(broker, found)
        self._grown(broker)
        return f"{broker.id} copies {found}: {broker.log}"

    def _divergence(self, broker: Broker, at: int, last: int) -> int | None:
        """Return where the log has to be cut, None if it continues the source's."""
        there = len(self.source.log)
        if last != UNDEFINED:
            answer = EpochEnd(*self.source.epochs().end_offset(last, there))
            if answer.epoch == last and at <= answer.end_offset:
                return None
            if answer.epoch != UNDEFINED:
                return after_divergence(broker.epochs, at, broker.high_watermark, answer).offset
        remedy = after_out_of_range(at, 0, there)
        return remedy.offset if isinstance(remedy, Truncation) else None

    def _cut(self, broker: Broker, offset: int, *, is_late: bool) -> str | None:
        if CUTS_AT_ONCE not in self.faults:
            self.cuts[broker.id] = offset
            return self.renew(broker, is_late=is_late)
        broker.truncate(offset)
        self._grown(broker)
        return f"{broker.id} cuts {broker.log}"

    def _grown(self, broker: Broker) -> None:
        assert broker.progress is not None
        broker.progress.appended(len(broker.log), self.now)
        broker.progress.own_end = self.own_end(broker)
        self.advance(broker)

    def renew(self, broker: Broker, *, is_late: bool = False) -> str | None:
        """Let a leader begin another epoch, which it needs."""
        progress = broker.progress
        if progress is None or (broker.id not in self.cuts and self.source.epoch <= broker.epochs.current):
            return None
        change = rules.renew(broker.image, KEY, broker.me, self.source.epoch)
        return self.submit(f"{broker.id} renews", change, is_late=is_late)

    # -- promotion -----------------------------------------------------------------------------------------------------

    def ask_promotion(self, broker: Broker) -> str | None:
        if not broker.is_up:
            return None
        made = topics.begin_promotion(broker.image, "t")
        return self.send("promotion", made, is_late=False) if isinstance(made, StoreTransaction) else None

    def promote(self, broker: Broker, *, is_late: bool = False) -> str | None:
        progress = broker.progress
        if progress is None or not self.is_followed(broker, progress.state):
            return None
        end = len(broker.log)
        if progress.high_watermark != end and PROMOTES_EARLY not in self.faults:
            return None
        epoch = broker.epochs.latest
        change = rules.promote(broker.image, KEY, broker.me, revision=progress.state.revision, end=end, log_epoch=epoch)
        before = list(broker.log)
        if isinstance(change, rules.Change):
            self._expect_committed(before)
        self.cuts.pop(broker.id, None)
        return self.submit(f"{broker.id} promotes at {end}", change, is_late=is_late)

    def _expect_committed(self, log: list[tuple[int, int]]) -> None:
        if PROMOTES_EARLY in self.faults:
            return  # what follows has to show it
        known = {*self.claims.committed.values(), *self.claims.dead, *self.claims.given_up}
        missing = [value for _, value in log if value not in known]
        if missing and not self.claims._unclean_epoch:
            raise Bad(f"{missing} is promoted and not committed")

    def finish_promotion(self, broker: Broker) -> str | None:
        if not broker.is_up or broker.image.topics.get("t") is None:
            return None
        made = topics.finish_promotion(broker.image, "t")
        return self.send("the promotion ends", made, is_late=False) if isinstance(made, StoreTransaction) else None

    def promoted_at(self) -> int | None:
        return ClusterImage(self.cell.contents()).partitions[KEY].promoted_at


def _world(world: World) -> MirroredWorld:
    assert isinstance(world, MirroredWorld)
    return world


def _copy(world: World, random: Random) -> str | None:
    return _world(world).copy_source(
        any_leader(world, random), count=random.choice((1, 1, 2)), is_late=random.random() < 0.2
    )


def _promote(world: World, random: Random) -> str | None:
    return _world(world).promote(any_leader(world, random), is_late=random.random() < 0.3)


MIRRORED_STEPS: dict[str, tuple[float, Step]] = {
    **STEPS,
    "produce": (5, lambda world, _: _world(world).produce()),
    "elect at the source": (0.5, lambda world, random: _world(world).elect_at_source(random.randint(1, 4))),
    "lose at the source": (1, lambda world, random: _world(world).lose_at_source(random.randint(0, MAX_RECORDS))),
    "copy from the source": (10, _copy),
    "renew": (2, lambda world, random: _world(world).renew(any_leader(world, random), is_late=random.random() < 0.3)),
    "ask for promotion": (0.2, lambda world, random: _world(world).ask_promotion(any_broker(world, random))),
    "promote": (3, _promote),
    "finish": (1, lambda world, random: _world(world).finish_promotion(any_broker(world, random))),
}
