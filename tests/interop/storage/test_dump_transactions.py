"""`__transaction_state` as warmlog writes it, decoded by Kafka's DumpLogSegments."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from interop.kafka_node import dump
from tests.interop.storage.judging import files_below
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

RECORD = re.compile(r"^\| offset: (\d+) .* key: (\{.*?\}) payload: (.*)$", re.MULTILINE)
TIMEOUT_MS = 12_345
#: States as Kafka numbers them; of the pairs the first is that of a commit.
EMPTY, ONGOING = 0, 1
PREPARED, COMPLETE = (2, 3), (4, 5)


def end_transactions(bootstrap: str) -> None:
    """End one transaction by commit and one by abort, and leave a third open."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "bank", "transaction.timeout.ms": TIMEOUT_MS}
    )
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, producer.flush):
        producer.begin_transaction()
        producer.produce("transfers", b"1")
        producer.flush()
        end()


def test_kafka_decodes_every_state_of_a_transaction(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path, settings={"transaction.state.log.num.partitions": 1}) as broker:
        end_transactions(broker.kafka)
    (log,) = files_below(tmp_path / "__transaction_state-0", ".log")
    (said,) = dump([["--transaction-log-decoder", "--files", log]])
    assert said.findings() == []
    assert "isvalid: false" not in said.output
    states: list[int] = []
    for number, (offset, key, payload) in enumerate(RECORD.findall(said.output)):
        assert int(offset) == number
        assert json.loads(key) == {"type": "0", "data": {"transactionalId": "bank"}}
        data = json.loads(payload)["data"]
        states.append(data["transactionStatus"])
        open_in = [{"topic": "transfers", "partitionIds": [0]}] if states[-1] in {ONGOING, *PREPARED} else []
        assert (data["transactionPartitions"] or []) == open_in
        assert (data["producerId"], data["producerEpoch"]) == (0, 0)
        assert data["transactionTimeoutMs"] == TIMEOUT_MS
        assert (data["transactionStartTimestampMs"] == -1) == (states[-1] == EMPTY)
        assert data["transactionLastUpdateTimestampMs"] >= data["transactionStartTimestampMs"]
    commit, abort = zip(PREPARED, COMPLETE, strict=True)
    assert states == [EMPTY, ONGOING, *commit, ONGOING, *abort, ONGOING]
