"""The two twins of the record codec, for tests that hold for either."""

import importlib
from types import ModuleType

import pytest

from protocol.records import record
from tests.lacking import lacks


def compiled_twin() -> ModuleType:
    """The compiled twin; where it was not built the test is skipped, in CI it fails."""
    try:
        return importlib.import_module("protocol.records._codec")
    except ImportError as error:
        lacks(f"the compiled codec is not built here: {error}")


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return compiled_twin()


@pytest.fixture(scope="session", params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return record if request.param == "pure" else compiled_twin()
