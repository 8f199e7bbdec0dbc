"""Kafka's own producer and consumer in transactions, of two releases, with each level of `transaction.version`."""

import json

import pytest

from interop.kafka_node import KAFKA_VERSION, WIRE_VERSION, java

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

READ = [f"v{number}" for number in range(40) if number % 5 != 4]
#: A client from before KIP-890: it adds partitions itself and ends transactions without a new epoch at every level.
OLDER = "3.7.2"


@pytest.mark.parametrize(
    ("version", "level"), [(KAFKA_VERSION, 0), (KAFKA_VERSION, 1), (KAFKA_VERSION, 2), (WIRE_VERSION, 2), (OLDER, 2)]
)
def test_records_are_doubled_exactly_once_and_a_zombie_is_fenced(
    bootstrap: str, java_tools: None, version: str, level: int
) -> None:
    arguments = (bootstrap, str(level), f"java-{version}-level-{level}")
    lines = java("warmlog.interop.Transactions", *arguments, version=version).splitlines()
    seen = json.loads(next(line for line in lines if line.startswith("{")))
    assert seen["committed"] == sorted([*(2 * value for value in READ), "successor"])
    assert seen["all"] > len(seen["committed"])  # those of the aborted round and of the zombie
    assert seen["zombie"] in {"ProducerFencedException", "InvalidProducerEpochException"}
    assert seen["state"] == "CompleteCommit"
    raised = level == 2 and version != OLDER  # with every end of a transaction
    assert seen["epoch"] > 1 if raised else seen["epoch"] == 0
    assert seen["offsets"] > 0
