"""Every row of the table is served: each API in each of its versions reaches a handler and gets a reply."""

import logging
from pathlib import Path

import pytest
import trio

from tests.broker.clients import running
from tests.broker.kafka_client import kafka_client
from warmlog.protocol.kafka.api import APIS, Api

ANSWER_S = 30
# Those that wait for others, have no reply, or cannot be written where all fields are left at their defaults.
GIVEN = {
    "Produce": {"acks": 1, "timeout_ms": 1000, "topic_data": ()},
    "JoinGroup": {"group_id": "g", "protocol_type": "consumer", "session_timeout_ms": 1},
    "StreamsGroupTopologyDescriptionUpdate": {"topology_description": {"subtopologies": (), "global_stores": ()}},
}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_each_version_is_answered_and_nothing_fails(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with running(tmp_path) as broker:
        for version in range(api.first, api.last + 1):
            with trio.fail_after(ANSWER_S):
                async with kafka_client(broker.addresses.kafka) as client:
                    await client.ask(api.name, version, **GIVEN.get(api.name, {}))
    assert not caplog.records
