"""Records to copy."""

import pytest

from warmlog.client.blocking import Client


@pytest.fixture(scope="module")
def source(client: Client) -> None:
    """Produce 600 records to the topic "source" of two partitions."""
    client.create_topic("source", partitions=2)
    client.produce_many("source", [(b"k%d" % (at % 5), b"%d" % at) for at in range(600)])
