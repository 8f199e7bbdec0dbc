"""What newer compilers refuse: an error since gcc 14, which was a warning before. The module would stay uncompiled."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

TRANSLATED = Path("build", f"compiled-{sys.implementation.cache_tag}", "cython", "warmlog")
ERRORS = ("incompatible-pointer-types", "int-conversion", "implicit-function-declaration", "implicit-int")

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")


def test_the_translated_modules_have_no_error_of_newer_compilers() -> None:
    sources = sorted(map(str, TRANSLATED.rglob("*.c")))
    assert sources, "make setup translates them"
    checks = [f"-Werror={each}" for each in ERRORS]
    command = ["gcc", "-fsyntax-only", *checks, "-I", sysconfig.get_path("include"), *sources]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not [line for line in checked.stderr.splitlines() if " error: " in line]
