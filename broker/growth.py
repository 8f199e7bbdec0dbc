"""Let a standalone broker grow into a cluster, when it starts with `warmlog.cluster.etcd` for the first time.

    read the cluster's store -> add this broker's contents that it lacks -> empty this broker's store -> (register)

`cluster.local.adoption` decides what is added.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence

import trio

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local.adoption import adopt, adopt_credentials, history_of_adopted
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.store import StoreTransaction
from warmlog.broker.cluster.values import NO_EPOCH, Member
from warmlog.broker.log.directory.checkpoint import LEADER_EPOCHS, read_epochs
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.directory_names import partition_directory
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.metadata.errors import CannotJoinError
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.partitions import TopicPartition

NO_LEADER_EPOCH = -1

logger = logging.getLogger(__name__)


async def grow(node: ClusterNode, directories: DataDirectories, file: MetadataFile, own: ClusterImage) -> int:
    """Add the topics of a broker's own store to the cluster's, and return the first epoch of its history there.

    NO_EPOCH for a broker that is already a member and has no topics of its own: its own settings, which are older, are
    dropped; users that were created while it was stopped are added.

    Raises CannotJoinError, StoreMismatchError, StoreRefusedError, MetadataError, LogError, OSError.
    """
    await node.load()
    if not own.topics and node.id in node.image.known:
        await _propose(node, lambda: adopt_credentials(own, node.image))
        await trio.to_thread.run_sync(file.clear)
        return NO_EPOCH
    epochs = await trio.to_thread.run_sync(leader_epochs, directories, own)
    since = node.image.revision
    await _propose(node, lambda: adopt(own, node.image, Member(node.id, since), epochs))
    await trio.to_thread.run_sync(file.clear)
    logger.info("broker %d brings %d topics into the cluster", node.id, len(own.topics))
    return history_of_adopted(own, node.image, node.id)


async def _propose(node: ClusterNode, decide: Callable[[], Sequence[StoreTransaction] | Refusal]) -> None:
    """Commit transactions until the cluster's store lacks nothing. Raises CannotJoinError, StoreMismatchError."""
    delays = delays_s(node.random)
    while steps := decide():
        if isinstance(steps, Refusal):
            raise CannotJoinError(steps.reason)
        for step in steps:
            if not await node.propose(step):  # unknown, or another broker was faster
                await trio.sleep(next(delays))
                break
        await node.load()


def leader_epochs(directories: DataDirectories, own: ClusterImage) -> Mapping[TopicPartition, int]:
    """Return the latest leader epoch of each log. Raises CannotJoinError unless all are here, and closed cleanly."""
    if directories.offline:
        raise CannotJoinError(f"{next(iter(directories.offline))} is offline: a broker needs all its data to join")
    for each in directories.live:
        if not each.was_clean and each.partitions():
            raise CannotJoinError(
                f"{each.path} was not closed cleanly: start this broker once without warmlog.cluster.etcd, and stop it"
            )
    disk, latest_epochs = Disk(), dict[TopicPartition, int]()
    live = [(name, topic) for name, topic in own.topics.items() if topic.is_live]
    for name, index in ((name, index) for name, topic in live for index in range(topic.partitions)):
        holder = directories.holder(name, index)
        if holder is None:
            raise CannotJoinError(
                f"{name}-{index} has no directory: start this broker once without warmlog.cluster.etcd, and stop it"
            )
        path = holder.partition_path(partition_directory(name, index))
        epochs = read_epochs(disk, os.path.join(path, LEADER_EPOCHS))
        latest_epochs[name, index] = max([epoch for epoch, _ in epochs], default=NO_LEADER_EPOCH)
    return latest_epochs
