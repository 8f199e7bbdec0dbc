"""Apicurio's schema registry, which has Confluent's interface: fetched once from Maven Central, and run in memory."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.java_server import require_java, wait_until_it_answers
from interop.kafka_node import locked
from interop.ports import free_ports

VERSION = "2.6.13.Final"  # the last one that runs on Java 17
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
DIRECTORY = Path(__file__).parent.parent / "build" / "apicurio"
PROGRAM = DIRECTORY / VERSION / f"apicurio-registry-app-{VERSION}-runner.jar"


def fetch() -> None:
    """Fetch the registry unless it is there. Raises MissingToolError."""
    require_java()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    (DIRECTORY / "lock").touch()
    with locked(DIRECTORY / "lock"):
        if PROGRAM.exists():
            return
        command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", COPY, f"-Dartifact={ARTIFACT}"]
        subprocess.run([*command, f"-DoutputDirectory={DIRECTORY}"], check=True)
        unpacked = DIRECTORY / "unpacked"
        with tarfile.open(DIRECTORY / f"apicurio-registry-app-{VERSION}-all.tar.gz") as archive:
            archive.extractall(unpacked, filter="data")
        shutil.rmtree(PROGRAM.parent, ignore_errors=True)
        unpacked.rename(PROGRAM.parent)


@contextmanager
def running(log: Path) -> Iterator[str]:
    """Run a registry with nothing in it; yield the URL of Confluent's interface. Raises MissingToolError."""
    fetch()
    (port,) = free_ports(1)
    environment = {**os.environ, "QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(PROGRAM)],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        wait_until_it_answers(process, f"{url}/subjects", log)
        yield url
    finally:
        process.kill()
        process.wait()
