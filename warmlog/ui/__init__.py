"""The files of the console's page. `static` has its source, plain modules without a build step.

`vendor` has the libraries that `vendor.py` fetches from npm, pinned by the hashes in `package-lock.json`.
"""

from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
VENDOR: Final = STATIC / "vendor"
LIBRARIES: Final = ("htm.js", "preact.js", "hooks.js", "uplot.js", "uplot.css")  # file names in `vendor`
MISSING: Final = "missing.html"  # served instead of the page if a library is missing


def page_files() -> dict[str, bytes]:
    """Return the files of the page by path. Without the libraries, only a page that explains how to get them."""
    if not all((VENDOR / name).is_file() for name in LIBRARIES):
        return {MISSING: (STATIC / MISSING).read_bytes()}
    names = [path for path in STATIC.rglob("*") if path.is_file() and path.name != MISSING]
    return {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in names}
