"""Iceberg's own REST catalog: fetched once from Maven Central, and run with its state in a file of SQLite."""

import os
import subprocess
from pathlib import Path

from interop.java_server import JavaServer, require_java, wait_until_it_answers
from interop.kafka_node import locked
from interop.ports import free_ports

PROJECT = Path(__file__).parent / "iceberg"
JARS = PROJECT / "target" / "jars"
MAIN = "org.apache.iceberg.rest.RESTCatalogServer"


def fetch() -> None:
    """Fetch the server's jars unless they are there. Raises MissingToolError."""
    require_java()
    stamp = PROJECT / "target" / "fetched"
    with locked(PROJECT / "pom.xml"):
        if not stamp.exists() or stamp.stat().st_mtime < (PROJECT / "pom.xml").stat().st_mtime:
            command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "package"]
            subprocess.run(command, cwd=PROJECT, check=True)
            stamp.touch()


class RestCatalog(JavaServer):
    """A catalog in a process of its own, which keeps its port and its tables over restarts. A context manager.

    `directory`: of the catalog's state, of the tables (`warehouse`) and of its log. It listens on all addresses: it has
    no setting for one.
    """

    def __init__(self, directory: Path) -> None:
        fetch()
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / "catalog.log"
        self._environment = {
            **os.environ,
            "CATALOG_REST_PORT": str(port),
            "CATALOG_URI": f"jdbc:sqlite:{directory}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{directory}/warehouse",
        }

    def start(self) -> None:
        """Start the server, and wait until it answers. Raises RuntimeError with the end of its log if it does not."""
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", MAIN]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, env=self._environment, stdout=output, stderr=output)
        wait_until_it_answers(self._process, f"{self.url}/v1/config", self._log)
