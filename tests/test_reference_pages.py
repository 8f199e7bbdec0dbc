"""Check the reference pages: generated from the code, complete, and true of Kafka 4.3.1 and of a running broker."""

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from interop.reference_pages import BLOCKS, DOCS, PAGES, SERVED, declared_metrics, generated, is_of_cluster
from tests.issuer import Issuer
from warmlog import Client
from warmlog.broker.settings.live import DYNAMIC_SETTINGS
from warmlog.broker.settings.settings import FIELDS
from warmlog.broker.settings.topics import SETTING_NAMES
from warmlog.protocol.kafka.api import APIS, Api
from warmlog.testing import Broker

# org.apache.kafka.server.config.QuotaConfig: DescribeConfigs reports them only if they are set
ONLY_DYNAMIC = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
KAFKA = json.loads(SERVED.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_generated_parts_are_those_of_the_code(page: Path) -> None:
    text = page.read_text()
    assert generated(text) == text, "run `make docs`"
    assert tuple(re.findall(r"<!-- generated: ([\w-]+) -->\n[|#]", text)) == PAGES[page]


def test_an_edit_of_a_generated_part_is_found() -> None:
    text = (DOCS / "settings.md").read_text()
    edited = text.replace("| `log.dirs` |", "| `log.directories` |")
    assert edited != text
    assert generated(edited) == text


def test_every_generated_block_is_on_a_page() -> None:
    assert sorted(block for blocks in PAGES.values() for block in blocks) == sorted(BLOCKS)


def test_every_setting_is_on_the_page_of_settings() -> None:
    text = (DOCS / "settings.md").read_text()
    assert [name for name in (*FIELDS, *SETTING_NAMES) if f"\n| `{name}` |" not in text] == []


def test_every_metric_of_a_broker_is_declared_with_its_type_labels_and_help(tmp_path: Path) -> None:
    issuer = Issuer()
    (tmp_path / "keys.json").write_bytes(issuer.jwks)
    declared = {
        metric.name.removesuffix("_total"): metric for metric in declared_metrics() if not is_of_cluster(metric)
    }
    settings = {
        "warmlog.metrics.partitions": "true",
        "warmlog.audit.file": tmp_path / "audit.jsonl",
        "warmlog.audit.topic": "true",
        "warmlog.mirror.from": "127.0.0.1:1",  # nobody is there
        "group.initial.rebalance.delay.ms": 0,
        "listeners": "PLAINTEXT://127.0.0.1:0,NATIVE://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        **issuer.settings(),
        "sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "keys.json").as_uri(),
    }
    with Broker(settings=settings) as broker, Client(broker.native) as client:
        client.produce("orders", value=b"one")
        with client.consume("orders", group="readers", until_end=True) as records:
            assert len(list(records)) == 1
        with urllib.request.urlopen(f"http://{broker.http}/metrics") as reply:
            page = list(text_string_to_metric_families(reply.read().decode()))
    exported = {family.name: family for family in page if family.name.startswith("warmlog_")}
    assert exported.keys() == declared.keys()
    for name, family in exported.items():
        metric = declared[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), name


def test_every_api_of_kafka_is_served() -> None:
    assert {api.key for api in APIS} == set(map(int, KAFKA["apis"]))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_no_version_is_served_that_kafka_does_not_serve(api: Api) -> None:
    first, last = KAFKA["apis"][str(api.key)]
    assert first <= api.first <= api.last <= last


def test_topics_have_the_settings_of_kafkas_topics() -> None:
    assert set(SETTING_NAMES) == set(KAFKA["topic"])


def test_settings_that_can_be_changed_at_run_time_can_be_changed_in_kafka() -> None:
    theirs = {name for name, setting in KAFKA["broker"].items() if not setting["read_only"]}
    assert {name for name in DYNAMIC_SETTINGS if not name.startswith("warmlog.")} <= theirs | ONLY_DYNAMIC
