"""What producers wait for: the times of threads are the kernel's, and what clients and brokers print is read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.load.confluent import life
from benchmarks.questions.clients.producer_waits import (
    STAGES,
    TITLES,
    count_batches,
    in_flight,
    parsed,
    produce_seconds,
    shares,
    start_warmlog,
    table,
)
from benchmarks.questions.clients.producers import Load, go_command, java_figures
from benchmarks.questions.clients.thread_times import Observed, ThreadTime, observe
from tests.broker.clients import batch
from tests.documents import ROOT

COMPUTE_S = 0.4
# A thread that computes, and one that waits for it.
PROGRAM = f"""
import ctypes, sys, threading, time
def name(text):
    ctypes.CDLL(None).prctl(15, text, 0, 0, 0)
def compute():
    name(b"computes")
    until = time.thread_time() + {COMPUTE_S}
    while time.thread_time() < until:
        pass
name(b"waits")
thread = threading.Thread(target=compute)
thread.start()
thread.join()
"""
JAVA = """\
1000000 records sent, 251762.336354 records/sec (24.01 MB/sec), 332.56 ms avg latency, 599.00 ms max latency, \
307 ms 50th, 547 ms 95th, 589 ms 99th, 599 ms 99.9th.

Metric Name                                                                                   Value
producer-metrics:record-queue-time-avg:{client-id=perf-producer-client}                     : 330.006
producer-metrics:request-latency-avg:{client-id=perf-producer-client}                       : 2.459
producer-node-metrics:request-latency-avg:{client-id=perf-producer-client, node-id=node-1}  : 9.000
"""


def test_a_thread_that_computes_runs_and_one_that_waits_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], text=True) as process:
        observed = observe(process, lambda threads: any(name == "computes" for _, name in threads))
    assert process.returncode == 0
    computes, waits = observed.named("computes"), observed.named("waits")
    assert waits.run_s < computes.run_s
    assert observed.named("").run_s == pytest.approx(computes.run_s + waits.run_s)


def test_a_process_that_was_not_seen_at_work_is_an_error() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", ""], text=True) as process,
        pytest.raises(ValueError, match="give it more records"),
    ):
        observe(process, lambda threads: False)


def test_shares_of_a_thread_add_up_to_the_whole_time() -> None:
    threads = {
        (1, "java"): ThreadTime(1.0, 0.5),
        (2, "kafka-producer-"): ThreadTime(0.5, 0.25),
        (3, "C2 CompilerThre"): ThreadTime(2.0, 1.0),
    }
    figures = shares(Load(client="java", records=1), Observed(4.0, threads))
    assert [figures[f"application_{state}"] for state in ("run", "ready", "blocked")] == [0.25, 0.125, 0.625]
    assert [figures[f"sender_{state}"] for state in ("run", "ready", "blocked")] == [0.125, 0.0625, 0.8125]
    assert (figures["client_cores"], figures["client_ready"]) == (3.5 / 4, 1.75 / 4)


def test_a_go_client_has_no_fixed_threads_and_takes_no_settings() -> None:
    figures = shares(Load(client="sarama", records=1), Observed(2.0, {(1, "sarama"): ThreadTime(1.0, 0.5)}))
    assert figures == {"client_cores": 0.5, "client_ready": 0.25}
    with pytest.raises(ValueError, match=r"sarama runs with its default settings only: remove linger\.ms=0"):
        go_command(Load(client="sarama", records=1, settings=("linger.ms=0",)), "127.0.0.1:1", "t")


def test_java_s_own_metrics_are_those_of_the_producer_and_not_of_a_node() -> None:
    assert java_figures(JAVA) == {"records_per_s": 251762.336354, "queue_ms": 330.006, "request_ms": 2.459}
    without_replies = JAVA.replace("2.459", "NaN").replace("9.000", "NaN")
    assert java_figures(without_replies) == {"records_per_s": 251762.336354, "queue_ms": 330.006}
    with pytest.raises(ValueError, match="not the output of ProducerPerformance"):
        java_figures("Exception in thread main\n")


def test_the_parts_of_a_record_s_life_add_up_to_its_latency() -> None:
    def broker(records: int, requests: int, *, has_produced: bool = True) -> dict[str, object]:
        return {
            "req": {"Produce": int(has_produced)},
            "int_latency": {"sum": 2_000 * records, "cnt": records},
            "outbuf_latency": {"sum": 100 * requests, "cnt": requests},
            "rtt": {"sum": 900 * requests, "cnt": requests},
        }

    intervals = [
        {"brokers": {"127.0.0.1:1/1": broker(100, 1), "bootstrap": broker(50, 50, has_produced=False)}},
        {"brokers": {"127.0.0.1:1/1": broker(300, 3)}},
    ]
    assert life(intervals, 10.0) == {"queue_ms": 2.0, "socket_ms": 0.1, "request_ms": 0.9, "report_ms": 7.0}


def test_requests_in_flight_are_their_rate_times_their_latency() -> None:
    assert in_flight({"records_per_s": 200_000.0, "request_ms": 2.0}, 1_000, 10) == {"in_flight": 4.0}
    assert in_flight({"records_per_s": 200_000.0}, 1_000, 10) == {}


def test_only_produce_requests_count_of_the_broker_s_metrics() -> None:
    text = """\
