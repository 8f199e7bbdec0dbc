"""Create a user in a data directory whose broker does not run."""

from collections.abc import Mapping
from pathlib import Path

from warmlog.broker.cluster.access.credentials import steps, transaction
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.security.scram import ScramCredential


class UserExistsError(Exception):
    """The user is there already."""


def create_user(
    data_dir: Path,
    user: str,
    credentials: Mapping[str, ScramCredential],
    *,
    node_id: int,
    cluster_id: str | None,
    must_be_new: bool = False,
) -> None:
    """Set a user's credentials, by mechanism; the directory may be new.

    `cluster_id`: of a new directory, by default a random one.

    Raises UserExistsError, DataDirectoryError for one that is in use, or of another broker; MetadataError.
    """
    changed = {(user, mechanism): credential for mechanism, credential in credentials.items()}
    with DataDirectories.open([data_dir], node_id=node_id, cluster_id=cluster_id):
        metadata = MetadataFile(data_dir / METADATA_FILE, node_id)
        try:
            image = metadata.image()
            if must_be_new and any(name == user for name, _ in image.credentials):
                raise UserExistsError
            metadata.store.commit([transaction(image, step) for step in steps((), changed)], ())
        finally:
            metadata.close()
