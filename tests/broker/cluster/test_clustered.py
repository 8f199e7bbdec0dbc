"""What a broker of a cluster keeps in its data directory between starts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.broker.clients import running
from tests.broker.cluster.etcd_process import EtcdProcess
from warmlog.broker.cluster.values import NO_EPOCH
from warmlog.broker.clustered import ClusterMember
from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import CLUSTER_STATE
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.replication.replicas import Replicas
from warmlog.broker.settings.settings import load_settings


@pytest.fixture
def settings(session_etcd: EtcdProcess) -> Mapping[str, object]:
    return {"node.id": 1, "warmlog.cluster.etcd": session_etcd.url, "warmlog.cluster.id": uuid4().hex}


def since(data: Path) -> int:
    return int(json.loads((data / CLUSTER_STATE).read_text())["since"])


async def started_and_stopped(data: Path, settings: Mapping[str, object]) -> int:
    async with running(data, settings):
        pass
    return since(data)


async def test_the_history_of_the_data_goes_on_after_a_clean_stop(
    tmp_path: Path, settings: Mapping[str, object]
) -> None:
    first = await started_and_stopped(tmp_path, settings)
    assert first != NO_EPOCH
    assert await started_and_stopped(tmp_path, settings) == first


async def test_another_history_begins_after_an_unclean_stop(tmp_path: Path, settings: Mapping[str, object]) -> None:
    first = await started_and_stopped(tmp_path, settings)
    (tmp_path / CLEAN_MARKER).unlink()
    assert await started_and_stopped(tmp_path, settings) > first


async def test_no_history_is_kept_from_the_opening_of_the_logs_to_the_registration(
    tmp_path: Path, settings: Mapping[str, object]
) -> None:
    await started_and_stopped(tmp_path, settings)
    loaded = load_settings(assignments=[f"{name}={value}" for name, value in settings.items()])
    with DataDirectories.open([tmp_path], node_id=loaded.node_id, cluster_id=loaded.warmlog_cluster_id) as directories:
        member = ClusterMember(loaded, directories, Metrics(), Disk())
        await member.load()
        member.close()
    assert since(tmp_path) == NO_EPOCH


async def test_a_clean_stop_does_not_hide_a_replica_that_has_to_leave_the_isr(
    tmp_path: Path, settings: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store did not answer before the broker stopped, say."""
    await started_and_stopped(tmp_path, settings)
    replicas: list[Replicas] = []
    made = Replicas.__init__

    def make(self: Replicas, *arguments: Any, **options: Any) -> None:
        replicas.append(self)
        made(self, *arguments, **options)

    monkeypatch.setattr(Replicas, "__init__", make)
    async with running(tmp_path, settings):
        replicas[0]._lost.add(("t", 0))
    assert since(tmp_path) == NO_EPOCH