warmlog_request_seconds_sum{api="produce",listener="kafka"} 1.5
warmlog_request_seconds_count{api="produce",listener="kafka"} 10.0
warmlog_request_seconds_sum{api="metadata",listener="kafka"} 7.0
warmlog_request_stage_seconds_sum{api="produce",listener="kafka",stage="queue"} 0.5
warmlog_request_stage_seconds_count{api="produce",listener="kafka",stage="queue"} 10.0
warmlog_request_stage_seconds_sum{api="produce",listener="native",stage="queue"} 0.25
"""
    assert produce_seconds(text) == {"sum": 1.5, "count": 10.0, "queue": 0.75}


def test_a_table_has_the_rows_that_a_server_has() -> None:
    rounds = [
        {"warmlog": {"records_per_s": rate, "broker_ms": 0.5}, "Kafka": {"records_per_s": 2 * rate}}
        for rate in (3000.0, 1000.0, 2000.0)
    ]
    assert table(rounds).splitlines() == [
        "| | warmlog | Kafka |",
        "|---|---|---|",
        "| records/s | 2,000 (1,000 to 3,000) | 4,000 (2,000 to 6,000) |",
        "| ms at the broker | 0.5 (0.5 to 0.5) |  |",
    ]


def test_batches_of_a_segment_are_counted(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(b"")
    assert count_batches(segment) == 0
    segment.write_bytes(batch(b"1", b"2") + batch(b"3") + batch(b"4")[:-1])
    assert count_batches(segment) == 2


def test_a_real_producer_and_a_real_broker_are_observed(tmp_path: Path) -> None:
    load = Load(client="confluent", records=300_000, settings=("linger.ms=1",))
    with start_warmlog("warmlog", tmp_path / "data", ()) as server:
        figures = server.measure(load, ())
    assert figures.keys() <= TITLES.keys()
    assert figures.keys() >= {"queue_ms", "report_ms", "broker_ms", *STAGES, "in_flight", "sender_blocked"}
    assert 0 < figures["broker_ms"] <= sum(figures[stage] for stage in STAGES) * 1.1
    assert 1 < figures["batch_records"] <= 10_000, "librdkafka's batch.num.messages"


def test_the_command_of_the_page_is_one_of_this_program() -> None:
    page = (ROOT / "docs" / "producer-waits.md").read_text()
    [arguments] = re.findall(r"^python -m benchmarks\.questions\.clients\.producer_waits(.*)$", page, re.MULTILINE)
    assert parsed(arguments.split()).also == ["warmlog.loop.write.max.bytes=65536"]
