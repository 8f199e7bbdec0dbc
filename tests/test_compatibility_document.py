"""docs/kafka-compatibility.md says what the code does, and what is said there of Kafka is what Kafka 4.3.1 told."""

import json
import re

import pytest

from broker.settings.live import DYNAMIC_SETTINGS
from broker.settings.topics import SETTING_NAMES
from interop.compatibility_document import BLOCKS, DOCUMENT, NOT_SERVED, SERVED, generated
from protocol.kafka.api import APIS, Api

# of org.apache.kafka.server.config.QuotaConfig: not told of by DescribeConfigs unless they are set
ONLY_DYNAMIC = {"replica.alter.log.dirs.io.max.bytes.per.second"}
KAFKA = json.loads(SERVED.read_text())
PAGE = DOCUMENT.read_text()


def test_the_tables_are_those_of_the_code() -> None:
    assert generated(PAGE) == PAGE, "run `make docs`"
    assert re.findall(r"<!-- generated: ([\w-]+) -->\n\|", PAGE) == list(BLOCKS)


def test_every_api_of_kafka_is_served_or_said_not_to_be() -> None:
    served = {api.key: api.name for api in APIS}
    assert served.keys() | NOT_SERVED.keys() == set(map(int, KAFKA["apis"]))
    assert not served.keys() & NOT_SERVED.keys()


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_no_version_is_served_that_kafka_does_not_serve(api: Api) -> None:
    first, last = KAFKA["apis"][str(api.key)]
    assert first <= api.first <= api.last <= last


def test_topics_have_the_settings_that_kafkas_have() -> None:
    assert set(SETTING_NAMES) == set(KAFKA["topic"])


def test_what_can_be_changed_while_the_broker_runs_can_be_changed_in_kafka() -> None:
    theirs = {name for name, setting in KAFKA["broker"].items() if not setting["read_only"]}
    assert {name for name in DYNAMIC_SETTINGS if not name.startswith("warmlog.")} <= theirs | ONLY_DYNAMIC
