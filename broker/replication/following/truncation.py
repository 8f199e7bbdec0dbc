"""Decide where a follower truncates its log, from its leader epochs and the leader's. Without I/O.

A leader epoch and an offset name a batch: one leader wrote it, once. So two logs are the same up to some offset, at
which one of them ends, or from which they were written in different epochs. The follower sends its last epoch, and the
leader answers with the largest epoch up to it that it knows, and the offset at which that epoch ends in its log:

    leader     | epoch 1           | epoch 2        | epoch 4 ...
    follower   | epoch 1                     | epoch 3      |       sends 3, gets "2 ends there"            ->
        follower   | epoch 1                     |                      does not know 2: drops 3, sends 1     ->
        follower   | epoch 1           |                                both know 1: truncates to its first end

Invariants:
1. Truncation never goes below the last offset that both logs share, unless the epochs there are unknown.
2. A truncation that is not final leaves the follower with an earlier last epoch, so that the exchange ends.

Source: KIP-101, KIP-279 (several truncations), KIP-320 (answers contain the epoch), KIP-595 (the exchange is part of
a fetch); kafka.server.AbstractFetcherThread (getOffsetTruncationState, fetchOffsetAndTruncate).
"""

from typing import NamedTuple, TypeAlias

from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs


class EpochEnd(NamedTuple):
    """A leader's answer: the largest epoch up to the requested one that it knows, and that epoch's end offset.

    The epoch is UNDEFINED if the leader's version does not send it; both are if the leader does not know the epoch.
    """

    epoch: int
    end_offset: int


class Truncation(NamedTuple):
    """Truncate the log to `offset`, which may be its end. Unless `is_final`, continue with the last remaining epoch."""

    offset: int
    is_final: bool


class TruncateFully(NamedTuple):
    """Remove all records, and begin at the leader's log start offset."""

    offset: int


class Proceed(NamedTuple):
    """Fetch again: the leader has reached the offset."""


Remedy: TypeAlias = Truncation | TruncateFully | Proceed


def after_divergence(epochs: LeaderEpochs, log_end: int, high_watermark: int, answer: EpochEnd) -> Truncation:
    """Return the truncation that follows from a leader's answer for the follower's last epoch.

    The high watermark is the best guess if the leader does not know the epoch (KIP-101).
    """
    if answer.end_offset == UNDEFINED:
        return Truncation(min(high_watermark, log_end), is_final=True)
    if answer.epoch == UNDEFINED:
        return Truncation(min(answer.end_offset, log_end), is_final=True)
    epoch, end_offset = epochs.end_offset(answer.epoch, log_end)
    if epoch == UNDEFINED:
        return Truncation(min(answer.end_offset, log_end), is_final=True)
    if epoch != answer.epoch:
        return Truncation(min(end_offset, log_end), is_final=False)
    return Truncation(min(end_offset, answer.end_offset, log_end), is_final=True)


def after_out_of_range(log_end: int, leader_start: int, leader_end: int) -> Remedy:
    """Return the step after OFFSET_OUT_OF_RANGE for the follower's log end."""
    if leader_end < log_end:
        return Truncation(leader_end, is_final=False)
    if leader_start > log_end:
        return TruncateFully(leader_start)
    return Proceed()
