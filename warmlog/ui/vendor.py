"""Fetch the console page's libraries from npm, by the hashes in package-lock.json: `python warmlog/ui/vendor.py`.

setup.py runs it for a distribution, and `make ui` in a checkout. It needs npm, writes only to `static/vendor`, and does
nothing if the files there already match the lock. It imports nothing from warmlog, so that a build can run it.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
VENDOR: Final = HERE / "static" / "vendor"
FILES: Final = {
    "htm.js": "htm/dist/htm.module.js",
    "preact.js": "preact/dist/preact.mjs",
    "hooks.js": "preact/hooks/dist/hooks.mjs",
    "uplot.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
    "htm.license.txt": "htm/LICENSE",
    "preact.license.txt": "preact/LICENSE",
    "uplot.license.txt": "uplot/LICENSE",
}
# Browsers resolve paths, not package names; an import map would be an inline script, which the policy forbids.
IMPORT: Final = (b'from"preact"', b'from"./preact.js"')
SOURCE_MAP: Final = b"\n//# sourceMappingURL="
STAMP: Final = "lock.sha256.txt"
TIMEOUT_S: Final = 120


class VendorError(Exception):
    """The libraries could not be fetched."""


def is_current() -> bool:
    """Return whether the files exist and match the lock."""
    stamp = VENDOR / STAMP
    return stamp.is_file() and stamp.read_text() == _lock_hash() and all((VENDOR / name).is_file() for name in FILES)


def vendor() -> None:
    """Fetch the libraries unless they are current. Raises VendorError."""
    if is_current():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise VendorError("npm was not found (Debian: apt-get install npm)")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(HERE / name, folder)
        command = [npm, "ci", "--ignore-scripts", "--silent", "--no-audit", "--no-fund"]
        try:
            run = subprocess.run(  # noqa: S603  # npm, with arguments of ours
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise VendorError(f"npm ci: {error}") from error
        if run.returncode:
            lines = (run.stderr or run.stdout).strip().splitlines() or [f"status {run.returncode}"]
            raise VendorError(f"npm ci failed: {lines[-1]}")
        VENDOR.mkdir(parents=True, exist_ok=True)
        for name, source in FILES.items():
            data = Path(folder, "node_modules", source).read_bytes()
            (VENDOR / name).write_bytes(data.replace(*IMPORT).partition(SOURCE_MAP)[0])
    (VENDOR / STAMP).write_text(_lock_hash())


def _lock_hash() -> str:
    return hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest() + "\n"


if __name__ == "__main__":
    try:
        vendor()
    except VendorError as failure:
        print(f"warmlog: the console is built without its page: {failure}", file=sys.stderr)  # noqa: T201
        sys.exit(0 if "--optional" in sys.argv else 1)
