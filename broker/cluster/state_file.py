"""The file `warmlog-cluster.json` in the first data directory, which the next start of the broker validates.

It has the identity of the store, and the epoch of the broker's latest registration.
"""

import os

import msgspec
import trio

from warmlog.broker.cluster.store import KnownStore
from warmlog.broker.cluster.values import NO_EPOCH
from warmlog.broker.log.directory.names import CLUSTER_STATE
from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.io.disk import Disk, replace_file


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    etcd_cluster: int = 0
    identity: str = ""
    revision: int = 0
    epoch: int = NO_EPOCH


class StateFile:
    """The content of the file. `store`: None before the first start; `epoch`: the latest registration's."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Read the file. Raises DataDirectoryError, OSError."""
        self._disk = disk
        self.path = os.path.join(directory, CLUSTER_STATE)
        content = self._read()
        self.epoch = content.epoch
        self.store: KnownStore | None = None
        if content.identity:
            self.store = KnownStore(content.etcd_cluster, content.identity, content.revision)

    def _read(self) -> _Content:
        try:
            descriptor = self._disk.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return _Content()
        try:
            data = self._disk.pread(descriptor, self._disk.size(descriptor), 0)
            return msgspec.json.decode(data, type=_Content)
        except msgspec.DecodeError as error:
            raise DataDirectoryError(
                f"{self.path}: {error}; remove it to join the cluster as a broker without data"
            ) from error
        finally:
            self._disk.close(descriptor)

    async def write(self, store: KnownStore, epoch: int) -> None:
        """Replace the content. Raises OSError."""
        self.store, self.epoch = store, epoch
        data = msgspec.json.encode(
            _Content(etcd_cluster=store.cluster_id, identity=store.identity, revision=store.revision, epoch=epoch)
        )
        await trio.to_thread.run_sync(lambda: replace_file(self._disk, self.path, data, sync=True))
