"""A broker for a module of tests, and names for the topic and group of each test."""

from collections.abc import Iterator

import pytest

from tests.warmlog.client.groups.consuming import SETTINGS
from warmlog.testing import Broker


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Names of a topic and a group for this test only, in the module's broker."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t-{name}", f"g-{name}"
