"""`--nodes auto`: what the directory holds decides first, then the number of cores."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warmlog.cli.nodes.running import FREE, LIMIT_S, nodes, refused
from warmlog.broker.cluster.local import STORE
from warmlog.broker.settings.settings import Settings
from warmlog.cli.nodes.automatic import automatic_count
from warmlog.cli.nodes.cores import available_cores
from warmlog.cli.nodes.plan import NODES


def chosen(directory: Path, cores: int, caplog: pytest.LogCaptureFixture, node_id: int = 1) -> tuple[int | None, str]:
    """Return the number of nodes, and the line that is logged."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        count = automatic_count(Settings(log_dirs=str(directory), node_id=node_id), cores)
    (record,) = caplog.records
    return count, record.getMessage()


def test_a_new_directory_gets_a_node_for_each_core(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(tmp_path, 4, caplog) == (4, "--nodes auto: 4 nodes, since 4 cores are available")
    assert chosen(tmp_path, 100, caplog)[0] == 64


def test_a_new_directory_on_one_core_gets_a_standalone_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(tmp_path, 1, caplog) == (None, "--nodes auto: a standalone broker, since 1 core is available")


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_a_directory_keeps_its_nodes(tmp_path: Path, caplog: pytest.LogCaptureFixture, cores: int) -> None:
    for number in (7, 8, 9):
        (tmp_path / NODES / str(number)).mkdir(parents=True)
    count, line = chosen(tmp_path, cores, caplog, node_id=7)
    assert count == 3
    assert f"{tmp_path} holds 3 nodes, which it keeps" in line
    assert ("give their number: --nodes 8" in line) is (cores == 8)


def test_a_store_without_nodes_is_that_of_a_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / STORE).touch()
    assert chosen(tmp_path, 1, caplog)[0] == 1
    assert chosen(tmp_path, 2, caplog)[0] == 2


@pytest.mark.parametrize("cores", [1, 4])
def test_data_of_a_standalone_broker_is_served_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cores: int
) -> None:
    (tmp_path / "meta.properties").touch()
    count, line = chosen(tmp_path, cores, caplog)
    assert count is None
    assert "has the data of a standalone broker, which serves it" in line
    assert ("nodes need another --data-dir" in line) is (cores > 1)


def test_brokers_on_etcd_are_no_nodes(tmp_path: Path) -> None:
    errors = refused(
        tmp_path, "--nodes", "auto", "--set", "warmlog.cluster.etcd=http://127.0.0.1:1", "--set", "node.id=2"
    )
    assert "one by one, without --nodes" in errors


@pytest.mark.parametrize("given", ["Auto", "0", "65", "-1", "two"])
def test_another_word_is_no_number_of_nodes(tmp_path: Path, given: str) -> None:
    errors = refused(tmp_path, "--nodes", given)
    assert "Invalid value for '--nodes'" in errors
    assert not (tmp_path / STORE).exists()


def first_lines(directory: Path, *options: str, cores: int = 1) -> tuple[list[str], str]:
    """Serve on these many cores until ready, then stop; return what was printed, and the log."""
    chosen_cores = set(sorted(os.sched_getaffinity(0))[:cores])
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory), *FREE, *options]
    program = f"import os, sys; os.sched_setaffinity(0, {chosen_cores}); os.execv(sys.argv[1], sys.argv[1:])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, *command], stdout=pipe, stderr=pipe, text=True) as process:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready "):
                break
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
    return lines, errors


def test_a_directory_is_served_as_before_on_another_number_of_cores(tmp_path: Path) -> None:
    alone, several = tmp_path / "alone", tmp_path / "several"
    lines, errors = first_lines(alone, "--nodes", "auto")
    assert [line.split()[0] for line in lines] == ["power", "ready"]
    assert "--nodes auto: a standalone broker, since 1 core is available" in errors
    assert (alone / "meta.properties").exists()
    with nodes(several, 2) as running:
        assert running.stop() == 0
    lines, errors = first_lines(several, "--nodes", "auto")
    assert [line.split()[:2] for line in lines[1:3]] == [["node", "1"], ["node", "2"]]
    assert f"--nodes auto: {several} holds 2 nodes, which it keeps; 1 core is available" in errors


def test_each_core_gets_a_process(tmp_path: Path) -> None:
    cores = min(2, available_cores())
    lines, errors = first_lines(tmp_path / "data", "--nodes", "auto", "--log-json", cores=cores)
    assert len([line for line in lines if line.startswith("node ")]) == (cores if cores > 1 else 0)
    assert '"message": "--nodes auto: ' in errors
