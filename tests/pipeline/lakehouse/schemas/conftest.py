"""An empty topic in a directory, and a schema registry."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, serving


@pytest.fixture
def writer(tmp_path: Path) -> DirectoryWriter:
    return DirectoryWriter(tmp_path / "data")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving() as server:
        yield server
