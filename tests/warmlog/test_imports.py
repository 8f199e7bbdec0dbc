"""What importing warmlog costs: nothing that is not asked for."""

import subprocess
import sys

import pytest

import warmlog

LOADED = "import sys; print(*sorted(name for name in sys.modules if name.split('.')[0] in {}))"


def loaded(statement: str, *of: str) -> list[str]:
    code = f"{statement}; {LOADED.format(set(of))}"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_importing_warmlog_loads_nothing_else() -> None:
    heavy = ("anyio", "trio", "asyncio", "msgspec", "broker", "socket", "ssl", "warmlog", "protocol")
    assert loaded("import warmlog", *heavy) == ["protocol", "protocol.version", "warmlog"]


def test_the_client_loads_no_broker_and_no_event_loop_until_it_runs() -> None:
    assert not loaded("from warmlog import connect", "trio", "broker", "prometheus_client", "h11", "click")


def test_the_test_broker_does_not_load_the_client() -> None:
    assert not [name for name in loaded("import warmlog.testing", "warmlog", "anyio") if "client" in name]


@pytest.mark.parametrize("name", warmlog.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(warmlog, name) is not None
    assert name in dir(warmlog)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Producer"):
        warmlog.Producer  # noqa: B018
