"""The rules of the cluster, and for each a case in which, without it, records are lost or an epoch has two writers.

Broker 0 leads at first, in epoch 0, with the replicas 0, 1 and 2 in sync; broker 3 has no replica and controls.
"""

from collections.abc import Callable, Mapping
from random import Random

from tests.broker.cluster.model.parts import Broker
from tests.broker.cluster.model.world import LAG_S, World
from warmlog.broker.cluster.values import Member


class Stage:
    """A world with directions for its brokers."""

    def __init__(self, faults: frozenset[str], min_isr: int = 1) -> None:
        self.world = World(Random(0), min_isr=min_isr, faults=faults)
        self.brokers = self.world.brokers

    def all_look(self) -> None:
        for broker in self.brokers:
            if broker.is_up:
                self.world.look(broker)

    def replicate(self, *followers: int) -> None:
        """Let followers fetch all that the leader has, and report it."""
        for broker in followers:
            for _ in range(8):
                self.world.fetch(self.brokers[broker])

    def write(self, *followers: int, count: int = 1) -> None:
        """Let broker 0 write records, which the followers copy."""
        for _ in range(count):
            self.world.write(self.brokers[0])
        self.replicate(*followers)

    def leave(self, *brokers: int) -> None:
        """Let the leases of brokers end, who leave the ISR or are replaced as leaders."""
        for broker in brokers:
            self.world.expire(self.brokers[broker])
            self.control()

    def control(self) -> None:
        """Let the controller do what is due."""
        self.all_look()
        controller = self.brokers[3]
        self.world.ask(controller)
        if self.world.elect(controller) is None:
            self.world.fence(controller)
        self.all_look()

    def come_back(self, *brokers: int) -> None:
        """Start brokers, or let them register again."""
        for broker in brokers:
            self.all_look()
            self.world.start(self.brokers[broker])
            self.world.register_again(self.brokers[broker])
        self.all_look()

    def copy(self, broker: int) -> None:
        """Copy the data of a broker, which stops for that."""
        self.world.crash(self.brokers[broker], "clean")
        self.world.copy(self.brokers[broker])
        self.come_back(broker)
        self.replicate(broker)

    def lose_all(self, broker: int) -> None:
        """Cut the power of a broker that has synced nothing."""
        self.world.crash(self.brokers[broker], "power")

    def propose(self, leader: Broker, *, is_late: bool = False) -> None:
        self.world.propose(leader, is_late=is_late)
        if not is_late:
            self.all_look()

    def lag(self) -> None:
        """Let followers of broker 0 be too late, unless they fetch again."""
        self.world.write(self.brokers[0])
        self.world.now += LAG_S + 1

    def deliver(self) -> None:
        """Let arrive what was sent first."""
        self.world.deliver(0)
        self.all_look()

    def recover(self) -> None:
        """Let everybody come back, and a leader be elected."""
        for _ in range(3):
            self.come_back(0, 1, 2, 3)
            self.control()
        self.world.claims.check()


def an_unclean_member_leads(stage: Stage) -> None:
    stage.write(1, 2)
    stage.lose_all(1)
    stage.come_back(1)
    stage.leave(0)


def a_leader_lost_its_records(stage: Stage) -> None:
    stage.write(1, 2)
    stage.lose_all(0)
    stage.come_back(0)


def a_failed_log_is_forgotten(stage: Stage) -> None:
    stage.write(1, 2)
    stage.world.fail(stage.brokers[0], 0)
    stage.world.crash(stage.brokers[0], "clean")
    stage.come_back(0)


def an_old_copy_of_one_directory_comes_back(stage: Stage) -> None:
    stage.write(1, 2)
    stage.copy(1)
    stage.write(1, 2)
    stage.world.crash(stage.brokers[1], "clean")
    stage.world.restore(stage.brokers[1])
    stage.come_back(1)
    stage.leave(0)


def an_unregistered_broker_comes_back_with_old_copies(stage: Stage) -> None:
    """Broker 1 was the last one in sync."""
    stage.write(1, 2)
    stage.copy(1)
    stage.write(1, 2)
    for broker in (0, 2, 1):
        stage.world.crash(stage.brokers[broker], "clean")
        stage.leave(broker)
    stage.world.restore(stage.brokers[1], is_whole=True)
    stage.world.unregister(stage.brokers[1])
    stage.come_back(1)
    stage.control()
    stage.recover()


def a_late_shrink_of_a_leader_that_lost_its_records(stage: Stage) -> None:
    stage.write(1, 2)
    stage.lag()
    stage.propose(stage.brokers[0], is_late=True)
    stage.lose_all(0)
    stage.come_back(0)
    stage.deliver()
    stage.recover()


