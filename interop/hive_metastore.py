"""A Hive metastore: fetched once from Maven Central, and run with its state in an embedded Derby database."""

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

from interop.java_server import JavaServer, require_java, wait_until_it_accepts
from interop.kafka_node import locked
from interop.ports import free_ports

PROJECT = Path(__file__).parent / "hive"
JARS = PROJECT / "target" / "jars"
PACKAGE = "org.apache.hadoop.hive.metastore"
SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={directory}/metastore;create=true",
    "metastore.warehouse.dir": "file://{directory}/managed",
    "metastore.warehouse.external.dir": "file://{directory}/external",
    "metastore.thrift.bind.host": "127.0.0.1",
    # the defaults of these two are classes of Hive itself
    "metastore.expression.proxy": f"{PACKAGE}.DefaultPartitionExpressionProxy",
    "metastore.task.threads.always": f"{PACKAGE}.events.EventCleanerTask,{PACKAGE}.txn.AcidHouseKeeperService",
    # locks of killed programs end soon: the defaults are 300 s, 100 s and 180 s
    "metastore.txn.timeout": "10s",
    "metastore.timedout.txn.reaper.start": "1s",
    "metastore.timedout.txn.reaper.interval": "1s",
}


def fetch() -> Path:
    """Fetch the jars and schemas unless they are there. Return the schemas' home. Raises MissingToolError."""
    require_java()
    stamp = PROJECT / "target" / "fetched"
    with locked(PROJECT / "pom.xml"):
        if not stamp.exists() or stamp.stat().st_mtime < (PROJECT / "pom.xml").stat().st_mtime:
            command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "package"]
            subprocess.run(command, cwd=PROJECT, check=True)
            stamp.touch()
    (home,) = (PROJECT / "target").glob("apache-hive-metastore-*")
    return home


class HiveMetastore(JavaServer):
    """A metastore in a process of its own, which keeps its port and its state over restarts. A context manager.

    `directory`: of its database, its log, and the tables of databases without a location.
    """

    def __init__(self, directory: Path) -> None:
        self._environment = {**os.environ, "METASTORE_HOME": str(fetch())}
        (port,) = free_ports(1)
        self._port = port
        self.url = f"thrift://127.0.0.1:{port}"
        self._directory = directory / "hive"
        self._log = self._directory / "log"
        self._directory.mkdir()
        self._configure()
        with self._log.open("ab") as output:
            schema = self._program("tools.MetastoreSchemaTool", "-dbType", "derby", "-initSchema")
            subprocess.run(schema, check=True, env=self._environment, stdout=output, stderr=output)

    def _configure(self) -> None:
        root = ET.Element("configuration")
        for name, value in SETTINGS.items():
            setting = ET.SubElement(root, "property")
            ET.SubElement(setting, "name").text = name
            ET.SubElement(setting, "value").text = value.format(directory=self._directory)
        ET.ElementTree(root).write(self._directory / "metastore-site.xml")

    def _program(self, name: str, *arguments: str) -> list[str]:
        memory = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        derby = f"-Dderby.stream.error.file={self._directory}/derby.log"
        return ["java", *memory, derby, "-cp", f"{self._directory}:{JARS}/*", f"{PACKAGE}.{name}", *arguments]

    def start(self) -> None:
        """Start the metastore, and wait until it accepts. Raises RuntimeError with its log if it does not."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._program("HiveMetaStore", "-p", str(self._port)),
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        wait_until_it_accepts(self._process, self._port, self._log)
