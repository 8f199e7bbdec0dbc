"""Tables whose directories contain one another.

Maintenance lists all that is in a table's directory, and deletes what no version of the table needs. A table inside
would lose its files to it. A new table is therefore refused inside another one, or around one; and of those that exist
already, each keeps its files.

A directory is of a table if it has a Delta log, or Iceberg's metadata. Directories are of a file system of pyarrow.
"""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from warmlog.pipeline.errors import PipelineError

DELTA_LOG = "_delta_log"
ICEBERG_METADATA = "metadata"
METADATA_FILES = (".metadata.json", ".metadata.json.gz")


def check_new(name: str, files: Any, path: str, *, is_delta: bool) -> None:
    """Raise PipelineError if a new table at a path would be inside another one, or contain one.

    `name`: that of the table, for messages. Directories that cannot be listed are passed over: credentials may be for
    the new table's directory only.
    """
    if _is_known(is_iceberg if is_delta else is_delta_table, files, path):
        raise PipelineError(f"{name}: there is {'an Iceberg' if is_delta else 'a Delta'} table: choose another place")
    for parent in PurePosixPath(path).parents:
        if _is_known(is_table, files, str(parent)):
            raise PipelineError(
                f"{name} would be inside the table in {parent}, whose maintenance would delete its files: choose a"
                " directory that is not inside a table"
            )
    inner = next(_inner(files, path), None)
    if inner is not None:
        raise PipelineError(
            f"{name} would contain the table in {inner}, and its maintenance would delete that table's files: choose an"
            " empty directory"
        )


def _is_known(check: Callable[[Any, str], bool], files: Any, path: str) -> bool:
    try:
        return check(files, path)
    except _errors():
        return False


def _errors() -> tuple[type[Exception], ...]:
    from deltalake.exceptions import DeltaError

    return DeltaError, OSError


def is_table(files: Any, path: str) -> bool:
    """Return whether a directory is of a table. Raises OSError."""
    return is_delta_table(files, path) or is_iceberg(files, path)


def is_delta_table(files: Any, path: str) -> bool:
    """Return whether a directory has a Delta log. Raises OSError."""
    return any(info.is_file for info in _listed(files, f"{path}/{DELTA_LOG}"))


def is_iceberg(files: Any, path: str) -> bool:
    """Return whether a directory has metadata of Iceberg. Raises OSError."""
    return any(info.base_name.endswith(METADATA_FILES) for info in _listed(files, f"{path}/{ICEBERG_METADATA}"))


def _listed(files: Any, path: str, *, recursive: bool = False) -> Any:
    from pyarrow.fs import FileSelector

    plain = path.removeprefix("./")  # the root of an object store
    return files.get_file_info(FileSelector(plain, allow_not_found=True, recursive=recursive))


def _inner(files: Any, path: str) -> Iterator[PurePosixPath]:
    """Yield the directories of tables below a path."""
    try:
        listed = _listed(files, path, recursive=True)
    except _errors():
        return
    own = PurePosixPath(path)
    for info in listed:
        folder = PurePosixPath(info.path).parent
        is_log = folder.name == DELTA_LOG
        is_metadata = folder.name == ICEBERG_METADATA and info.base_name.endswith(METADATA_FILES)
        if info.is_file and (is_log or is_metadata) and own in folder.parent.parents:
            yield folder.parent


class OwnFiles:
    """Decides which files below a table's directory are not of a table inside it."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = PurePosixPath(root)
        self._known: dict[PurePosixPath, bool] = {self._root: False}

    def has(self, path: str) -> bool:
        """Return whether no directory between the table's and a file is of another table. Raises OSError."""
        return not self._is_inner(PurePosixPath(path).parent)

    def _is_inner(self, folder: PurePosixPath) -> bool:
        if folder not in self._known:
            assert folder != folder.parent, "the file is below the table's directory"
            self._known[folder] = self._is_inner(folder.parent) or is_table(self._files, str(folder))
        return self._known[folder]
