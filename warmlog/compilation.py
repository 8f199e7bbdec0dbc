"""Choose the compiled modules to use: none with WARMLOG_PURE=1, and in a checkout none older than its sources.

Python prefers a library to the source beside it, even if the library is older. mypyc's modules call each other
directly, so either all or none of them are used. Without them, modules that have no Python source are missing, and
their callers use other code.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

SUFFIX = EXTENSION_SUFFIXES[0]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class SourceFinder:
    """Finds modules of this package (the named ones, or all) only by their sources."""

    def __init__(self, names: set[str] | None) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module's source, or None for modules not handled here. Raises ModuleNotFoundError."""
        del target  # a hint for reloads
        if path is None or not name.startswith("warmlog.") or not (self._names is None or name in self._names):
            return None
        for directory in path:
            module = os.path.join(directory, name.rpartition(".")[2])
            if os.path.exists(module + ".py"):
                return spec_from_file_location(name, module + ".py")
            if os.path.exists(module + SUFFIX):
                raise ModuleNotFoundError(f"{name} has no source in Python, and its library is not used", name=name)
        return None


def stale_modules(root: str = ROOT) -> set[str]:
    """Return the names of the modules in a checkout whose libraries are older than one of their sources."""
    entries = {entry.path: entry for entry in _files(root)}
    libraries = {path.removesuffix(SUFFIX): entry for path, entry in entries.items() if path.endswith(SUFFIX)}
    by_mypyc = {module.removesuffix("__mypyc") for module in libraries if module.endswith("__mypyc")}
    included = [entry for path, entry in entries.items() if path.endswith((".pxd", ".pxi"))]
    stale = set()
    for module, library in libraries.items():
        sources = [entries[path] for path in (module + ".py", module + ".pyx") if path in entries]
        if module.removesuffix("__mypyc") not in by_mypyc:
            sources += included
        if any(source.stat().st_mtime_ns > library.stat().st_mtime_ns for source in sources):
            stale.add(module)
    if stale & by_mypyc:
        stale |= by_mypyc
    return {"warmlog." + os.path.relpath(module, root).replace(os.sep, ".") for module in stale}


def _files(root: str) -> Iterator[os.DirEntry[str]]:
    """Yield all files of the packages that have compiled modules."""
    folders = [os.path.join(root, package) for package in ("broker", "protocol")]
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry


def choose() -> None:
    """Make later imports use the chosen libraries. Call it once, before any of them is loaded."""
    if os.environ.get("WARMLOG_PURE", "") not in {"", "0"}:
        sys.meta_path.insert(0, SourceFinder(None))
    elif os.path.exists(os.path.join(ROOT, "setup.py")) and os.path.isdir(os.path.join(ROOT, "broker")):
        stale = stale_modules()
        if stale:
            sys.meta_path.insert(0, SourceFinder(stale))
            if sys.stderr.isatty():
                sys.stderr.write("warmlog: sources changed since they were compiled; `make setup` compiles them\n")
