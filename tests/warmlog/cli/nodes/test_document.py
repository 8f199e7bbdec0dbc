"""The commands of docs/cluster.md about nodes, as they are there but for the ports."""

import os
import signal
from pathlib import Path

from tests.clients.waiting import until_ended
from tests.documents import command_directory, run_block, shell_blocks
from tests.warmlog.cli.nodes.running import LIMIT_S, nodes
from warmlog.cli.nodes.cores import available_cores

BLOCKS = shell_blocks("docs/cluster.md")


def test_one_address_serves_all_clients_of_the_document_while_nodes_are_killed(tmp_path: Path) -> None:
    serve, *options = BLOCKS["nodes"].split("warmlog ")[1].split()
    assert (serve, options) == ("serve", ["--nodes", "auto", "--data-dir", "data"])
    count = max(2, min(4, available_cores()))  # `auto` is tested with it
    with nodes(tmp_path / "data", count) as running:
        block = BLOCKS["one-address"]
        for name, port in (("kafka", 9092), ("native", 9091)):
            assert f"127.0.0.1:{port}" in block
            block = block.replace(f"127.0.0.1:{port}", running.shared[name])
        commands = command_directory(tmp_path)
        for number in range(1, count + 1):
            pid = running.node(number)
            os.kill(pid, signal.SIGKILL)
            until_ended(pid, limit_s=LIMIT_S)
            printed = run_block(block, commands, tmp_path, {})
            assert f"{1000 * number}\n" in printed
            assert "broker 1 at 127.0.0.1:" in printed or "broker 2 at 127.0.0.1:" in printed
        assert running.stop() == 0