def a_late_shrink_to_members_that_lost_their_records(stage: Stage) -> None:
    stage.write(1, 2)
    stage.lag()
    stage.replicate(1)
    stage.propose(stage.brokers[0], is_late=True)
    stage.lose_all(1)
    stage.come_back(1)
    stage.lose_all(0)
    stage.deliver()
    stage.recover()


def a_late_join_of_a_member_that_lost_its_records(stage: Stage) -> None:
    """The ISR 0 with ELR 1 becomes 0 and 2, which is enough to empty the ELR, but 2 has lost its records meanwhile."""
    stage.leave(2)
    stage.write(1)
    stage.leave(1)
    stage.come_back(2)
    stage.replicate(2)
    stage.propose(stage.brokers[0], is_late=True)
    stage.lose_all(2)
    stage.come_back(2)
    stage.lose_all(0)
    stage.deliver()
    stage.come_back(0)
    stage.control()


def a_late_election_after_other_changes(stage: Stage) -> None:
    stage.write(1, 2)
    stage.world.expire(stage.brokers[0])
    stage.world.look(stage.brokers[3])
    stage.world.elect(stage.brokers[3], is_late=True)
    stage.come_back(0)
    stage.lag()
    stage.propose(stage.brokers[0])
    stage.write()
    stage.deliver()


def a_late_election_of_members_that_lost_their_records(stage: Stage) -> None:
    stage.write(1, 2)
    stage.world.expire(stage.brokers[0])
    stage.world.look(stage.brokers[3])
    stage.world.elect(stage.brokers[3], is_late=True)
    for broker in (1, 2):
        stage.lose_all(broker)
        stage.come_back(broker)
    stage.deliver()
    stage.recover()


def the_last_complete_copy_is_disowned(stage: Stage) -> None:
    """Broker 0 has lost one of two records, broker 1 both: the first one is not lost."""
    stage.leave(2)
    stage.write(1, count=2)
    stage.lose_all(1)
    stage.come_back(1)
    stage.world.claims.forgive()
    stage.world.fail(stage.brokers[0], 1)
    stage.world.disown(stage.brokers[0])
    stage.world.claims.forgive()
    stage.recover()


def a_cancelled_reassignment_removes_the_last_copy(stage: Stage) -> None:
    """Broker 2 leads and is to be replaced by 3, which is in sync; 2 loses its records, and the move is cancelled."""
    stage.write(1, 2)
    stage.leave(0, 1)
    world, leader = stage.world, stage.brokers[2]
    world.reassign(stage.brokers[3], (3, 0, 1))
    stage.all_look()
    stage.replicate(3)
    stage.propose(leader)
    stage.lose_all(2)
    stage.come_back(2)
    world.reassign(stage.brokers[3], None)
    stage.control()


def a_member_of_a_small_isr_loses_its_records(stage: Stage) -> None:
    stage.leave(2)
    stage.write(1)
    stage.lose_all(1)
    stage.leave(0)
    stage.recover()


def the_minimum_falls_while_there_is_an_elr(stage: Stage) -> None:
    stage.leave(2, 1)
    stage.world.set_min_isr(stage.brokers[3], 1)
    stage.all_look()
    stage.write()
    stage.come_back(1)
    stage.leave(0)


def a_leader_is_alone_below_the_minimum(stage: Stage) -> None:
    stage.leave(2, 1)
    stage.write()
    stage.come_back(1)
    stage.leave(0)


def all_come_back_unclean(stage: Stage) -> None:
    stage.leave(2)
    stage.write(1)
    stage.lose_all(0)
    stage.world.crash(stage.brokers[1], "kill")
    stage.recover()


def all_come_back_unclean_twice(stage: Stage) -> None:
    stage.leave(2)
    stage.write(1)
    for broker in (0, 1):
        stage.world.crash(stage.brokers[broker], "kill")
    stage.recover()
    stage.lose_all(0)
    stage.recover()


def one_comes_back_unclean(stage: Stage) -> None:
    stage.leave(2)
    stage.write(1)
    stage.lose_all(0)
    stage.world.crash(stage.brokers[1], "kill")
    stage.leave(0, 1)
    stage.come_back(0)
    stage.control()


def a_log_ends_earlier_than_it_did(stage: Stage) -> None:
    stage.leave(2)
    stage.write(1, count=2)
    for broker in (0, 1):
        stage.world.crash(stage.brokers[broker], "kill")
        stage.come_back(broker)
    stage.world.ask(stage.brokers[3])
    stage.lose_all(0)
    stage.come_back(0)
    stage.world.elect(stage.brokers[3])
    stage.all_look()


