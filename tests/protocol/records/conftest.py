"""Fixtures for the compiled and the pure record codec."""

import importlib
from types import ModuleType

import pytest

from tests.requires import lacks
from warmlog.protocol.records import record


def compiled_codec() -> ModuleType:
    """Import the compiled codec; if it is not built, skip the test, or fail it in CI."""
    try:
        return importlib.import_module("warmlog.protocol.records._codec")
    except ImportError as error:
        lacks(f"the compiled codec is not built here: {error}")


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return compiled_codec()


@pytest.fixture(scope="session", params=["pure", "compiled"])
def variant(request: pytest.FixtureRequest) -> ModuleType:
    return record if request.param == "pure" else compiled_codec()
