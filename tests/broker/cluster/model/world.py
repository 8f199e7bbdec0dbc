"""A partition of a simulated cluster: the real rules, the real bookkeeping of leaders and followers, and nothing else.

Nothing here decides anything. Brokers follow the store by images of their own, which lag; each decision is a
transaction, which may arrive late, twice decided, or never; any broker may act as controller at any time. Brokers
crash, lose the ends of their logs, their leases, and their disks. Each has two data directories, of which old copies
may come back.
"""

from collections.abc import Callable
from random import Random

from tests.broker.cluster.model.claims import Claims
from tests.broker.cluster.model.parts import KEY, Broker, Cell, Copy
from warmlog.broker.cluster import history, rules, topics
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import broker_key, draining_key
from warmlog.broker.cluster.store import Changes, Delete, StoreTransaction
from warmlog.broker.cluster.values import NO_EPOCH, Member, PartitionState, Registration, TopicState
from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs
from warmlog.broker.metadata.topic import Mirror
from warmlog.broker.replication.following.truncation import (
    EpochEnd,
    Proceed,
    Remedy,
    Truncation,
    after_divergence,
    after_out_of_range,
)
from warmlog.broker.replication.leading.progress import Progress
from warmlog.broker.settings.topics import MIN_ISR

LAG_S, RETRY_S = 10.0, 3.0
MAX_RECORDS = 6
OTHERS_ARE_SILENT = "others are silent"  # only ISR and ELR tell where their logs end: the others may hide a loss

Arrival = Callable[[], str | None]
Answer = EpochEnd | Remedy | None  # to a fetch: where the logs diverge, or what to do; None: records


