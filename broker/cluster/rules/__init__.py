"""Decide how the states of partitions change: ISR and leader. Pure: an image in, a change out.

A decision is a `Change` that compares everything it depends on, or a `Refusal`. Several brokers may decide at the same
time and on old images: at most one of their transactions is committed, the others change nothing.

Safety. `tests/broker/cluster/model` removes each rule once, and then finds lost records or two writers:

1. Entries of an ISR or ELR name a history of a broker's data (`values.Member`). An entry whose history has ended, by an
   unclean start, is not good, and never leads. A broker that starts continues its history only if every
      data directory proves to be the newest (`history`).
2. When a member leaves an ISR or ELR, a good copy remains: every member of the new ISR is good, and its registration is
   compared. A member that joins has fetched with the epoch of its current registration, and no other fetch counts.
3. While the ISR is smaller than `min.insync.replicas`, those that left it stay eligible (ELR). The leader commits
   nothing while there is an ELR, so that its members lack nothing, even if the setting has changed.
4. If no entry is good, but all brokers of the ISR and the ELR are back, the replica with the longest log leads, even if
   it is in neither. The others stay eligible, as in 3, for the next such comparison: the leader may lose its log before
   any follower has copied it.
5. Every leader epoch is begun by one of these transactions, and has one writer.
6. A leader's knowledge of a follower's log is valid for one leader epoch. A transaction by which a log may become
   shorter without a new registration, since a replica is removed or has lost its data, begins another epoch.

Start with `in_sync`, the ISR while a leader lives; then `elections` and `reassignment`, and `mirrored` for copies of
another cluster. `changes` makes transactions of changes, `durability` knows the settings.

Source: org.apache.kafka.controller.PartitionChangeBuilder, KIP-966, KIP-903, KIP-455.
"""

from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.rules.changes import Change, batches, is_current, transaction
from warmlog.broker.cluster.rules.durability import SHARED, UNCLEAN, allows_unclean, default_of, min_isr
from warmlog.broker.cluster.rules.elections import (
    LogEnd,
    elect,
    elect_preferred,
    log_end_holders,
    needs_election,
    step_aside,
)
from warmlog.broker.cluster.rules.in_sync import change_isr, disown, fence
from warmlog.broker.cluster.rules.mirrored import promote, renew, source_of
from warmlog.broker.cluster.rules.reassignment import reassign

__all__ = [
    "SHARED",
    "UNCLEAN",
    "Change",
    "Decision",
    "LogEnd",
    "Refusal",
    "allows_unclean",
    "batches",
    "change_isr",
    "default_of",
    "disown",
    "elect",
    "elect_preferred",
    "fence",
    "is_current",
    "log_end_holders",
    "min_isr",
    "needs_election",
    "promote",
    "reassign",
    "renew",
    "source_of",
    "step_aside",
    "transaction",
]