def ends_of_logs_were_asked_for_an_earlier_election(stage: Stage) -> None:
    """Broker 1 had the longest log then; now it has lost everything, and nobody has registered again meanwhile."""
    world, first, second = stage.world, stage.brokers[0], stage.brokers[1]
    stage.leave(2)
    stage.write(1, count=2)
    stage.lose_all(0)
    world.crash(second, "kill")
    stage.come_back(0, 1)
    stage.control()
    stage.replicate(0)
    stage.propose(second)
    world.write(second)
    stage.replicate(0)
    world.prefer(stage.brokers[3])
    stage.all_look()
    for broker, keep in ((second, 0), (first, len(first.log))):
        world.fail(broker, keep)
        world.disown(broker)
        stage.all_look()
    world.elect(stage.brokers[3])
    stage.all_look()
    stage.recover()


def an_old_leader_goes_on_writing(stage: Stage) -> None:
    stage.world.expire(stage.brokers[0])
    for broker in (1, 3):
        stage.world.look(stage.brokers[broker])
    stage.world.elect(stage.brokers[3])
    stage.world.look(stage.brokers[1])
    for broker in (0, 1):
        stage.world.write(stage.brokers[broker])


def two_leaders_begin_an_epoch(stage: Stage) -> None:
    for broker in (0, 1, 2):
        stage.world.crash(stage.brokers[broker], "kill")
        stage.come_back(broker)
    stage.control()
    leader = next(broker for broker in stage.brokers if broker.progress is not None)
    stage.world.write(leader)
    stage.replicate(0, 1, 2)
    stage.world.now += 1
    stage.propose(leader)
    for follower in {0, 1, 2} - {leader.id}:
        stage.world.expire(stage.brokers[follower])
        stage.come_back(follower)
    stage.leave(leader.id)
    for each in stage.brokers:
        stage.world.write(each)


def a_replica_that_lost_its_disk_seems_to_be_in_sync(stage: Stage) -> None:
    stage.write(1, 2)
    stage.world.fail(stage.brokers[1], 0)
    stage.world.disown(stage.brokers[1])
    stage.all_look()
    stage.propose(stage.brokers[0])
    stage.leave(0)


def a_removed_replica_seems_to_be_in_sync(stage: Stage) -> None:
    """Broker 1 is removed and added again, while its leader looks away."""
    stage.write(1, 2)
    for target in ((0, 2), (0, 1, 2)):
        stage.world.reassign(stage.brokers[3], target)
        for broker in (1, 2, 3):
            stage.world.look(stage.brokers[broker])
    stage.all_look()
    stage.propose(stage.brokers[0])
    stage.leave(0)


def a_member_joined_before_the_leader_knows(stage: Stage) -> None:
    stage.leave(2)
    stage.come_back(2)
    stage.write(1, 2)
    stage.world.propose(stage.brokers[0])
    stage.lag()
    stage.replicate(1)
    stage.world.expire(stage.brokers[1])
    stage.leave(0)


def a_join_arrives_after_a_timeout(stage: Stage) -> None:
    stage.leave(2)
    stage.come_back(2)
    stage.write(1, 2)
    stage.propose(stage.brokers[0], is_late=True)
    stage.lag()
    stage.propose(stage.brokers[0], is_late=True)
    stage.write(1)
    stage.deliver()
    stage.world.expire(stage.brokers[1])
    stage.leave(0)


def a_new_leader_does_not_know_what_is_committed(stage: Stage) -> None:
    """The high watermark of broker 1 is 0 when it is elected, though a record is committed: 2 must not join at 0."""
    stage.world.write(stage.brokers[0])
    stage.replicate(2)
    for is_answered in (True, False):
        stage.world.fetch(stage.brokers[1], is_answered=is_answered)
    stage.leave(0)
    stage.lose_all(2)
    stage.come_back(2)
    stage.control()
    stage.replicate(2)
    stage.lose_all(2)
    stage.come_back(2)
    stage.world.fetch(stage.brokers[2], is_answered=False)
    stage.propose(stage.brokers[1])
    stage.leave(1)


def a_fetch_arrives_after_a_restart(stage: Stage) -> None:
    stage.leave(2)
    stage.come_back(2)
    stage.write(1, 2)
    world, follower = stage.world, stage.brokers[2]
    world.fetch(follower, is_late=True)
    stage.lose_all(2)
    world.start(follower)
    world.fetch(follower, is_answered=False)
    stage.deliver()
    stage.propose(stage.brokers[0])
    stage.leave(0, 1)


def fetches_are_forged(stage: Stage) -> None:
    leader = stage.brokers[0]
    stage.world.write(leader)
    for follower, epoch in ((1, 1 << 62), (2, -1)):
        stage.world.forge(leader, Member(follower, epoch))
    stage.leave(0)


