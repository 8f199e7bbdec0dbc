"""What a broker of a cluster keeps in its data directories between starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.broker.clients import running
from tests.broker.cluster.conftest import open_store
from tests.broker.cluster.etcd_process import EtcdProcess
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.values import NO_EPOCH, Registration
from warmlog.broker.clustered import ClusterMember
from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER, read_clean_marker
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.replication.replicas import Replicas
from warmlog.broker.settings.loading import load_settings

Settings = Mapping[str, object]


@pytest.fixture
def data(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def settings(session_etcd: EtcdProcess, data: list[Path]) -> Settings:
    return {
        "node.id": 1,
        "log.dirs": ",".join(map(str, data)),
        "warmlog.cluster.etcd": session_etcd.url,
        "warmlog.cluster.id": uuid4().hex,
    }


async def started_and_stopped(data: list[Path], settings: Settings) -> Registration:
    """Return the broker's registration, as the store knows it afterwards."""
    async with running(data[0], settings):
        pass
    store = open_store(str(settings["warmlog.cluster.etcd"]), str(settings["warmlog.cluster.id"]))
    try:
        return ClusterImage(await store.range()).known[1]
    finally:
        store.close()


def closed_in(data: list[Path]) -> set[int | None]:
    return {read_clean_marker(Disk(), str(each / CLEAN_MARKER)) for each in data}


async def test_the_history_of_the_data_goes_on_after_a_clean_stop(data: list[Path], settings: Settings) -> None:
    first = await started_and_stopped(data, settings)
    second = await started_and_stopped(data, settings)
    assert second.epoch > first.epoch == first.since == second.since


async def test_each_directory_is_marked_with_the_latest_registration(data: list[Path], settings: Settings) -> None:
    for _ in range(2):
        registration = await started_and_stopped(data, settings)
        assert closed_in(data) == {registration.epoch}


@pytest.mark.parametrize("index", [0, 1])
async def test_another_history_begins_after_an_unclean_stop(index: int, data: list[Path], settings: Settings) -> None:
    first = await started_and_stopped(data, settings)
    (data[index] / CLEAN_MARKER).unlink()
    assert (await started_and_stopped(data, settings)).since > first.epoch


async def test_a_start_that_does_not_come_to_register_leaves_the_history_as_it_is(
    data: list[Path], settings: Settings
) -> None:
    registration = await started_and_stopped(data, settings)
    loaded = load_settings(assignments=[f"{name}={value}" for name, value in settings.items()])
    with DataDirectories.open(data, node_id=loaded.node_id, cluster_id=loaded.warmlog_cluster_id) as directories:
        directories.join({}, [])
        member = ClusterMember(loaded, directories, Metrics(), Disk())
        await member.load()
        assert member.closing_epoch() == registration.epoch
        member.close()
        (data[1] / CLEAN_MARKER).unlink()
    with DataDirectories.open(data, node_id=loaded.node_id, cluster_id=loaded.warmlog_cluster_id) as directories:
        directories.join({}, [])
        member = ClusterMember(loaded, directories, Metrics(), Disk())
        await member.load()
        assert member.closing_epoch() == NO_EPOCH
        member.close()


async def test_a_clean_stop_does_not_hide_a_replica_that_has_to_leave_the_isr(
    data: list[Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store did not answer before the broker stopped, say."""
    first = await started_and_stopped(data, settings)
    replicas: list[Replicas] = []
    made = Replicas.__init__

    def make(self: Replicas, *arguments: Any, **options: Any) -> None:
        replicas.append(self)
        made(self, *arguments, **options)

    monkeypatch.setattr(Replicas, "__init__", make)
    async with running(data[0], settings):
        replicas[0]._lost.add(("t", 0))
    assert closed_in(data) == {NO_EPOCH}
    assert (await started_and_stopped(data, settings)).since > first.since
