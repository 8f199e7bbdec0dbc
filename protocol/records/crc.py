"""CRC-32C, computed by the extension module of the `crc32c` package.

The package's `__init__` also imports argparse and importlib.metadata for its command line and version, which takes ten
times as long as loading the extension.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["crc32c"]


def load_extension(package: str, name: str) -> ModuleType | None:
    """Load an extension module of a package without running the package's `__init__`; return None if not found."""
    parent = PathFinder.find_spec(package)
    if parent is None or parent.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec(f"{package}.{name}", parent.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from crc32c import crc32c
elif (extension := load_extension("crc32c", "_crc32c")) is not None:
    crc32c = extension.crc32c
else:  # a release with another layout, or modules that do not come from files
    from crc32c import crc32c
