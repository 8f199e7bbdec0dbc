"""What the tests against real Kafka share: its tools, and directories that we wrote.

A missing tool skips them on a developer's machine and fails them in CI (CI=true).
"""

import pytest

from interop.class_archive import archive_all
from interop.kafka_node import MissingToolError
from tests.interop.storage.directories import Written, write_all
from tests.requires import lacks


@pytest.fixture(scope="session", autouse=True)
def _kafka_tools() -> None:
    try:
        archive_all()
    except MissingToolError as error:
        lacks(error)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """One data directory of ours with every kind of partition. Read only."""
    return write_all(tmp_path_factory.mktemp("ours"))
