"""librdkafka's own test suite against three brokers, in its quick form."""

from collections.abc import Mapping

import pytest

from interop.kafka_node import MissingToolError
from interop.librdkafka_suite import SHARE_VERSION, listed, run
from interop.warmlog_nodes import WarmlogNodes
from tests.requires import lacks

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(1200)]


SHARE = listed("share.txt")


@pytest.fixture(scope="module")
def share_outcomes(nodes: WarmlogNodes, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    try:
        return run(nodes.bootstrap, tmp_path_factory.mktemp("share"), SHARE, SHARE_VERSION)
    except MissingToolError as error:
        lacks(error)


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


@pytest.mark.parametrize("number", SHARE)
def test_a_test_of_share_consumers_passes(share_outcomes: Mapping[str, str], number: str) -> None:
    parts = {name: outcome for name, outcome in share_outcomes.items() if name.startswith(number)}
    assert "PASSED" in parts.values()
    assert "FAILED" not in parts.values()
