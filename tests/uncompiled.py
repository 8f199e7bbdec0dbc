"""The sources of compiled modules, run as Python."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def uncompiled(name: str) -> ModuleType:
    """Import the source of a module under another name, once, whether or not it is compiled."""
    other = f"{name}_uncompiled"
    if other not in sys.modules:
        source = Path(__file__).parent.parent.joinpath(*name.split(".")).with_suffix(".py")
        spec = spec_from_file_location(other, source)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[other] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[other])
    return sys.modules[other]
