"""Decide where a follower truncates its log, given its leader epochs and what the leader says of its own. Without I/O.

A leader epoch and an offset name a batch: one leader wrote it, once. So two logs are the same up to some offset, and
what follows there was written in different epochs, or one of them ends. The follower names its last epoch, and the
leader answers with the largest epoch up to that one which it knows, and where that one ends in its log:

    leader     | epoch 1           | epoch 2        | epoch 4 ...
    follower   | epoch 1                     | epoch 3      |       asks for 3, gets "2 ends there"   ->
    follower   | epoch 1                     |                      it does not know 2: 3 goes, asks for 1 ->
    follower   | epoch 1           |                                both know 1: the earlier end of it

Invariants:
1. Truncation never goes below the last offset that both logs share, unless nothing is known of the epochs there.
2. A truncation that is not final leaves the follower with an earlier last epoch, so that the questions end.

Source: KIP-101, KIP-279 (several truncations), KIP-320 (answers name their epoch), KIP-595 (the question is part of a
fetch); kafka.server.AbstractFetcherThread (getOffsetTruncationState, fetchOffsetAndTruncate).
"""

from typing import NamedTuple, TypeAlias

from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs


class EpochEnd(NamedTuple):
    """A leader's answer: the largest epoch up to the requested one that it knows, and the offset where it ended.

    The epoch is UNDEFINED from a leader that does not name it, both are from a leader that knows nothing of it.
    """

    epoch: int
    end_offset: int


class Truncation(NamedTuple):
    """Truncate the log to `offset`, which may be its end. Unless `is_final`, ask for the last epoch that is left."""

    offset: int
    is_final: bool


class TruncateFully(NamedTuple):
    """Remove everything, and begin at the leader's log start offset."""

    offset: int


class Proceed(NamedTuple):
    """Fetch again: the leader has the offset by now."""


Remedy: TypeAlias = Truncation | TruncateFully | Proceed


def after_divergence(epochs: LeaderEpochs, log_end: int, high_watermark: int, answer: EpochEnd) -> Truncation:
    """Return where to truncate after a leader's answer for the follower's last epoch.

    The high watermark is the best guess if the leader knows nothing of the epoch (KIP-101).
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
    """Return what to do if the leader does not have the offset at the follower's log end."""
    if leader_end < log_end:
        return Truncation(leader_end, is_final=False)
    if leader_start > log_end:
        return TruncateFully(leader_start)
    return Proceed()
