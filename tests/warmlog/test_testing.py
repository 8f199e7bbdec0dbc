import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from warmlog.broker.settings.types import SettingError
from warmlog.testing import Broker


def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


def test_loading_the_module_imports_neither_broker_nor_trio() -> None:
    """pytest loads the plugin in every run, also in those that never ask for a broker."""
    program = "import sys, warmlog.testing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "warmlog.testing" in loaded
    assert not loaded & {
        "warmlog.broker",
        "warmlog.broker.app",
        "warmlog.broker.settings.settings",
        "trio",
        "anyio",
        "msgspec",
        "msgpack",
        "click",
    }


def test_the_fixture_is_there_without_a_conftest(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin("warmlog")
    assert plugin is not None
    assert plugin.__name__ == "warmlog.testing"


def test_the_fixture_is_a_running_broker(warmlog_broker: Broker) -> None:
    assert accepts(warmlog_broker.kafka)
    assert accepts(warmlog_broker.native)
    with urllib.request.urlopen(f"http://{warmlog_broker.http}/readyz") as reply:
        assert reply.status == 200


def test_a_temporary_directory_is_gone_afterwards_and_the_ports_are_free() -> None:
    with Broker() as broker:
        directory, address = broker.data_dir, broker.native
        assert directory.is_dir()
    assert not directory.exists()
    assert not accepts(address)


def test_a_directory_of_the_users_own_stays(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path):
        pass
    assert (tmp_path / "meta.properties").is_file()


def test_two_brokers_live_side_by_side() -> None:
    with Broker() as one, Broker() as other:
        assert len({one.native, one.http, other.native, other.http}) == 4
        assert one.data_dir != other.data_dir


def test_a_restarted_broker_is_found_at_its_old_addresses() -> None:
    with Broker() as broker:
        before = (broker.native, broker.http, broker.data_dir)
        broker.restart()
        assert (broker.native, broker.http, broker.data_dir) == before
        assert accepts(broker.native)


def test_a_stopped_broker_has_no_addresses_and_stops_again_without_harm() -> None:
    with Broker() as broker:
        broker.stop()
        broker.stop()
        with pytest.raises(RuntimeError, match="not running"):
            _ = broker.native


def test_a_running_broker_is_not_started_twice() -> None:
    with Broker() as broker, pytest.raises(RuntimeError, match="is running"):
        broker.start()


def test_a_bad_setting_is_named_and_leaves_nothing_behind() -> None:
    broker = Broker(settings={"log.segment.bites": 1})
    with pytest.raises(SettingError, match=r"log\.segment\.bytes"):
        broker.start()
    broker.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="not been started"):
        _ = broker.data_dir


def test_a_directory_in_use_is_what_entering_raises(tmp_path: Path) -> None:
    from warmlog.broker.start_errors import StartError

    with Broker(data_dir=tmp_path), pytest.raises(StartError), Broker(data_dir=tmp_path):
        pass


def test_settings_are_those_of_the_command_line() -> None:
    with Broker(settings={"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        assert accepts(broker.native)


def test_a_broker_listens_where_it_is_told_to() -> None:
    with Broker() as broker:
        addresses = (broker.kafka, broker.native, broker.http)
    kafka, native, http = addresses
    with Broker(kafka=kafka, native=native, http=http) as broker:
        assert (broker.kafka, broker.native, broker.http) == addresses
        assert all(map(accepts, addresses))
