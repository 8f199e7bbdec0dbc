"""What dashboards and alerts ask for is what a broker has: by its own page, without Prometheus."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.files import MIRROR_DASHBOARDS, NODE_DASHBOARDS, ROOT, asked, mirror_alerts, names, node_alerts
from tests.deploy.monitoring.traffic import limited_client
from warmlog import Client
from warmlog.testing import Broker

# What scripts may count on: see docs/monitoring.md.
FIXED = (
    "warmlog_request_seconds_count", "warmlog_request_stage_seconds_count", "warmlog_bytes_in_total",
    "warmlog_bytes_out_total", "warmlog_page_faults_total", "warmlog_process_major_faults_total",
    "warmlog_cold_pages_total", "warmlog_open_files", "warmlog_index_lookups_total",
    "warmlog_index_lookup_seconds_count",
    "warmlog_cold_read_bytes_total", "warmlog_cold_read_seconds_count", "warmlog_loop_stall_seconds_count",
    "warmlog_segments", "warmlog_log_bytes", "warmlog_rolls_total", "warmlog_fsync_seconds_count",
    "warmlog_unflushed_bytes", "warmlog_recovery_seconds", "warmlog_truncated_bytes_total", "warmlog_group_lag",
    "warmlog_connections", "warmlog_index_mappings", "warmlog_cleaner_heartbeat_age_seconds",
    "warmlog_cleaner_runs_total", "warmlog_disk_free_bytes", "warmlog_disk_total_bytes",
)  # fmt: skip
LABELS = {
    "warmlog_request_seconds_count": {"api", "listener"},
    "warmlog_request_stage_seconds_count": {"api", "listener", "stage"},
    "warmlog_bytes_out_total": {"path"},
    "warmlog_page_faults_total": {"kind", "where"},
    "warmlog_cold_pages_total": {"where"},
    "warmlog_index_lookups_total": {"section", "index"},
    "warmlog_rolls_total": {"reason"},
}


@pytest.fixture(scope="module")
def scraped() -> dict[str, set[str]]:
    """Name of each sample to the names of its labels, of a broker with a group and a throttled client."""
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Client(broker.native) as client:
            client.produce("orders", value=b"one")
            with client.consume("orders", group="readers", until_end=True) as records:
                assert len(list(records)) == 1
        limited_client(broker).list_topics(timeout=30)
        with urllib.request.urlopen(f"http://{broker.http}/metrics") as reply:
            families = text_string_to_metric_families(reply.read().decode())
            return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_names_that_scripts_rely_on(scraped: dict[str, set[str]]) -> None:
    assert [name for name in FIXED if name not in scraped] == []
    assert {name: scraped[name] for name in LABELS} == LABELS


def test_what_mirrors_are_asked_for_is_documented() -> None:
    documented = (ROOT / "docs" / "metrics.md").read_text()
    wanted = {name for _, expression in asked(MIRROR_DASHBOARDS) for name in names(expression)}
    wanted |= {name for rule in mirror_alerts() for name in names(rule["expr"])}
    assert len(wanted) >= 5
    assert [name for name in wanted if f"| `{name}` |" not in documented] == []


def test_everything_that_is_asked_for_is_there(scraped: dict[str, set[str]]) -> None:
    wanted = {name for _, expression in asked(NODE_DASHBOARDS) for name in names(expression)}
    wanted |= {name for rule in node_alerts() for name in names(rule["expr"])}
    assert wanted - scraped.keys() - {"up"} == set()
