"""Decide whether a broker's data continues the history of its latest registration.

Each data directory has to prove that it is the newest. A clean stop writes the epoch of the broker's latest
registration into the clean shutdown marker of each directory, as Kafka does, and into `warmlog-cluster.json` of the
first one; the next start removes the markers before it opens the logs. The store keeps the epoch in `known/N`. Where
they differ, a directory is a copy from an earlier stop, or the broker has run elsewhere since.

If one directory cannot prove it, all replicas of the broker begin a new history: entries of ISRs and ELRs name brokers,
not directories.

Source: KIP-966; kafka.log.LogManager (readBrokerEpochFromCleanShutdownFiles).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from warmlog.broker.cluster.values import NO_EPOCH, Registration


class ScannedDirectory(NamedTuple):
    """A data directory at startup. `epoch`: in its clean shutdown marker, None without one."""

    path: str
    id: UUID
    epoch: int | None
    is_empty: bool = False


def history_of(
    known: Registration | None, epoch: int, directories: Sequence[ScannedDirectory], missing: Mapping[UUID, str]
) -> tuple[int, Sequence[str]]:
    """Return the first epoch of the history that the data continues, or NO_EPOCH and the reason why it continues none.

    `known`: the broker's latest registration in the store; `epoch`: the one recorded in the first directory.
    `missing`: the reasons why directories of the last run are missing, by directory id.
    """
    if known is None:
        is_new = epoch == NO_EPOCH
        return NO_EPOCH, () if is_new else ("the store does not know the broker: it was unregistered",)
    objections = tuple(_objections(known, epoch, directories, missing))
    return NO_EPOCH if objections else known.since, objections


def _objections(
    known: Registration, epoch: int, directories: Sequence[ScannedDirectory], missing: Mapping[UUID, str]
) -> Iterator[str]:
    latest = f"the broker's latest registration is {known.epoch}"
    if epoch == NO_EPOCH:
        yield f"{directories[0].path} remembers no registration: {latest}"
    elif epoch != known.epoch:
        yield f"{directories[0].path} is an older copy, last used in registration {epoch}: {latest}"
    for each in directories:
        if each.epoch is None:
            if not each.is_empty or each.id in known.directories:
                yield f"{each.path} was not closed cleanly"
        elif each.epoch == NO_EPOCH:
            yield f"{each.path} was changed or closed outside of the cluster, or while replicas had lost records"
        elif each.epoch != known.epoch:
            yield f"{each.path} is an older copy, closed in registration {each.epoch}: {latest}"
    here = {each.id for each in directories}
    for directory in [each for each in known.directories if each not in here]:
        yield missing.get(directory, f"the data directory with the id {directory} is missing")
