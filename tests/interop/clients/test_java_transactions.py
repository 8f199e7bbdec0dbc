"""Kafka's own producer and consumer in transactions, with each level of `transaction.version`."""

import json

import pytest

from interop.kafka_node import java

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

READ = [f"v{number}" for number in range(40) if number % 5 != 4]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_records_are_doubled_exactly_once_and_a_zombie_is_fenced(bootstrap: str, java_tools: None, level: int) -> None:
    lines = java("warmlog.interop.Transactions", bootstrap, str(level)).splitlines()
    seen = json.loads(next(line for line in lines if line.startswith("{")))
    assert seen["committed"] == sorted([*(2 * value for value in READ), "successor"])
    assert seen["all"] > len(seen["committed"])  # those of the aborted round and of the zombie
    assert seen["zombie"] in {"ProducerFencedException", "InvalidProducerEpochException"}
    assert seen["state"] == "CompleteCommit"
    assert seen["epoch"] == 0 if level < 2 else seen["epoch"] > 1  # every end raises it
    assert seen["offsets"] > 0
