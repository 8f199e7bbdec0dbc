"""Spark's own Kafka connector: its jars, and reads and writes with it.

The jars are fetched once per version, with Maven. Nothing here imports warmlog, so that the results are the connector's
own.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop.kafka_node import MissingToolError

PROJECT = Path(__file__).parent / "spark"


def connector_jars(version: str, *, with_tables: bool = False) -> str:
    """Return the class path of a version of the connector; download it if necessary. Raises MissingToolError.

    `with_tables`: also of Delta and Iceberg, which need Spark 4.1.
    """
    if shutil.which("mvn") is None:
        raise MissingToolError("not installed: mvn (Debian: maven)")
    name = f"{version}-tables" if with_tables else version
    directory = PROJECT / "target" / name
    stamp = directory / "fetched"
    if not stamp.exists() or stamp.stat().st_mtime < (PROJECT / "pom.xml").stat().st_mtime:
        command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", f"-Dspark-connector.version={version}"]
        command += ["-P", "tables"] if with_tables else []
        subprocess.run([*command, f"-Djars.directory={name}", "package"], cwd=PROJECT, check=True)
        stamp.touch()
    return ",".join(str(path) for path in sorted(directory.glob("*.jar")))


def read_batch(spark: Any, bootstrap: str, topic: str, **options: object) -> Any:
    """Read a topic with the connector. `options`: the connector's."""
    return _with(spark.read.format("kafka"), bootstrap, {"subscribe": topic, **options}).load()


def read_stream(spark: Any, bootstrap: str, topic: str, **options: object) -> Any:
    """Read a topic as a stream with the connector."""
    return _with(spark.readStream.format("kafka"), bootstrap, {"subscribe": topic, **options}).load()


def write_batch(frame: Any, bootstrap: str, **options: object) -> None:
    """Write a frame with the connector's sink."""
    _with(frame.write.format("kafka"), bootstrap, options).save()


def _with(builder: Any, bootstrap: str, options: Mapping[str, object]) -> Any:
    for name, value in {"kafka.bootstrap.servers": bootstrap, **options}.items():
        builder = builder.option(name, str(value))
    return builder
