"""Create a user in the data directory of a broker, or of nodes, that are not running."""

from collections.abc import Mapping
from pathlib import Path

from warmlog.broker.cluster.access.credentials import steps, transaction
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local import STORE
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.cluster.local.server import LAYOUT
from warmlog.broker.cluster.local.store_file import StoreFile
from warmlog.broker.cluster.store import Range
from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.metadata.database import Database
from warmlog.broker.security.scram import ScramCredential


class UserExistsError(Exception):
    """The user already exists."""


def create_user(
    data_dir: Path,
    user: str,
    credentials: Mapping[str, ScramCredential],
    *,
    node_id: int,
    cluster_id: str | None,
    must_be_new: bool = False,
) -> None:
    """Store a new user's credentials, by mechanism; the directory may be new.

    `cluster_id`: for a new directory; random by default.

    Raises UserExistsError, DataDirectoryError for one that is in use, or of another broker; MetadataError.
    """
    with DataDirectories.open([data_dir], node_id=node_id, cluster_id=cluster_id):
        metadata = MetadataFile(data_dir / METADATA_FILE, node_id)
        try:
            _set(metadata.store, user, credentials, must_be_new=must_be_new)
        finally:
            metadata.close()


def create_user_of_nodes(
    data_dir: Path, user: str, credentials: Mapping[str, ScramCredential], *, must_be_new: bool = False
) -> None:
    """Store a new user's credentials in the store of `serve --nodes`, which may be new.

    Raises UserExistsError, and MetadataError, also for a store that is in use.
    """
    database = Database(data_dir / STORE, LAYOUT, is_exclusive=True)
    try:
        _set(StoreFile(database), user, credentials, must_be_new=must_be_new)
    finally:
        database.close()


def _set(store: StoreFile, user: str, credentials: Mapping[str, ScramCredential], *, must_be_new: bool) -> None:
    image = ClusterImage(Range(store.revision, tuple(store.items())))
    if must_be_new and any(name == user for name, _ in image.credentials):
        raise UserExistsError
    changed = {(user, mechanism): credential for mechanism, credential in credentials.items()}
    store.commit([transaction(image, step) for step in steps((), changed)], ())
