"""Classes loaded by name by ducktape and Kafka's tests: the cluster of machines, and the paths of the installation."""

import os
from pathlib import Path
from typing import Any

from kafkatest.directory_layout.kafka_path import KafkaSystemTestPathResolver

from ducktape.cluster.cluster_node import ClusterNode
from ducktape.cluster.localhost import LocalhostCluster
from ducktape.cluster.node_container import NodeContainer
from interop.ducktape import installation
from interop.ducktape.account import MachineAccount
from interop.ducktape.machines import start

MACHINES = 16


class MachineCluster(LocalhostCluster):
    """Machines in namespaces, which end with this process."""

    def __init__(self, **_: Any) -> None:
        super().__init__(num_nodes=0)
        machines = start(MACHINES, Path(os.environ[installation.DIRECTORY]) / "machines")
        self._available_nodes = NodeContainer([ClusterNode(MachineAccount(machine)) for machine in machines])


class PathResolver(KafkaSystemTestPathResolver):
    """Finds the installation that starts warmlog."""

    def home(self, *_: object, **__: object) -> str:
        """Return its directory, whatever the requested version."""
        return str(installation.home(Path(os.environ[installation.DIRECTORY])))
