"""The files of a Delta table in an object store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def directory_of(uri: str, storage: Mapping[str, str]) -> tuple[Any, str]:
    """Return a file system of pyarrow with all directories around a table, and the table's path there.

    Raises deltalake's errors.
    """
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import LocalFileSystem, PyFileSystem

    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalFileSystem(), str(Path(uri).resolve())
    bucket, _, path = rest.partition("/")
    return PyFileSystem(DeltaStorageHandler(f"{scheme}://{bucket}", dict(storage))), path.rstrip("/")


class DeltaFiles:
    """A table in an object store; workers open it by its URL and options."""

    def __init__(self, uri: str, storage: Mapping[str, str]) -> None:
        self._uri = uri
        self._storage = dict(storage)

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self._uri, self._storage))

    def open(self, path: str) -> Any:
        """Return a file open for reading. Raises OSError."""
        return self._files().open_input_file(path.removeprefix(f"{self._uri.rstrip('/')}/"))

    def create(self, name: str) -> Any:
        """Return a file open for writing. Raises OSError."""
        return self._files().open_output_stream(name)

    def path_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self._uri.rstrip('/')}/{name}"

    def finished(self, name: str) -> None:
        """Do nothing: an object is durable when it is closed."""

    def delete(self, name: str) -> None:
        """Delete an object. Raises OSError."""
        self._files().delete_file(name)
