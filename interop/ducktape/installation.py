"""An installation of Kafka for the tests: Kafka's tools and jars, with warmlog as the server.

| Below the directory | |
|---|---|
| `kafka/bin` | Kafka's scripts, except that scripts which start and format a server are ours |
| `kafka/libs` | Kafka's jars of the version in the source tree, from Maven Central |
| `kafka/config` | Kafka's configuration of its tools |
| `bin` | commands that tests expect on a machine |
"""

import os
import shutil
from pathlib import Path

from interop.kafka_node import class_path

REPOSITORY = Path(__file__).parents[2]
DIRECTORY = "DUCKTAPE_DIRECTORY"  # variable with the directory of a run
PYTHON = REPOSITORY / ".venv" / "bin" / "python"

# The name in the command lines of processes of a broker and of etcd, as in Kafka's.
PROCESS_NAME = "kafka.Kafka"

# jcmd without arguments, and jps, list JVMs: process id and main class. The real ones list JVMs of other machines, and
# omit JVMs that write no performance data.
_JVMS = r"""#!/bin/bash
ps -C java -o pid=,args= | sed -E 's/^ *([0-9]+) .* -cp [^ ]+ (-[^ ]+ +)*/\1 /'
"""
_SUDO = '#!/bin/bash\nexec "$@"\n'
_START = '#!/bin/bash\nexec {python} -m interop.ducktape.server "$@"\n'
_FORMAT = "#!/bin/bash\nexit 0\n"  # warmlog formats a directory when it starts

# Omitted, so that the tools log nothing: the tests configure an older log4j, and this one would log to their output.
_LOGGING = "log4j-slf4j"
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -XX:-UsePerfData"


def home(directory: Path) -> Path:
    """Return the directory of the installation."""
    return directory / "kafka"


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of commands on a machine."""
    return {
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "HOME": "/root",
        "PYTHONPATH": str(REPOSITORY),
        "KAFKA_JVM_PERFORMANCE_OPTS": JVM_OPTIONS,
    }


def install(directory: Path, source: Path) -> None:
    """Create the installation from a source tree of Kafka and the jars. Raises MissingToolError."""
    jars = Path(class_path(_version(source)).rpartition(":")[2]).parent
    kafka = home(directory)
    shutil.rmtree(kafka, ignore_errors=True)
    shutil.copytree(source / "bin", kafka / "bin")
    shutil.copytree(source / "config", kafka / "config")
    (kafka / "libs").mkdir()
    for jar in jars.glob("*.jar"):
        if not jar.name.startswith(_LOGGING):
            (kafka / "libs" / jar.name).symlink_to(jar)
    _script(kafka / "bin" / "kafka-server-start.sh", _START.format(python=PYTHON))
    _script(kafka / "bin" / "kafka-storage.sh", _FORMAT)
    for name in ("jcmd", "jps"):
        _script(directory / "bin" / name, _JVMS)
    _script(directory / "bin" / "sudo", _SUDO)


def _version(source: Path) -> str:
    """Return the release of a source tree; for a snapshot, the upcoming release."""
    lines = (source / "gradle.properties").read_text().splitlines()
    (version,) = (line.removeprefix("version=") for line in lines if line.startswith("version="))
    return version.removesuffix("-SNAPSHOT")


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