class World:
    """Brokers 0 to 3, and a partition with replicas 0, 1, 2. Steps do something if they can, and then say what."""

    mirror: Mirror | None = None  # the cluster whose records the partition follows

    def __init__(
        self,
        random: Random,
        *,
        min_isr: int = 2,
        flushes: bool = False,
        faults: frozenset[str] = frozenset(),
        fenced: int = 0,
    ) -> None:
        """`fenced`: how many of the replicas, the first ones, are not alive when the partition is created."""
        self.random = random
        self.flushes = flushes
        self.faults = faults  # rules of brokers that are not kept
        self.cell = Cell()
        self.now = 0.0
        self.brokers = [Broker(number) for number in range(4)]
        self.late: list[Arrival] = []  # transactions and fetches on their way
        self.claims = Claims(self.brokers, min_isr)
        self.values = self.elections = 0
        self.trace: list[str] = []
        for broker in self.brokers:
            self.boot(broker)
        for broker in self.brokers[:fenced]:
            self.crash(broker, "kill")
            self.expire(broker)
        image = ClusterImage(self.cell.contents())
        topic = TopicState(id=KEY.topic_id, partitions=1, configs={MIN_ISR: str(min_isr)}, mirror=self.mirror)
        made = topics.create(image, "t", topic, [(0, 1, 2)], Member(0, 1))
        assert isinstance(made, StoreTransaction)
        assert self.cell.commit(made)
        for broker in self.brokers:
            self.look(broker)

    # -- what brokers do -----------------------------------------------------------------------------------------------

    def boot(self, broker: Broker) -> str:
        broker.is_up = True
        broker.image = ClusterImage(self.cell.contents())
        known = broker.image.known.get(broker.id)
        since, _ = history.history_of(known, broker.remembered, broker.directories, {})
        if since != NO_EPOCH or "keeps since" not in self.faults:
            broker.since = since
        broker.closed_in = [None, None]
        return self.register(broker)

    def register(self, broker: Broker) -> str:
        directories = tuple([each.id for each in broker.directories])
        wanted = Registration(broker=broker.id, since=broker.since, directories=directories)
        made = topics.register(broker.image, wanted, 0)
        assert isinstance(made, StoreTransaction)
        if not self.cell.commit(made):
            return f"{broker.id} has to look before it registers"
        broker.epoch = broker.remembered = self.cell.revision
        if broker.since == NO_EPOCH:
            broker.since = broker.epoch
        self.look(broker)
        return f"{broker.id} is registered as {broker.since} to {broker.epoch}"

    def look(self, broker: Broker, to: int | None = None) -> str | None:
        """Advance a broker's image; None: as far as the store."""
        to = self.cell.revision if to is None else to
        behind = self.cell.changes[broker.image.revision : to]
        if not behind:
            return None
        broker.image.apply(Changes(to, tuple([event for changes in behind for event in changes.events])))
        self.follow_image(broker)
        return f"{broker.id} sees revision {to}"

    def follow_image(self, broker: Broker) -> None:
        state = broker.state
        if state is None or broker.id not in state.replicas:
            broker.progress = broker.lost_in = None
            broker.epochs = LeaderEpochs()
            broker.truncate(0)
            return
        if broker.lost_in is not None:
            members = {member.broker for member in (*state.isr, *state.elr) if member.epoch != NO_EPOCH}
            is_next = state.leader_epoch > broker.lost_in or "forgets a loss early" in self.faults
            if broker.id not in members and is_next:
                broker.lost_in = None
        leads = state.leader is not None and state.leader_id == broker.id
        if leads and "leads in spite of a loss" not in self.faults:
            leads = broker.since <= state.leader.epoch <= broker.epoch  # type: ignore[union-attr]
        if not leads or broker.lost_in is not None:
            if "truncates to the high watermark" in self.faults and broker.epochs.current < state.leader_epoch:
                broker.truncate(broker.high_watermark)
                broker.epochs.current = state.leader_epoch
            broker.progress = None
            return
        minimum = rules.min_isr(broker.image, KEY, state)
        if broker.progress is not None and broker.progress.state.leader_epoch == state.leader_epoch:
            broker.progress.update(state, minimum, self.now)
        else:
            self.lead(broker, state, minimum)
        self.advance(broker)

    def lead(self, broker: Broker, state: PartitionState, minimum: int) -> None:
        self.claims.lead(broker, state)
        epoch = state.leader_epoch + (broker.since == broker.epoch and "begins epochs" in self.faults)
        self.begin_epoch(broker, state, epoch)
        broker.progress = Progress(
            broker.id,
            state,
            broker.image,
            log_end=len(broker.log),
            high_watermark=broker.high_watermark,
            min_isr=minimum,
            max_lag_s=LAG_S,
            retry_s=RETRY_S,
            now=self.now,
        )
        broker.progress.own_end = self.own_end(broker)

    def begin_epoch(self, broker: Broker, _: PartitionState, epoch: int) -> None:
        broker.epochs.assign(epoch, len(broker.log))

    def own_end(self, broker: Broker) -> int:
        return broker.synced if self.flushes else len(broker.log)

    def advance(self, broker: Broker) -> None:
        progress = broker.progress
        if progress is None or not progress.advance(self.now):
            return
        self.claims.commit(broker, progress, ClusterImage(self.cell.contents()))
        broker.high_watermark = progress.high_watermark

    def write(self, broker: Broker) -> str | None:
        if broker.progress is None or len(broker.log) >= MAX_RECORDS:
            return None
        epoch = broker.epochs.current
        self.claims.write(broker, epoch)
        self.values += 1
        broker.append([(epoch, self.values)])
        broker.progress.appended(len(broker.log), self.now)
        broker.progress.own_end = self.own_end(broker)
        self.advance(broker)
        return f"{broker.id} writes {broker.log[-1]} at {len(broker.log) - 1}"

    def flush(self, broker: Broker) -> str | None:
        if not broker.is_up or broker.synced == len(broker.log) or not self.flushes:
            return None
        broker.synced = len(broker.log)
        if broker.progress is not None:
            broker.progress.own_end = broker.synced
            self.advance(broker)
        return f"{broker.id} flushes {broker.synced} records"

    def fetch(self, follower: Broker, *, is_late: bool = False, is_answered: bool = True, count: int = 1) -> str | None:
        """Fetch from the leader that the follower knows; a late fetch is not answered."""
        state = follower.state
        if state is None or state.leader is None or not self.may_fetch(follower, state):
            return None
        leader, at = self.brokers[state.leader_id], len(follower.log)
        last = follower.epochs.latest if follower.log else UNDEFINED
        sender, epoch = follower.me, state.leader_epoch
        if is_late:
            self.late.append(lambda: f"late: {self.take_fetch(leader, sender, epoch, at, last)}")
            return f"{sender.broker} sends a fetch from {at} to {leader.id}"
        if not self.accepts(leader, sender, epoch):
            return None
        answer = self.take_fetch(leader, sender, epoch, at, last)
        if is_answered and isinstance(answer, EpochEnd):
            follower.truncate(after_divergence(follower.epochs, at, follower.high_watermark, answer).offset)
        elif is_answered and isinstance(answer, Truncation):
            follower.truncate(answer.offset)
        elif is_answered and answer is None:
            follower.append(leader.log[at : at + count])
            self.claims.copied(follower, leader.log[at : at + count])
            shown = min(leader.high_watermark, len(follower.log))
            follower.high_watermark = max(follower.high_watermark, shown)
        return f"{sender.broker} fetches from {at} of {leader.id}: {answer}, and has {follower.log}"

    def may_fetch(self, follower: Broker, state: PartitionState) -> bool:
        is_replica = follower.id in state.replicas and state.leader_id != follower.id
        is_synced = not self.flushes or follower.synced == len(follower.log)
        return follower.is_up and is_replica and follower.lost_in is None and is_synced

    def forge(self, leader: Broker, sender: Member) -> str | None:
        """Let a stranger claim that a follower has all records, with an epoch that it never had."""
        if leader.progress is None or sender.epoch == self.brokers[sender.broker].epoch:
            return None
        self.take_fetch(leader, sender, leader.progress.state.leader_epoch, len(leader.log), UNDEFINED)
        return f"somebody fetches as {sender} from {leader.id}"

    def end_offset(self, leader: Broker, epoch: int) -> tuple[int, int]:
        return leader.epochs.end_offset(epoch, len(leader.log))

    def accepts(self, leader: Broker, sender: Member, epoch: int) -> bool:
        """Whether a leader answers a fetch of a broker in a leader epoch."""
        progress = leader.progress
        if progress is None or sender.broker not in progress.followers:
            return False
        is_same_epoch = progress.state.leader_epoch == epoch or "fetches name no leader epoch" in self.faults
        return is_same_epoch and leader.image.is_latest(sender)

    def take_fetch(self, leader: Broker, sender: Member, epoch: int, at: int, last: int) -> Answer:
        """Answer a fetch as a leader, and count it if the logs have not diverged."""
        if not self.accepts(leader, sender, epoch) or leader.progress is None:
            return Proceed()
        if last != UNDEFINED:
            found, end = self.end_offset(leader, last)
            if found == UNDEFINED:
                return after_out_of_range(at, 0, len(leader.log))
            if "leaders answer with an offset" in self.faults:
                found = last
            if found != last or at > end:
                return EpochEnd(found, end)
        if at > len(leader.log):
            return after_out_of_range(at, 0, len(leader.log))
        leader.progress.fetched(sender.broker, sender.epoch, at, 0, self.now)
        self.advance(leader)
        return None

    # -- decisions -----------------------------------------------------------------------------------------------------

    def submit(self, what: str, decision: rules.Change | rules.Refusal, *, is_late: bool) -> str | None:
        """Commit a change, now or later; it is a transaction already."""
        if isinstance(decision, rules.Refusal):
            return None
        return self.send(what, rules.transaction([decision]), is_late=is_late)

    def send(self, what: str, transaction: StoreTransaction, *, is_late: bool) -> str | None:
        def arrive() -> str | None:
            before = ClusterImage(self.cell.contents()).partitions[KEY]
            if not self.cell.commit(transaction):
                return None
            image = ClusterImage(self.cell.contents())
            state = image.partitions[KEY]
            self.elections += state.leader_epoch > before.leader_epoch
            self.claims.decided(image, is_believed="longest" not in what, is_unclean="unclean" in what)
            return f"{what}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} elr {state.elr}"

        if is_late:
            self.late.append(arrive)
            return f"sent: {what}"
        return arrive()

    def propose(self, broker: Broker, *, is_late: bool = False) -> str | None:
        progress = broker.progress
        if progress is None or progress.state.leader is None:
            return None
        proposal = progress.propose(self.now)
        if proposal is None:
            return None
        decision = rules.change_isr(broker.image, KEY, proposal.revision, progress.state.leader, proposal.isr)
        if isinstance(decision, rules.Refusal):
            progress.withdraw(proposal)
            self.advance(broker)
            return None
        self.advance(broker)
        return self.submit(f"{broker.id} proposes {proposal.isr}", decision, is_late=is_late)

    def elect(self, broker: Broker, *, is_late: bool = False) -> str | None:
        """Hold an election as controller, by the ends of logs that were asked for before."""
        ends = broker.answers if broker.asked_in == broker.state or "old answers" in self.faults else {}
        if "old ends of logs" in self.faults:
            ends = {
                member: end for old, end in ends.items() if (member := broker.image.current(old.broker)) is not None
            }
        are_holders_asked = broker.state is not None and rules.log_end_holders(broker.image, broker.state)
        what = "elects the longest log" if are_holders_asked else "elects"
        return self.control(broker, what, lambda image: rules.elect(image, KEY, ends), is_late)

    def elect_unclean(self, broker: Broker) -> str | None:
        return self.control(broker, "elects unclean", lambda image: rules.elect(image, KEY, is_unclean=True), False)

    def prefer(self, broker: Broker, *, is_late: bool = False) -> str | None:
        return self.control(broker, "prefers", lambda image: rules.elect_preferred(image, KEY), is_late)

    def step_aside(self, broker: Broker, *, is_late: bool = False) -> str | None:
        return self.control(broker, "steps aside", lambda image: rules.step_aside(image, KEY, broker.me), is_late)

    def fence(self, broker: Broker, *, is_late: bool = False) -> str | None:
        return self.control(broker, "fences", lambda image: rules.fence(image, KEY), is_late)

    def reassign(self, broker: Broker, target: tuple[int, ...] | None, *, is_late: bool = False) -> str | None:
        return self.control(broker, f"reassigns to {target}", lambda image: rules.reassign(image, KEY, target), is_late)

    def disown(self, broker: Broker, *, is_late: bool = False) -> str | None:
        if broker.lost_in is None:
            return None
        return self.control(broker, "disowns", lambda image: rules.in_sync.disown(image, KEY, broker.me), is_late)

    def control(
        self,
        broker: Broker,
        what: str,
        decide: Callable[[ClusterImage], rules.Change | rules.Refusal],
        is_late: bool,
    ) -> str | None:
        if not broker.is_up or broker.state is None:
            return None
        return self.submit(f"{broker.id} {what}", decide(broker.image), is_late=is_late)

    def ask(self, broker: Broker) -> str | None:
        """Ask, as controller, where logs end."""
        if not broker.is_up or broker.state is None:
            return None
        known = {member.broker for member in (*broker.state.isr, *broker.state.elr)}
        holders = rules.log_end_holders(broker.image, broker.state)
        asked = {member: self.brokers[member.broker] for member in holders}
        if not holders or not all(each.is_up for member, each in asked.items() if member.broker in known):
            return None
        broker.answers = {
            member: rules.LogEnd(each.log[-1][0] if each.log else -1, len(each.log))
            for member, each in asked.items()
            if member.broker in known or (each.is_up and OTHERS_ARE_SILENT not in self.faults)
        }
        broker.asked_in = broker.state
        return f"{broker.id} learns {broker.answers}"

    def set_min_isr(self, broker: Broker, minimum: int) -> str | None:
        if not broker.is_up:
            return None
        made = topics.set_topic_configs(broker.image, "t", {MIN_ISR: str(minimum)})
        return (
            self.send(f"min.insync.replicas {minimum}", made, is_late=False)
            if isinstance(made, StoreTransaction)
            else None
        )

    def drain(self, broker: Broker) -> str | None:
        if not broker.is_up:
            return None
        made = topics.drain(broker.image, broker.me, 0)
        return self.send(f"{broker.id} drains", made, is_late=False) if isinstance(made, StoreTransaction) else None

    # -- what happens to them ------------------------------------------------------------------------------------------

    def crash(self, broker: Broker, kind: str, keep: int = 0) -> str | None:
        """Stop a broker: "clean", "kill", or "power", which loses the records from `keep` on."""
        if not broker.is_up:
            return None
        broker.is_up = False
        if kind == "clean":
            is_whole = broker.lost_in is None or "clean in spite of a loss" in self.faults
            broker.closed_in = [broker.epoch if is_whole else NO_EPOCH] * 2
        broker.progress = broker.lost_in = None
        if kind == "power":
            self.lose(broker, max(keep, broker.synced) if self.flushes else keep)
        broker.epochs = LeaderEpochs(broker.epochs.entries)
        broker.epochs.truncate_from_end(len(broker.log))
        broker.high_watermark = min(self.random.choice((0, broker.high_watermark)), len(broker.log))
        return f"{broker.id} {kind}: {broker.log}"

    def fail(self, broker: Broker, keep: int) -> str | None:
        """Let a broker that lives lose the end of its log, or all of it, and notice."""
        state = broker.state
        if not broker.is_up or state is None or not broker.log or broker.id not in state.replicas:
            return None
        broker.progress = None
        if broker.lost_in is None:
            broker.lost_in = state.leader_epoch
        self.claims.lose(broker, broker.log)  # what is left may be out of the ISR from now on
        self.lose(broker, keep)
        return f"{broker.id} has lost records: {broker.log}"

    def lose(self, broker: Broker, keep: int) -> None:
        self.claims.lose(broker, broker.log[keep:])
        broker.truncate(keep)
        self.claims.give_up_destroyed(ClusterImage(self.cell.contents()))

    def copy(self, broker: Broker) -> str | None:
        """Copy the data directories of a broker that was stopped cleanly."""
        closed_in = broker.closed_in[1]
        if broker.is_up or closed_in is None or closed_in != broker.closed_in[0]:
            return None
        broker.copy = Copy(broker.remembered, closed_in, tuple(broker.log))
        return f"the directories of {broker.id} are copied: {broker.log}"

    def restore(self, broker: Broker, *, is_whole: bool = False) -> str | None:
        """Replace the data directory that has the log by its copy; `is_whole`: the other one, too."""
        old = broker.copy
        if broker.is_up or old is None:
            return None
        same = [pair for pair, other in zip(broker.log, old.log, strict=False) if pair == other]
        self.lose(broker, len(same))
        broker.append(old.log[len(same) :])
        broker.synced = len(broker.log)
        self.claims.copied(broker, broker.log)
        broker.closed_in[1] = old.closed_in
        if is_whole:
            broker.closed_in[0], broker.remembered = old.closed_in, old.remembered
        return f"{'both directories' if is_whole else 'the second directory'} of {broker.id} are restored: {broker.log}"

    def start(self, broker: Broker) -> str | None:
        return None if broker.is_up else self.boot(broker)

    def expire(self, broker: Broker) -> str | None:
        """End a lease."""
        keys = [key for key in (broker_key(broker.id), draining_key(broker.id)) if key in self.cell.items]
        if not keys:
            return None
        self.cell.commit(StoreTransaction((), tuple([Delete(key) for key in keys])))
        return f"the lease of {broker.id} ends"

    def unregister(self, broker: Broker) -> str | None:
        """Let an operator unregister a broker that is gone, as a broker that lives knows it."""
        asked = next((each for each in self.brokers if each.is_up), None)
        made = None if asked is None else topics.unregister(asked.image, broker.id)
        return (
            self.send(f"{broker.id} is unregistered", made, is_late=False)
            if isinstance(made, StoreTransaction)
            else None
        )

    def register_again(self, broker: Broker) -> str | None:
        if not broker.is_up or broker.id in broker.image.brokers:
            return None
        return self.register(broker)

    def deliver(self, index: int) -> str | None:
        """Let a transaction or a fetch arrive that was sent before."""
        return self.late.pop(index % len(self.late))() if self.late else None
