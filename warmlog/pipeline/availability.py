"""Whether Spark can run here, said clearly where it cannot.

Owns: the look for the libraries and for Java. Must not know: what Spark is wanted for.
"""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from warmlog.pipeline.errors import PipelineError

LIBRARIES = ("pyspark", "pyarrow")
OLDEST_JAVA = 17  # what Spark 4 runs on
JAVA_TIMEOUT_S = 30.0  # a cold one on a busy machine takes a second or two

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_libraries() -> None:
    """Raise PipelineError if pyspark or pyarrow is not installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise PipelineError(f"the pipeline needs {' and '.join(missing)}: pip install 'warmlog[spark]'")


def check_java() -> None:
    """Raise PipelineError if there is no Java for Spark: $JAVA_HOME, or else on the path."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        where = f"JAVA_HOME is {home}, and there is none" if home else "no `java` on the path, and JAVA_HOME is not set"
        raise PipelineError(f"Spark needs Java {OLDEST_JAVA} or newer: {where}")
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise PipelineError(
            f"Spark needs Java {OLDEST_JAVA} or newer: {java} is {version or 'of no version that it tells'}"
        )


def java_version(java: str) -> int:
    """The major version that `java -version` tells; 0 if it tells none."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(told)
    return int(found[1]) if found else 0


def check_spark() -> None:
    """Raise PipelineError if Spark cannot run here."""
    check_libraries()
    check_java()
