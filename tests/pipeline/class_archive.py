"""An archive of Spark's classes, which its JVM maps instead of reading, parsing and verifying jars at every start.

    python -m tests.pipeline.class_archive     writes it

A JVM ignores an archive that does not match its version, its class path or the jars.
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.documents import ROOT

ARCHIVE = ROOT / "build" / "spark-classes.jsa"
OPTIONS = "SPARK_SUBMIT_OPTS"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a fast start matters more than speed when warm


def use_archive() -> None:
    """Let each Spark that this process and its children start map the archive, if there is one, and start quickly."""
    archived = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" if ARCHIVE.exists() else ""
    os.environ.setdefault(OPTIONS, f"{QUICK} {archived}")


def main() -> int:
    """Start a Spark that runs a query, and write the archive of what it has loaded when it ends."""
    from tests.pipeline.session import spark_session

    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    written = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ[OPTIONS] = f"{QUICK} -XX:ArchiveClassesAtExit={written} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as directory:
        session = spark_session(Path(directory))
        java = session.sparkContext._gateway.proc
        query = session.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
        query.start(checkpointLocation=f"{directory}/checkpoint").awaitTermination()
        session.range(100).selectExpr("sum(id)").collect()
        session.stop()
        java.stdin.close()  # it ends
        java.wait()
    written.rename(ARCHIVE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
