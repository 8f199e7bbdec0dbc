"""A real Prometheus with deploy/prometheus.yml scrapes a real broker that has work, and evaluates every expression."""

import re
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path

import pytest

from tests.deploy.conftest import Tool
from tests.deploy.files import NODE_DASHBOARDS, alerts, asked, node_alerts, selectors
from tests.deploy.monitoring.prometheus import Prometheus, prometheus, until, value_of
from tests.deploy.monitoring.traffic import SETTINGS, can_evict, traffic_against
from warmlog.testing import Broker

pytestmark = pytest.mark.interop

# Quantiles and quotients of what does not happen where files cannot be put out of memory.
COLD = re.compile("cold", re.IGNORECASE)
NEVER_ON_A_HEALTHY_BROKER = {
    "WarmlogDown", "WarmlogNobodyScraped", "WarmlogNotReady", "WarmlogRestarts", "WarmlogBytesCut",
    "WarmlogDirectoryOffline", "WarmlogLogFailed", "WarmlogLogsCameBack", "WarmlogLogUnreadable", "WarmlogDiskFull",
    "WarmlogCleanerDead",
    "WarmlogCleanerFails", "WarmlogLogUncleanable", "WarmlogCleanerBehind", "WarmlogConnectionsRefused",
}  # fmt: skip


@pytest.fixture(scope="module")
def watched(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Callable[[], None]]]:
    """A broker, Prometheus over it, and what makes a little more traffic."""
    path = tool("prometheus")
    with (
        Broker(settings=SETTINGS) as broker,
        prometheus(path, tmp_path_factory.mktemp("prometheus") / "run", [broker.http]) as server,
        traffic_against(broker) as traffic,
    ):
        yield server, traffic.burst


def test_every_graph_has_data(watched: tuple[Prometheus, Callable[[], None]], tmp_path: Path) -> None:
    server, burst = watched
    is_cold_possible = can_evict(tmp_path)
    missing = list(asked(NODE_DASHBOARDS))

    def all_there() -> bool:
        missing[:] = [(panel, expression) for panel, expression in missing if not there(panel, expression)]
        return not missing

    def there(panel: str, expression: str) -> bool:
        values = value_of(server, expression)
        if not values:
            return False
        return not all(map(isnan, values)) or (not is_cold_possible and COLD.search(panel + expression) is not None)

    until(all_there, burst, lambda: missing)


def test_the_work_is_seen(watched: tuple[Prometheus, Callable[[], None]], tmp_path: Path) -> None:
    server, burst = watched
    grown = [
        "warmlog_bytes_in_total", "warmlog_bytes_out_total", "warmlog_fsync_seconds_count",
        "warmlog_cleaner_runs_total",
        "warmlog_cleaner_read_bytes_total", "warmlog_removed_segments_total", "warmlog_rolls_total",
        "warmlog_index_lookups_total", "warmlog_group_rebalances_total", 'warmlog_request_seconds_count{api="fetch"}',
        'warmlog_request_seconds_count{api="offset_commit"}', 'warmlog_request_seconds_count{api="heartbeat"}',
    ]  # fmt: skip
    if can_evict(tmp_path):
        grown += ["warmlog_cold_read_bytes_total", 'warmlog_cold_pages_total{where="log"}']

    def still() -> list[str]:
        return [metric for metric in grown if not any(value_of(server, f"sum ({metric}) > 0"))]

    until(lambda: not still(), burst, still)


def test_every_alert_is_evaluated_over_metrics_that_there_are(
    watched: tuple[Prometheus, Callable[[], None]],
) -> None:
    server, burst = watched
    wanted = {selector for rule in node_alerts() for selector in selectors(rule["expr"])}

    def missing() -> list[str]:
        return [selector for selector in wanted if not value_of(server, selector)]

    until(lambda: not missing(), burst, missing)
    until(lambda: all(rule["health"] == "ok" for rule in server.rules()), burst, server.rules)
    assert {rule["name"] for rule in server.rules()} == {rule["alert"] for rule in alerts()}

    def unwell() -> dict[str, str]:
        states = {rule["name"]: rule["state"] for rule in server.rules()}
        return {name: states[name] for name in NEVER_ON_A_HEALTHY_BROKER if states[name] != "inactive"}

    until(lambda: not unwell(), burst, unwell)  # nobody was scraped when it began


def test_a_metric_that_is_not_there_is_found_out(watched: tuple[Prometheus, Callable[[], None]]) -> None:
    server, burst = watched
    until(lambda: bool(value_of(server, "up")), burst, lambda: "nothing scraped")
    assert value_of(server, "sum (rate(warmlog_no_such_thing_total[$__rate_interval]))") == []


def test_a_broker_that_is_gone_is_told(tool: Tool, tmp_path: Path) -> None:
    with Broker() as broker, prometheus(tool("prometheus"), tmp_path / "run", [broker.http]) as server:
        until(lambda: value_of(server, "up") == [1], lambda: None, lambda: "never scraped")
        broker.stop()
        pending = 'ALERTS{alertname="WarmlogDown",severity="critical"}'
        until(lambda: value_of(server, pending) == [1], lambda: None, server.rules)
