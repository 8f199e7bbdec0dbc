"""librdkafka's own test suite against three brokers, in its quick form."""

from collections.abc import Mapping

import pytest

from interop.kafka_node import MissingToolError
from interop.librdkafka_suite import listed, run
from interop.warmlog_nodes import WarmlogNodes
from tests.requires import lacks

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def outcomes(nodes: WarmlogNodes, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    try:
        return run(nodes.bootstrap, tmp_path_factory.mktemp("suite"))
    except MissingToolError as error:
        lacks(error)


@pytest.mark.parametrize("number", listed())
def test_a_test_of_librdkafka_passes(outcomes: Mapping[str, str], number: str) -> None:
    parts = {name: outcome for name, outcome in outcomes.items() if name.startswith(number)}
    assert "PASSED" in parts.values()
    assert "FAILED" not in parts.values()