def a_fetch_of_an_earlier_leader_epoch_arrives(stage: Stage) -> None:
    stage.write(1, 2)
    stage.world.fetch(stage.brokers[1], is_late=True)
    stage.world.fail(stage.brokers[1], 0)
    stage.world.disown(stage.brokers[1])
    stage.all_look()
    stage.deliver()
    stage.propose(stage.brokers[0])
    stage.leave(0)


def a_follower_truncates_and_is_elected(stage: Stage) -> None:
    """The high watermark of broker 1 is behind when a leader epoch begins; it must keep what is committed (KIP-101)."""
    stage.leave(2)
    stage.world.write(stage.brokers[0])
    for is_answered in (True, False):
        stage.world.fetch(stage.brokers[1], is_answered=is_answered)
    stage.world.reassign(stage.brokers[3], (0, 1))
    stage.all_look()
    stage.leave(0)


def two_leaders_wrote_without_each_other(stage: Stage) -> None:
    """Broker 1 wrote in epoch 1, broker 2 in epoch 2, both in vain; then 1 leads again (KIP-279)."""
    stage.leave(0)
    world, first, second = stage.world, stage.brokers[1], stage.brokers[2]
    for _ in range(2):
        world.write(first)
    stage.leave(1)
    for _ in range(3):
        world.write(second)
    world.expire(second)
    stage.come_back(1)
    stage.control()
    world.write(first)
    stage.come_back(2)
    stage.replicate(2)
    world.claims.check()


# The rule that is removed, the case, min.insync.replicas
CASES: Mapping[str, tuple[Callable[[Stage], None], int]] = {
    "entries name an epoch": (an_unclean_member_leads, 1),
    "an unclean start begins a history": (a_leader_lost_its_records, 1),
    "a broker leads for its history only": (a_leader_lost_its_records, 1),
    "a broker that lost records is not clean": (a_failed_log_is_forgotten, 1),
    "every directory proves that it is the newest": (an_old_copy_of_one_directory_comes_back, 1),
    "a broker that the store does not know begins a history": (an_unregistered_broker_comes_back_with_old_copies, 2),
    "the leader's own registration is compared": (a_late_shrink_of_a_leader_that_lost_its_records, 1),
    "registrations of members are compared": (a_late_shrink_to_members_that_lost_their_records, 2),
    "registrations of joining members are compared": (a_late_join_of_a_member_that_lost_its_records, 2),
    "the old state is compared": (a_late_election_after_other_changes, 1),
    "registrations are compared by elections": (a_late_election_of_members_that_lost_their_records, 1),
    "who disowns leaves good copies": (the_last_complete_copy_is_disowned, 1),
    "an ELR is emptied for a good ISR": (the_last_complete_copy_is_disowned, 1),
    "who is reassigned leaves good copies": (a_cancelled_reassignment_removes_the_last_copy, 2),
    "who leaves a small ISR stays eligible": (a_member_of_a_small_isr_loses_its_records, 2),
    "a leader commits nothing while there is an ELR": (the_minimum_falls_while_there_is_an_elr, 2),
    "a leader commits nothing below the minimum": (a_leader_is_alone_below_the_minimum, 2),
    "the longest log leads": (all_come_back_unclean, 2),
    "others stay eligible when the longest log leads": (all_come_back_unclean_twice, 2),
    "all are back before the longest log leads": (one_comes_back_unclean, 2),
    "ends of logs count for one registration": (a_log_ends_earlier_than_it_did, 2),
    "ends of logs count for one state of the partition": (ends_of_logs_were_asked_for_an_earlier_election, 2),
    "an election begins an epoch": (an_old_leader_goes_on_writing, 1),
    "brokers begin no epoch": (two_leaders_begin_an_epoch, 1),
    "a replica that lost its data begins an epoch": (a_replica_that_lost_its_disk_seems_to_be_in_sync, 1),
    "a removed replica begins an epoch": (a_removed_replica_seems_to_be_in_sync, 1),
    "a proposed ISR is awaited": (a_member_joined_before_the_leader_knows, 1),
    "a proposal is pending until its key moves": (a_join_arrives_after_a_timeout, 1),
    "a follower reaches the epoch's start before it joins": (a_new_leader_does_not_know_what_is_committed, 2),
    "fetches of an earlier registration do not count": (a_fetch_arrives_after_a_restart, 2),
    "fetches name the epoch of the latest registration": (fetches_are_forged, 1),
    "fetches name the leader epoch": (a_fetch_of_an_earlier_leader_epoch_arrives, 1),
    "followers truncate by epoch": (a_follower_truncates_and_is_elected, 1),
    "leaders answer with an epoch": (two_leaders_wrote_without_each_other, 2),
}
