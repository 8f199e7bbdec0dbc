"""Run tests of Kafka's source tree with ducktape against clusters of warmlogs.

    python -m venv build/ducktape-venv && build/ducktape-venv/bin/pip install ducktape
    build/ducktape-venv/bin/python -m interop.ducktape --kafka SOURCE_TREE TEST...

A TEST is a path below tests/kafkatest, such as tests/core/replication_test.py, with `::Class.method` for one of a
file, and `@JSON` for one set of parameters. `@FILE` means the tests listed in a file, one per line;
`@interop/ducktape/suite.txt` lists the tests that pass. It needs root, Java, Maven and etcd. Other options are
ducktape's.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from interop.ducktape import installation
from interop.kafka_node import MissingToolError


def main(arguments: Sequence[str] | None = None) -> None:
    """Install the prerequisites of the tests, and become ducktape in its own network. Does not return."""
    parser = argparse.ArgumentParser(
        prog="python -m interop.ducktape", description=__doc__.splitlines()[0], fromfile_prefix_chars="@"
    )
    parser.add_argument("--kafka", type=Path, required=True, help="a source tree of Kafka; nothing in it is compiled")
    parser.add_argument(
        "--directory", type=Path, default=Path("build/ducktape"), help="directory for data, logs and results"
    )
    parser.add_argument("tests", nargs="+", metavar="TEST", help="path below tests/kafkatest")
    asked, options = parser.parse_known_args(arguments)
    directory, source = asked.directory.resolve(), asked.kafka.resolve()
    if not (source / "tests" / "kafkatest").is_dir():
        parser.error(f"--kafka {source}: no source tree of Kafka; it has no tests/kafkatest")
    try:
        installation.install(directory, source)
    except MissingToolError as error:
        parser.exit(2, f"ducktape: {error}\n")
    os.environ[installation.DIRECTORY] = str(directory)
    os.environ["PYTHONPATH"] = f"{installation.REPOSITORY}:{source / 'tests'}"
    os.chdir(source)  # ducktape names tests by their paths relative to here
    command = [
        *("unshare", "--net", "--mount", sys.executable, str(Path(sys.executable).with_name("ducktape"))),
        *("--cluster", "interop.ducktape.cluster.MachineCluster", "--results-root", str(directory / "results")),
        *("--globals", '{"kafka-path-resolver": "interop.ducktape.cluster.PathResolver"}'),
        *options,
        *(str(source / "tests/kafkatest" / test) for test in asked.tests),
    ]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
