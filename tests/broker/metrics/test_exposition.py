"""The text that Prometheus scrapes."""

from warmlog.broker.metrics.registry import Metrics


def test_a_metric_declared_after_a_scrape_is_in_the_next_one() -> None:
    metrics = Metrics()
    assert b"\nlater 3.0" not in metrics.scrape()[1]
    metrics.gauge("later", "Declared later.", lambda: [((), 3)])
    assert b"\nlater 3.0\n" in metrics.scrape()[1]


def test_counters_gauges_and_histograms_have_their_types_and_labels() -> None:
    metrics = Metrics()
    metrics.counter("read_total", "A counter.", lambda: [(("a",), 5)], ("name",))
    metrics.request_seconds.labels("Fetch", "kafka").observe(0.2)
    kind, body = metrics.scrape()
    assert kind.startswith("text/plain")
    assert b'# TYPE read_total counter\nread_total{name="a"} 5.0\n' in body
    assert b"# TYPE warmlog_request_seconds histogram\n" in body
    assert b'warmlog_request_seconds_bucket{api="Fetch",le="0.25",listener="kafka"} 1.0\n' in body
    assert b'warmlog_request_seconds_sum{api="Fetch",listener="kafka"} 0.2\n' in body


def test_the_process_is_described_by_prometheus_clients_own_metrics() -> None:
    assert b"\nprocess_resident_memory_bytes " in Metrics().scrape()[1]


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    metrics = Metrics()
    metrics.gauge("lag", "A gauge.", lambda: [(("\x1b[31mred\nline", "plainé"), 1)], ("group", "topic"))
    assert rb'lag{group="\\x1b[31mred\\nline",topic="plain' in metrics.scrape()[1]
