"""Small file systems in memory: filled, taken away or made read-only by tests. They need the right to mount."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20


class Mount:
    """A tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def remount(self, *options: str) -> None:
        """Change what it may do: `ro`, `rw`, `size=8m`."""
        subprocess.run(["mount", "-o", ",".join(("remount", *options)), self.path], check=True)

    def unmount_lazily(self) -> None:
        """Take it away from under who has files open."""
        subprocess.run(["umount", "--lazy", self.path], check=True)

    def fill(self, name: str = "foreign") -> Path:
        """Let somebody else's file take every byte that there is; its path."""
        path = self.path / name
        with path.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass
        return path


@contextmanager
def mounted(path: Path, size_bytes: int) -> Iterator[Mount]:
    """A tmpfs of so many bytes at `path`; skips where none may be mounted (no root, a container's filter)."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
    try:
        yield Mount(path)
    finally:
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)
