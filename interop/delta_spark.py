"""delta-spark, Delta's own implementation: its jars, fetched once per version with Maven."""

import shutil
import subprocess
from pathlib import Path

from interop.kafka_node import MissingToolError, locked

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
DIRECTORY = Path(__file__).parent.parent / "build" / "delta-spark"
RELEASES = {"4.2": "4.4.0"}  # by version of Spark: the release of Delta that is built for it


def delta_jars(spark: str) -> str:
    """Return the class path for a version of Spark in `RELEASES`; fetch it if necessary. Raises MissingToolError."""
    release = RELEASES[spark]
    if shutil.which("mvn") is None:
        raise MissingToolError("not installed: mvn (Debian: maven)")
    directory = DIRECTORY / spark
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lock").touch()
    jars = []
    with locked(directory / "lock"):
        for artifact in (f"delta-spark_{spark}_2.13", "delta-storage"):
            jars.append(directory / f"{artifact}-{release}.jar")
            command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", COPY]
            command += [f"-Dartifact=io.delta:{artifact}:{release}", f"-DoutputDirectory={directory}"]
            if not jars[-1].exists():
                subprocess.run(command, check=True)
    return ",".join(map(str, jars))
