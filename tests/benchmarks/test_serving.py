"""The loads of many clients and wide requests against a broker, in small."""

from pathlib import Path

import pytest

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import LoadError
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.servers.contestants import ECHO_BY_TURNS, Broker
from benchmarks.servers.kafka import start_warmlog_for_kafka
from benchmarks.serving.loads import FILLED, Crowd, WideFetches, WideRequests, check_fetch, fetch, session_cost
from benchmarks.workloads.native import SMALL

WARMLOG = Broker(name="warmlog", start=start_warmlog_for_kafka, wire=KafkaWire())


@pytest.fixture
def conditions(tmp_path: Path) -> Conditions:
    return Conditions(seconds=0.1, warmup_s=0.02, scale=0.02, directory=tmp_path, kept=tmp_path)


@pytest.mark.parametrize("version", [3, 7, 11])
def test_a_crowd_appends_to_all_its_partitions_in_any_version(conditions: Conditions, version: int) -> None:
    crowd = Crowd(connections=100, version=version, partitions=3)
    assert crowd.measure(WARMLOG, conditions)["requests_per_s"] > 0


def test_an_echo_by_turns_answers_the_same_crowd(conditions: Conditions) -> None:
    crowd = Crowd(connections=200, version=11)
    assert crowd.measure(ECHO_BY_TURNS, conditions)["requests_per_s"] > 0


@pytest.mark.parametrize(("server", "least_bytes"), [(WARMLOG, 3 * FILLED * len(SMALL)), (ECHO_BY_TURNS, 1)])
def test_fetches_of_several_partitions_count_all_their_records(
    conditions: Conditions, server: Broker, least_bytes: int
) -> None:
    figures = WideFetches(connections=100, partitions=3).measure(server, conditions)
    assert figures["mb_per_s"] * 1e6 / figures["requests_per_s"] >= least_bytes
    assert figures["cpu_us"] == pytest.approx(3 * FILLED * figures["cpu_us_record"])


def test_wide_requests_of_every_kind_are_answered(conditions: Conditions) -> None:
    figures: Figures = WideRequests().measure(WARMLOG, conditions)
    assert set(figures) == {f"{n}_us" for n in ("produce", "produce_v7", "list_offsets", "offset_commit", "metadata")}


def test_wide_fetches_with_and_without_a_session_are_answered(conditions: Conditions) -> None:
    figures = WideRequests().measure_fetches(WARMLOG, conditions)
    assert set(figures) == {"fetch_us", "fetch_active_us", "session_us", "session_active_us"}


def test_a_fetch_that_failed_ends_the_measurement() -> None:
    with pytest.raises(LoadError, match="error 70"):
        check_fetch(bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 70, 0, 0, 0, 0]))


def test_a_session_goes_on_from_epoch_to_epoch(conditions: Conditions) -> None:
    with WARMLOG.serving(conditions, 4) as (server, topic):
        assert session_cost(server, topic, 4, (), conditions) >= 0


def test_requests_name_each_partition_with_its_offset() -> None:
    assert len(fetch("t", {0: 1, 1: 2})) > len(fetch("t", {0: 1})) > len(fetch("t", {}))
