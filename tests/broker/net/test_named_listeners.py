"""Several listeners of a broker: each client is sent to the addresses of the listener that it came by."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.clients import running
from warmlog.broker.app import run
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.start_errors import StartError
from warmlog.testing import Broker

LISTENERS: Mapping[str, object] = {
    "listeners": "INTERNAL://127.0.0.1:0,OUTSIDE://127.0.0.1:0,HERE://127.0.0.1:0,NATIVE://127.0.0.1:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:PLAINTEXT,HERE:PLAINTEXT",
    "advertised.listeners": "INTERNAL://internal.example:19092,OUTSIDE://outside.example:29092",
}


def brokers_seen_at(address: str) -> list[str]:
    metadata = AdminClient({"bootstrap.servers": address}).list_topics(timeout=30)
    return [f"{each.host}:{each.port}" for each in metadata.brokers.values()]


def test_metadata_names_the_addresses_of_the_same_listener() -> None:
    with Broker(settings=LISTENERS) as broker:
        assert brokers_seen_at(broker.address("internal")) == ["internal.example:19092"]
        assert brokers_seen_at(broker.address("OUTSIDE")) == ["outside.example:29092"]
        assert brokers_seen_at(broker.address("here")) == [broker.address("here")]
        assert broker.kafka == broker.address("internal")
        assert broker.native == broker.address("native")


async def test_metrics_are_labelled_with_the_name_of_the_listener(tmp_path: Path) -> None:
    async with running(tmp_path, LISTENERS, http="127.0.0.1:0") as broker:
        await broker.connect()
        samples = await broker.scrape()
    assert samples['warmlog_connections{listener="native"}'] == 1
    assert samples['warmlog_connections{listener="outside"}'] == 0
    names = [word.partition("=")[0] for word in broker.addresses.line().split()]
    assert names == ["ready", "kafka", "native", "http", "internal", "outside", "here"]


def test_addresses_of_the_command_line_conflict_with_named_listeners(tmp_path: Path) -> None:
    settings = load_settings(assignments=[f"{name}={value}" for name, value in LISTENERS.items()], data_dir=tmp_path)
    with pytest.raises(StartError, match="--kafka: cannot be combined with the setting `listeners`"):
        run(settings, kafka="127.0.0.1:0", native=None, http="none", ready=print)
