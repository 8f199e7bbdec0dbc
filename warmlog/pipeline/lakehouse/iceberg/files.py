"""The data directory of an Iceberg table."""

from typing import Any


class IcebergFiles:
    """The data directory of a table, accessed through pyiceberg's FileIO; workers get a copy."""

    def __init__(self, files: Any, location: str) -> None:
        self._files = files
        self._location = location

    def open(self, path: str) -> Any:
        """Return a file open for reading. Raises OSError."""
        return self._files.new_input(path).open()

    def create(self, name: str) -> Any:
        """Return a file open for writing. Raises OSError."""
        return self._files.new_output(f"{self._location}/{name}").create()

    def path_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self._location}/{name}"

    def finished(self, name: str) -> None:
        """Do nothing: an object is durable when it is closed."""

    def delete(self, name: str) -> None:
        """Delete an object. Raises OSError."""
        self._files.delete(f"{self._location}/{name}")
