"""Check at startup that data directories belong together, before and after they are opened."""

from collections.abc import Iterable, Sequence

from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.identity import META_PROPERTIES, has_identity
from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.io.directory_names import parse_partition_directory
from warmlog.broker.log.io.disk import Disk, IrregularFileError

METADATA_FILE = "metadata.sqlite"


def why_missing(disk: Disk, path: str, known_id: str) -> str:
    """Describe a directory that had partitions before and now has no identity."""
    mounted = "and had partitions before (is its file system mounted?)"
    try:
        is_empty = all(entry.name == "lost+found" for entry in disk.scan(path))
    except FileNotFoundError:
        return f"it does not exist, {mounted}"
    except OSError as error:
        return f"{error.strerror or error}, {mounted}"
    if is_empty:
        return f"it is empty, {mounted}"
    return f"it has no {META_PROPERTIES}: put the file back (its directory.id was {known_id})"


def check_first(disk: Disk, paths: Sequence[str]) -> None:
    """Raise DataDirectoryError if the first directory lacks the metadata while another shows that it existed."""
    first, *others = paths
    try:
        belongs = has_identity(disk, first)
    except OSError:
        return  # opening it reports the error
    if belongs:
        _check_metadata(disk, paths)
        missing = not _exists(disk, first, METADATA_FILE)
        elsewhere = [path for path in others if missing and _exists(disk, path, METADATA_FILE)]
        if elsewhere:
            raise DataDirectoryError(
                f"{METADATA_FILE} lies in {elsewhere[0]}, which is not the first of log.dirs ({first} is)"
            )
        return
    known = [path for path in others if _belongs(disk, path)]
    if known and _exists(disk, first, METADATA_FILE):
        raise DataDirectoryError(f"data directory {first} has no {META_PROPERTIES}: put the file back")
    if known:
        raise DataDirectoryError(
            f"data directory {first} is new, but {known[0]} belongs to a broker already: the first of log.dirs has the"
            " metadata (is its file system mounted? add new directories at the end of the list)"
        )


def _check_metadata(disk: Disk, paths: Sequence[str]) -> None:
    """Raise DataDirectoryError if the metadata file was emptied, or replaced by something other than a file."""
    try:
        entries = [entry for entry in disk.scan(paths[0], stat_suffix=METADATA_FILE) if entry.name == METADATA_FILE]
    except OSError:
        return  # opening it reports the error
    for entry in entries:
        path = f"{paths[0]}/{METADATA_FILE}"
        if entry.is_directory or entry.is_other:
            raise DataDirectoryError(f"{path}: {IrregularFileError(path).strerror}")
        if not entry.size and any(_has_partitions(disk, each) for each in paths):  # else a first start was interrupted
            raise DataDirectoryError(
                f"{path} is empty, but there are partitions: restore it from a backup, or remove it and create the"
                " topics again, with the same names and partition counts"
            )


def _has_partitions(disk: Disk, path: str) -> bool:
    try:
        return any(entry.is_directory and parse_partition_directory(entry.name) for entry in disk.scan(path))
    except OSError:
        return False


def _belongs(disk: Disk, path: str) -> bool:
    """Return whether a directory belongs to a broker; False if it cannot be read."""
    try:
        return has_identity(disk, path)
    except OSError:
        return False


def _exists(disk: Disk, path: str, name: str) -> bool:
    try:
        return any(entry.name == name for entry in disk.scan(path))
    except OSError:
        return False


def check_ids(directories: Iterable[DataDirectory]) -> None:
    """Raise DataDirectoryError if one directory is a copy of another: both would have the same partitions."""
    paths: dict[str, str] = {}
    for directory in directories:
        other = paths.setdefault(directory.directory_id, directory.path)
        if other != directory.path:
            raise DataDirectoryError(
                f"data directories {other} and {directory.path} have the same directory.id"
                f" ({directory.directory_id}): one is a copy of the other"
            )
